//! Medians, spreads, ratios.

use std::collections::BTreeMap;

use pawl_lower::KernelTime;
use serde_json::json;

use crate::{Rounds, cases::Case};

/// Measurements of one arm.
pub struct Arm {
    /// Its name.
    pub name: &'static str,
    /// Seconds per step, one for each round.
    pub seconds: Vec<f64>,
}

impl Arm {
    /// An arm without measurements.
    pub fn new(name: &'static str) -> Self {
        Self { name, seconds: Vec::new() }
    }
}

/// Median, least and most.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    (sorted[last / 2].midpoint(sorted[last.div_ceil(2)]), sorted[0], sorted[last])
}

/// Prints the arms, and each one's time as a multiple of the graph executor's in the same round.
pub fn print(case: &Case, rounds: &Rounds, arms: &[Arm]) {
    let graph = &arms[0].seconds;
    let mut rows = Vec::new();
    for arm in arms {
        let (median, least, most) = spread(&arm.seconds);
        let ratios: Vec<f64> = arm.seconds.iter().zip(graph).map(|(a, g)| a / g).collect();
        let (ratio, lower, upper) = spread(&ratios);
        rows.push(json!({
            "arm": arm.name,
            "step_ms": {"median": median * 1e3, "min": least * 1e3, "max": most * 1e3},
            "speedup_of_graph": {"median": ratio, "min": lower, "max": upper},
        }));
        if !rounds.json {
            println!(
                "{:<6} {:>9.2} ms a step ({:.2} to {:.2})   graph is {ratio:.2}x as fast ({lower:.2} to {upper:.2})",
                arm.name,
                median * 1e3,
                least * 1e3,
                most * 1e3
            );
        }
    }
    if rounds.json {
        let timing = json!({"threads": rounds.threads, "rounds": rounds.rounds, "cpuTime": rounds.cpu_time});
        println!("{}", json!({"bench": case.name, "shape": case.shape, "timing": timing, "arms": rows}));
    }
}

/// Prints the kernels by time: kinds, then the first of them all.
pub fn profile(times: &[KernelTime]) {
    let total: f64 = times.iter().map(|t| t.seconds).sum();
    let mut kinds: BTreeMap<&str, (f64, u64, u64)> = BTreeMap::new();
    for time in times {
        let kind = kinds.entry(time.kind).or_default();
        *kind = (kind.0 + time.seconds, kind.1 + time.flops * time.runs, kind.2 + time.bytes as u64 * time.runs);
    }
    for (kind, (seconds, flops, bytes)) in kinds {
        eprintln!(
            "{kind:<16} {:>5.1} %  {:>7.2} GFLOP/s {:>7.2} GB/s",
            100.0 * seconds / total,
            flops as f64 / seconds / 1e9,
            bytes as f64 / seconds / 1e9
        );
    }
    let mut sorted: Vec<&KernelTime> = times.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    for time in sorted.iter().take(40) {
        let each = time.seconds / time.runs.max(1) as f64;
        eprintln!(
            "{:>5} {:<14} {:>9.1} us {:>5.1} %  {:>7.2} GFLOP/s {:>7.2} GB/s  {}",
            time.kernel,
            time.kind,
            each * 1e6,
            100.0 * time.seconds / total,
            time.flops as f64 / each / 1e9,
            time.bytes as f64 / each / 1e9,
            time.scope
        );
    }
}
