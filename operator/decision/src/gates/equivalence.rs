//! `numerics: Equivalent` declares that the losses agree; they are compared.

use super::{Subject, Verdict};
use crate::reason::Reason;
use pawl_api::status::LaunchStatus;

/// Relative difference of final losses that rounding in another order explains.
const ROUNDING: f64 = 5e-3;

/// The pair of losses (control, candidate) that differs most, and the difference that is allowed, if it is larger than
/// that: the spread of the controls, or what rounding explains.
fn diverged(losses: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let controls = || losses.iter().map(|(control, _)| *control);
    let spread = controls().fold(f64::MIN, f64::max) - controls().fold(f64::MAX, f64::min);
    let off = |(control, candidate): &(f64, f64)| (candidate - control).abs();
    let (control, candidate) = losses.iter().max_by(|a, b| off(a).total_cmp(&off(b))).copied()?;
    let allowed = spread.max(0.0).max(ROUNDING * control.abs());
    (off(&(control, candidate)) > allowed).then_some((control, candidate, allowed))
}

/// Each candidate's final loss must agree with its control's within the spread of the control launches.
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
         (their spread): the phase changes the mathematics; declare phases[{name}].numerics: Changed"
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
