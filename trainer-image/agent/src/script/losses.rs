//! The training loss of a script: its curve for the report, and the detection of spikes. The rules are those of the built-in
//! trainer.

use pawl_contract::report::LossPoint;
use std::collections::VecDeque;

/// Maximum points of the curve.
const POINTS: usize = 64;
/// Losses from which the recent level is estimated.
const RECENT: usize = 64;
/// Losses before spikes are detected.
const LEAST: usize = 24;
/// Consecutive losses above the bound that are a spike.
const IN_A_ROW: u32 = 3;

/// The loss curve with fewer than 64 points, each the mean of an equal number of losses (the last of fewer).
#[derive(Debug)]
pub(super) struct Curve {
    points: Vec<LossPoint>,
    stride: u32,
    sum: f64,
    count: u32,
    items: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self { points: Vec::new(), stride: 1, sum: 0.0, count: 0, items: 0 }
    }
}

impl Curve {
    /// Adds the loss at `items` items.
    pub(super) fn add(&mut self, items: u64, loss: f64) {
        (self.sum, self.count, self.items) = (self.sum + loss, self.count + 1, items);
        if self.count < self.stride {
            return;
        }
        self.points.push(LossPoint { items, loss: self.sum / f64::from(self.count) });
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() == POINTS {
            let mean =
                |pair: &[LossPoint]| LossPoint { items: pair[1].items, loss: (pair[0].loss + pair[1].loss) / 2.0 };
            self.points = self.points.chunks_exact(2).map(mean).collect();
            self.stride *= 2;
        }
    }

    /// The curve so far.
    pub(super) fn points(&self) -> Vec<LossPoint> {
        let rest = (self.count > 0).then(|| LossPoint { items: self.items, loss: self.sum / f64::from(self.count) });
        self.points.iter().copied().chain(rest).collect()
    }
}

/// Detects loss spikes: three consecutive losses above `m + max(10 s, 2 |m|, |f| / 20)`, where `m` is the median of the last 64
/// losses, `s` is 1.4826 times their median absolute deviation, and `f` is the median of the first 24. Detection starts after
/// these.
#[derive(Debug, Default)]
pub(super) struct SpikeWatch {
    recent: VecDeque<f64>,
    above: u32,
    first: f64,
}

impl SpikeWatch {
    /// Adds a loss; returns the bound if this is a spike.
    pub(super) fn add(&mut self, loss: f64) -> Option<f64> {
        let bound = self.bound().filter(|bound| loss > *bound);
        if bound.is_none() {
            self.above = 0;
            self.recent.push_back(loss);
            if self.recent.len() == LEAST {
                self.first = median(self.recent.iter().copied());
            }
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
            return None;
        }
        self.above += 1;
        bound.filter(|_| self.above >= IN_A_ROW)
    }

    fn bound(&self) -> Option<f64> {
        if self.recent.len() < LEAST {
            return None;
        }
        let middle = median(self.recent.iter().copied());
        let spread = 1.4826 * median(self.recent.iter().map(|loss| (loss - middle).abs()));
        Some(middle + (10.0 * spread).max(2.0 * middle.abs()).max(self.first.abs() / 20.0))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut ordered: Vec<f64> = values.collect();
    ordered.sort_by(f64::total_cmp);
    let half = ordered.len() / 2;
    if ordered.len() % 2 == 1 { ordered[half] } else { (ordered[half - 1] + ordered[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_stays_short_and_keeps_its_mean() {
        let mut curve = Curve::default();
        (1..=1000).for_each(|items| curve.add(items, items as f64));
        let points = curve.points();
        assert!(points.len() <= POINTS && points.last().unwrap().items == 1000);
        assert!(points.windows(2).all(|pair| pair[0].items < pair[1].items && pair[0].loss < pair[1].loss));
    }

    #[test]
    fn near_zero_only_a_rise_that_matters_is_a_spike() {
        let mut watch = SpikeWatch::default();
        assert!((0..200).all(|i| watch.add(2.3 * (-f64::from(i) / 15.0).exp()).is_none()));
        assert!((0..10).all(|_| watch.add(0.05).is_none()), "a fiftieth of the first losses");
        assert!(watch.add(0.5).is_none() && watch.add(0.5).is_none() && watch.add(0.5).is_some());
    }

    #[test]
    fn three_losses_far_above_the_others_are_a_spike() {
        let mut watch = SpikeWatch::default();
        assert!((0..30).all(|i| watch.add(1.0 + f64::from(i % 3) * 0.01).is_none()));
        assert!(watch.add(50.0).is_none() && watch.add(1.0).is_none(), "one outlier is none");
        assert!(watch.add(50.0).is_none() && watch.add(50.0).is_none() && watch.add(50.0).is_some());
    }
}
