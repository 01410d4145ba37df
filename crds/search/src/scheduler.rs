//! Schedulers: how long a trial is trained, decided from the reports of all trials.
//!
//! - K. Jamieson, A. Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization. AISTATS 2016.
//! - L. Li et al.: Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization. JMLR 2018.
//! - L. Li et al.: A System for Massively Parallel Hyperparameter Tuning (ASHA). MLSys 2020.
//! - D. Golovin et al.: Google Vizier: A Service for Black-Box Optimization (the median rule). KDD 2017.

use crate::history::{Goal, State, Trial};
use crate::space::{Problem, problem};
use std::collections::BTreeMap;

/// When trials are paused, promoted and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// Every trial gets the full resource.
    None,
    /// A trial is stopped when its best value so far is worse than the median of the values of the other trials after
    /// the same amount of training.
    Median {
        /// Reports before it nothing is stopped.
        warmup: u32,
        /// Values of other trials at least.
        least: u32,
    },
    /// Asynchronous successive halving: a trial is paused at each rung (`first`, `first * reduction`, ...), and
    /// promoted to the next when it is in the best share `1 / reduction` of those that reached the rung.
    Asha {
        /// The first rung.
        first: u32,
        /// Reciprocal of the share that is promoted; at least 2.
        reduction: u32,
    },
    /// Asynchronous successive halving in several brackets, which begin at a later rung each: hedges against values
    /// that say nothing early. A trial's bracket is a function of its number.
    Hyperband {
        /// The first rung of the first bracket.
        first: u32,
        /// Reciprocal of the share that is promoted; at least 2.
        reduction: u32,
    },
}

/// What is to be done with a trial that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A running trial runs on, a paused one waits.
    Continue,
    /// The trial saves a checkpoint and gives its devices back.
    Pause,
    /// The trial is trained further, from its checkpoint, up to this amount.
    Promote(u32),
    /// The trial ends without its final value.
    Stop,
    /// The trial has its full resource.
    Complete,
}

/// What is known before a running trial has reported a value after an amount of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prospect {
    /// It runs on, whatever the value is.
    Continues,
    /// It is stopped if that value is worse than this one.
    Bound(f64),
    /// That depends on values of trials that run beside it.
    Open,
}

impl Scheduler {
    /// All errors of its parameters, where `full` is the resource of a complete trial.
    pub fn validate(&self, full: u32) -> Vec<Problem> {
        let mut problems = Vec::new();
        if full == 0 {
            problems.push(problem("epochs", full, "is not positive", "train each trial for at least one epoch"));
        }
        if let Self::Asha { first, reduction } | Self::Hyperband { first, reduction } = *self {
            if first == 0 {
                problems.push(problem("scheduler.first", first, "is not positive", "use at least 1"));
            } else if first >= full {
                let message = format!("is not below the {full} epochs of a complete trial");
                problems.push(problem("scheduler.first", first, &message, "use an earlier rung, or no scheduler"));
            }
            if reduction < 2 {
                let remedy = "use at least 2: the best half is promoted";
                problems.push(problem("scheduler.reduction", reduction, "is too small", remedy));
            }
        }
        if let Self::Median { least: 0, .. } = self {
            problems.push(problem("scheduler.least", 0, "is not positive", "compare with at least one other trial"));
        }
        problems
    }

    /// Amount of training after which trial `number` is decided on for the first time.
    pub fn first_target(&self, number: u32, full: u32) -> u32 {
        self.rungs(number, full)[0]
    }

    /// The decision on each trial that has not ended, by its number. It depends on the set of trials and reports only.
    ///
    /// `closing` is whether no further trial starts: then the best trial of each rung is promoted even where fewer
    /// trials than `reduction` reached it, and what is left is stopped once nothing can be promoted.
    pub fn decide(&self, trials: &[Trial], goal: Goal, full: u32, closing: bool) -> BTreeMap<u32, Decision> {
        let open = trials.iter().filter(|trial| !trial.ended());
        let mut decisions: BTreeMap<u32, Decision> = match self {
            Self::None => open.map(|trial| (trial.number, finished(trial, full))).collect(),
            Self::Median { warmup, least } => {
                // A trial with its full resource is complete, however bad it is.
                let decision = |trial: &Trial| match finished(trial, full) {
                    Decision::Continue if median(trials, trial, goal, *warmup, *least) => Decision::Stop,
                    decision => decision,
                };
                open.map(|trial| (trial.number, decision(trial))).collect()
            }
            Self::Asha { .. } | Self::Hyperband { .. } => {
                let promoted = self.promotions(trials, goal, full, closing);
                open.map(|trial| (trial.number, rung(trial, full, promoted.get(&trial.number)))).collect()
            }
        };
        let waiting =
            |decision: &Decision, trial: &Trial| trial.state == State::Paused && *decision == Decision::Continue;
        let idle = trials.iter().filter_map(|t| decisions.get(&t.number).map(|d| (d, t))).all(|(d, t)| waiting(d, t));
        if closing && idle {
            decisions.values_mut().for_each(|decision| *decision = Decision::Stop);
        }
        decisions
    }

