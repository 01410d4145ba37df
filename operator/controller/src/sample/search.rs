//! The part of a job's sample about its search.

use pawl_api::search::states;
use pawl_api::status::{SearchState, SearchStatus};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::decimal::Decimal;
use pawl_search::history::State;

/// The metric values of a stage of a search.
#[derive(Debug)]
pub(crate) struct SearchSample {
    pub(crate) name: Box<str>,
    pub(crate) state: SearchState,
    /// Number of trials by state, in the order of `State::NAMES`.
    pub(crate) trials: [u32; State::NAMES.len()],
    pub(crate) goal: Option<f64>,
    /// Objectives of the winner, or of the best complete trial.
    pub(crate) objectives: Vec<(Box<str>, f64)>,
}

/// The stages that have begun.
pub(super) fn samples(job: &TrainingJob, status: &TrainingJobStatus) -> Vec<SearchSample> {
    status
        .search
        .iter()
        .filter(|stage| !stage.input_hash.is_empty())
        .map(|stage| SearchSample::new(job, stage))
        .collect()
}

impl SearchSample {
    fn new(job: &TrainingJob, status: &SearchStatus) -> Self {
        let spec = job.spec.search.iter().find(|search| search.name == status.name);
        let best = status.winner.as_ref().or(status.best.as_ref());
        let objectives =
            spec.into_iter().flat_map(|search| &search.objectives).map(|objective| objective.metric.as_str());
        let values = best.into_iter().flat_map(|best| &best.values).map(Decimal::value);
        let known: Vec<&str> = states(&status.trials).map(|(_, state)| state.name()).collect();
        Self {
            name: status.name.as_str().into(),
            state: status.state,
            trials: State::NAMES.map(|name| known.iter().filter(|known| **known == name).count() as u32),
            goal: spec.map(|search| f64::from(search.trials)),
            objectives: objectives.map(Into::into).zip(values).collect(),
        }
    }
}
