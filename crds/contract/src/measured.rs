//! Measurements: one struct for the report of a launch, its result, the status and the display.

use crate::decimal::Decimal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// 10th percentile, median and 90th percentile of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Spread<N = f64> {
    /// 10th percentile.
    pub p10: N,
    /// Median.
    pub median: N,
    /// 90th percentile.
    pub p90: N,
}

/// One evaluation on held-out data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Validation<N = f64> {
    /// Items that the whole gang had seen at the time of the evaluation.
    pub items: u64,
    /// Metric values by name; `loss` is always present.
    pub metrics: BTreeMap<String, N>,
}

/// What else happened on the machine while a launch was measured, each as a share of that time, 0 to 1. An absent value
/// was not observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Disturbance<N = f64> {
    /// Some process of the machine waited for a CPU (`some` in `/proc/pressure/cpu`); the launch's own processes count,
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure: Option<N>,
    /// Some process of the machine waited for memory (`some` in `/proc/pressure/memory`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<N>,
    /// Some process of the machine waited for a disk (`some` in `/proc/pressure/io`); the launch's own processes count,
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_pressure: Option<N>,
    /// Programs other than the launch computed: of the time of all CPUs of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_cpu_share: Option<N>,
    /// Nothing computed: of the time of all CPUs of the machine. Neighbors on a machine with idle CPUs disturb nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_cpu_share: Option<N>,
    /// The CPU limit of the container stopped the launch: of the periods in which the limit is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_throttled_share: Option<N>,
    /// The GPU's clocks were lowered for its temperature or its power supply. Its power limit does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_share: Option<N>,
    /// Other processes used the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_gpu_share: Option<N>,
}

/// Measurements of a launch, of several launches with the same settings, or of the training. An absent value was not
/// measured.
///
/// `N` is the type of the numbers that are not integers: `f64` in reports and results, [`Decimal`] in the status, where
/// the Kubernetes API conventions forbid floats. [`From`] converts both ways.
///
/// ```
/// use pawl_contract::decimal::Decimal;
/// use pawl_contract::measured::Measured;
///
/// let measured = Measured { items_per_second: Some(10.8), peak_memory_bytes: Some(12 << 30), ..Measured::default() };
/// let status: Measured<Decimal> = (&measured).into();
/// assert_eq!(status.items_per_second.as_ref().map(Decimal::as_str), Some("10.8"));
/// assert_eq!(Measured::<f64>::from(&status), measured);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Measured<N = f64> {
    /// Optimizer steps done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps: u64,
    /// Items seen by the whole gang, those before a resumed checkpoint included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub items: u64,
    /// Seconds from the start of the process to its report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_seconds: Option<N>,
    /// Items per second of the whole gang over the window: data loading included, evaluation and checkpoints excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_second: Option<N>,
    /// `false`: the speed still changed within the window, also after it was extended, so that it is no evidence.
    /// Absent: it was steady, or too short to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<bool>,
    /// Seconds per optimizer step over the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<Spread<N>>,
    /// Training loss: the mean of the last quarter of the loss curve, or the newest value while it trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<N>,
    /// Evaluation before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_validation: Option<Validation<N>>,
    /// Newest evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation<N>>,
    /// Share of the initial weights in the moving average that was evaluated, 0 to 1; absent where the weights
    /// themselves are evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_weights_share: Option<N>,
    /// Peak device memory (host memory of tensors on the CPU) of the largest rank, bytes. Measured, never predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Prediction of `peakMemoryBytes` by the memory plan before the launch, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_memory_bytes: Option<u64>,
    /// Share of the window in which a step waited for data, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loader_wait_share: Option<N>,
    /// Share of the window in which a step waited for collectives, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective_wait_share: Option<N>,
    /// Share of the window spent on optimizer offload that did not overlap with computation, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_share: Option<N>,
    /// Device utilization over the window, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<N>,
    /// What else happened on the machine (Measure); the fields are inlined in the JSON.
    #[serde(flatten)]
    pub disturbance: Disturbance<N>,
    /// With `precision: fp8`: share of the numbers rounded to 8-bit floats that were clipped, 0 to 1; in one micro-step
    /// at the end of the launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float8_overflow_share: Option<N>,
    /// With `precision: fp8`: share of the numbers rounded to 8-bit floats that were not zero and became zero, 0 to 1;
    /// in one micro-step at the end of the launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float8_underflow_share: Option<N>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// `value` rounded to six significant digits; `None` when it is not finite, which JSON cannot represent.
