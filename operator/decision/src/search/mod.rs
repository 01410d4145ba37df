//! The search over hyperparameters: its stages in order, after the phases and before the training.
//!
//! A trial is an attempt of its own, which checks the settings and then trains them. The stages are functions of the
//! trials in the status (`pawl-search`); this module keeps the trials, launches them, and records their results:
//!
//! - [`stage`]: one stage, until its trials have ended; [`launches`]: the launches of a trial; [`parts`]: how far each
//!   trains it;
//! - [`outcome`]: the result of a launch, as a trial learns it;
//! - [`edits`]: which trials are kept when the space changes; [`late`]: trials that take too long;
//! - [`most`]: what all of it takes at most;
//! - [`finals`]: the best trials, repeated with further seeds; [`compare`]: the best of them against the settings
//!   accepted before.

mod compare;
mod edits;
mod ending;
mod finals;
mod late;
mod launches;
mod most;
mod outcome;
mod parts;
mod progress;
mod stage;

pub(crate) use late::next as next_late;
pub use most::{Repetitions, Searching, StageAmount, searching};
pub(crate) use outcome::record;
pub(crate) use progress::progress;

use self::edits::Kept;
use crate::draft::{Draft, bounded};
use crate::fingerprint::fingerprint;
use crate::lifecycle::seconds_between;
use crate::reason::Reason;
use crate::retry::time;
use crate::revision::fold;
use crate::step::Step;
use pawl_api::search::{self, Recorded};
use pawl_api::spec::{Search, TrainingJobSpec};
use pawl_api::status::{PhaseStatus, Purpose, SearchState, SearchStatus};
use pawl_contract::settings::Settings;
use pawl_search::history::Trial;
use pawl_search::stage::{Spent, Stage};
use pawl_search::winner;
use serde_json::json;
use std::collections::BTreeMap;

/// A stage that has not ended, with its trials.
pub(crate) struct Open {
    pub index: usize,
    /// The settings of trial 0.
    pub base: Settings,
    pub stage: Stage,
    pub recorded: Vec<Recorded>,
}

/// Advances the first stage that has not ended.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    align(draft);
    for index in 0..draft.spec.search.len() {
        match stage::advance(draft, index) {
            Step::Pass => {}
            step @ (Step::Moved | Step::Go(_)) => return step,
        }
    }
    Step::Pass
}

/// Aligns the stages of the status with those of the spec.
fn align(draft: &mut Draft<'_>) {
    let mut old = std::mem::take(&mut draft.status.search);
    let mut found = |search: &Search| {
        let known = old.iter_mut().find(|status| status.name == search.name).map(std::mem::take);
        known.unwrap_or_else(|| SearchStatus { name: search.name.clone(), ..SearchStatus::default() })
    };
    draft.status.search = draft.spec.search.iter().map(&mut found).collect();
}

/// Hash of all inputs of the trials of a stage, its base settings and what it may spend excepted.
fn input_hash(spec: &TrainingJobSpec, index: usize) -> String {
    let trainer = &spec.trainer;
    let world = (trainer.replicas, trainer.gpus_per_replica, &trainer.gpu_resource);
    let stages = spec.search.iter().take(index + 1).map(|search| {
        // Destructured without `..`: whether a new field is an input of the trials is decided here.
        let Search {
            epochs,
            items,
            sampler,
            pruner,
            pruning,
            objectives,
            parameters,
            constraints,
            seed: _, // Below, with its default.
            // What ends a stage, and what follows it: see `whole_hash`.
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
        json!([epochs, items, sampler, pruner, pruning, objectives, parameters, constraints, seed])
    });
    fingerprint(&json!([spec.workload, trainer.image, world, stages.collect::<Vec<_>>()]), 12)
}

/// Hash of a whole stage: if it changes after the stage has ended, the stage is continued.
fn whole_hash(spec: &TrainingJobSpec, index: usize) -> String {
    // How many trials run at the same time is no reason to continue.
    let search = Search { parallelism: 1, ..spec.search[index].clone() };
    fingerprint(&json!([search, spec.seeds, spec.analysis.alpha_percent, spec.search.len()]), 12)
}

impl Draft<'_> {
    /// The settings of trial 0 of the stage with this index: those in effect after the phases, and the winners of the
    /// stages before.
    fn base(&self, index: usize) -> Settings {
        self.with_first_winners(index, self.effective())
    }

    /// `settings` with the winners of the first `count` stages.
    fn with_first_winners(&self, count: usize, settings: Settings) -> Settings {
        let last = self.status.search.last().filter(|_| count == self.status.search.len());
        if last.and_then(|last| last.comparison.as_ref()).is_some_and(|comparison| comparison.kept) {
            return settings;
        }
        let winners = self.status.search.iter().take(count).filter_map(|status| status.winner.as_ref());
        winners.fold(settings, |settings, winner| search::with(&settings, &self.spec.workload, &winner.parameters))
    }

    /// [`Self::tuned`] with the patches of the phases selected by `keep` only.
    pub fn tuned_with(&self, keep: impl Fn(usize, &PhaseStatus) -> bool) -> Settings {
        self.with_winners(fold(self.spec, &self.status, keep))
    }

    /// `settings` with the winners of all stages.
    pub fn with_winners(&self, settings: Settings) -> Settings {
        self.with_first_winners(self.status.search.len(), settings)
    }

    /// The settings in effect after the search.
    pub fn tuned(&self) -> Settings {
        self.base(self.status.search.len())
    }

    /// Device time of searches so far, milliseconds.
    fn searching(&self) -> u64 {
        let cost = self.status.cost.as_ref();
        cost.and_then(|cost| cost.purposes.get(&Purpose::Search).copied()).unwrap_or(0)
    }
}

