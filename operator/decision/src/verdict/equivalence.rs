//! `numerics: Equivalent` is a promise; the losses keep it or not.

use super::{Trial, Verdict};
use pawl_api::status::LaunchStatus;

/// Relative difference of final losses that rounding in another order explains.
const ROUNDING: f64 = 5e-3;

/// Each candidate's final loss must agree with its control's within the spread of the control launches.
pub(super) fn losses(trial: &Trial<'_>) -> Option<Verdict> {
    if trial.changes_numerics() {
        return None;
    }
    let (pairs, _) = trial.comparison.pairs(0);
    let loss = |launch: &LaunchStatus| launch.loss.as_ref().map(|loss| loss.value());
    let losses: Vec<(f64, f64)> =
        pairs.iter().filter_map(|pair| Some((loss(pair.control)?, loss(pair.candidate)?))).collect();
    let controls = || losses.iter().map(|(control, _)| *control);
    let spread = controls().fold(f64::MIN, f64::max) - controls().fold(f64::MAX, f64::min);
    let off = |(control, candidate): &(f64, f64)| (candidate - control).abs();
    let (control, candidate) = losses.iter().max_by(|a, b| off(a).total_cmp(&off(b))).copied()?;
    let allowed = spread.max(0.0).max(ROUNDING * control.abs());
    if off(&(control, candidate)) <= allowed {
        return None;
    }
    let message = format!(
        "final loss {candidate:.5} differs from {control:.5} with the settings accepted so far by more than {allowed:.2e} \
         (their spread): the phase changes the mathematics; declare phases[{}].numerics: Changed",
        trial.phase.name
    );
    Some(Verdict::Fails { trigger: None, reason: "LossDiverged", message })
}
