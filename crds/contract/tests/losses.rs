//! Spikes of the training loss: none in clean curves, planted ones soon, and the same verdicts as the Python package.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_contract::losses::{Curve, SpikeWatch};
use proptest::prelude::*;
use serde::Deserialize;
use std::f64::consts::TAU;

/// A case of the vectors that `tests/python/unit/test_parts.py` reads too.
#[derive(Deserialize)]
struct Case {
    name: String,
    losses: Vec<f64>,
    /// Index of the loss that makes a spike.
    spike: Option<usize>,
    bound: Option<f64>,
    /// What a checkpoint keeps after the last loss, or the spike.
    state: SpikeWatch,
}

/// As in a checkpoint.
fn resumed(watch: &SpikeWatch) -> SpikeWatch {
    serde_json::from_str(&serde_json::to_string(watch).unwrap()).unwrap()
}

#[test]
fn the_verdicts_are_those_of_the_vectors_wherever_the_training_is_interrupted() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("losses.json")).unwrap();
    for case in cases {
        for interrupted in [0, 10, 24, 63, 64, 100, 161, 163] {
            let mut watch = SpikeWatch::default();
            let mut spike = None;
            for (index, loss) in case.losses.iter().enumerate() {
                if index == interrupted {
                    watch = resumed(&watch);
                }
                if let Some(bound) = watch.add(*loss) {
                    spike = Some((index, bound));
                    break;
                }
            }
            assert_eq!(spike.map(|(index, _)| index), case.spike, "{}, interrupted at {interrupted}", case.name);
            let (got, expected) = (spike.map_or(0.0, |(_, bound)| bound), case.bound.unwrap_or_default());
            assert!((got - expected).abs() <= 1e-12 * expected.abs(), "{}: {got} {expected}", case.name);
            assert_eq!(watch, case.state, "{}", case.name);
        }
    }
}

