//! Runs a sampler on a test function.

use crate::functions::{EPOCHS, Function, curve, curve_space};
use pawl_search::history::{Goal, Report, State, Trial};
use pawl_search::sampler::{Sampler, Study};
use pawl_search::scheduler::Scheduler;
use pawl_search::space::{Point, Space};
use pawl_search::stage::{Action, Budget, Spent, Stage};

/// The losses of `count` trials, one after the other.
pub fn minimize(function: &Function, sampler: Sampler, seed: u64, count: u32) -> Vec<f64> {
    let study = study((function.space)(), sampler, seed);
    let mut trials: Vec<Trial> = Vec::new();
    for number in 0..count {
        let Some(point) = study.propose(&trials, number) else { break };
        let loss = (function.loss)(&point);
        trials.push(Trial { state: State::Complete, values: vec![loss], ..Trial::new(number, point, 1) });
    }
    trials.iter().map(|trial| trial.values[0]).collect()
}

/// The smallest of the losses above the function's minimum.
pub fn regret(function: &Function, losses: &[f64]) -> f64 {
    losses.iter().copied().fold(f64::INFINITY, f64::min) - function.minimum
}

fn study(space: Space, sampler: Sampler, seed: u64) -> Study {
    Study {
        seed,
        stage: 0,
        space,
        sampler,
        goals: vec![Goal::Minimize],
        accepted: Point::new(),
        warm: Vec::new(),
        first: Vec::new(),
    }
}

/// The epochs that ASHA with TPE trains on the learning curves, one trial at a time, until the last loss of a complete
/// trial is at most `target`; `most` if it takes more.
pub fn epochs_to(seed: u64, target: f64, most: u32) -> u32 {
    let stage = Stage {
        study: study(curve_space(), Sampler::Tpe, seed),
        scheduler: Scheduler::Asha { first: 1, reduction: 3 },
        full: EPOCHS,
        trials: u32::MAX,
        parallelism: 1,
        budget: Budget::default(),
        patience: None,
    };
    let (mut trials, mut epochs): (Vec<Trial>, u32) = (Vec::new(), 0);
    while epochs < most {
        for action in stage.next(&trials, &Spent::default()) {
            action.apply(&mut trials);
            if let Action::Complete(number) = action
                && trials.iter().any(|trial| trial.number == number && trial.values[0] <= target)
            {
                return epochs;
            }
        }
        for trial in trials.iter_mut().filter(|trial| trial.state == State::Running) {
            let trained = trial.newest().map_or(0, |report| report.resource);
            for resource in trained + 1..=trial.target {
                epochs += 1;
                trial.reports.push(Report { resource, value: curve(&trial.point, resource) });
            }
        }
    }
    most
}
