//! The best trial against the settings accepted before the search. The trial was chosen among many, by values that are
//! good by chance too: it replaces those settings only if it is better with seeds that had no part in choosing it, and
//! what is said of the improvement is from these seeds alone.

use super::outcome::described;
use super::{Open, ending, launches, spent};
use crate::draft::Draft;
use crate::statistics::sequential::{Interval, alpha, interval};
use crate::step::{Next, Step};
use pawl_api::search::{self, states};
use pawl_api::status::{BestTrial, SearchArm, SearchComparison, SearchState};
use pawl_contract::decimal::Decimal;
use pawl_search::history::State;

/// Share of the error probability for a better objective; the rest is for a higher speed.
const FOR_OBJECTIVE: f64 = 0.9;
/// Ratio of throughputs below which settings are equally fast.
const FASTER: f64 = 1.1;
/// Pairs after which a trial that is no better is given up.
const FIRST_LOOK: usize = 2;

/// Compares the trial with this number, or ends the stage with it where there is nothing to compare it with: a stage
/// before the last, several objectives, the accepted settings themselves, or accepted settings that cannot be trained.
pub(super) fn begin(draft: &mut Draft<'_>, open: &Open, trial: u32, values: &[f64], evidence: &str) -> Step {
    let last = open.index + 1 == draft.spec.search.len();
    let single = open.stage.study.goals.len() == 1;
    let point = open.recorded.get(trial as usize).map(|recorded| &recorded.trial.point);
    let settings = point.map(|point| search::settings(draft.spec, &open.base, point));
    let accepted = draft.base(0);
    let of_first = states(&draft.status.search[0].trials).next();
    let feasible = !matches!(of_first, Some((0, State::Infeasible(_))));
    if !last || !single || !feasible || settings.is_none_or(|settings| settings == accepted) {
        return ending::end(draft, open, trial, values, evidence);
    }
    let status = &mut draft.status.search[open.index];
    status.comparison = Some(SearchComparison { trial, ..SearchComparison::default() });
    status.state = SearchState::Repeating;
    Step::Moved
}

/// What the comparison has shown.
enum Finding {
    /// So many pairs are needed.
    Needs(usize),
    Replaces(String),
    Keeps(String),
}

/// Runs the comparison that has begun, then ends the stage.
pub(super) fn advance(draft: &mut Draft<'_>, open: &Open, compared: &SearchComparison) -> Step {
    let wanted = launches::fresh_seeds(draft.spec, &draft.spec.search[open.index]).len();
    let over = open.stage.budget.reached(&spent(draft, open.index));
    let work = |pairs: usize| launches::comparison(draft, open, (compared, &draft.base(0)), pairs);
    let failed = compared.candidate.failed || compared.accepted.failed;
    let exhausted = draft.exhausted(&work(wanted).task).is_some();
    let found = match found(draft, open, compared, wanted) {
        Finding::Needs(_) if failed || exhausted => Finding::Keeps("a repetition failed".to_owned()),
        Finding::Needs(_) if over => decided(draft, open, compared, pairs(compared)),
        found @ (Finding::Needs(_) | Finding::Replaces(_) | Finding::Keeps(_)) => found,
    };
    match found {
        Finding::Needs(pairs) => Step::Go(Next::Run(work(pairs))),
        Finding::Replaces(why) => conclude(draft, open, compared, false, &why),
        Finding::Keeps(why) => conclude(draft, open, compared, true, &why),
    }
}

/// Number of seeds with a value of both.
fn pairs(compared: &SearchComparison) -> usize {
    compared.candidate.values.len().min(compared.accepted.values.len())
}

fn found(draft: &Draft<'_>, open: &Open, compared: &SearchComparison, wanted: usize) -> Finding {
    let known = pairs(compared);
    let first = FIRST_LOOK.min(wanted);
    if known < first {
        return Finding::Needs(first);
    }
    let worse = loss(open, compared).is_none_or(|loss| loss.mean >= 0.0);
    let slower = speed(compared).is_none_or(|speed| speed.mean <= FASTER.ln());
    match known < wanted && !(worse && slower) {
        true => Finding::Needs(wanted),
        false => decided(draft, open, compared, known),
    }
}