/// A stage with its trials; `None` when its spec is invalid or its trials are not those of its space.
pub(crate) fn open(draft: &Draft<'_>, index: usize) -> Option<Open> {
    let base = draft.base(index);
    let stage = search::stage(draft.spec, index, &base, &first(draft, index)).ok()?;
    let recorded = search::decode(&draft.status.search.get(index)?.trials, &stage.study.space, stage.full)?;
    Some(Open { index, base, stage, recorded })
}

/// The values of the trials with which a stage begins: the best ones of the stage before it.
fn first(draft: &Draft<'_>, index: usize) -> Vec<BTreeMap<String, String>> {
    let Some(before) = index.checked_sub(1) else { return Vec::new() };
    let Some(Open { stage, recorded, .. }) = open(draft, before) else { return Vec::new() };
    let trials = trials(&recorded);
    let best = winner::best(&trials, &stage.study.goals, draft.spec.search[before].hand_on as usize);
    winner::points(&trials, &best).iter().map(search::texts).collect()
}

fn trials(recorded: &[Recorded]) -> Vec<Trial> {
    recorded.iter().map(|recorded| recorded.trial.clone()).collect()
}

impl Open {
    /// Writes the trials into the status.
    pub fn write(&self, draft: &mut Draft<'_>) {
        let space = &self.stage.study.space;
        let best = self.best();
        let several = self.stage.study.goals.len() > 1;
        let Some(status) = draft.status.search.get_mut(self.index) else { return };
        status.trials = search::encode(&self.recorded, space, self.stage.full);
        status.best = best;
        if several {
            status.pareto = winner::pareto_set(&trials(&self.recorded), &self.stage.study.goals);
        }
    }
}

/// Begins a stage, or begins it anew with the trials that are kept.
fn begin(draft: &mut Draft<'_>, index: usize, kept: Option<Kept>) {
    let spec = &draft.spec.search[index];
    let old = std::mem::take(&mut draft.status.search[index]);
    let name = spec.name.clone();
    let text = match &kept {
        None if old.trials.is_empty() => String::new(),
        None => "an input of its trials changed, it begins anew: ".to_owned(),
        Some(kept) => format!("its space changed, {} of {} trials are kept: ", kept.trials.len(), old.trials.len()),
    };
    let message = format!("search {name}: {text}{} trials", spec.trials);
    let fresh = SearchStatus {
        name,
        input_hash: input_hash(draft.spec, index),
        results_hash: edits::results_hash(draft.spec, index),
        space: edits::written(&spec.parameters),
        base: crate::revision::revision(&draft.base(index)),
        ..SearchStatus::default()
    };
    draft.status.search[index] = match kept {
        None => SearchStatus { started: Some(draft.now.to_string()), spent_before: draft.searching(), ..fresh },
        Some(Kept { trials }) => {
            let SearchStatus { started, spent_before, dry_run, .. } = old;
            SearchStatus { started, spent_before, dry_run, trials, ..fresh }
        }
    };
    draft.normal(Reason::SearchStarted, message, None);
}

/// Ends a stage that has no winner: the job fails.
fn fail(draft: &mut Draft<'_>, index: usize, reason: Reason, message: &str) -> Step {
    let name = &draft.spec.search[index].name;
    draft.fail(reason, &format!("search {name}: {message}"));
    if let Some(status) = draft.status.search.get_mut(index) {
        status.message = bounded(message);
    }
    Step::Moved
}

/// What the stage has spent.
fn spent(draft: &Draft<'_>, index: usize) -> Spent {
    let status = &draft.status.search[index];
    let gpu_hours = draft.searching().saturating_sub(status.spent_before) as f64 / 3.6e6;
    let started = status.started.as_deref().and_then(time);
    let hours = started.map_or(0.0, |started| seconds_between(started, draft.now) as f64 / 3600.0);
    Spent { gpu_hours, cost: crate::cost::price_of(draft.spec, gpu_hours), hours }
}

/// Whether a stage has ended.
fn is_done(status: &SearchStatus) -> bool {
    status.state == SearchState::Done
}
