//! The end of a stage: the best trials are repeated with further seeds, and the winner is chosen by the statistics of a
//! phase.

use super::{Open, compare, ending, fail, launches, spent, trials};
use crate::draft::Draft;
use crate::reason::Reason;
use crate::statistics::sequential::{alpha, interval};
use crate::step::Step;
use pawl_api::search;
use pawl_api::status::{BestTrial, FinalistStatus, SearchState};
use pawl_contract::decimal::Decimal;
use pawl_search::history::Trial;
use pawl_search::winner::{self, Finalist};

/// Throughputs whose ratio is below this count as equal, so that noise does not decide between tied trials.
const ALIKE: f64 = 1.1;

/// The trials of a stage have ended: repeats the best ones, or ends the stage.
pub(super) fn conclude(draft: &mut Draft<'_>, open: &Open, reason: Reason) -> Step {
    let search = &draft.spec.search[open.index];
    let trials = trials(&open.recorded);
    let goals = &open.stage.study.goals;
    let best = winner::best(&trials, goals, search.finalists as usize);
    let Some(&leader) = best.first() else {
        if reason == Reason::BudgetSpent {
            let message = "its budget was spent before a trial was complete: the settings accepted before are kept";
            draft.status.search[open.index].reason = reason.to_string();
            draft.warning(reason, format!("search {}: {message}", search.name), None);
            ending::record(draft, open, None, message);
            return Step::Moved;
        }
        return fail(draft, open.index, Reason::SearchFailed, "no trial has a result: see the events of its trials");
    };
    draft.status.search[open.index].reason = reason.to_string();
    let last = open.index + 1 == draft.spec.search.len();
    let several = goals.len() > 1;
    if last && !several && search.finalists > 1 && best.len() > 1 && launches::seeds(draft.spec, search).len() > 1 {
        let finalist = |number: u32| FinalistStatus {
            trial: number,
            values: trials[number as usize].values.iter().filter_map(|value| Decimal::from_f64(*value)).collect(),
            failed: false,
        };
        let status = &mut draft.status.search[open.index];
        status.finalists = best.into_iter().map(finalist).collect();
        status.state = SearchState::Repeating;
        return Step::Moved;
    }
    let chosen = if several { first_objective(open, &trials) } else { leader };
    let values = trials[chosen as usize].values.clone();
    compare::begin(draft, open, chosen, &values, "one seed")
}

/// Of the trials that no other dominates, the best by the first objective.
fn first_objective(open: &Open, trials: &[Trial]) -> u32 {
    let goals = &open.stage.study.goals;
    let loss = |number: &u32| goals[0].loss(trials[*number as usize].values[0]);
    let set = winner::pareto_set(trials, goals);
    set.into_iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap_or(0)
}

/// Repeats the finalists, chooses the best of them, and compares it with the settings accepted before.
pub(super) fn repeat(draft: &mut Draft<'_>, open: &Open) -> Step {
    if let Some(compared) = draft.status.search[open.index].comparison.clone() {
        return compare::advance(draft, open, &compared);
    }
    let count = launches::seeds(draft.spec, &draft.spec.search[open.index]).len();
    let over = open.stage.budget.reached(&spent(draft, open.index));
    let mut works = Vec::new();
    for (place, finalist) in draft.status.search[open.index].finalists.iter().enumerate() {
        let FinalistStatus { trial: number, ref values, failed } = *finalist;
        let Some(recorded) = open.recorded.get(number as usize).filter(|_| !failed && values.len() < count) else {
            continue;
        };
        let work = launches::finalist(draft, open, &recorded.trial, values.len());
        if over || draft.exhausted(&work.task).is_some() {
            draft.status.search[open.index].finalists[place].failed = true;
            return Step::Moved;
        }
        works.push(work);
        if draft.spec.search[open.index].parallelism < 2 {
            break;
        }
    }
    match launches::gangs(draft, open.index, works) {
        Some(next) => Step::Go(next),
        None => choose(draft, open),
    }
}

/// The winner: of the finalists that are not worse than the best mean by more than the noise, the fastest, then the one
/// that changes the fewest settings.
fn choose(draft: &mut Draft<'_>, open: &Open) -> Step {
    let trials = trials(&open.recorded);
    let goals = &open.stage.study.goals;
    let status = &draft.status.search[open.index];
    let numbers = |decimals: &[Decimal]| decimals.iter().map(Decimal::value).collect::<Vec<f64>>();
    let complete: Vec<&FinalistStatus> = status.finalists.iter().filter(|finalist| !finalist.failed).collect();
    let finalist = |status: &&FinalistStatus| Finalist {
        number: status.trial,
        losses: numbers(&status.values).into_iter().map(|value| goals[0].loss(value)).collect(),
        cost: open.cost(status.trial),
    };
    let error = alpha(&draft.spec.analysis);
    let worse = |differences: &[f64]| {
        interval(differences, error)
            .is_some_and(|found| found.bounds.map_or(found.mean > 0.0, |(lower, _)| lower > 0.0))
    };
    let finalists: Vec<Finalist> = complete.iter().map(finalist).collect();
    match winner::winner(&finalists, worse) {
        Some(number) => {
            let values = complete.iter().find(|finalist| finalist.trial == number).map(|f| numbers(&f.values));
            let values = values.unwrap_or_default();
            let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let seeds = format!("mean of {} seeds", values.len());
            compare::begin(draft, open, number, &[mean], &seeds)
        }
        // No repetition was completed: the trials decide.
        None => {
            let number = winner::best(&trials, goals, 1).first().copied().unwrap_or(0);
            let values = trials[number as usize].values.clone();
            compare::begin(draft, open, number, &values, "one seed, no repetition was completed")
        }
    }
}

impl Open {
    /// Order of tied trials, smaller is better: by throughput in steps of 10 %, then by the number of changed settings.
    fn cost(&self, number: u32) -> f64 {
        let Some(recorded) = self.recorded.get(number as usize) else { return f64::INFINITY };
        let rate = recorded.items_per_second;
        let speed = if rate > 0.0 { -(rate.ln() / ALIKE.ln()).round() } else { 0.0 };
        let accepted = &self.stage.study.accepted;
        let changes = recorded.trial.point.iter().filter(|(name, value)| accepted.get(*name) != Some(*value)).count();
        speed + changes as f64 / 1000.0
    }

    /// The best complete trial for display.
    pub fn best(&self) -> Option<BestTrial> {
        let trials = trials(&self.recorded);
        let number = winner::best(&trials, &self.stage.study.goals, 1).first().copied()?;
        Some(self.result(number, &trials[number as usize].values))
    }

    pub fn result(&self, number: u32, values: &[f64]) -> BestTrial {
        BestTrial {
            trial: number,
            values: values.iter().filter_map(|value| Decimal::from_f64(*value)).collect(),
            parameters: self.recorded.get(number as usize).map(|r| search::texts(&r.trial.point)).unwrap_or_default(),
        }
    }
}
