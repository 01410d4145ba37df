//! The peer's arm: its own program, tuned as well as it can be.

use crate::ours::Round;
use crate::{Shape, Ups};
use anyhow::{Context, bail};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs the peer; with `export`, it writes weights, data, plan and losses there first.
pub fn round(args: &Ups, export: Option<&Path>) -> anyhow::Result<Round> {
    let Shape { preset, items, pairs, accumulation, steps, warmup, precision, recompute, device } = &args.shape;
    let number = |n: &usize| n.to_string();
    let mut command = Command::new(&args.python);
    command.arg(&args.peer).args(["--mode", "optimised", "--recipe", "2gpu", "--inverse", "off", "--no-eval"]);
    command.args(["--drop-path", "0", "--preset", preset, "--items", &number(items), "--pairs", &number(pairs)]);
    command.args(["--accum", &number(accumulation), "--steps", &number(steps), "--warmup", &number(warmup)]);
    command.args(precision.of_peer()).args([if *recompute { "--ckpt" } else { "--no-ckpt" }, "--device", device]);
    if let Some(folder) = export {
        command.arg("--export").arg(folder);
    }
    command.args(&args.more);
    let output = command.output().with_context(|| format!("cannot start {}", args.python.display()))?;
    if !output.status.success() {
        bail!("the peer failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value =
        text.lines().rev().find_map(|line| serde_json::from_str(line).ok()).context("the peer printed no JSON")?;
    let losses = match export {
        Some(folder) => {
            let path = folder.join("losses.json");
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let losses: Value = serde_json::from_str(&text)?;
            serde_json::from_value(losses["loss"].clone())?
        }
        None => Vec::new(),
    };
    Ok(Round {
        items_per_second: report["samples_per_s"].as_f64().context("the peer's report has no samples_per_s")?,
        losses,
        peak_bytes: report["peak_gpu_mem_mib"].as_f64().map(|mebibytes| mebibytes * f64::from(1 << 20)),
        predicted_bytes: None,
        first_step_seconds: None,
    })
}
