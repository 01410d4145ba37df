//! Phases that were given up for the default of `analysis.budgetPercent`, where all accepted phases together miss a
//! gate.

use crate::draft::Draft;
use crate::gates::speed::{self, promise};
use crate::gates::{Subject, throughput};
use crate::reason::Reason;
use pawl_api::spec::Phase;
use pawl_api::status::PhaseState;

/// The phases that nobody asked to give up and that could have met the gate that is missed for `reason`, with the
/// remedy. `None` if there are none: the budget is not the default one, or they would not have met it.
pub(crate) fn might_have_met(subject: &Subject<'_>, reason: Reason) -> Option<String> {
    let draft = subject.comparison.draft;
    let names: Vec<&str> = given_up(draft).map(|phase| phase.name.as_str()).collect();
    if draft.spec.analysis.budget_percent.is_some() || names.is_empty() || !could_meet(subject, reason) {
        return None;
    }
    // The names come last: a long message is truncated.
    let remedy = "analysis.budgetPercent: Unlimited also judges the phases that its default has given up";
    Some(format!("{remedy}, which might meet it: {}", names.join(", ")))
}

/// Phases that are not measured further because of what that would take.
fn given_up<'a>(draft: &'a Draft<'_>) -> impl Iterator<Item = &'a Phase> {
    let phases = draft.spec.phases.iter().zip(&draft.status.phases);
    let of_budget =
        phases.filter(|(_, status)| status.state == PhaseState::Inconclusive && Reason::gives_up(&status.reason));
    of_budget.map(|(phase, _)| phase)
}

/// Whether the phases that were given up could meet the gate, by what they promise. One that promises nothing may be as
/// fast as is needed; what a phase does to memory and utilization is promised by nobody.
fn could_meet(subject: &Subject<'_>, reason: Reason) -> bool {
    if [Reason::MemoryAboveGate, Reason::UtilizationBelowGate].contains(&reason) {
        return true;
    }
    let needed = if reason == Reason::ThroughputBelowGate {
        throughput::lacking(subject)
    } else if [Reason::SpeedBelowThreshold, Reason::SpeedUndecided].contains(&reason) {
        speed::lacking(subject)
    } else {
        // More speed meets no gate on quality.
        None
    };
    let promised: Option<f64> = given_up(subject.comparison.draft).map(promise).product();
    needed.is_some_and(|needed| promised.is_none_or(|promised| promised >= needed))
}
