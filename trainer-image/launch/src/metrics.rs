//! Prometheus metrics that only the rank can measure. The agent exports those of `progress.json`.

use crate::gpu_reading::GpuReading;
use crate::straggler::{RankTime, Seat};
use crate::throughput::StepTime;
use pawl_contract::details::MemoryByKind;
use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, Opts, Registry, TextEncoder};
use std::time::Duration;

/// What the drivers of the gang's GPUs report. Labels are the rank and the UUID of its GPU.
#[derive(Clone, Debug)]
struct GpuMetrics {
    clock: GaugeVec,
    temperature: GaugeVec,
    power: GaugeVec,
    throttled: GaugeVec,
    xid: GaugeVec,
}

impl GpuMetrics {
    fn new() -> prometheus::Result<Self> {
        let family = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        Ok(Self {
            clock: family(
                "pawl_gpu_sm_clock_hertz",
                "Clock of the multiprocessors of the GPU of a rank.",
                &["rank", "gpu"],
            )?,
            temperature: family("pawl_gpu_temperature_celsius", "Temperature of the GPU of a rank.", &["rank", "gpu"])?,
            power: family("pawl_gpu_power_watts", "Power draw of the GPU of a rank.", &["rank", "gpu"])?,
            throttled: family(
                "pawl_gpu_throttled",
                "1 while the driver lowers the clocks of the GPU of a rank for this reason.",
                &["rank", "gpu", "reason"],
            )?,
            xid: family(
                "pawl_gpu_xid",
                "Number of the newest Xid error of the GPU of a rank in this launch.",
                &["rank", "gpu"],
            )?,
        })
    }

    fn families(&self) -> [&GaugeVec; 5] {
        [&self.clock, &self.temperature, &self.power, &self.throttled, &self.xid]
    }

    fn set(&self, rank: &str, gpu: &str, reading: GpuReading) {
        let of_gpu = &[rank, gpu];
        self.clock.with_label_values(of_gpu).set(f64::from(reading.sm_clock) * 1e6);
        self.temperature.with_label_values(of_gpu).set(f64::from(reading.temperature));
        self.power.with_label_values(of_gpu).set(f64::from(reading.power) / 1e3);
        for (reason, holds) in reading.reasons() {
            self.throttled.with_label_values(&[rank, gpu, reason]).set(f64::from(u8::from(holds)));
        }
        if reading.xid != 0 {
            self.xid.with_label_values(of_gpu).set(f64::from(reading.xid));
        }
    }
}

/// A histogram of seconds, from a millisecond to half a minute.
fn durations(name: &str, help: &str) -> prometheus::Result<Histogram> {
    let buckets = prometheus::exponential_buckets(0.001, 2.0, 16)?;
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))
}

/// Counters that differ by the values of labels.
fn counters(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<CounterVec> {
    CounterVec::new(Opts::new(name, help), labels)
}

/// The metrics of a launch.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    step_seconds: Histogram,
    memory: GaugeVec,
    memory_by_kind: GaugeVec,
    compile_seconds: Gauge,
    epoch_seconds: Gauge,
    utilization: Gauge,
    flops: Gauge,
    gradient_norm: Gauge,
    learning_rate: Gauge,
    float8: Float8Metrics,
    skipped_updates: Counter,
    loader_wait: Counter,
    collective: CounterVec,
    rank_busy: CounterVec,
    gpus: GpuMetrics,
    checkpoint_seconds: Histogram,
    checkpoint_failures: Counter,
}

/// Numbers out of the range of 8-bit floats.
#[derive(Clone, Debug)]
struct Float8Metrics {
    overflow: Gauge,
    underflow: Gauge,
}

impl Float8Metrics {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            overflow: Gauge::new(
                "pawl_train_float8_overflow_ratio",
                "Fraction of the numbers rounded to 8-bit floats that were clipped, in one micro-step.",
            )?,
            underflow: Gauge::new(
                "pawl_train_float8_underflow_ratio",
                "Fraction of the numbers rounded to 8-bit floats that were not zero and became zero, in one micro-step.",
            )?,
        })
    }
}

