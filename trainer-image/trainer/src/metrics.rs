//! Prometheus metrics that only the rank can measure. The agent exports those of `progress.json`.

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
    /// Creates all metrics, at zero.
    ///
    /// # Errors
    /// Never in practice: a metric's name is malformed or taken.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let buckets = prometheus::exponential_buckets(0.001, 2.0, 16)?;
        let metrics = Self {
            step_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "pawl_train_step_seconds",
                    "Duration of an optimizer step including data loading, in seconds.",
                )
                .buckets(buckets.clone()),
            )?,
            memory: GaugeVec::new(Opts::new("pawl_gpu_memory_bytes", "Device memory of rank 0."), &["kind"])?,
            utilization: Gauge::new(
                "pawl_train_utilization_ratio",
                "Fraction of time that the GPU is busy with training.",
            )?,
            flops: Gauge::new(
                "pawl_train_mfu_ratio",
                "Model FLOP utilization: fraction of the device's peak that the model's operations use.",
            )?,
            loader_wait: Counter::new(
                "pawl_loader_wait_seconds_total",
                "Time that steps waited for data, in seconds.",
            )?,
            collective: CounterVec::new(
                Opts::new("pawl_collective_seconds_total", "Time spent in collectives, in seconds."),
                &["exposed"],
            )?,
            checkpoint_seconds: Histogram::with_opts(
                HistogramOpts::new("pawl_checkpoint_seconds", "Duration of a checkpoint write in seconds.")
                    .buckets(buckets),
            )?,
            checkpoint_failures: Counter::new("pawl_checkpoint_failures_total", "Failed checkpoint writes.")?,
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

    /// Records a step.
    pub fn step(&self, time: StepTime) {
        self.step_seconds.observe(time.wall.as_secs_f64());
        self.loader_wait.inc_by(time.loader.as_secs_f64());
        self.collective.with_label_values(&["true"]).inc_by(time.collective.as_secs_f64());
    }

    /// Sets the predicted and peak device memory in bytes.
    pub fn memory(&self, predicted: usize, peak: usize) {
        self.memory.with_label_values(&["predicted"]).set(predicted as f64);
        self.memory.with_label_values(&["peak"]).set(peak as f64);
    }

    /// Sets the fraction of time that the device was busy with training so far, 0 to 1.
    pub fn utilization(&self, share: f64) {
        self.utilization.set(share);
    }

    /// Sets the recent model FLOP utilization, 0 to 1. The metric is absent until it is set, such as on a CPU.
    pub fn flops_utilization(&self, share: f64) {
        self.flops.set(share);
        // It is registered already on later calls.
        let _ = self.registry.register(Box::new(self.flops.clone()));
    }

    /// Records a checkpoint write or its failure.
    pub fn checkpoint(&self, took: Duration, written: bool) {
        if written {
            self.checkpoint_seconds.observe(took.as_secs_f64());
        } else {
            self.checkpoint_failures.inc();
        }
    }

    /// All metrics in Prometheus' text format.
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