/// What a checkpoint of an earlier version has of it.
#[test]
fn a_checkpoint_with_the_first_level_alone_or_nothing_is_read() {
    let old: SpikeWatch = serde_json::from_str(r#"{"firstLoss": 2.3}"#).unwrap();
    for (mut watch, spike) in [(old, false), (SpikeWatch::default(), true)] {
        (0..30).for_each(|_| assert_eq!(watch.add(0.0001), None));
        assert_eq!((0..5).any(|_| watch.add(0.004).is_some()), spike, "an empty one knows no first level");
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()
    }

    /// Student's t with 3 degrees of freedom.
    fn heavy(&mut self) -> f64 {
        let squares: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / (squares / 3.0).sqrt()
    }
}

/// Length of the curves: ten windows of 64 losses.
const LENGTH: usize = 640;
/// 10,000 windows.
const CURVES: usize = 1000;

/// A loss from the number of the step and the noise.
type Model = fn(f64, &mut Random) -> f64;

#[test]
fn ten_thousand_clean_windows_of_each_kind_raise_no_alarm() {
    let models: [(&str, Model); 10] = [
        ("plateau, noise 3 %", |_, noise| 3.5 * (1.0 + 0.03 * noise.normal())),
        ("plateau, noise 10 %", |_, noise| 2.0 * (1.0 + 0.1 * noise.normal())),
        ("plateau, noise 50 %", |_, noise| 1.0 + 0.5 * noise.normal()),
        ("steep descent", |step, noise| 3.5 + 7.5 * (-step / 40.0).exp() + 0.05 * noise.normal()),
        ("descent by a power", |step, noise| 2.0 + 9.0 * (1.0 + step / 10.0).powf(-0.5) + 0.05 * noise.normal()),
        ("warm-up: a rise by 30 % over 40 steps", |step, noise| {
            let rise = ((step - 60.0) / 40.0).min((160.0 - step) / 60.0).max(0.0);
            4.0 * (1.0 + 0.3 * rise) + 0.03 * noise.normal()
        }),
        ("a schedule with steps", |step, noise| {
            4.0 * 0.7f64.powf((step / 200.0).floor()) * (1.0 + 0.02 * noise.normal())
        }),
        ("heavy tails", |_, noise| 1.0 + 0.3 * noise.heavy()),
        ("near zero", |step, noise| 2.3 * (-step / 15.0).exp().max(1e-4) * noise.normal().exp()),
        ("negative, through zero", |step, noise| 2.0 - 5.0 * (1.0 - (-step / 100.0).exp()) + 0.2 * noise.normal()),
    ];
    for (name, model) in models {
        let mut noise = Random(7);
        for curve in 0..CURVES {
            let mut watch = SpikeWatch::default();
            for step in 0..LENGTH {
                let loss = model(step as f64, &mut noise);
                assert_eq!(watch.add(loss), None, "{name}: curve {curve}, step {step}, loss {loss}");
            }
        }
    }
}

/// The noise is 2 % of the level; with 3 %, 96 of 100 are found, with 4 % every second one: six standard deviations are
/// then almost the rise itself.
#[test]
fn a_rise_by_30_percent_is_found_within_5_reports() {
    for (level, first) in [(3.5, 11.0), (1.5, 11.0), (1.0, 1.0), (-2.0, 3.0)] {
        let mut noise = Random(11);
        for curve in 0..300 {
            let mut watch = SpikeWatch::default();
            let mut at = |level: f64| level + 0.02 * level.abs() * noise.normal();
            for step in 0..300 {
                let loss = at(level + (first - level) * (-f64::from(step) / 8.0).exp());
                assert_eq!(watch.add(loss), None, "{level}: curve {curve}, step {step}");
            }
            let risen = level + 0.3 * level.abs();
            assert!((0..5).any(|_| watch.add(at(risen)).is_some()), "{level}: curve {curve}");
        }
    }
}

proptest! {
    #[test]
    fn a_curve_is_short_ordered_and_keeps_the_mean(losses in prop::collection::vec(0.0f64..10.0, 1..2000)) {
        let mut curve = Curve::default();
        losses.iter().enumerate().for_each(|(i, loss)| curve.add(8 * (i as u64 + 1), *loss));
        let points = curve.points();
        prop_assert!(points.len() <= 64);
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
        let mut watch = SpikeWatch::default();
        for (i, noise) in noise.iter().enumerate() {
            let level = 2.0 * (-(i as f64) / 100.0).exp();
            let loss = if bad.contains(&i) { level * 50.0 } else { level * noise };
            prop_assert_eq!(watch.add(loss), None, "step {}", i);
        }
    }

    /// As in a classification whose loss falls from 2.3 to 0.0003.
    #[test]
    fn near_zero_only_a_rise_that_matters_is_a_spike(first in 0.5f64..10.0, rise in 0.0f64..1.0) {
        let mut watch = SpikeWatch::default();
        for i in -24..200 {
            prop_assert_eq!(watch.add(first * (-f64::from(i.max(0)) / 15.0).exp()), None);
        }
        let rises: Vec<_> = (0..3).map(|_| watch.add(first * rise).is_some()).collect();
        prop_assume!(!(0.04..0.06).contains(&rise));
        prop_assert_eq!(rises, [false, false, rise > 0.05]);
    }

    /// As in a job that lost its GPU, resumed with a loss of 0.0001, and then had three losses of 0.004.
    #[test]
    fn a_resumed_training_fails_only_where_one_that_was_never_interrupted_does(
        interrupted in 0usize..300,
        rise in prop_oneof![0.0f64..0.04, 0.06f64..1.0],
    ) {
        let mut watch = SpikeWatch::default();
        for i in 0..300usize {
            if i == interrupted {
                watch = resumed(&watch);
            }
            let loss = 2.3 * (-(i.saturating_sub(24) as f64) / 15.0).exp();
            prop_assert_eq!(watch.add(loss), None);
        }
        let rises: Vec<_> = (0..3).map(|_| watch.add(2.3 * rise).is_some()).collect();
        prop_assert_eq!(rises, [false, false, rise > 0.05]);
    }

    #[test]
    fn a_jump_that_stays_is_a_spike_within_three_steps(at in 30usize..200, factor in 1.5f64..1e6) {
        let mut watch = SpikeWatch::default();
        for i in 0..at {
            prop_assert_eq!(watch.add(1.0 + 0.05 * (i as f64).sin()), None);
        }
        let jumps: Vec<_> = (0..3).map(|_| watch.add(factor).is_some()).collect();
        prop_assert_eq!(jumps, [false, false, true]);
    }
}
