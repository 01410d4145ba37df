//! The training loss: its curve for the report, and the detection of spikes. Pure. Every trainer, and the agent for
//! scripts that report nothing, uses these rules; the Python package repeats them, and `tests/losses.json` holds both
//! to the same verdicts.

use crate::report::LossPoint;
use serde::{Deserialize, Serialize};
use std::f64::consts::SQRT_2;

/// Maximum points of the curve in a report.
const POINTS: usize = 64;

/// The loss curve with a bounded number of points, each the mean of an equal number of steps (the last of fewer).
#[derive(Debug)]
pub struct Curve {
    points: Vec<LossPoint>,
    /// Maximum points.
    most: usize,
    /// Steps per point.
    stride: u64,
    sum: f64,
    count: u64,
    items: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self::of(POINTS)
    }
}

impl Curve {
    /// A curve of at most `most` points, an even number.
    pub fn of(most: usize) -> Self {
        Self { points: Vec::new(), most, stride: 1, sum: 0.0, count: 0, items: 0 }
    }

    /// Adds the loss of a step that ended at `items` items.
    pub fn add(&mut self, items: u64, loss: f64) {
        (self.sum, self.count, self.items) = (self.sum + loss, self.count + 1, items);
        if self.count < self.stride {
            return;
        }
        self.points.push(LossPoint { items, loss: self.sum / self.count as f64 });
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() == self.most {
            let pair =
                |pair: &[LossPoint]| LossPoint { items: pair[1].items, loss: (pair[0].loss + pair[1].loss) / 2.0 };
            self.points = self.points.chunks_exact(2).map(pair).collect();
            self.stride *= 2;
        }
    }

    /// The curve so far.
    pub fn points(&self) -> Vec<LossPoint> {
        let rest = (self.count > 0).then(|| LossPoint { items: self.items, loss: self.sum / self.count as f64 });
        self.points.iter().copied().chain(rest).collect()
    }
}

/// Losses from which the recent level and its noise are estimated.
const RECENT: usize = 64;
/// The newest of them, whose level counts where it is the higher one: a slow rise, as while the learning rate warms up,
/// is no spike.
const NEWEST: usize = 32;
/// Losses before spikes are detected.
const LEAST: usize = 24;
/// Consecutive losses that must be above the bound.
const IN_A_ROW: u32 = 3;
/// Standard deviations by which a loss must exceed the level.
const SIGMAS: f64 = 6.0;
/// Share of the level by which a loss must exceed it.
const SHARE: f64 = 0.2;
/// Standard deviation of normal noise whose absolute deviations have the median 1.
const OF_MEDIAN: f64 = 1.4826;
/// Standard deviations from the median to the 90th percentile of normal noise.
const TO_90: f64 = 1.2816;

/// Detects loss spikes: a robust z-score of the recent losses, with a floor.
///
/// A loss is above the bound when it exceeds the level by more than six standard deviations of the noise, and by more
/// than a fifth of the level. Three consecutive ones are a spike; a single bad batch is not. Losses above the bound are
/// excluded from what the bound is computed of. Detection starts after 24 losses.
///
/// - The level is the median of the last 64 losses, or that of the last 32 where it is higher.
/// - The noise is the largest of three estimates: of the absolute deviations from the median, of the 90th percentile
///   (losses may have a heavy upper tail), and of the differences of consecutive losses.
/// - Near zero, a fifth of the level is replaced by a fifth of what the level is below a quarter of the first level,
///   the median of the first 24 losses of the training: a loss that has fallen almost to zero may multiply without
///   harm.
///
/// It is a part of every checkpoint: a resumed training is judged by the losses before the interruption.
///
/// ```
/// use pawl_contract::losses::SpikeWatch;
///
/// let mut watch = SpikeWatch::default();
/// assert!((0..100).all(|i| watch.add(3.5 + 0.05 * f64::from(i % 3)).is_none()));
/// let bounds = [4.6, 4.5, 4.7].map(|loss| watch.add(loss));
/// assert!(matches!(bounds, [None, None, Some(bound)] if bound < 4.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpikeWatch {
    /// First level of the training; `None` before it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_loss: Option<f64>,
    /// The newest losses that were not above the bound, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    recent_losses: Vec<f64>,
    /// Consecutive losses above the bound so far.
    #[serde(skip_serializing_if = "is_zero")]
    losses_above: u32,
}

impl SpikeWatch {
    /// Adds a finite loss; returns the bound if this is a spike.
    pub fn add(&mut self, loss: f64) -> Option<f64> {
        let bound = if self.is_high(loss) { self.bound() } else { None };
        if let Some(bound) = bound.filter(|bound| loss > *bound) {
            self.losses_above += 1;
            return (self.losses_above >= IN_A_ROW).then_some(bound);
        }
        self.losses_above = 0;
        let excess = (self.recent_losses.len() + 1).saturating_sub(RECENT);
        self.recent_losses.drain(..excess);
        self.recent_losses.push(loss);
        if self.recent_losses.len() == LEAST && self.first_loss.is_none() {
            self.first_loss = Some(median(self.recent_losses.iter().copied()));
        }
        None
    }

    /// Whether the last loss shows a healthy training: it was not above the bound.
    pub fn is_healthy(&self) -> bool {
        self.losses_above == 0
    }

    /// Whether a loss is above the 90th percentile: no bound is below that, and it costs less.
    fn is_high(&self, loss: f64) -> bool {
        let count = self.recent_losses.len();
        self.recent_losses.iter().filter(|recent| **recent >= loss).count() < count - count * 9 / 10
    }

    fn bound(&self) -> Option<f64> {
        let losses = &self.recent_losses;
        if losses.len() < LEAST {
            return None;
        }
        let middle = median(losses.iter().copied());
        let level = middle.max(median(losses[losses.len().saturating_sub(NEWEST)..].iter().copied()));
        let noise = (OF_MEDIAN * median(losses.iter().map(|loss| (loss - middle).abs())))
            .max((quantile(losses.iter().copied(), 9, 10) - middle) / TO_90)
            .max(OF_MEDIAN * median(losses.windows(2).map(|pair| (pair[1] - pair[0]).abs())) / SQRT_2);
        let first = self.first_loss.unwrap_or_default().abs();
        let floor = SHARE * level.abs().max(first / 4.0 - level.abs());
        Some(level + (SIGMAS * noise).max(floor))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 1, 2)
}

/// The value at the fraction `of`/`parts` of at least one value in order.
fn quantile(values: impl Iterator<Item = f64>, of: usize, parts: usize) -> f64 {
    let mut values: Vec<f64> = values.collect();
    let index = values.len() * of / parts;
    *values.select_nth_unstable_by(index, f64::total_cmp).1
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}
