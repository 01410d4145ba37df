//! The result of a ladder in one sentence.

use crate::numbers::{at_least, ratio, signed};
use crate::settings::{Difference, differences};
use crate::together::{TOGETHER, is_current};
use pawl_api::status::{PhaseState, PhaseStatus, QualityStatus, Speedup};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::settings::Settings;

/// How much faster the accepted settings are, what the quality did, and which settings to keep: `4.20 times as fast as
/// the baseline (at least 3.81), validation loss +0.0001 (at most +0.01 allowed). Keep: compile: Graph`; and whether
/// that rests on disturbed pairs. `None` while a verdict is open, and for a job without phases. The caller removes
/// control characters.
pub fn sentence(job: &TrainingJob, status: &TrainingJobStatus) -> Option<String> {
    if status.phases.is_empty() || status.phases.iter().any(|phase| !phase.state.is_final()) {
        return None;
    }
    let accepted: Vec<_> = status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).collect();
    if accepted.is_empty() {
        return Some(nothing_accepted(job, status));
    }
    let Promised { speedup, quality, is_missed, .. } = promised(status)?;
    let quality = quality.map(|quality| of_quality(job, quality)).unwrap_or_default();
    let missed = if is_missed { ", but a gate is missed" } else { "" };
    let patched = |settings: Settings, phase: &&PhaseStatus| settings.with(&patch(job, phase));
    let kept = accepted.iter().fold(job.spec.settings.clone(), patched);
    let changed: Vec<String> = differences(&job.spec.settings, &kept)
        .into_iter()
        .filter(Difference::changed)
        .map(|setting| format!("{}: {}", setting.name, setting.effective.unwrap_or_else(|| "default".to_owned())))
        .collect();
    let keep = if changed.is_empty() { String::new() } else { format!(" Keep: {}", changed.join(", ")) };
    let disturbed = accepted_disturbed(&accepted, speedup).map(|text| format!(" {text}")).unwrap_or_default();
    Some(format!("{}{quality}{missed}.{disturbed}{keep}", times(speedup)))
}

/// What is promised of the accepted settings.
pub(crate) struct Promised<'a> {
    /// Name of the comparison that measured it.
    pub name: &'a str,
    speedup: &'a Speedup,
    quality: Option<&'a QualityStatus>,
    /// Whether a gate is missed.
    is_missed: bool,
}

/// What the settings in effect were measured by: all accepted phases together, or the only one.
pub(crate) fn promised(status: &TrainingJobStatus) -> Option<Promised<'_>> {
    let mut accepted = status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted);
    let (first, second) = (accepted.next()?, accepted.next());
    match (&status.bundle, second) {
        (Some(bundle), _) if bundle.state == PhaseState::Accepted && is_current(bundle, status) => Some(Promised {
            name: TOGETHER,
            speedup: bundle.speedup.as_ref()?,
            quality: bundle.quality.as_ref(),
            is_missed: bundle.reason == GOAL_MISSED,
        }),
        (None, None) => Some(Promised {
            name: &first.name,
            speedup: first.speedup.as_ref()?,
            quality: first.quality.as_ref(),
            is_missed: false,
        }),
        _ => None,
    }
}

/// Which phases were accepted by disturbed pairs: `bigger-batch was accepted by 8 pairs, 7 of which were disturbed.` A
/// phase whose speedup is the one that is `said` already is left out. `None` without any.
fn accepted_disturbed(accepted: &[&PhaseStatus], said: &Speedup) -> Option<String> {
    let of_phase = |phase: &&PhaseStatus| {
        let speedup = phase.speedup.as_ref()?;
        let disturbed = disturbed(speedup)?;
        (speedup != said).then(|| format!("{} was accepted by {disturbed}", phase.name))
    };
    let all: Vec<String> = accepted.iter().filter_map(of_phase).collect();
    (!all.is_empty()).then(|| format!("{}.", all.join("; ")))
}

/// `8 pairs, 7 of which were disturbed`; `None` if none was.
fn disturbed(speedup: &Speedup) -> Option<String> {
    match (speedup.disturbed, speedup.pairs) {
        (0, _) => None,
        (1, 1) => Some("a pair that was disturbed".to_owned()),
        (1, pairs) => Some(format!("{pairs} pairs, 1 of which was disturbed")),
        (disturbed, pairs) => Some(format!("{pairs} pairs, {disturbed} of which were disturbed")),
    }
}

