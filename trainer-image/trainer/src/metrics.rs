//! What a rank counts for Prometheus: what nobody else can know. What `progress.json` says, the agent says.

use crate::throughput::StepTime;
use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, Opts, Registry, TextEncoder};
use std::time::Duration;

/// The metrics of a launch.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    step_seconds: Histogram,
    memory: GaugeVec,
    utilization: Gauge,
    flops: Gauge,
    loader_wait: Counter,
    collective: CounterVec,
    checkpoint_seconds: Histogram,
    checkpoint_failures: Counter,
}

impl Metrics {
    /// All metrics, at zero.
    ///
    /// # Errors
    /// Never in practice: a metric's name is malformed or taken.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let buckets = prometheus::exponential_buckets(0.001, 2.0, 16)?;
        let metrics = Self {
            step_seconds: Histogram::with_opts(
                HistogramOpts::new("pawl_train_step_seconds", "Seconds per optimizer step, data loading included.")
                    .buckets(buckets.clone()),
            )?,
            memory: GaugeVec::new(Opts::new("pawl_gpu_memory_bytes", "Device memory of rank 0."), &["kind"])?,
            utilization: Gauge::new("pawl_train_utilization_ratio", "Share of the device's time that training used.")?,
            flops: Gauge::new(
                "pawl_train_mfu_ratio",
                "Share of the device's peak arithmetic that the model's own operations used.",
            )?,
            loader_wait: Counter::new("pawl_loader_wait_seconds_total", "Seconds that steps waited for data.")?,
            collective: CounterVec::new(
                Opts::new("pawl_collective_seconds_total", "Seconds in collectives."),
                &["exposed"],
            )?,
            checkpoint_seconds: Histogram::with_opts(
                HistogramOpts::new("pawl_checkpoint_seconds", "Seconds to write a checkpoint.").buckets(buckets),
            )?,
            checkpoint_failures: Counter::new("pawl_checkpoint_failures_total", "Checkpoints that were not written.")?,
            registry,
        };
        let all: [Box<dyn prometheus::core::Collector>; 7] = [
            Box::new(metrics.step_seconds.clone()),
            Box::new(metrics.memory.clone()),
            Box::new(metrics.utilization.clone()),
            Box::new(metrics.loader_wait.clone()),
            Box::new(metrics.collective.clone()),
            Box::new(metrics.checkpoint_seconds.clone()),
            Box::new(metrics.checkpoint_failures.clone()),
        ];
        all.into_iter().try_for_each(|collector| metrics.registry.register(collector))?;
        Ok(metrics)
    }

    /// A step is done.
    pub fn step(&self, time: StepTime) {
        self.step_seconds.observe(time.wall.as_secs_f64());
        self.loader_wait.inc_by(time.loader.as_secs_f64());
        self.collective.with_label_values(&["true"]).inc_by(time.collective.as_secs_f64());
    }

    /// Bytes of device memory.
    pub fn memory(&self, predicted: usize, peak: usize) {
        self.memory.with_label_values(&["predicted"]).set(predicted as f64);
        self.memory.with_label_values(&["peak"]).set(peak as f64);
    }

    /// Share of the device's time that training used so far, 0 to 1.
    pub fn utilization(&self, share: f64) {
        self.utilization.set(share);
    }

    /// Share of the device's peak arithmetic that training used lately, 0 to 1. Where it is never told, as on a CPU, there is no such metric.
    pub fn flops_utilization(&self, share: f64) {
        self.flops.set(share);
        // The second time it is there already.
        let _ = self.registry.register(Box::new(self.flops.clone()));
    }

    /// A checkpoint was written, or was not.
    pub fn checkpoint(&self, took: Duration, written: bool) {
        if written {
            self.checkpoint_seconds.observe(took.as_secs_f64());
        } else {
            self.checkpoint_failures.inc();
        }
    }

    /// All of it, in Prometheus' text form.
    ///
    /// # Errors
    /// Never in practice: a metric cannot be written.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_known_peak_has_no_utilisation_of_it() {
        let metrics = Metrics::new().unwrap();
        assert!(!metrics.text().unwrap().contains("pawl_train_mfu_ratio"));
        metrics.flops_utilization(0.4);
        metrics.flops_utilization(0.5);
        assert!(metrics.text().unwrap().contains("pawl_train_mfu_ratio 0.5\n"));
    }
}
