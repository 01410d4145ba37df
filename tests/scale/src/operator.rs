//! The operator as a process, as the chart starts it, and what it uses.

use pawl_e2e::Scene;
use pawl_e2e::operator::{ACCOUNT, account, get};
use pawl_e2e::programs::built;
use rustix::param::clock_ticks_per_second;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The operator at work; it is killed when this is dropped.
pub struct Operator {
    child: Child,
    http: SocketAddr,
}

impl Operator {
    /// Starts it in the scene's namespace with the chart's defaults, and waits until it is ready.
    pub async fn start(scene: &Scene) -> Self {
        let http = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = File::create(scene.operator_log()).unwrap();
        let child = Command::new(built("pawl"))
            .args(["operator", "--namespace", &scene.namespace, "--lease-namespace", &scene.namespace])
            .args(["--listen", &http.to_string()])
            .env("KUBECONFIG", account(scene))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let operator = Self { child, http };
        let probe = format!("http://{http}/readyz");
        scene.until("the operator to be ready", Duration::from_secs(30), async || get(&probe).await).await;
        operator
    }

    /// Who it is in the audit log.
    pub fn user(scene: &Scene) -> String {
        format!("system:serviceaccount:{}:{ACCOUNT}", scene.namespace)
    }

    /// Processor time so far, user and system, seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        // The name of the program, in brackets, may hold blanks; utime and stime are the 14th and 15th field.
        let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name in brackets").1.split(' ').collect();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        ticks as f64 / clock_ticks_per_second() as f64
    }

    /// Most memory that was resident at once so far, MiB.
    pub fn peak_mebibytes(&self) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kibibytes / 1024.0
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("the operator runs")
    }

    /// How long reconciles took, as its own histogram says.
    pub async fn reconciles(&self) -> Reconciles {
        let text = get(&format!("http://{}/metrics", self.http)).await.expect("the operator serves metrics");
        Reconciles::read(&text)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