/// That nothing was accepted, and how many verdicts rest on disturbed pairs, that of all phases together included.
fn nothing_fast_enough(status: &TrainingJobStatus) -> String {
    let of_phases = status.phases.iter().map(|phase| &phase.speedup);
    let speedups = of_phases.chain(status.bundle.iter().map(|bundle| &bundle.speedup)).flatten();
    match speedups.filter(|speedup| speedup.disturbed > 0).count() {
        0 => "No phase was accepted.".to_owned(),
        1 => "No phase was accepted; a verdict rests on disturbed pairs.".to_owned(),
        count => format!("No phase was accepted; {count} verdicts rest on disturbed pairs."),
    }
}

/// The reason of an accepted bundle that does not reach every gate.
const GOAL_MISSED: &str = "GoalMissed";
/// The reasons of a phase that is not measured further because of what that would take.
const GIVEN_UP: [&str; 2] = ["BudgetSpent", "NotWorthKnowing"];

/// That no phase was accepted, and what judges those that were given up for what judging may take.
fn nothing_accepted(job: &TrainingJob, status: &TrainingJobStatus) -> String {
    let is_given_up =
        |phase: &&PhaseStatus| phase.state == PhaseState::Inconclusive && GIVEN_UP.contains(&phase.reason.as_str());
    let given_up: Vec<&str> = status.phases.iter().filter(is_given_up).map(|phase| phase.name.as_str()).collect();
    let default = if job.spec.analysis.budget_percent.is_none() { "the default of " } else { "" };
    let remedy = "budgetPercent: Unlimited judges all phases";
    match given_up.len() {
        0 => nothing_fast_enough(status),
        all if all == status.phases.len() => {
            format!("No phase was judged: {default}analysis.budgetPercent does not pay for it; {remedy}.")
        }
        _ => format!(
            "No phase was accepted; {default}analysis.budgetPercent did not pay for judging {}; {remedy}.",
            given_up.join(", ")
        ),
    }
}

/// What a phase changes, with its fallback.
pub(crate) fn patch(job: &TrainingJob, status: &PhaseStatus) -> Settings {
    let Some(phase) = job.spec.phases.iter().find(|phase| phase.name == status.name) else {
        return Settings::default();
    };
    pawl_decision::patch(phase, status.effective_fallback())
}

/// `4.20 times as fast as the baseline`, with the lower bound.
fn times(speedup: &Speedup) -> String {
    let least = at_least(speedup).map(|least| format!(" (at least {least})")).unwrap_or_default();
    let disturbed = disturbed(speedup).map(|disturbed| format!(" in {disturbed}")).unwrap_or_default();
    format!("{} times as fast as the baseline{least}{disturbed}", ratio(speedup.estimate.value()))
}

