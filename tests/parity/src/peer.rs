//! The peer's arm: its own program, tuned as well as it can be.

use crate::ours::Round;
use crate::{ComparisonOptions, Experiment, Repetition, atft, forex, slm};
use anyhow::{Context, bail};
use serde_json::{Map, Value};
use std::path::Path;
use std::process::Command;

/// Runs the peer; with `export`, it writes weights, data, order and losses there first.
///
/// # Errors
/// When the peer does not start, fails, or prints no report, or its losses cannot be read.
pub fn round(comparison: &ComparisonOptions, repetition: &Repetition, export: Option<&Path>) -> anyhow::Result<Round> {
    let Repetition { experiment, seed, validates } = repetition;
    let mut command = Command::new(&comparison.python);
    match experiment {
        Experiment::Ups(experiment) => {
            command.arg(&comparison.peer).args(experiment.peer_arguments(*validates));
            if let Some(folder) = export {
                command.arg("--export").arg(folder);
            }
        }
        Experiment::Slm(experiment) => {
            if let Some(folder) = export {
                let exporting = folder.join("slm_peer.py");
                std::fs::write(&exporting, slm::EXPORTING).with_context(|| exporting.display().to_string())?;
                command.arg(exporting).arg(&comparison.peer).arg(folder);
            } else {
                command.arg(&comparison.peer);
            }
            command.args(experiment.peer_arguments()?);
        }
        Experiment::VisionBdh(experiment) => {
            command.arg(&comparison.peer).args(experiment.peer_arguments());
            if let Some(folder) = export {
                command.arg("--export").arg(folder);
            }
        }
        Experiment::Forex(experiment) => {
            with_program(&mut command, comparison, ("forex_peer.py", forex::PEER), export)?;
            command.args(experiment.peer_arguments());
        }
        Experiment::Atft(experiment) => {
            with_program(&mut command, comparison, ("atft_peer.py", atft::PEER), export)?;
            command.args(experiment.peer_arguments());
        }
    }
    command.arg("--seed").arg(seed.to_string()).args(&comparison.more);
    let output = command.output().with_context(|| format!("cannot start {}", comparison.python.display()))?;
    if !output.status.success() {
        bail!("the peer failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let report = report(&text).context("the peer printed no JSON")?;
    let losses = export.map(|folder| losses(&folder.join("losses.json"))).transpose()?.unwrap_or_default();
    let bytes = |name: &str, power: u32| report[name].as_f64().map(|size| size * f64::from(1 << power));
    Ok(Round {
        items_per_second: report["samples_per_s"].as_f64().context("the peer's report has no samples_per_s")?,
        losses,
        peak_bytes: bytes("peak_gpu_mem_mib", 20).or(bytes("peak_mem_gib", 30)),
        predicted_bytes: None,
        first_step_seconds: None,
        validation: if *validates { held_out(&report) } else { None },
        forecasts_per_second: report["forecasts_per_s"].as_f64(),
    })
}

/// Runs the peer by a program of ours, which is written to the directory of the export first.
fn with_program(
    command: &mut Command,
    comparison: &ComparisonOptions,
    (name, text): (&str, &str),
    export: Option<&Path>,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(&comparison.work).with_context(|| comparison.work.display().to_string())?;
    let program = comparison.work.join(name);
    std::fs::write(&program, text).with_context(|| program.display().to_string())?;
    command.arg(program).arg(&comparison.peer);
    if let Some(folder) = export {
        command.arg("--export").arg(folder);
    }
    Ok(())
}

/// What the lines of JSON report, of which later ones take precedence.
fn report(output: &str) -> Option<Value> {
    let objects = output.lines().filter_map(|line| serde_json::from_str::<Map<String, Value>>(line).ok());
    objects.reduce(|all, more| all.into_iter().chain(more).collect()).map(Value::Object)
}

/// The peer's result on held-out data, under the name that it has for its workload.
fn held_out(report: &Value) -> Option<f64> {
    let names = [&report["eval"]["nrmse"], &report["val_loss"], &report["heldout_accuracy"]];
    names.into_iter().find_map(Value::as_f64)
}

fn losses(path: &Path) -> anyhow::Result<Vec<f64>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let losses: Value = serde_json::from_str(&text)?;
    // UPS writes more than the losses.
    let list = if losses.is_array() { losses } else { losses["loss"].clone() };
    Ok(serde_json::from_value(list)?)
}
