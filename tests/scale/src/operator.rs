//! What the operator uses.

use pawl_e2e::{Operator, Scene};
use rustix::param::clock_ticks_per_second;
use std::path::Path;

/// The operator at work, as the chart starts it.
pub struct Metered(Operator);

impl Metered {
    /// Starts it in the scene's namespace, and waits until it is ready.
    pub async fn start(scene: &Scene) -> Self {
        Self(Operator::as_installed(scene).await)
    }

    /// Processor time so far, user and system, seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&self.proc("stat"))
    }

    /// Most memory that was resident at once so far, MiB.
    pub fn peak_mebibytes(&self) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kibibytes / 1024.0
    }

    fn proc(&self, file: &str) -> String {
        let process = self.0.process().as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{process}/{file}")).expect("the operator runs")
    }

    /// How long reconciles took, as its own histogram says.
    pub async fn reconciles(&self) -> Reconciles {
        Reconciles::read(&self.0.metrics().await)
    }
}

/// Processor time so far of the kube-controller-manager of the cluster, seconds. It watches the same pods and batch
/// Jobs as the operator, and makes the pods.
pub fn manager_cpu_seconds() -> f64 {
    let state =
        std::env::var_os("PAWL_CLUSTER_STATE").expect("PAWL_CLUSTER_STATE: run this through tests/cluster/with");
    let process = std::fs::read_to_string(Path::new(&state).join("pid/kube-controller-manager")).unwrap();
    cpu_seconds(&std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap())
}

/// Processor time of a process, of whose file `stat` this is the text, user and system, seconds.
fn cpu_seconds(stat: &str) -> f64 {
    // The name of the program, in brackets, may hold blanks; utime and stime are the 14th and 15th field.
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name in brackets").1.split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / clock_ticks_per_second() as f64
}

/// A histogram of the time of reconciles: upper bounds in seconds, and how many took no longer.
pub struct Reconciles {
    buckets: Vec<(f64, f64)>,
}

impl Reconciles {
    fn read(metrics: &str) -> Self {
        let lines =
            metrics.lines().filter_map(|line| line.strip_prefix("pawl_reconcile_duration_seconds_bucket{le=\""));
        let buckets = lines.filter_map(|line| {
            let (bound, count) = line.split_once("\"} ")?;
            Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
        });
        let buckets: Vec<_> = buckets.collect();
        assert!(!buckets.is_empty(), "the operator tells how long reconciles take");
        Self { buckets }
    }

    /// How many there were.
    pub fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// A quantile in seconds, as Prometheus' `histogram_quantile` works it out.
    pub fn quantile(&self, quantile: f64) -> f64 {
        let rank = quantile * self.count();
        let mut below = (0.0, 0.0);
        for &(bound, count) in &self.buckets {
            if count >= rank && count > below.1 {
                return if bound.is_finite() {
                    below.0 + (bound - below.0) * (rank - below.1) / (count - below.1)
                } else {
                    below.0
                };
            }
            below = (bound, count);
        }
        0.0
    }
}