    /// Whether a running trial may be stopped after `resource` of `full`. Trials that start later are not considered.
    pub fn prospect(&self, trials: &[Trial], trial: &Trial, goal: Goal, (resource, full): (u32, u32)) -> Prospect {
        let Self::Median { warmup, least } = *self else { return Prospect::Continues };
        if resource <= warmup || resource >= full {
            return Prospect::Continues;
        }
        let (known, unknown): (Vec<&Trial>, Vec<&Trial>) =
            others(trials, trial).partition(|other| other.after(resource).is_some());
        let missing = unknown.iter().filter(|other| other.state == State::Running).count();
        if missing > 0 && known.len() + missing >= least.max(1) as usize {
            return Prospect::Open;
        }
        match middle(trials, trial, goal, resource, least) {
            Some(middle) if middle.is_finite() && best(trial, goal) > middle => Prospect::Bound(goal.loss(middle)),
            _ => Prospect::Continues,
        }
    }

    /// The amounts of training after which trial `number` is decided on, ascending; the last is `full`.
    pub fn rungs(&self, number: u32, full: u32) -> Vec<u32> {
        let (Self::Asha { first, reduction } | Self::Hyperband { first, reduction }) = *self else { return vec![full] };
        let mut rungs = Vec::new();
        let mut next = first.max(1);
        while next < full {
            rungs.push(next);
            next = next.saturating_mul(reduction.max(2));
        }
        rungs.push(full);
        rungs.split_off(self.bracket(number, rungs.len(), reduction.max(2)))
    }

    /// The bracket of a trial: its first rung. Bracket b begins with about `reduction`^(last - b) / (last - b + 1)
    /// trials, so that every bracket gets the same total resource; trials are dealt out evenly by the golden ratio.
    fn bracket(&self, number: u32, rungs: usize, reduction: u32) -> usize {
        let Self::Hyperband { .. } = self else { return 0 };
        let share = |bracket: usize| {
            let later = (rungs - 1 - bracket) as f64;
            libm::pow(f64::from(reduction), later) / (later + 1.0)
        };
        let total: f64 = (0..rungs).map(share).sum();
        let spread = f64::from(number) * 0.618_033_988_749_894_9;
        let mut left = (spread - libm::floor(spread)) * total;
        for bracket in 0..rungs {
            if left < share(bracket) {
                return bracket;
            }
            left -= share(bracket);
        }
        rungs - 1
    }

    /// New targets of the trials that are promoted.
    fn promotions(&self, trials: &[Trial], goal: Goal, full: u32, closing: bool) -> BTreeMap<u32, u32> {
        let mut brackets: BTreeMap<Vec<u32>, Vec<&Trial>> = BTreeMap::new();
        for trial in trials {
            // The place of a trial that failed at a later rung is free again: the next best is promoted.
            if !failed(trial) {
                brackets.entry(self.rungs(trial.number, full)).or_default().push(trial);
            }
        }
        let mut promoted = BTreeMap::new();
        for (rungs, members) in &brackets {
            for pair in rungs.windows(2) {
                let (rung, next) = (pair[0], pair[1]);
                let best = self.best_of(members, goal, rung, closing);
                promoted.extend(best.iter().filter(|t| !t.ended() && t.target <= rung).map(|t| (t.number, next)));
            }
        }
        promoted
    }

    /// The trials that belong to the share to promote, of those that reached `rung`.
    fn best_of<'a>(&self, members: &[&'a Trial], goal: Goal, rung: u32, closing: bool) -> Vec<&'a Trial> {
        let (Self::Asha { reduction, .. } | Self::Hyperband { reduction, .. }) = *self else { return Vec::new() };
        let mut reached: Vec<(f64, &Trial)> =
            members.iter().filter_map(|trial| trial.at(rung).map(|value| (rank(goal, value), *trial))).collect();
        reached.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.number.cmp(&b.1.number)));
        let arriving = members.iter().any(|trial| trial.at(rung).is_none() && trial.state == State::Running);
        let least = usize::from(closing && !arriving);
        let count = (reached.len() / reduction.max(2) as usize).max(least);
        reached.into_iter().take(count).filter(|(loss, _)| loss.is_finite()).map(|(_, trial)| trial).collect()
    }
}