/// The differences of the losses, trial minus accepted settings, at the error probability of the objective.
fn differences(open: &Open, compared: &SearchComparison, error: f64) -> Option<Interval> {
    let goal = open.stage.study.goals.first()?;
    let both = compared.candidate.values.iter().zip(&compared.accepted.values);
    let differences: Vec<f64> = both.map(|(b, a)| goal.loss(b.value()) - goal.loss(a.value())).collect();
    interval(&differences, error)
}

fn loss(open: &Open, compared: &SearchComparison) -> Option<Interval> {
    differences(open, compared, 0.5)
}

/// The logarithms of the ratios of throughput.
fn speeds(compared: &SearchComparison, error: f64) -> Option<Interval> {
    let both = compared.candidate.items_per_second.iter().zip(&compared.accepted.items_per_second);
    let ratios: Vec<f64> = both.map(|(b, a)| (b.value() / a.value()).ln()).collect();
    interval(&ratios, error)
}

fn speed(compared: &SearchComparison) -> Option<Interval> {
    speeds(compared, 0.5)
}

fn decided(draft: &Draft<'_>, open: &Open, compared: &SearchComparison, known: usize) -> Finding {
    let error = alpha(&draft.spec.analysis);
    let Some((loss, (lower, upper))) = differences(open, compared, error * FOR_OBJECTIVE)
        .and_then(|loss| Some((loss, loss.bounds?)))
        .filter(|_| known >= FIRST_LOOK)
    else {
        return Finding::Keeps("the budget was spent before the best trial was compared with them".to_owned());
    };
    let goal = open.stage.study.goals.first();
    // As a change of the objective, not of the loss.
    let sign = goal.map_or(1.0, |goal| goal.loss(1.0));
    let (low, high) = if sign < 0.0 { (-upper, -lower) } else { (lower, upper) };
    let number = |value: f64| Decimal::from_f64(value).map_or_else(|| value.to_string(), |value| value.to_string());
    let shown = format!("{} [{}, {}] from {known} fresh seeds", number(sign * loss.mean), number(low), number(high));
    if upper < 0.0 {
        return Finding::Replaces(format!("change {shown}"));
    }
    let speed = speeds(compared, error * (1.0 - FOR_OBJECTIVE)).and_then(|speed| Some((speed, speed.bounds?.0)));
    match speed.filter(|(_, lower)| *lower > FASTER.ln() && loss.mean <= 0.0) {
        Some((speed, _)) => Finding::Replaces(format!("change {shown}, {:.2} times as fast", speed.mean.exp())),
        None => Finding::Keeps(format!("change {shown}, which may be noise")),
    }
}

fn mean(arm: &SearchArm) -> f64 {
    arm.values.iter().map(Decimal::value).sum::<f64>() / arm.values.len().max(1) as f64
}

fn conclude(draft: &mut Draft<'_>, open: &Open, compared: &SearchComparison, kept: bool, why: &str) -> Step {
    let spec = &draft.spec.search[open.index];
    let said =
        |arm: &SearchArm| if arm.values.is_empty() { "no value".to_owned() } else { described(spec, &[mean(arm)]) };
    let (candidate, accepted) = (said(&compared.candidate), said(&compared.accepted));
    let trial = compared.trial;
    let count = open.recorded.len();
    let message = match kept {
        true => format!("the accepted settings are kept: {accepted}; trial {trial} of {count}: {candidate}; {why}"),
        false => format!("trial {trial} of {count}: {candidate}; accepted settings: {accepted}; {why}"),
    };
    let base = draft.base(0);
    let winner = match kept {
        true => BestTrial {
            trial: 0,
            values: Decimal::from_f64(mean(&compared.accepted)).into_iter().collect(),
            parameters: search::stage(draft.spec, open.index, &base, &[])
                .map(|stage| search::texts(&stage.study.accepted))
                .unwrap_or_default(),
        },
        false => open.result(trial, &[mean(&compared.candidate)]),
    };
    draft.status.search[open.index].comparison = Some(SearchComparison { kept, ..compared.clone() });
    ending::finish(draft, open, winner, &message)
}
