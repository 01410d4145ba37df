//! The trials of a stage, read from the status for people and programs.

use super::record::{Recorded, decode};
use super::stage::{full, goals, parameters};
use crate::spec::Search;
use crate::status::SearchStatus;
use pawl_search::history::Goal;
use pawl_search::space::Space;

/// The trials of a stage, and what is needed to understand them.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The parameters; constraints and the settings that are not varied are left out.
    pub space: Space,
    /// The directions of the objectives.
    pub goals: Vec<Goal>,
    /// Epochs of a complete trial, or items when the stage has `items`.
    pub full: u32,
    /// The trials, by number.
    pub trials: Vec<Recorded>,
}

/// The trials of the stage `search`; `None` when the parameters are invalid or the trials are those of other
/// parameters, as between a change of the spec and the next status.
pub fn history(search: &Search, status: &SearchStatus) -> Option<History> {
    let space = Space { parameters: parameters(search).ok()?, ..Space::default() };
    let full = full(search);
    let trials = decode(&status.trials, &space, full)?;
    Some(History { space, goals: goals(search), full, trials })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_search::history::State;
    use serde_json::json;

    #[test]
    fn trials_are_read_with_the_parameters_of_the_spec_alone() {
        let mut search: Search = serde_json::from_value(json!({
            "name": "quick", "trials": 4, "items": 100, "objectives": [{"metric": "rankIC", "goal": "Maximize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
                           {"name": "workload.hidden", "values": ["64", "128"]}],
        }))
        .unwrap();
        let trials = ["C;;0.5;;;1e-3,1", "T;;;;;2e-3,0"].map(str::to_owned).to_vec();
        let status = SearchStatus { trials, ..SearchStatus::default() };
        let found = history(&search, &status).unwrap();
        assert_eq!((found.full, found.goals), (100, vec![Goal::Maximize]));
        assert_eq!(found.trials[0].trial.point["workload.hidden"].to_string(), "128");
        assert_eq!(found.trials[1].trial.state, State::Running);
        search.parameters.pop();
        assert_eq!(history(&search, &status), None);
    }
}
