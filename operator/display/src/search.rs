//! A search in words: how its trials ended, the best one, the winner.

use crate::numbers::short;
use pawl_api::TrainingJobStatus;
use pawl_api::search::states;
use pawl_api::spec::{Objective, Search, TrainingJobSpec};
use pawl_api::status::{BestTrial, SearchState, SearchStatus};
use pawl_contract::decimal::Decimal;
use pawl_search::history::{Cause, State};
use std::collections::BTreeMap;

/// The stages of the search that have begun, in order, with their specs.
pub fn begun<'a>(
    spec: &'a TrainingJobSpec,
    status: &'a TrainingJobStatus,
) -> impl Iterator<Item = (&'a Search, &'a SearchStatus)> {
    let of = |search: &'a Search| {
        let found = status.search.iter().find(|status| status.name == search.name && !status.input_hash.is_empty());
        found.map(|status| (search, status))
    };
    spec.search.iter().filter_map(of)
}

/// A state in lower case.
pub const fn word(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Paused => "paused",
        State::Complete => "complete",
        State::Stopped => "pruned",
        State::Infeasible(_) => "infeasible",
        State::Abandoned => "abandoned",
    }
}

/// Why a trial is infeasible, in words.
pub const fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::OutOfMemory => "out of memory",
        Cause::NonFinite => "not finite",
        Cause::Unsupported => "unsupported",
        Cause::Crashed => "crashed",
    }
}

/// The unit of the length of a trial.
pub const fn unit(search: &Search) -> &'static str {
    if search.epochs.is_some() { "epochs" } else { "items" }
}

