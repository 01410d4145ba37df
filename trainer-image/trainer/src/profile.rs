//! Profiles a step: times each kernel of a plan on real data.

use crate::device::{Place, RankDevice};
use crate::ending::Ending;
use crate::executors;
use crate::launch::{data_directory, kernel_cache, read_plan};
use crate::rank::{Prepared, prepare};
use crate::workload::ending;
use pawl_contract::plan::LaunchPlan;
use pawl_cpu::GraphCpu;
use pawl_graph::array::{Array, View};
use pawl_graph::executor::{ExecOptions, Executable};
use pawl_graph::graph::Program;
use pawl_lower::KernelTime;
use pawl_workloads::{At, Batch};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Times the micro-step of the plan in the file at `path`, kernel by kernel, over `rounds` runs on `PAWL_DEVICE`, and
/// returns a table: the kinds of kernels, then the `kernels` slowest ones.
///
/// # Errors
/// When the plan is rejected, or the device or the data fail.
pub fn plan_file(path: &Path, rounds: usize, kernels: usize) -> Result<String, Ending> {
    let plan = read_plan(path)?;
    let place = Place::from_env()?;
    let Prepared { job, lineup, .. } = prepare(&plan, place, 0, 1)?;
    let data = job
        .open(&data_directory(), &|phase, done, total| tracing::info!(done, total, "data: {phase}"))
        .map_err(ending)?;
    let mut batch = Batch::default();
    data.train(At { items: 0, micro: 0 }, &mut batch).map_err(ending)?;
    let program = lineup.micro_program(batch.program);
    let rate = Array::scalar(job.optimization().learning_rate as f32);
    let mut inputs: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
    inputs.extend((program.inputs.len() > inputs.len()).then(|| rate.view()));
    let times = times(&plan, place, program, (&inputs, &data.resident().map_err(ending)?), rounds.max(1))?;
    Ok(table(&times, kernels))
}

fn times(
    plan: &LaunchPlan,
    place: Place,
    program: &Program,
    (inputs, resident): (&[View<'_>], &[(String, Array)]),
    rounds: usize,
) -> Result<Vec<KernelTime>, Ending> {
    let options = ExecOptions { seed: plan.seed, ..ExecOptions::default() };
    let programs = std::slice::from_ref(program);
    match RankDevice::open(place, &kernel_cache(&data_directory()))? {
        RankDevice::Cpu => {
            let executor = executors::fused_on_cpu(&plan.settings).ok_or_else(|| {
                Ending::Unsupported(
                    "settings.compile: None runs library calls on the CPU, not kernels: profile Fuse or Graph"
                        .to_owned(),
                )
            })?;
            let mut executable = GraphCpu { timed: true, ..executor }.build(programs, &options)?;
            resident.iter().try_for_each(|(name, array)| executable.write_state(name, array))?;
            (0..rounds).try_for_each(|_| executable.run(0, inputs))?;
            Ok(executable.profile())
        }
        #[cfg(feature = "cuda")]
        RankDevice::Cuda(gpu) => {
            let mut executable = gpu.executor(&plan.settings).build(programs, &options)?;
            resident.iter().try_for_each(|(name, array)| executable.write_state(name, array))?;
            Ok(executable.profile(0, inputs, rounds)?)
        }
        #[cfg(feature = "candle-cuda")]
        RankDevice::Candle(_) => Err(Ending::Unsupported(
            "this trainer is built with Candle's kernels (candle-cuda), which it cannot profile: use a trainer with cuda".to_owned(),
        )),
    }
}

/// Time, share, memory traffic and arithmetic, by kind and by kernel.
fn table(times: &[KernelTime], kernels: usize) -> String {
    let total: f64 = times.iter().map(each).sum();
    let mut kinds: BTreeMap<&str, (f64, usize, f64, f64)> = BTreeMap::new();
    for time in times {
        let (seconds, count, bytes, flops) = kinds.entry(time.kind).or_default();
        *seconds += each(time);
        *count += 1;
        *bytes += time.bytes as f64;
        *flops += time.flops as f64;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let mut text = format!("{:>10} {:>6} {:>8} {:>8}  kernel\n", "ms", "share", "GB/s", "TFLOP/s");
    let mut line = |seconds: f64, bytes: f64, flops: f64, name: &str| {
        let share = 100.0 * seconds / total.max(f64::MIN_POSITIVE);
        let (bandwidth, speed) = (bytes / seconds.max(1e-12) / 1e9, flops / seconds.max(1e-12) / 1e12);
        let _ = writeln!(text, "{:>10.4} {share:>5.1}% {bandwidth:>8.0} {speed:>8.2}  {name}", 1e3 * seconds);
    };
    for (kind, (seconds, count, bytes, flops)) in kinds {
        line(seconds, bytes, flops, &format!("{kind} x {count}"));
    }
    line(total, times.iter().map(|t| t.bytes as f64).sum(), times.iter().map(|t| t.flops as f64).sum(), "all");
    let mut longest: Vec<&KernelTime> = times.iter().collect();
    longest.sort_by(|a, b| each(b).total_cmp(&each(a)));
    for time in longest.into_iter().take(kernels) {
        let name = format!("{}/{} {} {}", time.program, time.kernel, time.kind, time.scope);
        line(each(time), time.bytes as f64, time.flops as f64, &name);
    }
    text
}

/// Seconds of one run.
fn each(time: &KernelTime) -> f64 {
    time.seconds / time.runs.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_kernels_come_first_and_shares_add_up() {
        let time = |kernel, kind, seconds| KernelTime {
            program: "step".into(),
            kernel,
            kind,
            scope: format!("blocks.{kernel}"),
            runs: 2,
            seconds,
            bytes: 1_000_000,
            flops: 2_000_000,
        };
        let table = table(&[time(0, "fused", 0.002), time(1, "matmul", 0.012), time(2, "fused", 0.006)], 2);
        let lines: Vec<&str> = table.lines().collect();
        let ends = ["kernel", "matmul x 1", "fused x 2", "all", "step/1 matmul blocks.1", "step/2 fused blocks.2"];
        assert!(lines.len() == ends.len() && lines.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{table}");
        assert!(lines[1].contains("6.0000  60.0%") && lines[2].contains("4.0000  40.0%"), "one run of two: {table}");
        assert!(lines[3].contains("10.0000 100.0%"), "{table}");
    }
}
