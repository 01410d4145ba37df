//! Alternating rounds of both arms, and the report on them.

use crate::ours::Round;
use crate::{ComparisonOptions, Experiment, Repetition, peer};
use anyhow::{Context, bail};
use serde_json::json;
use statrs::distribution::{ContinuousCDF, StudentsT};
use std::process::{Command, Stdio};

/// Seed of the first round.
const SEED: u64 = 42;

/// Runs `comparison.rounds` rounds of each arm, in alternating order, and prints the results.
///
/// # Errors
/// When the options leave nothing to compare, or a round fails.
pub fn run(comparison: &ComparisonOptions, experiment: &Experiment) -> anyhow::Result<()> {
    if comparison.rounds == 0 || !experiment.is_timed() {
        bail!("--rounds must be at least 1 and --steps more than --warmup");
    }
    if comparison.validate && comparison.rounds < 2 {
        bail!("--validate needs --rounds of at least 2: one seed has no spread");
    }
    if comparison.validate && matches!(experiment, Experiment::Forex(_) | Experiment::Atft(_)) {
        bail!("--validate: nothing is validated for {}; leave it out", experiment.name());
    }
    std::fs::create_dir_all(&comparison.work).with_context(|| comparison.work.display().to_string())?;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for round in 0..comparison.rounds {
        let (anew, validates) = (round == 0 || comparison.validate, comparison.validate);
        let seed = if validates { SEED + round as u64 } else { SEED };
        let repetition = Repetition { experiment: experiment.clone(), seed, validates };
        // The peer makes what both train on.
        let exports = anew && !experiment.apart();
        let peer = || peer::round(comparison, &repetition, exports.then_some(comparison.work.as_path()));
        if exports || round % 2 == 0 {
            theirs.push(peer()?);
            ours.push(own(comparison, &repetition)?);
        } else {
            ours.push(own(comparison, &repetition)?);
            theirs.push(peer()?);
        }
        let (a, b) = (&theirs[round], &ours[round]);
        eprint!("round {round}: peer {:.2}, ours {:.2} items/s", a.items_per_second, b.items_per_second);
        match a.validation.zip(b.validation) {
            Some((peer, ours)) => {
                eprintln!("; {} on held-out data: peer {peer:.5}, ours {ours:.5}", experiment.metric())
            }
            None => eprintln!(),
        }
    }
    report(comparison, experiment, &theirs, &ours)
}

/// A round of our arm in a process of its own.
fn own(comparison: &ComparisonOptions, repetition: &Repetition) -> anyhow::Result<Round> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("ours")
        .arg("--export")
        .arg(&comparison.work)
        .arg("--repetition")
        .arg(serde_json::to_string(repetition)?);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("our arm failed: its message is above");
    }
    serde_json::from_slice(&output.stdout).context("our arm printed no JSON")
}