/// Whether a trial ended without a value: its reports are not compared with those of others.
fn failed(trial: &Trial) -> bool {
    matches!(trial.state, State::Infeasible(_) | State::Abandoned)
}

/// Loss of a reported value; one that is not finite is worst.
fn rank(goal: Goal, value: f64) -> f64 {
    if value.is_finite() { goal.loss(value) } else { f64::INFINITY }
}

/// The decision on a trial that is not paused.
fn finished(trial: &Trial, full: u32) -> Decision {
    if trial.newest().is_some_and(|report| report.resource >= full) { Decision::Complete } else { Decision::Continue }
}

/// The decision on a trial with rungs, where `promoted` is its new target if it is promoted.
fn rung(trial: &Trial, full: u32, promoted: Option<&u32>) -> Decision {
    if finished(trial, full) == Decision::Complete {
        return Decision::Complete;
    }
    let reached = trial.newest().is_some_and(|report| report.resource >= trial.target);
    match (promoted, trial.state) {
        (Some(target), _) if reached => Decision::Promote(*target),
        (_, State::Running) if reached => Decision::Pause,
        _ => Decision::Continue,
    }
}

/// Whether a trial is stopped by the median rule.
fn median(trials: &[Trial], trial: &Trial, goal: Goal, warmup: u32, least: u32) -> bool {
    let Some(newest) = trial.newest().filter(|report| report.resource > warmup) else { return false };
    middle(trials, trial, goal, newest.resource, least).is_some_and(|middle| best(trial, goal) > middle)
}

/// The trials with which one is compared.
fn others<'a>(trials: &'a [Trial], trial: &'a Trial) -> impl Iterator<Item = &'a Trial> {
    trials.iter().filter(move |other| other.number != trial.number && !failed(other))
}

/// The smallest loss that a trial has reported.
fn best(trial: &Trial, goal: Goal) -> f64 {
    trial.reports.iter().map(|report| rank(goal, report.value)).fold(f64::INFINITY, f64::min)
}

