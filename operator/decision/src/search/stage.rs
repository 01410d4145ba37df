//! One stage of a search: its trials, as `pawl-search` decides.

use super::{Open, begin, edits, fail, finals, first, input_hash, is_done, late, launches, spent, trials, whole_hash};
use crate::draft::Draft;
use crate::launch::{EvidenceTarget, SearchRun, Work};
use crate::reason::Reason;
use crate::retry::summary;
use crate::revision::revision;
use crate::step::{Next, Step};
use pawl_api::search::{self, Recorded};
use pawl_api::status::SearchState;
use pawl_contract::settings::Settings;
use pawl_search::history::{Cause, State};
use pawl_search::stage::{Action, Ending, Late, Spent};

/// Advances the stage with this index; passes when it has ended.
pub(super) fn advance(draft: &mut Draft<'_>, index: usize) -> Step {
    let base = draft.base(index);
    if begin_if_changed(draft, index, &base) || reopen_if_changed(draft, index) {
        return Step::Moved;
    }
    let (state, dry_run) = (draft.status.search[index].state, draft.status.search[index].dry_run);
    if state == SearchState::Done {
        return Step::Pass;
    }
    let open = match opened(draft, index, base) {
        Ok(open) => open,
        Err(step) => return step,
    };
    match state {
        _ if draft.spec.search[index].dry_run && !dry_run => dry_run_of(draft, &open),
        SearchState::Running => run(draft, open),
        SearchState::Repeating => finals::repeat(draft, &open),
        SearchState::Done => Step::Pass,
    }
}

/// Begins the stage again if what its trials depend on has changed, with those that still fit.
fn begin_if_changed(draft: &mut Draft<'_>, index: usize, base: &Settings) -> bool {
    let status = &draft.status.search[index];
    // What training reverts does not repeat the search.
    let is_rebased = status.base != revision(base) && !(is_done(status) && draft.status.training.is_some());
    let is_changed = is_rebased || status.input_hash != input_hash(draft.spec, index);
    if is_changed {
        let kept = if is_rebased { None } else { edits::kept(draft, index) };
        begin(draft, index, kept);
    }
    is_changed
}

/// Goes on with a stage that has ended if what ended it has changed.
fn reopen_if_changed(draft: &mut Draft<'_>, index: usize) -> bool {
    let status = &draft.status.search[index];
    let is_changed = is_done(status) && status.completed != whole_hash(draft.spec, index);
    if is_changed {
        let status = &mut draft.status.search[index];
        (status.state, status.winner) = (SearchState::Running, None);
        status.finalists.clear();
        status.comparison = None;
    }
    is_changed
}

/// The stage with its recorded trials. Without those it begins, and without a valid space it fails.
fn opened(draft: &mut Draft<'_>, index: usize, base: Settings) -> Result<Open, Step> {
    let stage = match search::stage(draft.spec, index, &base, &first(draft, index)) {
        Ok(stage) => stage,
        Err(problems) => {
            let text = problems.first().map(ToString::to_string).unwrap_or_default();
            return Err(fail(draft, index, Reason::InvalidSpec, &text));
        }
    };
    let Some(recorded) = search::decode(&draft.status.search[index].trials, &stage.study.space, stage.full) else {
        begin(draft, index, None);
        return Err(Step::Moved);
    };
    Ok(Open { index, base, stage, recorded })
}

fn dry_run_of(draft: &mut Draft<'_>, open: &Open) -> Step {
    let work = launches::dry_run(draft, open);
    match draft.exhausted(&work.task) {
        Some(retry) => fail(draft, open.index, Reason::RetriesExhausted, &format!("dry run: {}", retry.message)),
        None => Step::Go(Next::Run(work)),
    }
}

/// So many trials that crash before any has a result are not about their points.
const HOPELESS: usize = 5;

/// What the stage has spent, with what the comparison of its best trial with the accepted settings will cost by what a
/// trial did on average: up to half of the budget is left for it.
fn reserving(draft: &Draft<'_>, open: &Open) -> Spent {
    let spent = spent(draft, open.index);
    let search = &draft.spec.search[open.index];
    let compares = open.index + 1 == draft.spec.search.len() && search.objectives.len() == 1;
    let ended = open.recorded.iter().filter(|recorded| recorded.trial.ended()).count();
    if !compares || ended == 0 {
        return spent;
    }
    let launches = 2 * launches::fresh_seeds(draft.spec, search).len();
    let share = 1.0 + (launches as f64 / ended as f64).min(1.0);
    let Spent { gpu_hours, cost, hours } = spent;
    Spent { gpu_hours: gpu_hours * share, cost: cost * share, hours: hours * share }
}

