//! How far one launch trains a trial. With the median rule that is the next report after which the trial could be
//! stopped, or all of the trial: a trainer that lists the evaluations in the course of a launch reports the values in
//! between, and ends the launch itself where the trial is stopped.

use super::{Open, trials};
use crate::draft::Draft;
use pawl_api::search::{self, Recorded};
use pawl_api::spec::{Goal, Pruner, Search, TrainingJobSpec};
use pawl_contract::plan::{Better, Criterion, Evaluations, MAX_LISTED};
use pawl_search::history::Trial;
use pawl_search::scheduler::Prospect;

/// What one launch trains of a trial.
pub(super) struct Part {
    /// The next report.
    pub first: u32,
    /// The amount of training at its end.
    pub target: u32,
    /// Evaluations that its report lists.
    pub evaluations: Option<Evaluations>,
}

/// The next part of a running trial. `is_under_way` is whether a launch up to such a target, with the next report
/// first, runs already: it is not replaced by one of another length.
pub(super) fn next(
    draft: &Draft<'_>,
    open: &Open,
    recorded: &Recorded,
    is_under_way: impl Fn((u32, u32)) -> bool,
) -> Part {
    let search = &draft.spec.search[open.index];
    let trial = &recorded.trial;
    let reports = reports(search, trial);
    let first = reports[0];
    let alone = Part { first, target: first, evaluations: None };
    let objective = search.objectives.first().filter(|_| is_of_evaluations(search));
    let (Pruner::Median, Some(objective)) = (search.pruner, objective) else { return alone };
    let better = match objective.goal {
        Goal::Minimize => Better::Smaller,
        Goal::Maximize => Better::Larger,
    };
    let (mut bounds, last) = bounds(search, open, trial, &reports);
    let under_way = reports.iter().copied().find(|target| is_under_way((first, *target)));
    let target = under_way.unwrap_or_else(|| if lists_evaluations(draft, open, recorded) { last } else { first });
    // The launch ends there anyway.
    bounds.retain(|(report, _)| *report < target);
    let criterion = Criterion { metric: objective.metric.clone(), better };
    Part { target, evaluations: Some(Evaluations { every: search.pruning.first.max(1), criterion, bounds }), ..alone }
}

/// Number of launches of trial `number` of a stage at most, if it is trained completely. That evaluations are listed is
/// known before of the built-in trainer alone; the first trial shows it.
pub(super) fn most(spec: &TrainingJobSpec, search: &Search, number: u32) -> u64 {
    let full = search::full(search);
    if search.pruner != Pruner::Median {
        return search::scheduler(search).rungs(number, full).len() as u64;
    }
    let reports = u64::from(full.div_ceil(search.pruning.first.max(1)));
    let lists = spec.workload.command.is_empty() && is_of_evaluations(search);
    match lists && search.parallelism <= 1 {
        true => (reports.div_ceil(MAX_LISTED as u64) + u64::from(number == 0)).min(reports),
        false => reports,
    }
}

/// Whether no objective is measured of a whole launch, whose length would be part of it.
fn is_of_evaluations(search: &Search) -> bool {
    search.objectives.iter().all(|objective| !objective.is_of_launch())
}

/// The next reports of a trial, as many as one launch may list; one at least.
fn reports(search: &Search, trial: &Trial) -> Vec<u32> {
    if search.pruner != Pruner::Median {
        return vec![trial.target];
    }
    let done = trial.newest().map_or(0, |report| report.resource);
    let step = search.pruning.first.max(1);
    let next = |report: &u32| (*report < trial.target).then(|| report.saturating_add(step).min(trial.target));
    let first = done.saturating_add(step).min(trial.target);
    std::iter::successors(Some(first), next).take(MAX_LISTED).collect()
}

/// The values of the objective that stop the trial if it has none as good, by report, and how far it may run: to the
/// first report after which values of trials beside it decide, else to the last one.
fn bounds(search: &Search, open: &Open, trial: &Trial, reports: &[u32]) -> (Vec<(u32, f64)>, u32) {
    let (trials, mut bounds, mut last) = (trials(&open.recorded), Vec::new(), reports[0]);
    let Some(goal) = open.stage.study.goals.first() else { return (bounds, last) };
    for report in reports {
        last = *report;
        match open.stage.scheduler.prospect(&trials, trial, *goal, (last, open.stage.full)) {
            Prospect::Continues => {}
            Prospect::Bound(value) if search.parallelism <= 1 => bounds.push((last, value)),
            // Trials beside it may change the bound until then.
            Prospect::Bound(_) | Prospect::Open => break,
        }
    }
    (bounds, last)
}

/// Whether the trainer is known to list evaluations: by the last launch of this trial, else by the newest trial with a
/// value, also of the stages before.
fn lists_evaluations(draft: &Draft<'_>, open: &Open, recorded: &Recorded) -> bool {
    if !recorded.trial.reports.is_empty() {
        return recorded.lists_evaluations;
    }
    let mut stages = draft.status.search.iter().take(open.index + 1).rev();
    stages.find_map(|stage| search::lists_evaluations(&stage.trials)).unwrap_or(false)
}