/// The median of the losses of the other trials after `resource`; `None` where fewer than `least` have a value.
fn middle(trials: &[Trial], trial: &Trial, goal: Goal, resource: u32, least: u32) -> Option<f64> {
    let values = others(trials, trial).filter_map(|other| other.after(resource));
    let mut values: Vec<f64> = values.map(|value| rank(goal, value)).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    (values.len() >= least.max(1) as usize).then(|| match values.len() % 2 {
        1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Report;
    use crate::space::Point;

    const ASHA: Scheduler = Scheduler::Asha { first: 1, reduction: 3 };

    /// A paused trial with a value at each rung up to its target.
    fn paused(number: u32, target: u32, value: f64) -> Trial {
        let reports = [1, 3, 9].into_iter().filter(|rung| *rung <= target).map(|resource| Report { resource, value });
        Trial { state: State::Paused, reports: reports.collect(), ..Trial::new(number, Point::new(), target) }
    }

    #[test]
    fn a_third_is_promoted_and_ties_go_to_the_older_trial() {
        let trials: Vec<Trial> =
            [5.0, 2.0, 4.0, 2.0, 7.0, 8.0].iter().zip(0..).map(|(v, n)| paused(n, 1, *v)).collect();
        let decisions = ASHA.decide(&trials, Goal::Minimize, 9, false);
        assert_eq!(decisions[&1], Decision::Promote(3));
        assert_eq!(decisions[&3], Decision::Promote(3));
        assert!(decisions.iter().all(|(n, d)| [1, 3].contains(n) || *d == Decision::Continue));
        let five = ASHA.decide(&trials[..5], Goal::Minimize, 9, false);
        assert_eq!((five[&1], five[&3]), (Decision::Promote(3), Decision::Continue));
        assert_eq!(ASHA.decide(&trials, Goal::Maximize, 9, false)[&5], Decision::Promote(3));
    }

    #[test]
    fn a_value_that_was_reported_later_is_none_of_an_earlier_report() {
        let median = Scheduler::Median { warmup: 0, least: 1 };
        let trained = |number, resource, value| Trial {
            reports: vec![Report { resource, value }],
            ..Trial::new(number, Point::new(), 9)
        };
        let decide = |other: Trial| median.decide(&[other, trained(1, 1, 2.0)], Goal::Minimize, 9, false)[&1];
        assert_eq!(decide(trained(0, 1, 0.1)), Decision::Stop);
        assert_eq!(decide(trained(0, 9, 0.1)), Decision::Continue);
    }

    #[test]
    fn the_place_of_a_failed_trial_goes_to_the_next_best() {
        let mut trials: Vec<Trial> = [1.0, 2.0, 3.0, 4.0].iter().zip(0..).map(|(v, n)| paused(n, 1, *v)).collect();
        trials[0] = Trial { state: State::Abandoned, ..paused(0, 3, 1.0) };
        assert_eq!(ASHA.decide(&trials, Goal::Minimize, 9, false)[&1], Decision::Promote(3));
    }

    #[test]
    fn a_running_trial_is_paused_at_its_rung_and_what_is_left_is_stopped_in_the_end() {
        let running = Trial { state: State::Running, ..paused(2, 1, 9.0) };
        let trials = [paused(0, 1, 1.0), paused(1, 1, 2.0), running];
        let decisions = ASHA.decide(&trials, Goal::Minimize, 9, true);
        assert_eq!(
            decisions.into_values().collect::<Vec<_>>(),
            [Decision::Promote(3), Decision::Continue, Decision::Pause]
        );
        let complete = Trial { state: State::Complete, ..paused(0, 9, 1.0) };
        let decisions = ASHA.decide(&[complete, paused(1, 1, 2.0)], Goal::Minimize, 9, true);
        assert_eq!(decisions[&1], Decision::Stop);
    }

    #[test]
    fn hyperband_divides_the_resource_between_brackets() {
        let hyperband = Scheduler::Hyperband { first: 1, reduction: 3 };
        let mut counts = BTreeMap::new();
        for number in 0..1430 {
            *counts.entry(hyperband.first_target(number, 81)).or_insert(0u32) += 1;
        }
        // 81/5, 27/4, 9/3, 3/2 and 1 of 28.45.
        for (first, expected) in [(1, 814), (3, 339), (9, 151), (27, 75), (81, 50)] {
            assert!(counts[&first].abs_diff(expected) <= 3, "{counts:?}");
        }
    }

    #[test]
    fn the_median_rule_needs_enough_others() {
        let median = Scheduler::Median { warmup: 1, least: 3 };
        let trials: Vec<Trial> = [1.0, 2.0, 3.0, 4.0].iter().zip(0..).map(|(v, n)| paused(n, 3, *v)).collect();
        let decisions = median.decide(&trials, Goal::Minimize, 9, false);
        assert_eq!(
            decisions.into_values().collect::<Vec<_>>(),
            [Decision::Continue, Decision::Continue, Decision::Stop, Decision::Stop]
        );
        assert_eq!(median.decide(&trials[1..], Goal::Minimize, 9, false)[&3], Decision::Continue, "two others only");
        let full = median.decide(&trials, Goal::Minimize, 3, false);
        assert!(full.values().all(|decision| *decision == Decision::Complete), "{full:?}");
    }

    #[test]
    fn the_bound_of_a_report_is_known_before_it_unless_others_run() {
        let median = Scheduler::Median { warmup: 1, least: 3 };
        let mut trials: Vec<Trial> = [1.0, 2.0, 3.0].iter().zip(0..).map(|(v, n)| paused(n, 3, *v)).collect();
        let trial =
            |value: f64| Trial { reports: vec![Report { resource: 1, value }], ..Trial::new(3, Point::new(), 9) };
        let at = |trials: &[Trial], value: f64, resource: u32| {
            median.prospect(trials, &trial(value), Goal::Minimize, (resource, 9))
        };
        assert_eq!(at(&trials, 4.0, 1), Prospect::Continues, "it warms up");
        assert_eq!(at(&trials, 4.0, 3), Prospect::Bound(2.0));
        assert_eq!(at(&trials, 2.0, 3), Prospect::Continues, "its best value is no worse already");
        assert_eq!(at(&trials, 4.0, 4), Prospect::Continues, "nobody was trained as far");
        assert_eq!(at(&trials, 4.0, 9), Prospect::Continues, "it is complete then");
        trials[2].state = State::Running;
        assert_eq!(at(&trials, 4.0, 3), Prospect::Bound(2.0), "it has a value there");
        trials[2].reports.truncate(1);
        assert_eq!(at(&trials, 4.0, 3), Prospect::Open);
        assert_eq!(at(&trials[1..], 4.0, 3), Prospect::Continues, "two others only, whatever they report");
        assert_eq!(ASHA.prospect(&trials, &trial(4.0), Goal::Minimize, (3, 9)), Prospect::Continues);
    }
}