/// How the validation loss changed, and by how much it may rise.
fn of_quality(job: &TrainingJob, quality: &QualityStatus) -> String {
    let gate = job.spec.gates.validation_loss_delta.as_ref();
    let allowed = gate.map(|gate| format!(" (at most +{gate} allowed)")).unwrap_or_default();
    format!(", validation loss {}{allowed}", signed(quality.loss_delta.value()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(phases: Value, bundle: Value) -> Option<String> {
        let spec = json!({"workload": {"name": "ups"}, "settings": {"batchPerGpu": 8},
        "gates": {"validationLossDelta": "0.01"}, "phases": [
            {"name": "a", "settings": {"compile": "Graph"}},
            {"name": "b", "settings": {"optimizerKernel": "Fused"}, "fallbacks": [{"when": ["OutOfMemory"], "settings": {"lossFrequency": 4}}]},
        ]});
        let job = serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap();
        // A search has found another learning rate.
        let effective = json!({"batchPerGpu": 8, "compile": "Graph", "learningRate": "0.1"});
        let status = json!({"phases": phases, "bundle": bundle, "effectiveSettings": effective});
        sentence(&job, &serde_json::from_value(status).unwrap())
    }

    fn bundle(reason: &str) -> Value {
        json!({"inputHash": "x", "state": "Accepted", "reason": reason, "message": "",
            "speedup": {"estimate": "4.2", "lower": "3.818", "pairs": 3},
            "quality": {"lossDelta": "0.0001", "seeds": 1, "items": 64}})
    }

    #[test]
    fn all_accepted_phases_together_have_their_bound_and_their_quality() {
        let phases = json!([{"name": "a", "state": "Accepted"}, {"name": "b", "state": "Accepted", "rung": 1}]);
        let expected = "4.20 times as fast as the baseline (at least 3.81), validation loss +0.0001 (at most +0.01 \
                        allowed). Keep: compile: Graph, lossFrequency: 4, optimizerKernel: Fused";
        assert_eq!(of(phases.clone(), bundle("GoalMet")).as_deref(), Some(expected));
        let missed = of(phases.clone(), bundle("GoalMissed")).unwrap();
        assert!(missed.contains("allowed), but a gate is missed. Keep:"), "{missed}");
        assert_eq!(of(phases, Value::Null), None, "they were not measured together");
    }

    #[test]
    fn a_result_that_rests_on_disturbed_pairs_says_so_in_its_first_sentence() {
        let phases = json!([{"name": "a", "state": "Accepted"}, {"name": "b", "state": "Accepted"}]);
        let result = |pairs: u32, disturbed: u32| {
            let mut bundle = bundle("GoalMet");
            (bundle["speedup"]["pairs"], bundle["speedup"]["disturbed"]) = (pairs.into(), disturbed.into());
            of(phases.clone(), bundle).unwrap()
        };
        let begin = "4.20 times as fast as the baseline (at least 3.81)";
        assert!(result(5, 3).starts_with(&format!("{begin} in 5 pairs, 3 of which were disturbed, validation loss")));
        assert!(result(4, 1).starts_with(&format!("{begin} in 4 pairs, 1 of which was disturbed, validation loss")));
        assert!(result(5, 0).starts_with(&format!("{begin}, validation loss")));
    }

    #[test]
    fn a_phase_that_was_accepted_by_disturbed_pairs_is_named() {
        let speedup = json!({"estimate": "1.3", "pairs": 8, "disturbed": 7});
        let one = json!({"name": "a", "state": "Accepted", "speedup": speedup});
        let phases = json!([one.clone(), {"name": "b", "state": "Accepted"}]);
        let found = of(phases, bundle("GoalMet")).unwrap();
        let expected = "allowed). a was accepted by 8 pairs, 7 of which were disturbed. Keep:";
        assert!(found.contains(expected), "{found}");
        let found = of(json!([one]), Value::Null).unwrap();
        assert_eq!(found.matches("disturbed").count(), 1, "said twice: {found}");
    }

    #[test]
    fn one_phase_stands_for_itself() {
        let phase = |state: &str| json!([{"name": "a", "state": state, "speedup": {"estimate": "12.34", "pairs": 1}}]);
        let one = of(phase("Accepted"), Value::Null);
        assert_eq!(one.as_deref(), Some("12.3 times as fast as the baseline. Keep: compile: Graph"));
        assert_eq!(of(phase("RolledBack"), Value::Null).as_deref(), Some("No phase was accepted."));
        assert_eq!(of(phase("Measuring"), Value::Null), None);
        let mut disturbed = phase("RolledBack");
        disturbed[0]["speedup"]["disturbed"] = json!(1);
        let expected = "No phase was accepted; a verdict rests on disturbed pairs.";
        assert_eq!(of(disturbed, Value::Null).as_deref(), Some(expected));
        let mut unconfirmed = bundle("NothingAccepted");
        (unconfirmed["state"], unconfirmed["speedup"]["disturbed"]) = (json!("RolledBack"), json!(3));
        assert_eq!(of(phase("RolledBack"), unconfirmed).as_deref(), Some(expected));
    }

    #[test]
    fn phases_that_the_budget_gave_up_are_named_with_what_judges_them() {
        let given_up = |name: &str, reason: &str| json!({"name": name, "state": "Inconclusive", "reason": reason});
        let all = json!([given_up("a", "BudgetSpent"), given_up("b", "NotWorthKnowing")]);
        let nothing = "No phase was judged: the default of analysis.budgetPercent does not pay for it; \
                       budgetPercent: Unlimited judges all phases.";
        assert_eq!(of(all, Value::Null).as_deref(), Some(nothing));
        let found = of(json!([given_up("a", "SpeedUndecided"), given_up("b", "BudgetSpent")]), Value::Null).unwrap();
        assert!(found.starts_with("No phase was accepted; the default of") && found.contains("judging b; "), "{found}");
        let measured = of(json!([given_up("a", "SpeedUndecided")]), Value::Null);
        assert_eq!(measured.as_deref(), Some("No phase was accepted."));
    }
}
