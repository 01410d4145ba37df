//! Learning-rate schedules as data: warm-up, then decay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Shape of the learning rate's decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RateDecay {
    /// Constant.
    #[default]
    None,
    /// A straight line.
    Linear,
    /// Half a cosine wave.
    Cosine,
}

/// Length of the warm-up, during which the learning rate rises linearly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// Number of updates.
    Updates(u64),
    /// Fraction of all updates of the launch, 0 to 1.
    Fraction(f64),
}

/// The updates at which a decay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayStart {
    /// At the first update: during the warm-up the learning rate is the product of both.
    FirstUpdate,
    /// After the warm-up.
    AfterWarmup,
}

/// The learning rate of each update, as a factor of the configured one.
///
/// ```
/// use pawl_workloads::{DecayStart, RateDecay, RatePosition, RateSchedule, Warmup};
///
/// let schedule = RateSchedule {
///     warmup: Warmup::Updates(10),
///     starts_at_zero: true,
///     decay: RateDecay::Cosine,
///     decay_start: DecayStart::AfterWarmup,
///     floor: 0.0,
/// };
/// let at = |step| RatePosition { step, items: 8 * step, step_items: 8, total_items: 8 * 30 };
/// let factors = [0, 5, 10, 20, 30].map(|step| schedule.factor(at(step)));
/// assert_eq!(factors.map(|factor| (factor * 1e6).round() / 1e6), [0.0, 0.5, 1.0, 0.5, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSchedule {
    /// Length of the warm-up.
    pub warmup: Warmup,
    /// Whether update k (from 0) of a warm-up of n updates has the factor `k / n`, so that the first update has
    /// learning rate 0; otherwise `(k + 1) / n`.
    pub starts_at_zero: bool,
    /// The decay, which reaches `floor` at the end of the launch.
    pub decay: RateDecay,
    /// Where the decay begins.
    pub decay_start: DecayStart,
    /// The factor at the end of the decay, 0 to 1.
    pub floor: f64,
}

/// Position of an update in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePosition {
    /// Updates before it.
    pub step: u64,
    /// Items seen before it.
    pub items: u64,
    /// Items of an update.
    pub step_items: u64,
    /// Items of the launch.
    pub total_items: u64,
}

impl RateSchedule {
    /// The same learning rate in every update.
    pub const CONSTANT: Self = Self {
        warmup: Warmup::Updates(0),
        starts_at_zero: false,
        decay: RateDecay::None,
        decay_start: DecayStart::FirstUpdate,
        floor: 0.0,
    };

    /// The factor of the learning rate of the update at `at`.
    pub fn factor(&self, at: RatePosition) -> f64 {
        let RatePosition { step, items, step_items, total_items } = at;
        let warmup = match self.warmup {
            Warmup::Updates(updates) => updates,
            Warmup::Fraction(fraction) => (fraction * total_items.div_ceil(step_items.max(1)) as f64).round() as u64,
        };
        let before_decay = match self.decay_start {
            DecayStart::FirstUpdate => 0,
            DecayStart::AfterWarmup => warmup * step_items,
        };
        let decaying = total_items.saturating_sub(before_decay).max(1);
        let done = (items.saturating_sub(before_decay) as f64 / decaying as f64).min(1.0);
        let left = match self.decay {
            RateDecay::None => 1.0,
            RateDecay::Linear => 1.0 - done,
            RateDecay::Cosine => 0.5 * (1.0 + libm::cos(PI * done)),
        };
        let rise = if step < warmup { (step + u64::from(!self.starts_at_zero)) as f64 / warmup as f64 } else { 1.0 };
        rise * (self.floor + (1.0 - self.floor) * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Factors of a launch of `steps` updates of 4 items.
    fn factors(schedule: RateSchedule, steps: u64) -> Vec<f64> {
        let at = |step| RatePosition { step, items: 4 * step, step_items: 4, total_items: 4 * steps };
        (0..steps).map(|step| schedule.factor(at(step))).collect()
    }

    fn assert_near(got: &[f64], wanted: &[f64]) {
        assert!(got.len() == wanted.len() && got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
    }

    #[test]
    fn a_warm_up_begins_at_zero_or_with_one_part() {
        let rising = RateSchedule { warmup: Warmup::Updates(4), ..RateSchedule::CONSTANT };
        assert_near(&factors(rising, 6), &[0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
        let from_zero = RateSchedule { starts_at_zero: true, ..rising };
        assert_near(&factors(from_zero, 6), &[0.0, 0.25, 0.5, 0.75, 1.0, 1.0]);
        let half = RateSchedule { warmup: Warmup::Fraction(0.5), ..from_zero };
        assert_near(&factors(half, 4), &[0.0, 0.5, 1.0, 1.0]);
    }

    #[test]
    fn decays_end_at_their_floor() {
        let linear = RateSchedule { decay: RateDecay::Linear, floor: 0.2, ..RateSchedule::CONSTANT };
        assert_near(&factors(linear, 4), &[1.0, 0.8, 0.6, 0.4]);
        let cosine = RateSchedule { decay: RateDecay::Cosine, ..linear };
        assert_near(&factors(cosine, 2), &[1.0, 0.6]);
        let end = RatePosition { step: 9, items: 36, step_items: 4, total_items: 36 };
        assert_near(&[linear.factor(end), cosine.factor(end)], &[0.2, 0.2]);
    }

    #[test]
    fn a_decay_begins_with_the_launch_or_after_the_warm_up() {
        let schedule = RateSchedule { warmup: Warmup::Updates(2), decay: RateDecay::Linear, ..RateSchedule::CONSTANT };
        assert_near(&factors(schedule, 4), &[0.5, 0.75, 0.5, 0.25]);
        let after = RateSchedule { decay_start: DecayStart::AfterWarmup, starts_at_zero: true, ..schedule };
        assert_near(&factors(after, 4), &[0.0, 0.5, 1.0, 0.5]);
        let shorter_than_its_warm_up = factors(RateSchedule { warmup: Warmup::Updates(8), ..after }, 2);
        assert_near(&shorter_than_its_warm_up, &[0.0, 0.125]);
    }
}
