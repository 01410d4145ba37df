//! The training loss: its curve for the report, and the detection of spikes.

use pawl_contract::report::LossPoint;
use std::collections::VecDeque;

/// Maximum points of a curve.
const POINTS: usize = 64;

/// The loss curve with a bounded number of points, each the mean of an equal number of steps (the last of fewer).
#[derive(Debug)]
pub struct Curve {
    points: Vec<LossPoint>,
    /// Steps per point.
    stride: u64,
    sum: f64,
    count: u64,
    items: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self { points: Vec::new(), stride: 1, sum: 0.0, count: 0, items: 0 }
    }
}

impl Curve {
    /// Adds the loss of a step that ended at `items` items.
    pub fn add(&mut self, items: u64, loss: f64) {
        (self.sum, self.count, self.items) = (self.sum + loss, self.count + 1, items);
        if self.count < self.stride {
            return;
        }
        self.points.push(LossPoint { items, loss: self.sum / self.count as f64 });
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() == POINTS {
            let pair =
                |pair: &[LossPoint]| LossPoint { items: pair[1].items, loss: (pair[0].loss + pair[1].loss) / 2.0 };
            self.points = self.points.chunks_exact(2).map(pair).collect();
            self.stride *= 2;
        }
    }

    /// The curve so far, at most 64 points.
    pub fn points(&self) -> Vec<LossPoint> {
        let rest = (self.count > 0).then(|| LossPoint { items: self.items, loss: self.sum / self.count as f64 });
        self.points.iter().copied().chain(rest).collect()
    }
}

/// Steps that make up the recent level.
const RECENT: usize = 64;
/// Steps before which spikes are not detected.
const LEAST: usize = 24;
/// Consecutive steps that must be above the bound.
const IN_A_ROW: u32 = 3;

/// Detects loss spikes.
///
/// The recent level is the median `m` of the last 64 losses, their spread `s` is 1.4826 times the median absolute
/// deviation from it (the standard deviation, for normal noise), and the first level `f` is the median of the first 24 losses
/// of the training. A step is above the bound when its loss exceeds `m + max(10 s, 2 |m|, |f| / 20)`: a loss that has fallen
/// almost to zero may multiply without harm. Three consecutive steps above it are a spike; a single bad batch is not. Losses
/// above the bound are excluded from the recent level, and detection starts after 24 steps.
#[derive(Debug, Default)]
pub struct SpikeWatch {
    recent: VecDeque<f64>,
    above: u32,
}

impl SpikeWatch {
    /// Adds a step's loss; returns the bound if this is a spike. `first` is the first level, set here once it is known. The caller
    /// keeps it in checkpoints: the losses after a restart may be much lower.
    pub fn add(&mut self, loss: f64, first: &mut Option<f64>) -> Option<f64> {
        let bound = self.bound(first.unwrap_or_default()).filter(|bound| loss > *bound);
        if bound.is_none() {
            self.above = 0;
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(loss);
            if self.recent.len() == LEAST {
                first.get_or_insert_with(|| median(self.recent.iter().copied().collect()));
            }
            return None;
        }
        self.above += 1;
        bound.filter(|_| self.above >= IN_A_ROW)
    }

    fn bound(&self, first: f64) -> Option<f64> {
        if self.recent.len() < LEAST {
            return None;
        }
        let middle = median(self.recent.iter().copied().collect());
        let spread = 1.4826 * median(self.recent.iter().map(|loss| (loss - middle).abs()).collect());
        Some(middle + (10.0 * spread).max(2.0 * middle.abs()).max(first.abs() / 20.0))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_curve_is_short_ordered_and_keeps_the_mean(losses in prop::collection::vec(0.0f64..10.0, 1..2000)) {
            let mut curve = Curve::default();
            losses.iter().enumerate().for_each(|(i, loss)| curve.add(8 * (i as u64 + 1), *loss));
            let points = curve.points();
            prop_assert!(points.len() <= POINTS);
            prop_assert!(points.is_sorted_by(|a, b| a.items < b.items));
            prop_assert_eq!(points.last().map(|p| p.items), Some(8 * losses.len() as u64));
            let (mut before, mut sum) = (0, 0.0);
            for point in &points {
                sum += point.loss * (point.items - before) as f64 / 8.0;
                before = point.items;
            }
            prop_assert!((sum - losses.iter().sum::<f64>()).abs() < 1e-6, "each point is the mean of its steps");
        }

        #[test]
        fn noise_and_single_bad_batches_are_no_spike(
            noise in prop::collection::vec(0.7f64..1.3, 300),
            bad in prop::collection::btree_set((0usize..100).prop_map(|i| 3 * i), 0..20),
        ) {
            let (mut watch, mut first_level) = (SpikeWatch::default(), None);
            for (i, noise) in noise.iter().enumerate() {
                let level = 2.0 * (-(i as f64) / 100.0).exp();
                let loss = if bad.contains(&i) { level * 50.0 } else { level * noise };
                prop_assert_eq!(watch.add(loss, &mut first_level), None, "step {}", i);
            }
        }

        /// As in a classification whose loss falls from 2.3 to 0.0003.
        #[test]
        fn near_zero_only_a_rise_that_matters_is_a_spike(first in 0.5f64..10.0, rise in 0.0f64..1.0) {
            let (mut watch, mut first_level) = (SpikeWatch::default(), None);
            for i in -24..200 {
                prop_assert_eq!(watch.add(first * (-f64::from(i.max(0)) / 15.0).exp(), &mut first_level), None);
            }
            let rises: Vec<_> = (0..3).map(|_| watch.add(first * rise, &mut first_level).is_some()).collect();
            prop_assume!(!(0.04..0.06).contains(&rise));
            prop_assert_eq!(rises, [false, false, rise > 0.05]);
        }

        /// As in a job that lost its GPU, resumed with a loss of 0.0001, and then had three losses of 0.004. Interruptions before
        /// the first level is known (24 steps) are not drawn: it is then that of the steps after it.
        #[test]
        fn a_resumed_training_fails_only_where_one_that_was_never_interrupted_does(
            resumed in 25usize..200,
            rise in prop_oneof![0.0f64..0.04, 0.06f64..1.0],
        ) {
            let (mut watch, mut first_level) = (SpikeWatch::default(), None);
            for i in 0..300 {
                if i == resumed {
                    watch = SpikeWatch::default();
                }
                let loss = 2.3 * (-(i.saturating_sub(24) as f64) / 15.0).exp();
                prop_assert_eq!(watch.add(loss, &mut first_level), None);
            }
            let rises: Vec<_> = (0..3).map(|_| watch.add(2.3 * rise, &mut first_level).is_some()).collect();
            prop_assert_eq!(rises, [false, false, rise > 0.05]);
        }

        #[test]
        fn a_jump_that_stays_is_a_spike_within_three_steps(at in 30usize..200, factor in 4.5f64..1e6) {
            let (mut watch, mut first_level) = (SpikeWatch::default(), None);
            for i in 0..at {
                prop_assert_eq!(watch.add(1.0 + 0.05 * (i as f64).sin(), &mut first_level), None);
            }
            let jumps: Vec<_> = (0..3).map(|_| watch.add(factor, &mut first_level).is_some()).collect();
            prop_assert_eq!(jumps, [false, false, true]);
        }
    }
}