impl Metrics {
    /// Creates all metrics, at zero.
    ///
    /// # Errors
    /// Never in practice: a metric's name is malformed or taken.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let metrics = Self {
            step_seconds: durations(
                "pawl_train_step_seconds",
                "Duration of an optimizer step including data loading, in seconds.",
            )?,
            memory: GaugeVec::new(Opts::new("pawl_gpu_memory_bytes", "Device memory of rank 0."), &["kind"])?,
            memory_by_kind: GaugeVec::new(
                Opts::new("pawl_train_memory_bytes", "Planned memory of rank 0 by kind, in bytes."),
                &["kind"],
            )?,
            compile_seconds: Gauge::new(
                "pawl_train_compile_seconds",
                "Time to compile the programs of the launch, in seconds.",
            )?,
            epoch_seconds: Gauge::new(
                "pawl_train_epoch_seconds",
                "Duration of the newest complete epoch with its evaluations and checkpoints, in seconds.",
            )?,
            utilization: Gauge::new(
                "pawl_train_utilization_ratio",
                "Fraction of time that the GPU is busy with training.",
            )?,
            flops: Gauge::new(
                "pawl_train_mfu_ratio",
                "Model FLOP utilization: fraction of the device's peak that the model's operations use.",
            )?,
            gradient_norm: Gauge::new(
                "pawl_train_gradient_norm",
                "Norm of the gradient of the newest optimizer step, before clipping.",
            )?,
            learning_rate: Gauge::new("pawl_train_learning_rate", "Learning rate of the newest optimizer step.")?,
            float8: Float8Metrics::new()?,
            skipped_updates: Counter::new(
                "pawl_train_skipped_updates_total",
                "Optimizer steps without an update, because the gradient was not finite or the loss scale too large.",
            )?,
            loader_wait: Counter::new(
                "pawl_loader_wait_seconds_total",
                "Time that steps waited for data, in seconds.",
            )?,
            collective: counters(
                "pawl_collective_seconds_total",
                "Time in which rank 0 waited for collectives, in seconds; on GPUs measured on the device.",
                &["exposed"],
            )?,
            rank_busy: counters(
                "pawl_train_busy_seconds_total",
                "Time of steps in which a rank did not wait for other ranks, in seconds.",
                &["rank"],
            )?,
            gpus: GpuMetrics::new()?,
            checkpoint_seconds: durations("pawl_checkpoint_seconds", "Duration of a checkpoint write in seconds.")?,
            checkpoint_failures: Counter::new("pawl_checkpoint_failures_total", "Failed checkpoint writes.")?,
            registry,
        };
        metrics.register()?;
        Ok(metrics)
    }

    /// Registers the metrics that are exported from the start.
    fn register(&self) -> prometheus::Result<()> {
        let [clock, temperature, power, throttled, xid] = self.gpus.families();
        let all: [Box<dyn prometheus::core::Collector>; 18] = [
            Box::new(self.step_seconds.clone()),
            Box::new(self.memory.clone()),
            Box::new(self.memory_by_kind.clone()),
            Box::new(self.compile_seconds.clone()),
            Box::new(self.utilization.clone()),
            Box::new(self.gradient_norm.clone()),
            Box::new(self.learning_rate.clone()),
            Box::new(self.skipped_updates.clone()),
            Box::new(self.loader_wait.clone()),
            Box::new(self.collective.clone()),
            Box::new(self.rank_busy.clone()),
            Box::new(clock.clone()),
            Box::new(temperature.clone()),
            Box::new(power.clone()),
            Box::new(throttled.clone()),
            Box::new(xid.clone()),
            Box::new(self.checkpoint_seconds.clone()),
            Box::new(self.checkpoint_failures.clone()),
        ];
        all.into_iter().try_for_each(|collector| self.registry.register(collector))
    }

    /// Records a step.
    pub fn step(&self, time: StepTime) {
        self.step_seconds.observe(time.wall.as_secs_f64());
        self.loader_wait.inc_by(time.loader.as_secs_f64());
        self.collective.with_label_values(&["true"]).inc_by(time.collective.as_secs_f64());
    }

    /// Records a step of all ranks: the time in which each did not wait for others, and the reading of its GPU.
    pub fn ranks(&self, seats: &[Seat], ranks: impl IntoIterator<Item = RankTime>) {
        for ((rank, seat), time) in seats.iter().enumerate().zip(ranks) {
            let rank = rank.to_string();
            self.rank_busy.with_label_values(&[&rank]).inc_by(time.busy.max(0.0));
            if let Some(reading) = time.gpu {
                self.gpus.set(&rank, &seat.device, reading);
            }
        }
    }

    /// Records the update of a step: the norm of its gradient, whether it was skipped, and its learning rate.
    pub fn update(&self, gradient_norm: f64, skipped: bool, learning_rate: f64) {
        self.gradient_norm.set(gradient_norm);
        self.learning_rate.set(learning_rate);
        self.skipped_updates.inc_by(f64::from(u8::from(skipped)));
    }

    /// Sets the predicted and peak device memory in bytes.
    pub fn memory(&self, predicted: usize, peak: usize) {
        self.memory.with_label_values(&["predicted"]).set(predicted as f64);
        self.memory.with_label_values(&["peak"]).set(peak as f64);
    }

    /// Sets the planned memory by kind, and the time to compile, of the launch.
    pub fn compiled(&self, memory: &MemoryByKind, took: Duration) {
        for (kind, bytes) in memory.kinds() {
            self.memory_by_kind.with_label_values(&[kind]).set(bytes as f64);
        }
        self.compile_seconds.set(took.as_secs_f64());
    }

    /// Sets the duration of the newest complete epoch. The metric is absent until it is set.
    pub fn epoch(&self, took: Duration) {
        self.epoch_seconds.set(took.as_secs_f64());
        // It is registered already on later calls.
        let _ = self.registry.register(Box::new(self.epoch_seconds.clone()));
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

    /// Sets the shares of numbers that are out of the range of 8-bit floats in a micro-step, 0 to 1. The metrics are
    /// absent until they are set: with any other precision.
    pub fn float8_out_of_range(&self, overflow: f64, underflow: f64) {
        for (gauge, share) in [(&self.float8.overflow, overflow), (&self.float8.underflow, underflow)] {
            gauge.set(share);
            // It is registered already on later calls.
            let _ = self.registry.register(Box::new(gauge.clone()));
        }
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
    fn updates_are_counted_and_their_numbers_are_the_newest() {
        let metrics = Metrics::new().unwrap();
        metrics.update(3.0, true, 0.5);
        metrics.update(2.0, false, 0.25);
        let text = metrics.text().unwrap();
        for line in
            ["pawl_train_gradient_norm 2\n", "pawl_train_learning_rate 0.25\n", "pawl_train_skipped_updates_total 1\n"]
        {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn compilation_is_exported_at_once_and_epochs_from_the_first_complete_one_on() {
        let metrics = Metrics::new().unwrap();
        let memory = MemoryByKind { parameters: 8, gradients: 0, optimizer: 16, data: 0, activations: 24 };
        metrics.compiled(&memory, Duration::from_millis(1500));
        let text = metrics.text().unwrap();
        for line in [
            "pawl_train_memory_bytes{kind=\"gradients\"} 0\n",
            "pawl_train_memory_bytes{kind=\"activations\"} 24\n",
            "pawl_train_compile_seconds 1.5\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("pawl_train_epoch_seconds"), "{text}");
        metrics.epoch(Duration::from_secs(40));
        metrics.epoch(Duration::from_secs(30));
        assert!(metrics.text().unwrap().contains("pawl_train_epoch_seconds 30\n"));
    }

    #[test]
    fn ranks_and_their_gpus_are_series_and_ranks_on_the_cpu_have_no_gpu() {
        let metrics = Metrics::new().unwrap();
        let seats = ["GPU-a", ""].map(|device| Seat { node: "n".to_owned(), device: device.to_owned() });
        let reading =
            GpuReading { sm_clock: 1980, throttled: 0x40, temperature: 61, power: 640_500, ..GpuReading::default() };
        let step = [RankTime { busy: 0.5, gpu: Some(reading) }, RankTime { busy: 0.25, gpu: None }];
        metrics.ranks(&seats, step);
        metrics.ranks(&seats, step);
        let text = metrics.text().unwrap();
        for line in [
            "pawl_train_busy_seconds_total{rank=\"0\"} 1\n",
            "pawl_train_busy_seconds_total{rank=\"1\"} 0.5\n",
            "pawl_gpu_sm_clock_hertz{gpu=\"GPU-a\",rank=\"0\"} 1980000000\n",
            "pawl_gpu_power_watts{gpu=\"GPU-a\",rank=\"0\"} 640.5\n",
            "pawl_gpu_throttled{gpu=\"GPU-a\",rank=\"0\",reason=\"HwThermalSlowdown\"} 1\n",
            "pawl_gpu_throttled{gpu=\"GPU-a\",rank=\"0\",reason=\"SwPowerCap\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert!(
            !text.contains("rank=\"1\",") && !text.contains("gpu=\"\"") && !text.contains("pawl_gpu_xid"),
            "{text}"
        );
    }

    #[test]
    fn a_device_without_a_known_peak_has_no_utilisation_of_it() {
        let metrics = Metrics::new().unwrap();
        assert!(!metrics.text().unwrap().contains("pawl_train_mfu_ratio"));
        metrics.flops_utilization(0.4);
        metrics.flops_utilization(0.5);
        assert!(metrics.text().unwrap().contains("pawl_train_mfu_ratio 0.5\n"));
    }
}