/// Applies what the stage decides on its trials, and runs those that are under way.
fn run(draft: &mut Draft<'_>, mut open: Open) -> Step {
    let index = open.index;
    let known = trials(&open.recorded);
    let late::Numbers { overdue, lost } = late::of(draft, &open);
    let late = Late { overdue: &overdue, lost: &lost };
    let mut actions = open.stage.next_beside(&known, &reserving(draft, &open), &late);
    if let [Action::Finish(ending)] = actions.as_slice() {
        return finals::conclude(draft, &open, reason(*ending));
    }
    if !actions.is_empty() {
        // One start at a time: the next trial learns from the point of this one as it is recorded, which is rounded.
        let mut starts = 0;
        actions.retain(|action| {
            starts += usize::from(matches!(action, Action::Start(_)));
            starts < 2 || !matches!(action, Action::Start(_))
        });
        apply(&mut open, &actions);
        open.write(draft);
        return Step::Moved;
    }
    let running = open.recorded.iter().filter(|recorded| recorded.trial.state == State::Running);
    let works: Vec<(u32, Work)> =
        running.map(|recorded| (recorded.trial.number, launches::trial(draft, &open, recorded))).collect();
    if let Some((number, retry)) = works.iter().find_map(|(number, work)| Some((*number, draft.exhausted(&work.task)?)))
    {
        let crashes = draft.is_crashing(&retry.task);
        let (state, reason) = match crashes {
            true => (State::Infeasible(Cause::Crashed), Reason::TrialInfeasible),
            false => (State::Abandoned, Reason::RetriesExhausted),
        };
        open.recorded[number as usize].trial.state = state;
        open.write(draft);
        let failures = summary(&retry, draft.spec.lifecycle.max_restarts);
        draft.warning(reason, format!("{}: {failures}", open.title(draft, number)), None);
        if open.is_hopeless() {
            // They tell nothing of the space: whoever mends the script begins with all of it.
            draft.status.search[index].trials.clear();
            let message = format!(
                "each of the first {HOPELESS} trials crashed, and none has a result; the last: {}",
                retry.message
            );
            return fail(draft, index, Reason::SearchFailed, &message);
        }
        return Step::Moved;
    }
    let works: Vec<Work> = works.into_iter().map(|(_, work)| work).collect();
    match launches::gangs(draft, open.index, works) {
        Some(next) => Step::Go(next),
        None => fail(draft, open.index, Reason::SearchFailed, "no trial runs, and none can be started"),
    }
}

fn apply(open: &mut Open, actions: &[Action]) {
    let mut trials = trials(&open.recorded);
    for action in actions {
        match action {
            Action::Start(trial) => {
                let mut trial = trial.clone();
                trial.point = search::rounded(trial.point, &open.stage.study.space);
                trials.push(trial);
            }
            Action::Resume { .. }
            | Action::Extend { .. }
            | Action::Pause(_)
            | Action::Stop(_)
            | Action::Complete(_)
            | Action::Finish(_) => action.apply(&mut trials),
        }
    }
    let known = open.recorded.len();
    let new = trials.split_off(known);
    for (recorded, trial) in open.recorded.iter_mut().zip(trials) {
        recorded.trial = trial;
    }
    let fresh = |trial| Recorded { trial, checked: false, items_per_second: 0.0, lists_evaluations: false };
    open.recorded.extend(new.into_iter().map(fresh));
}

const fn reason(ending: Ending) -> Reason {
    match ending {
        Ending::Finished => Reason::AllTrialsEnded,
        Ending::Exhausted => Reason::SpaceExhausted,
        Ending::NoImprovement => Reason::NoImprovement,
        Ending::BudgetSpent => Reason::BudgetSpent,
    }
}

impl Open {
    /// Whether nothing but crashes is known, of so many points that these are not the cause.
    fn is_hopeless(&self) -> bool {
        let crashed = self.recorded.iter().filter(|recorded| recorded.trial.state == State::Infeasible(Cause::Crashed));
        crashed.count() >= HOPELESS && self.recorded.iter().all(|recorded| recorded.trial.reports.is_empty())
    }

    /// A trial in a message.
    pub fn title(&self, draft: &Draft<'_>, number: u32) -> String {
        format!("search {}: trial {number}", draft.spec.search[self.index].name)
    }

    /// The target of a launch.
    pub fn run(&self, run: SearchRun) -> EvidenceTarget {
        EvidenceTarget::Search { stage: self.index, run }
    }
}