fn report(args: &ComparisonOptions, experiment: &Experiment, theirs: &[Round], ours: &[Round]) -> anyhow::Result<()> {
    let logs: Vec<f64> = ours.iter().zip(theirs).map(|(o, t)| (o.items_per_second / t.items_per_second).ln()).collect();
    let (ratio, lower, upper) = interval(&logs);
    let worst = relative(&theirs[0].losses, &ours[0].losses, args.losses);
    let (peak, planned) = (ours[0].peak_bytes, ours[0].predicted_bytes);
    let memory = peak.zip(theirs[0].peak_bytes).map(|(ours, theirs)| ours / theirs);
    let validation = Validation::of(theirs, ours);
    if args.json {
        let document = json!({
            "workload": experiment.name(), "experiment": experiment, "rounds": args.rounds,
            "speedRatio": {"estimate": ratio, "lower": lower, "upper": upper},
            "memoryRatio": memory, "largestRelativeLossDifference": worst, "validation": validation,
            "peer": theirs, "ours": ours,
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(());
    }
    println!("{:>5} {:>14} {:>14} {:>10}", "step", "peer", "ours", "relative");
    for (step, (t, o)) in theirs[0].losses.iter().zip(&ours[0].losses).take(args.losses).enumerate() {
        println!("{step:>5} {t:>14.8} {o:>14.8} {:>10.1e}", (o - t).abs() / t.abs());
    }
    if worst.is_finite() {
        println!("losses: largest relative difference of the first {}: {worst:.2e}", args.losses);
    }
    println!("speed:  ours is {ratio:.3}x the peer's items/s ({lower:.3} to {upper:.3}, 90 %)");
    let gib =
        |bytes: Option<f64>| bytes.map_or_else(|| "?".into(), |bytes| format!("{:.2} GiB", bytes / f64::from(1 << 30)));
    println!("memory: peer {}, ours {} (predicted {})", gib(theirs[0].peak_bytes), gib(peak), gib(planned));
    if let Some((ours, theirs)) = ours[0].forecasts_per_second.zip(theirs[0].forecasts_per_second) {
        println!("sampling: peer {theirs:.0}, ours {ours:.0} windows/s, {:.3}x", ours / theirs);
    }
    if let Some(seconds) = ours[0].first_step_seconds {
        println!("start:  {seconds:.1} s to the end of our first step");
    }
    if let Some(Validation { pairs, difference, spread }) = validation {
        let metric = experiment.metric();
        for (round, [t, o]) in pairs.iter().enumerate() {
            println!("seed {}: {metric} on held-out data: peer {t:.5}, ours {o:.5}", SEED + round as u64);
        }
        println!("validation: the arms differ by {difference:.5} at most, the peer's seeds by {spread:.5}");
    }
    Ok(())
}

/// How far the arms are from each other on what is held out, beside how far the peer's seeds are.
#[derive(Debug, PartialEq, serde::Serialize)]
struct Validation {
    /// Of each round, the peer's and ours.
    pairs: Vec<[f64; 2]>,
    /// The largest difference of the arms in one round.
    difference: f64,
    /// The largest difference of two rounds of the peer.
    spread: f64,
}

impl Validation {
    /// `None` unless all rounds were validated.
    fn of(theirs: &[Round], ours: &[Round]) -> Option<Self> {
        let both = |(t, o): (&Round, &Round)| Some([t.validation?, o.validation?]);
        let pairs: Vec<[f64; 2]> = theirs.iter().zip(ours).map(both).collect::<Option<_>>()?;
        let of_peer = || pairs.iter().map(|[t, _]| *t);
        let spread = of_peer().fold(f64::MIN, f64::max) - of_peer().fold(f64::MAX, f64::min);
        let difference = pairs.iter().map(|[t, o]| (o - t).abs()).fold(0.0, f64::max);
        Some(Self { pairs, difference, spread })
    }
}

/// The largest relative difference of the first `count` losses; infinite when one arm gave none.
fn relative(theirs: &[f64], ours: &[f64], count: usize) -> f64 {
    let pairs: Vec<_> = theirs.iter().zip(ours).take(count).collect();
    if pairs.is_empty() {
        return f64::INFINITY;
    }
    pairs
        .into_iter()
        .map(|(t, o)| ((o - t).abs() / t.abs()).max(if o.is_finite() { 0.0 } else { f64::INFINITY }))
        .fold(0.0, f64::max)
}

/// The mean ratio with its two-sided 90 % interval, from logarithms of the ratios of rounds. One round has no interval.
fn interval(logs: &[f64]) -> (f64, f64, f64) {
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let width = match StudentsT::new(0.0, 1.0, count - 1.0) {
        Ok(t) if logs.len() > 1 => {
            let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
            t.inverse_cdf(0.95) * (variance / count).sqrt()
        }
        _ => f64::INFINITY,
    };
    (mean.exp(), (mean - width).exp(), (mean + width).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_holds_the_ratio_and_narrows_with_rounds() {
        let (ratio, lower, upper) = interval(&[0.2, 0.22, 0.18]);
        assert!((ratio - 0.2f64.exp()).abs() < 1e-12 && lower < ratio && ratio < upper);
        // t with 2 degrees of freedom at 0.95 is 2.92; the standard error is 0.02 / sqrt 3.
        assert!(((upper / ratio).ln() - 2.92 * 0.02 / 3f64.sqrt()).abs() < 1e-4);
        assert_eq!(interval(&[0.2]).2, f64::INFINITY, "one round says nothing of its noise");
    }

    #[test]
    fn validation_is_set_beside_the_spread_of_seeds() {
        let round = |validation| Round {
            items_per_second: 1.0,
            losses: Vec::new(),
            peak_bytes: None,
            predicted_bytes: None,
            first_step_seconds: None,
            validation,
            forecasts_per_second: None,
        };
        let theirs = [Some(0.5), Some(0.25), Some(0.375)].map(round);
        let ours = [Some(0.5), Some(0.375), Some(0.3125)].map(round);
        let found = Validation::of(&theirs, &ours).expect("all are validated");
        assert_eq!((found.difference, found.spread), (0.125, 0.25));
        assert_eq!(Validation::of(&theirs, &[None, None, None].map(round)), None);
    }

    #[test]
    fn a_loss_that_is_no_number_is_never_close() {
        assert_eq!(relative(&[1.0, 1.0], &[1.0, f64::NAN], 20), f64::INFINITY);
        assert_eq!(relative(&[1.0], &[], 20), f64::INFINITY);
        assert!((relative(&[1.0, 2.0], &[1.0, 2.002], 20) - 1e-3).abs() < 1e-12);
    }
}
