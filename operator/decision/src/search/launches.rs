//! The launches of a search: a dry run, the next part of a trial, a repetition of a trial.

use super::Open;
use super::parts::{self, Part};
use crate::draft::Draft;
use crate::launch::{self, EvidenceTarget, Launch, MAX_ATTEMPT_LAUNCHES, SearchRun, Work};
use crate::step::Next;
use pawl_api::search::{self, Recorded};
use pawl_api::spec::{Pruner, Search, TrainingJobSpec};
use pawl_api::status::{Arm, Purpose, SearchComparison};
use pawl_contract::plan::{Budget, CheckpointPolicy, Criterion, LaunchKind};
use pawl_contract::settings::Settings;
use pawl_search::history::Trial;

/// Maximum number of seeds of a finalist.
const MAX_SEEDS: usize = 7;

/// The seed of the trials of a stage.
pub(super) fn seed(spec: &TrainingJobSpec, search: &Search) -> u32 {
    search.seed.unwrap_or_else(|| launch::seed(spec, 0))
}

/// The seeds of the finalists: first that of the trials.
pub(super) fn seeds(spec: &TrainingJobSpec, search: &Search) -> Vec<u32> {
    let own = seed(spec, search);
    let others = spec.seeds.iter().copied().filter(|seed| *seed != own);
    std::iter::once(own).chain(others).take(MAX_SEEDS).collect()
}

/// Length of a launch that trains up to `target` of `full` epochs or items.
fn budget(search: &Search, target: u32, full: u32) -> Budget {
    let beyond = target < full;
    if search.epochs.is_some() {
        Budget { epochs: Some(target), horizon_epochs: beyond.then_some(full), ..Budget::default() }
    } else {
        let (items, horizon) = (u64::from(target), u64::from(full));
        Budget { items: Some(items), horizon_items: beyond.then_some(horizon), ..Budget::default() }
    }
}

impl Open {
    /// A text that is unique to this stage with these inputs, and part of the names of its launches.
    fn stem(&self, draft: &Draft<'_>) -> String {
        let input = draft.status.search[self.index].input_hash.get(..4).unwrap_or_default();
        format!("search-{}-{input}", self.index)
    }

    fn work(&self, task: String, launches: Vec<Launch>) -> Work {
        Work { purpose: Purpose::Search, phase: None, task, launches, stop_on_failure: true }
    }
}

/// A launch of a search with a title of its own.
fn titled(
    draft: &Draft<'_>,
    (stem, title): (&str, String),
    (kind, settings, seed, budget): (LaunchKind, &Settings, u32, Budget),
    (run, pair): (EvidenceTarget, u32),
) -> Launch {
    let mut plan = draft.planned(stem, kind, settings, seed, budget);
    plan.title = title;
    Launch { plan, target: run, arm: Arm::Candidate, pair }
}

/// The settings of trial 0 for the steps that a phase is measured for.
pub(super) fn dry_run(draft: &Draft<'_>, open: &Open) -> Work {
    let search = &draft.spec.search[open.index];
    let stem = format!("{}-dry-run", open.stem(draft));
    let title = format!("search {}: dry run", search.name);
    let budget = launch::with_utilization(draft.spec, launch::budget(draft.spec, LaunchKind::Measure));
    let what = (LaunchKind::Measure, &open.base, seed(draft.spec, search), budget);
    let launch = titled(draft, (&stem, title), what, (open.run(SearchRun::DryRun), 0));
    open.work(stem, vec![launch])
}

/// The next launch of a running trial, as far as [`parts`] says. Its settings are checked first, so that what cannot
/// fit is not trained.
pub(super) fn trial(draft: &Draft<'_>, open: &Open, recorded: &Recorded) -> Work {
    let Recorded { trial, checked, .. } = recorded;
    let search = &draft.spec.search[open.index];
    let settings = search::settings(draft.spec, &open.base, &trial.point);
    let seed = seed(draft.spec, search);
    let stem = format!("{}-t{}", open.stem(draft), trial.number);
    let run = (open.run(SearchRun::Trial(trial.number)), 0);
    let mut launches = Vec::new();
    if trial.reports.is_empty() && !checked {
        let title = format!("{}: check", open.title(draft, trial.number));
        let what = (LaunchKind::Preflight, &settings, seed, Budget::default());
        launches.push(titled(draft, (&format!("{stem}-check"), title), what, run));
    }
    let unit = if search.epochs.is_some() { "epochs" } else { "items" };
    let part = |(first, target): (u32, u32)| {
        let mut title = open.title(draft, trial.number);
        if search.pruner != Pruner::None {
            title.push_str(&format!(", {target} of {} {unit}", open.stage.full));
        }
        let what = (LaunchKind::Search, &settings, seed, budget(search, target, open.stage.full));
        let reports = if first == target { format!("n{target}") } else { format!("n{first}-{target}") };
        titled(draft, (&format!("{stem}-{reports}"), title), what, run)
    };
    let under_way = draft.under_way().find(|attempt| attempt.task == stem);
    let is_under_way = |reports| under_way.is_some_and(|attempt| attempt.launches.contains(&part(reports).plan.launch));
    let Part { first, target, evaluations } = parts::next(draft, open, recorded, is_under_way);
    let mut launch = part((first, target));
    launch.plan.checkpoint = (search.pruner != Pruner::None).then(|| policy(draft, &stem));
    // Not an input of the outcome: launches with and without it have the same name.
    launch.plan.budget.evaluations = evaluations;
    launches.push(launch);
    open.work(stem, launches)
}