pub(crate) fn rounded(value: f64) -> Option<f64> {
    value.is_finite().then(|| format!("{value:.5e}").parse().unwrap_or(value))
}

impl<N> Spread<N> {
    /// Converts each number; `None` when `convert` returns `None` for one of them.
    pub fn filter_map<M>(&self, convert: impl Fn(&N) -> Option<M>) -> Option<Spread<M>> {
        Some(Spread { p10: convert(&self.p10)?, median: convert(&self.median)?, p90: convert(&self.p90)? })
    }
}

impl<N> Validation<N> {
    /// Converts each metric; one for which `convert` returns `None` is omitted.
    pub fn filter_map<M>(&self, convert: impl Fn(&N) -> Option<M>) -> Validation<M> {
        let metrics = self.metrics.iter().filter_map(|(name, value)| Some((name.clone(), convert(value)?)));
        Validation { items: self.items, metrics: metrics.collect() }
    }

    /// Keeps only the metrics whose names satisfy `keep`.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.metrics.retain(|name, _| keep(name));
    }
}

impl<N> Disturbance<N> {
    /// Converts each number; one for which `convert` returns `None` is absent.
    pub fn filter_map<M>(&self, convert: impl Fn(&N) -> Option<M>) -> Disturbance<M> {
        let share = |value: &Option<N>| value.as_ref().and_then(&convert);
        Disturbance {
            cpu_pressure: share(&self.cpu_pressure),
            memory_pressure: share(&self.memory_pressure),
            io_pressure: share(&self.io_pressure),
            other_cpu_share: share(&self.other_cpu_share),
            idle_cpu_share: share(&self.idle_cpu_share),
            cpu_throttled_share: share(&self.cpu_throttled_share),
            throttled_share: share(&self.throttled_share),
            shared_gpu_share: share(&self.shared_gpu_share),
        }
    }
}

impl<N> Measured<N> {
    /// Converts each number; one for which `convert` returns `None` is absent.
    pub fn filter_map<M>(&self, convert: impl Fn(&N) -> Option<M>) -> Measured<M> {
        let number = |value: &Option<N>| value.as_ref().and_then(&convert);
        let validation = |value: &Option<Validation<N>>| value.as_ref().map(|value| value.filter_map(&convert));
        Measured {
            steps: self.steps,
            items: self.items,
            wall_seconds: number(&self.wall_seconds),
            items_per_second: number(&self.items_per_second),
            steady: self.steady,
            step_seconds: self.step_seconds.as_ref().and_then(|spread| spread.filter_map(&convert)),
            loss: number(&self.loss),
            first_validation: validation(&self.first_validation),
            validation: validation(&self.validation),
            initial_weights_share: number(&self.initial_weights_share),
            peak_memory_bytes: self.peak_memory_bytes,
            predicted_memory_bytes: self.predicted_memory_bytes,
            loader_wait_share: number(&self.loader_wait_share),
            collective_wait_share: number(&self.collective_wait_share),
            offload_share: number(&self.offload_share),
            utilization: number(&self.utilization),
            disturbance: self.disturbance.filter_map(&convert),
            float8_overflow_share: number(&self.float8_overflow_share),
            float8_underflow_share: number(&self.float8_underflow_share),
        }
    }

    /// Whether the speed is that of a steady state, as far as the trainer can tell.
    pub fn is_steady(&self) -> bool {
        self.steady != Some(false)
    }

    /// A metric of the newest evaluation, by name.
    pub fn metric(&self, name: &str) -> Option<&N> {
        self.validation.as_ref()?.metrics.get(name)
    }

    /// A metric of the evaluation before the first step, by name.
    pub fn first_metric(&self, name: &str) -> Option<&N> {
        self.first_validation.as_ref()?.metrics.get(name)
    }
}

impl Measured {
    /// The finite numbers, rounded to six significant digits: precise enough for decisions, short in messages.
    #[must_use]
    pub fn rounded(&self) -> Self {
        self.filter_map(|value| rounded(*value))
    }
}

impl From<&Measured> for Measured<Decimal> {
    fn from(measured: &Measured) -> Self {
        measured.filter_map(|value| Decimal::from_f64(*value))
    }
}

impl From<&Measured<Decimal>> for Measured {
    fn from(measured: &Measured<Decimal>) -> Self {
        measured.filter_map(|value| Some(value.value()))
    }
}