/// The trials of a stage by state, such as `3 complete, 1 running (trial 7), 2 infeasible (1 out of memory, 1 not
/// finite)`.
pub fn trials(status: &SearchStatus) -> String {
    let known: Vec<(u32, State)> = states(&status.trials).collect();
    let of = |word: &str, wanted: fn(State) -> bool| {
        let found: Vec<&(u32, State)> = known.iter().filter(|(_, state)| wanted(*state)).collect();
        let detail = match found.first() {
            Some((_, State::Running)) => format!(" ({})", numbered(found.iter().map(|(number, _)| *number))),
            Some((_, State::Infeasible(_))) => format!(" ({})", causes(found.iter().map(|(_, state)| *state))),
            Some((_, State::Paused | State::Complete | State::Stopped | State::Abandoned)) | None => String::new(),
        };
        (!found.is_empty()).then(|| format!("{} {word}{detail}", found.len()))
    };
    let kinds = [
        of("complete", |state| state == State::Complete),
        of("running", |state| state == State::Running),
        of("paused", |state| state == State::Paused),
        of("pruned", |state| state == State::Stopped),
        of("infeasible", |state| matches!(state, State::Infeasible(_))),
        of("abandoned", |state| state == State::Abandoned),
    ];
    kinds.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Trials by number, such as `trial 7` or `trials 7, 9`.
pub fn numbered(numbers: impl Iterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    format!("trial{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

fn causes(states: impl Iterator<Item = State>) -> String {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for state in states {
        if let State::Infeasible(why) = state {
            *counts.entry(cause(why)).or_default() += 1;
        }
    }
    counts.into_iter().map(|(why, count)| format!("{count} {why}")).collect::<Vec<_>>().join(", ")
}

/// The values of the objectives by name, such as `loss 0.123, itemsPerSecond 1200`.
pub fn values(objectives: &[Objective], values: &[Decimal]) -> String {
    let named = objectives.iter().zip(values);
    named
        .map(|(objective, value)| format!("{} {}", objective.metric, short(value.value())))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The settings of a trial, such as `batchPerGpu 16, learningRate 0.001`.
pub fn settings(best: &BestTrial) -> String {
    best.parameters.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// The lines of a stage: how many trials ended how, the best one or the winner, its settings.
pub fn lines(search: &Search, status: &SearchStatus) -> Vec<String> {
    let count = match status.state {
        SearchState::Done => format!("{} trials", status.trials.len()),
        SearchState::Running | SearchState::Repeating => format!("{} of {} trials", status.trials.len(), search.trials),
    };
    let states = trials(status);
    let mut lines = vec![if states.is_empty() { count } else { format!("{count}: {states}") }];
    if status.winner.is_none() && !status.finalists.is_empty() {
        let finalist = |finalist: &pawl_api::status::FinalistStatus| {
            let failed = if finalist.failed { ", failed" } else { "" };
            let plural = if finalist.values.len() == 1 { "" } else { "s" };
            format!("trial {} ({} seed{plural}{failed})", finalist.trial, finalist.values.len())
        };
        let finalists: Vec<String> = status.finalists.iter().map(finalist).collect();
        lines.push(format!("repeating the best with further seeds: {}", finalists.join(", ")));
    }
    match (&status.winner, &status.best) {
        (Some(winner), _) => {
            lines.push(format!("winner: {}", status.message));
            lines.push(format!("settings of the winner: {}", settings(winner)));
        }
        (None, Some(best)) => {
            let found = values(&search.objectives, &best.values);
            lines.push(format!("best so far: trial {}: {found} with {}", best.trial, settings(best)));
        }
        (None, None) if !status.message.is_empty() => lines.push(status.message.clone()),
        (None, None) => {}
    }
    if !status.pareto.is_empty() {
        lines.push(format!("Pareto set: {}", numbered(status.pareto.iter().copied())));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn search() -> Search {
        serde_json::from_value(json!({
            "name": "quick", "trials": 12, "epochs": 9, "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}],
        }))
        .unwrap()
    }

    fn status(trials: &[&str], more: serde_json::Value) -> SearchStatus {
        let mut whole = json!({"name": "quick", "inputHash": "x", "trials": trials});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn a_running_stage_shows_its_trials_by_state_and_the_best() {
        let trials =
            ["C;;0.5;;;1e-3", "S;3;;1:9;;1e-1", "O;;;;;1", "N;;;;;1", "N;;;;;1", "P;3;;1:2;;1", "T;;;;;1", "A;;;;;1"];
        let best = json!({"best": {"trial": 0, "values": ["0.5"], "parameters": {"learningRate": "0.001"}}});
        assert_eq!(
            lines(&search(), &status(&trials, best)),
            [
                "8 of 12 trials: 1 complete, 1 running (trial 6), 1 paused, 1 pruned, \
                 3 infeasible (2 not finite, 1 out of memory), 1 abandoned",
                "best so far: trial 0: loss 0.5 with learningRate 0.001",
            ]
        );
        assert_eq!(lines(&search(), &status(&[], json!({}))), ["0 of 12 trials"]);
    }

    #[test]
    fn a_stage_that_repeats_its_finalists_and_one_that_has_ended() {
        let finalists = json!({"state": "Repeating", "finalists": [{"trial": 0, "values": ["0.5", "0.6"]},
                               {"trial": 1, "values": ["0.7"], "failed": true}]});
        assert_eq!(
            lines(&search(), &status(&["C;;0.5;;;1", "C;;0.7;;;1"], finalists)),
            [
                "2 of 12 trials: 2 complete",
                "repeating the best with further seeds: trial 0 (2 seeds), trial 1 (1 seed, failed)",
            ]
        );
        let done = json!({"state": "Done", "message": "trial 1 of 2: loss 0.7 (one seed)", "pareto": [0, 1],
                          "winner": {"trial": 1, "values": ["0.7"], "parameters": {"a": "1", "b": "x"}}});
        assert_eq!(
            lines(&search(), &status(&["C;;0.5;;;1", "C;;0.7;;;1"], done)),
            [
                "2 trials: 2 complete",
                "winner: trial 1 of 2: loss 0.7 (one seed)",
                "settings of the winner: a 1, b x",
                "Pareto set: trials 0, 1",
            ]
        );
    }
}