/// A trial that may be continued keeps a checkpoint in a directory of its own.
fn policy(draft: &Draft<'_>, stem: &str) -> CheckpointPolicy {
    CheckpointPolicy {
        every_seconds: draft.spec.train.checkpoint.every.seconds(),
        keep: 1,
        resume: true,
        resume_not_after_items: None,
        expected: None,
        expected_after_limit: None,
        resume_from: None,
        best: Criterion::default(),
        directory: Some(stem.to_owned()),
    }
}

/// The repetitions of a finalist with the seeds from index `from` on.
pub(super) fn finalist(draft: &Draft<'_>, open: &Open, trial: &Trial, from: usize) -> Work {
    let search = &draft.spec.search[open.index];
    let settings = search::settings(draft.spec, &open.base, &trial.point);
    let stem = format!("{}-f{}", open.stem(draft), trial.number);
    let launches = seeds(draft.spec, search).into_iter().enumerate().skip(from).map(|(index, seed)| {
        let title = format!("{}, seed {seed}", open.title(draft, trial.number));
        let what = (LaunchKind::Search, &settings, seed, budget(search, open.stage.full, open.stage.full));
        let run = (open.run(SearchRun::Finalist(trial.number)), index as u32);
        titled(draft, (&format!("{stem}-s{index}"), title), what, run)
    });
    let launches = launches.take(MAX_ATTEMPT_LAUNCHES).collect();
    open.work(stem, launches)
}

/// Seeds of the comparison with the settings accepted before the search, at least.
const LEAST_SEEDS: usize = 3;

/// The seeds of that comparison: none that a trial or a finalist had, which were chosen by them.
pub(super) fn fresh_seeds(spec: &TrainingJobSpec, search: &Search) -> Vec<u32> {
    let known = seeds(spec, search);
    let fresh = (1..=u32::MAX).map(|step| known[0].wrapping_add(step));
    let fresh = fresh.filter(|seed| !known.contains(seed) && !spec.seeds.contains(seed));
    fresh.take(known.len().max(LEAST_SEEDS)).collect()
}

/// The repetitions that the comparison of a trial with the settings `accepted` before the search needs for `pairs`
/// seeds.
pub(super) fn comparison(
    draft: &Draft<'_>,
    open: &Open,
    (compared, accepted): (&SearchComparison, &Settings),
    pairs: usize,
) -> Work {
    let search = &draft.spec.search[open.index];
    let point = open.recorded.get(compared.trial as usize).map(|recorded| &recorded.trial.point);
    let candidate = point.map_or_else(|| open.base.clone(), |point| search::settings(draft.spec, &open.base, point));
    let stem = format!("{}-compared-{}", open.stem(draft), compared.trial);
    let mut launches = Vec::new();
    for (index, seed) in fresh_seeds(draft.spec, search).into_iter().enumerate().take(pairs) {
        let sides =
            [(Arm::Candidate, &candidate, &compared.candidate, "b"), (Arm::Control, accepted, &compared.accepted, "a")];
        for (arm, settings, _, side) in sides.into_iter().filter(|(_, _, known, _)| known.values.len() <= index) {
            let what = match arm {
                Arm::Candidate => open.title(draft, compared.trial),
                Arm::Control => format!("search {}: accepted settings", search.name),
            };
            let plan = (LaunchKind::Search, settings, seed, budget(search, open.stage.full, open.stage.full));
            let target = (open.run(SearchRun::Compared(arm)), index as u32);
            launches.push(titled(
                draft,
                (&format!("{stem}-s{index}-{side}"), format!("{what}, seed {seed}")),
                plan,
                target,
            ));
        }
    }
    launches.truncate(MAX_ATTEMPT_LAUNCHES);
    open.work(stem, launches)
}

/// The attempts of a stage: as many at the same time as its `parallelism`. `None` without works.
pub(super) fn gangs(draft: &Draft<'_>, index: usize, mut works: Vec<Work>) -> Option<Next> {
    let most = draft.spec.search[index].parallelism.max(1) as usize;
    // Trials of a stage whose parallelism was lowered end as they began.
    if most == 1 && works.len() < 2 {
        return works.pop().map(Next::Run);
    }
    (!works.is_empty()).then_some(Next::Several { works, most })
}
