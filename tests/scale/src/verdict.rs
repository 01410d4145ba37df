//! What was measured, and the limits.

use crate::fleet::{Pawl, Raw};
use crate::idle::{Idle, Recovery};
use serde::{Deserialize, Serialize};

/// What one run measured.
#[derive(Serialize, Deserialize)]
pub enum Measured {
    /// Many gangs as plain batch Jobs.
    Raw(Raw),
    /// Many gangs as `TrainingJob`s.
    Pawl(Pawl),
    /// One gang at a time.
    Idle(Idle),
}

/// Longest time until all pods are there, of the time of plain batch Jobs, and most memory, MiB, for so many jobs.
const FLEETS: [(usize, f64, f64); 2] = [(300, 1.25, 60.0), (1000, 1.5, 100.0)];
/// Most writes of the operator for a job of one attempt: its status twice, its batch Job twice, an event. One in ten
/// jobs may need another one; a Secret with tokens, for 32 gangs, is one of these.
const WRITES: f64 = 5.1;
/// Most processor time of the operator for a job, milliseconds.
const CPU: f64 = 8.0;
/// Most processor time of the operator, of that of the kube-controller-manager for the same jobs.
const CPU_SHARE: f64 = 0.4;
/// Longest time from the post of a job to its pods, milliseconds.
const START: f64 = 70.0;
/// Longest time from a pod that was hurt to a whole new gang, without the pods' own stopping time, milliseconds.
const RECOVERY: f64 = 300.0;
/// Longest time of 99 % of the reconciles, milliseconds.
const RECONCILE: f64 = 100.0;

/// Counts what holds and what does not.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn at_most(&mut self, what: &str, value: f64, limit: f64, unit: &str) {
        let holds = value <= limit;
        *if holds { &mut self.passed } else { &mut self.failed } += 1;
        println!("{} {what}: {value:.2} {unit} (at most {limit})", if holds { "ok    " } else { "FAILED" });
    }
}

/// Prints all figures and verdicts. Returns whether all holds.
pub fn judge(all: &[Measured]) -> bool {
    let mut tally = Tally::default();
    for measured in all {
        if let Measured::Idle(idle) = measured {
            judge_idle(&mut tally, idle);
        }
    }
    for (jobs, ratio, memory) in FLEETS {
        judge_fleet(&mut tally, all, jobs, ratio, memory);
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    tally.failed == 0
}

fn judge_idle(tally: &mut Tally, idle: &Idle) {
    let list = |all: &[f64]| all.iter().map(|ms| format!("{ms:.0}")).collect::<Vec<_>>().join(" ");
    println!("== one job on an idle cluster, ms to its pods");
    println!("       plain Jobs:   {}", list(&idle.raw_milliseconds));
    println!("       TrainingJobs: {}", list(&idle.pawl_milliseconds));
    println!("       median of plain Jobs: {:.0} ms", median(&idle.raw_milliseconds));
    tally.at_most("from creation to running pods (median)", median(&idle.pawl_milliseconds), START, "ms");
    println!("== recovery from a failed pod, ms since the failure");
    for (how, all) in [("deleted", &idle.deleted), ("killed", &idle.killed)] {
        for it in all {
            println!(
                "       {how}: other pods signalled {:.0}, ended {:.0}, deleted {:.0}; new gang complete {:.0}; stopping time {:.0}",
                it.told, it.ended, it.gone, it.whole, it.stopping
            );
        }
        let own: Vec<f64> = all.iter().map(Recovery::own).collect();
        tally.at_most(
            &format!("old gang ended and new one whole, less stopping, pod {how} (worst)"),
            worst(&own),
            RECOVERY,
            "ms",
        );
    }
    tally.at_most("99 % of the reconciles", idle.p99_seconds * 1000.0, RECONCILE, "ms");
}

fn judge_fleet(tally: &mut Tally, all: &[Measured], jobs: usize, ratio: f64, memory: f64) {
    let raw: Vec<&Raw> =
        all.iter().filter_map(|one| if let Measured::Raw(raw) = one { Some(raw) } else { None }).collect();
    let pawl: Vec<&Pawl> =
        all.iter().filter_map(|one| if let Measured::Pawl(pawl) = one { Some(pawl) } else { None }).collect();
    let raw: Vec<&&Raw> = raw.iter().filter(|raw| raw.jobs == jobs).collect();
    let pawl: Vec<&&Pawl> = pawl.iter().filter(|pawl| pawl.jobs == jobs).collect();
    if raw.is_empty() && pawl.is_empty() {
        return;
    }
    println!("== {jobs} jobs of 8 pods");
    for raw in &raw {
        println!("       plain Jobs: all pods in {:.1} s (posted in {:.1} s)", raw.pods_seconds, raw.posts_seconds);
    }
    for it in &pawl {
        println!(
            "       TrainingJobs: all pods in {:.1} s (posted in {:.1} s); all ended {:.1} s after their trainers began to",
            it.pods_seconds, it.posts_seconds, it.end_seconds
        );
        let writes = it.writes.iter().map(|(what, count)| format!("{what} {count}"));
        println!("       writes: {}", writes.collect::<Vec<_>>().join(", "));
        println!(
            "       processor time: {:.2} s until all ran, {:.2} s in all ({:.1} ms a job), {:.2} s of the kube-controller-manager",
            it.cpu_running_seconds,
            it.cpu_seconds,
            it.cpu_seconds * 1000.0 / jobs as f64,
            it.manager_cpu_seconds
        );
        println!(
            "       {} reconciles: p99 {:.0} ms, {:.0} ms until all ran; p99 of a write in the API server {:.0} ms",
            it.reconciles,
            it.p99_seconds * 1000.0,
            it.p99_running_seconds * 1000.0,
            it.write_p99_seconds * 1000.0
        );
    }
    let mean = |all: Vec<f64>| all.iter().sum::<f64>() / all.len() as f64;
    let of = |value: fn(&Pawl) -> f64| pawl.iter().map(|it| value(it)).collect::<Vec<f64>>();
    if !raw.is_empty() && !pawl.is_empty() {
        let floor = mean(raw.iter().map(|raw| raw.pods_seconds).collect());
        tally.at_most("all pods, of the time of plain Jobs", mean(of(|it| it.pods_seconds)) / floor, ratio, "x");
    }
    if pawl.is_empty() {
        return;
    }
    let a_job = jobs as f64;
    let writes = of(|it| it.writes.values().sum::<usize>() as f64);
    tally.at_most("writes for a job", worst(&writes) / a_job, WRITES, "");
    tally.at_most("processor time for a job", worst(&of(|it| it.cpu_seconds)) * 1000.0 / a_job, CPU, "ms");
    let share = of(|it| it.cpu_seconds / it.manager_cpu_seconds);
    tally.at_most("processor time, of that of the kube-controller-manager", worst(&share), CPU_SHARE, "x");
    tally.at_most("memory", worst(&of(|it| it.peak_mebibytes)), memory, "MiB");
    tally.at_most("99 % of the reconciles", worst(&of(|it| it.p99_seconds)) * 1000.0, RECONCILE, "ms");
}

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
}

fn worst(all: &[f64]) -> f64 {
    all.iter().copied().fold(0.0, f64::max)
}
