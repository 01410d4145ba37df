//! Spikes in the losses of real trainings: each step of the five workloads at smoke size, with three seeds, as
//! `tests/verdicts/curves --trainings` records them.
//!
//! **A rise by 30 % is not found in four of the five as they are recorded**: their batches are tiny, 4 to 128 items,
//! and six standard deviations of the noise are 40 % of the level for atft-gat-fan, 60 % for forex, and a multiple of
//! the level where a loss has almost fallen to zero, as those of vision-bdh and ups have. No rule that raises no alarm
//! in clean curves finds it there within 5 reports. It is found in slm as recorded, and in atft-gat-fan with a quarter
//! of its noise, as of batches that are 16 times as large. In forex, whose loss still falls by several percent in a
//! window of 64 steps, it isn't found then either. What is found in each at its full noise is tested too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_contract::losses::SpikeWatch;
use serde::Deserialize;

/// A recorded training.
#[derive(Deserialize)]
struct Recorded {
    name: String,
    seed: u64,
    losses: Vec<f64>,
}

/// Steps on each side from which the level of a step is estimated.
const HALF: usize = 16;
/// Steps in a row whose noise stays together: that of consecutive batches is not independent.
const BLOCK: usize = 8;
/// Steps before the first planted spike.
const SETTLED: usize = 100;
/// Consecutive losses that rise.
const REPORTS: usize = 5;

impl Recorded {
    /// The level at each step, a running median, and what each loss is of it.
    fn parts(&self) -> (Vec<f64>, Vec<f64>) {
        let steps = 0..self.losses.len();
        let window = |step: usize| step.saturating_sub(HALF)..(step + HALF + 1).min(self.losses.len());
        let levels: Vec<f64> = steps.map(|step| median(&self.losses[window(step)])).collect();
        let ratios = self.losses.iter().zip(&levels).map(|(loss, level)| loss / level).collect();
        (levels, ratios)
    }

    /// Standard deviation of the noise, as a share of the level, from its median.
    fn noise(&self) -> f64 {
        let deviations: Vec<f64> = self.parts().1[SETTLED..].iter().map(|ratio| (ratio - 1.0).abs()).collect();
        1.4826 * median(&deviations)
    }

    /// The same training with a share of its noise.
    fn calmer(&self, share: f64) -> Self {
        let (levels, ratios) = self.parts();
        let losses = levels.iter().zip(ratios).map(|(level, ratio)| level * (1.0 + share * (ratio - 1.0))).collect();
        Self { name: self.name.clone(), seed: self.seed, losses }
    }

    /// Of spikes planted at different steps, the share that is found within [`REPORTS`].
    fn found(&self, spike: impl Fn(f64) -> f64) -> f64 {
        let (mut planted, mut found) = (0, 0);
        let mut watch = SpikeWatch::default();
        for (step, loss) in self.losses.iter().enumerate() {
            if step >= SETTLED && step % BLOCK == 0 && step + REPORTS <= self.losses.len() {
                let mut watch = watch.clone();
                planted += 1;
                let risen = self.losses[step..step + REPORTS].iter();
                found += usize::from(risen.map(|loss| watch.add(spike(*loss))).any(|bound| bound.is_some()));
            }
            watch.add(*loss);
        }
        found as f64 / f64::from(planted)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

fn recorded() -> Vec<Recorded> {
    let all: Vec<Recorded> = serde_json::from_str(include_str!("curves.json")).unwrap();
    assert_eq!(all.len(), 15);
    all
}

fn of<'a>(all: &'a [Recorded], name: &'a str) -> impl Iterator<Item = &'a Recorded> {
    all.iter().filter(move |recorded| recorded.name == name)
}

#[test]
fn a_recorded_training_raises_no_alarm() {
    for Recorded { name, seed, losses } in recorded() {
        let mut watch = SpikeWatch::default();
        for (step, loss) in losses.iter().enumerate() {
            assert_eq!(watch.add(*loss), None, "{name}, seed {seed}: step {step}, loss {loss}");
        }
    }
}

/// The level of a recorded training, with the noise of other steps of its neighbourhood, in blocks.
#[test]
fn ten_thousand_windows_with_the_noise_of_recorded_trainings_raise_no_alarm() {
    let mut random = Random(3);
    let mut windows = 0;
    for recorded in recorded() {
        let (levels, ratios) = recorded.parts();
        let count = levels.len();
        for curve in 0..96 {
            let mut watch = SpikeWatch::default();
            for (block, levels) in levels.chunks(BLOCK).enumerate() {
                let from = (block * BLOCK).saturating_sub(64).min(count - 128 - BLOCK) + random.below(128);
                for (level, ratio) in levels.iter().zip(&ratios[from..]) {
                    let (name, seed, loss) = (&recorded.name, recorded.seed, level * ratio);
                    assert_eq!(watch.add(loss), None, "{name}, seed {seed}: curve {curve}, block {block}, loss {loss}");
                }
            }
            windows += count / 64;
        }
    }
    assert!(windows >= 10_000, "{windows}");
}

#[test]
fn a_rise_by_30_percent_is_found_within_5_reports_where_the_noise_is_below_4_percent() {
    let all = recorded();
    // The noise of a batch that is 16 times as large is a quarter.
    for (name, share) in [("slm", 1.0), ("atft-gat-fan", 0.25)] {
        for recorded in of(&all, name).map(|recorded| recorded.calmer(share)) {
            let (noise, found) = (recorded.noise(), recorded.found(|loss| 1.3 * loss));
            assert!(noise < 0.04, "{name}, seed {}: noise {noise:.3}", recorded.seed);
            // While the loss falls by 6 standard deviations in a window of 64 steps, not each.
            assert!(found > 0.9, "{name}, seed {}: noise {noise:.3}, found {found:.2}", recorded.seed);
        }
    }
}

/// Noise of the recorded trainings as a share of the level, and a rise that is found in spite of it: to a multiple of
/// the level, or by the first level where the loss is almost zero.
#[test]
fn what_is_found_in_the_noise_of_tiny_batches() {
    let all = recorded();
    for (name, noise, rise) in [("slm", 0.02..0.03, 1.3), ("atft-gat-fan", 0.06..0.08, 2.0), ("forex", 0.09..0.12, 3.0)]
    {
        for recorded in of(&all, name) {
            let (own, found) = (recorded.noise(), recorded.found(|loss| rise * loss));
            assert!(
                noise.contains(&own) && found > 0.9,
                "{name}, seed {}: noise {own:.3}, found {found:.2}",
                recorded.seed
            );
        }
    }
    for (name, noise) in [("vision-bdh", 0.2..0.4), ("ups", 0.3..0.6)] {
        for recorded in of(&all, name) {
            let (own, first) = (recorded.noise(), median(&recorded.losses[..24]));
            let (back, by_30) = (recorded.found(|loss| loss + first), recorded.found(|loss| 1.3 * loss));
            let which = format!("{name}, seed {}: noise {own:.3}, found {back:.2} {by_30:.2}", recorded.seed);
            assert!(noise.contains(&own) && back > 0.9 && by_30 < 0.1, "{which}");
        }
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
