//! Trials that take much longer than others did: what does not wait for them.

use super::{Open, launches, open};
use crate::cost;
use crate::draft::Draft;
use crate::lifecycle::seconds_between;
use crate::retry::{after, time};
use jiff::Timestamp;
use pawl_api::spec::Pruner;
use pawl_api::status::{Purpose, SearchState};
use pawl_search::history::State;

/// When later trials no longer wait for a trial: so many times as long as the mean of those that ended, and seconds
/// beyond.
const OVERDUE: (f64, f64) = (5.0, 1800.0);
/// When the end of its stage does not wait for it either.
const LOST: (f64, f64) = (20.0, 3600.0);

/// Trials that are late, by number.
#[derive(Default)]
pub(super) struct Numbers {
    pub overdue: Vec<u32>,
    pub lost: Vec<u32>,
}

/// Mean time of a trial that has ended, seconds; `None` before there is one. With the median rule, of a whole one,
/// which may be one launch.
fn mean_seconds(draft: &Draft<'_>, open: &Open) -> Option<f64> {
    let part = |trained: u32| match draft.spec.search[open.index].pruner {
        Pruner::Median => f64::from(trained) / f64::from(open.stage.full.max(1)),
        Pruner::None | Pruner::ASHA | Pruner::Hyperband => 1.0,
    };
    let ended = open.recorded.iter().filter(|recorded| recorded.trial.ended());
    let count: f64 = ended.filter_map(|recorded| Some(part(recorded.trial.newest()?.resource))).sum();
    let spent = draft.searching().saturating_sub(draft.status.search[open.index].spent_before);
    let devices = cost::devices(draft.spec, Purpose::Search).max(1.0);
    (count > 0.0 && spent > 0).then(|| spent as f64 / 1000.0 / devices / count)
}

/// The running trials, with the start of the attempt of each.
fn running(draft: &Draft<'_>, open: &Open) -> Vec<(u32, Timestamp)> {
    let running = open.recorded.iter().filter(|recorded| recorded.trial.state == State::Running);
    let started = |task: &str| draft.under_way().find(|attempt| attempt.task == task).map(|a| a.started.clone());
    running
        .filter_map(|recorded| {
            let task = launches::trial(draft, open, recorded).task;
            Some((recorded.trial.number, time(&started(&task)?)?))
        })
        .collect()
}

/// The trials of a stage that are late now.
pub(super) fn of(draft: &Draft<'_>, open: &Open) -> Numbers {
    let Some(mean) = mean_seconds(draft, open) else { return Numbers::default() };
    let mut late = Numbers::default();
    for (number, started) in running(draft, open) {
        let seconds = seconds_between(started, draft.now) as f64;
        if seconds >= limit(OVERDUE, mean) {
            late.overdue.push(number);
        }
        if seconds >= limit(LOST, mean) {
            late.lost.push(number);
        }
    }
    late
}

fn limit((times, beyond): (f64, f64), mean: f64) -> f64 {
    (times * mean + beyond).ceil()
}

/// When the next trial will be late.
pub(crate) fn next(draft: &Draft<'_>) -> Option<Timestamp> {
    let index = draft.status.search.iter().position(|status| status.state == SearchState::Running)?;
    if index >= draft.spec.search.len() || draft.spec.search[index].parallelism < 2 {
        return None;
    }
    let open = open(draft, index)?;
    let mean = mean_seconds(draft, &open)?;
    let times = running(draft, &open)
        .into_iter()
        .flat_map(|(_, started)| [OVERDUE, LOST].map(|when| after(started, limit(when, mean) as u64)));
    times.filter(|at| *at > draft.now).min()
}
