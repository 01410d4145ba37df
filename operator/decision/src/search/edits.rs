//! An edit of a search: the trials that still fit are kept.

use super::launches;
use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use pawl_api::search::{self, Recorded};
use pawl_api::spec::{Parameter, Search, TrainingJobSpec};
use pawl_search::history::State;
use serde_json::json;

/// Length of the parameters in the status, bytes.
const MOST: usize = 2048;

/// Trials that are kept, in the form of the status.
pub(super) struct Kept {
    pub trials: Vec<String>,
}

/// Hash of what the result of a trial depends on beside its settings, which are those of its base and its point.
pub(super) fn results_hash(spec: &TrainingJobSpec, index: usize) -> String {
    let trainer = &spec.trainer;
    let world = (trainer.replicas, trainer.gpus_per_replica, &trainer.gpu_resource);
    let search = &spec.search[index];
    // Destructured without `..`: whether a result depends on a new field is decided here.
    let Search {
        epochs,
        items,
        pruner,
        pruning,
        objectives,
        seed: _, // Below, with its default.
        // Which points are tried: whether a trial is one of them is asked of each, see `kept`.
        sampler: _,
        parameters: _,
        constraints: _,
        // What ends a stage, and what follows it.
        name: _,
        trials: _,
        parallelism: _,
        hand_on: _,
        finalists: _,
        budget: _,
        patience: _,
        dry_run: _,
    } = search;
    let seed = launches::seed(spec, search);
    fingerprint(&json!([spec.workload, trainer.image, world, epochs, items, pruner, pruning, objectives, seed]), 12)
}

/// The parameters as the status holds them.
pub(super) fn written(parameters: &[Parameter]) -> String {
    let text = serde_json::to_string(parameters).unwrap_or_default();
    if text.len() > MOST { String::new() } else { text }
}

/// The trials of the stage that have ended and are points of its new space; `None` if none are, or trial 0 is not.
pub(super) fn kept(draft: &Draft<'_>, index: usize) -> Option<Kept> {
    let status = &draft.status.search[index];
    if status.results_hash != results_hash(draft.spec, index) {
        return None;
    }
    let base = draft.base(index);
    let mut before = draft.spec.clone();
    before.search[index].parameters = serde_json::from_str(&status.space).ok()?;
    before.search[index].constraints.clear();
    let before = search::stage(&before, index, &base, &[]).ok()?;
    let recorded = search::decode(&status.trials, &before.study.space, before.full)?;
    let stage = search::stage(draft.spec, index, &base, &super::first(draft, index)).ok()?;
    let space = &stage.study.space;
    // The settings accepted so far may be outside of the space.
    let first = search::rounded(stage.study.propose(&[], 0)?, space);
    let fits = |recorded: &Recorded| {
        let is_first = recorded.trial.number == 0 && recorded.trial.point == first;
        is_first || recorded.trial.number > 0 && space.contains(&recorded.trial.point)
    };
    let known = |recorded: &Recorded| recorded.trial.ended() && recorded.trial.state != State::Abandoned;
    if !recorded.first().is_some_and(|first| known(first) && fits(first)) {
        return None;
    }
    let mut trials: Vec<Recorded> = recorded.into_iter().filter(|trial| known(trial) && fits(trial)).collect();
    for (trial, number) in trials.iter_mut().zip(0..) {
        trial.trial.number = number;
    }
    Some(Kept { trials: search::encode(&trials, space, stage.full) })
}
