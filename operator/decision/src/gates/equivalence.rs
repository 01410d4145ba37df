//! Verifies the declaration `numerics: Equivalent`: compares the training losses.

use super::{Subject, Verdict};
use crate::reason::Reason;
use pawl_api::status::LaunchStatus;

/// Relative difference of final losses that a different rounding order may cause.
const ROUNDING: f64 = 5e-3;

/// The pair of losses (control, candidate) with the largest difference, and the tolerance, if the difference exceeds it. The
/// tolerance is the spread of the controls, or that of rounding if it is larger.
fn diverged(losses: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let controls = || losses.iter().map(|(control, _)| *control);
    let spread = controls().fold(f64::MIN, f64::max) - controls().fold(f64::MAX, f64::min);
    let off = |(control, candidate): &(f64, f64)| (candidate - control).abs();
    let (control, candidate) = losses.iter().max_by(|a, b| off(a).total_cmp(&off(b))).copied()?;
    let allowed = spread.max(0.0).max(ROUNDING * control.abs());
    (off(&(control, candidate)) > allowed).then_some((control, candidate, allowed))
}

/// Fails when a candidate's final loss differs from its control's by more than the spread of the control launches.
pub(super) fn losses(subject: &Subject<'_>) -> Option<Verdict> {
    if subject.changes_numerics() {
        return None;
    }
    let (pairs, _) = subject.comparison.pairs(0);
    let loss = |launch: &LaunchStatus| launch.measured.loss.as_ref().map(|loss| loss.value());
    let losses: Vec<(f64, f64)> =
        pairs.iter().filter_map(|pair| Some((loss(pair.control)?, loss(pair.candidate)?))).collect();
    let (control, candidate, allowed) = diverged(&losses)?;
    let name = subject.phase.map(|phase| phase.name.as_str()).unwrap_or_default();
    let message = format!(
        "final loss {candidate:.5} differs from {control:.5} with the settings accepted so far by more than {allowed:.2e} \
         (their spread, or 0.5 % for rounding): either the phase changes the numerics (declare phases[{name}].numerics: Changed), \
         or a script makes its model before it sets its seed, so that launches with equal settings differ"
    );
    Some(Verdict::Fails { trigger: None, reason: Reason::LossDiverged, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_agree_within_the_spread_of_the_controls_or_within_rounding() {
        assert_eq!(diverged(&[]), None);
        assert_eq!(diverged(&[(1.0, 1.004), (1.0, 0.996)]), None, "rounding");
        assert_eq!(diverged(&[(1.0, 1.05), (1.1, 1.1)]), None, "the controls differ as much");
        assert!(diverged(&[(1.0, 1.02), (1.001, 1.001)]).is_some());
    }
}
