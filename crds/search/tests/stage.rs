//! Model test of a stage: trials that report, fail and are lost in any order, a reducer that is asked at any moment and
//! whose actions are carried out late.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_search::history::{Cause, Goal, Report, State, Trial};
use pawl_search::sampler::{Sampler, Study};
use pawl_search::scheduler::Scheduler;
use pawl_search::space::{Domain, Parameter, Point, Scale, Space};
use pawl_search::stage::{Action, Budget, Ending, Late, Spent, Stage};
use proptest::prelude::*;
use std::collections::BTreeMap;

const FULL: u32 = 9;

fn stage(scheduler: Scheduler, trials: u32, parallelism: u32) -> Stage {
    let parameter = Parameter::new("x", Domain::Float { low: 0.0, high: 1.0, scale: Scale::Linear });
    let study = Study {
        seed: 1,
        stage: 0,
        space: Space { parameters: vec![parameter], ..Space::default() },
        sampler: Sampler::Random,
        goals: vec![Goal::Minimize],
        accepted: Point::new(),
        warm: Vec::new(),
        first: Vec::new(),
    };
    Stage { study, scheduler, full: FULL, trials, parallelism, budget: Budget::default(), patience: None }
}

/// The history, and what the world did.
struct World {
    trials: Vec<Trial>,
    starts: BTreeMap<u32, u32>,
    ended: BTreeMap<u32, u32>,
    /// Epochs trained by each trial; equal to its newest report unless an epoch was trained twice.
    trained: BTreeMap<u32, u32>,
    finished: Option<Ending>,
}

impl World {
    fn new() -> Self {
        Self {
            trials: Vec::new(),
            starts: BTreeMap::new(),
            ended: BTreeMap::new(),
            trained: BTreeMap::new(),
            finished: None,
        }
    }

    /// Carries out the actions, except those that `lost` selects: they are asked for again later.
    fn act(&mut self, stage: &Stage, spent: &Spent, mut lost: impl FnMut() -> bool) {
        for action in stage.next(&self.trials, spent) {
            if lost() {
                continue;
            }
            match &action {
                Action::Start(trial) => *self.starts.entry(trial.number).or_default() += 1,
                Action::Stop(number) | Action::Complete(number) => *self.ended.entry(*number).or_default() += 1,
                Action::Finish(ending) => self.finished = Some(*ending),
                Action::Resume { number, .. } => {
                    assert_eq!(self.trial(*number).state, State::Paused, "one gang of a trial")
                }
                Action::Extend { number, .. } | Action::Pause(number) => {
                    assert_eq!(self.trial(*number).state, State::Running, "{action:?}");
                }
            }
            action.apply(&mut self.trials);
            let running = self.trials.iter().filter(|trial| trial.state == State::Running).count();
            assert!(running <= stage.parallelism as usize, "{running} trials run");
        }
    }

    fn trial(&self, number: u32) -> &Trial {
        self.trials.iter().find(|trial| trial.number == number).unwrap()
    }

    /// A running trial trains an epoch and reports it.
    fn report(&mut self, index: usize) {
        let running: Vec<usize> = (0..self.trials.len()).filter(|&i| self.trials[i].state == State::Running).collect();
        let Some(&at) = running.get(index % running.len().max(1)) else { return };
        let trial = &mut self.trials[at];
        let resource = trial.newest().map_or(1, |report| report.resource + 1);
        if resource <= trial.target {
            // The quality of a trial shows from the first epoch on.
            let value = trial.point["x"].number().unwrap() + 1.0 / f64::from(resource);
            trial.reports.push(Report { resource, value });
            *self.trained.entry(trial.number).or_default() += 1;
        }
    }

    /// A running trial ends by itself.
    fn fail(&mut self, index: usize, state: State) {
        let running: Vec<usize> = (0..self.trials.len()).filter(|&i| self.trials[i].state == State::Running).collect();
        if let Some(&at) = running.get(index % running.len().max(1)) {
            self.trials[at].state = state;
            *self.ended.entry(self.trials[at].number).or_default() += 1;
        }
    }

    /// What holds whatever happened.
    fn check(&self, stage: &Stage) {
        assert_eq!(self.trials.len() as u32, stage.trials, "all trials started");
        for trial in &self.trials {
            assert_eq!((self.starts[&trial.number], self.ended[&trial.number]), (1, 1), "{trial:?}");
            let newest = trial.newest().map_or(0, |report| report.resource);
            assert_eq!(self.trained.get(&trial.number).copied().unwrap_or(0), newest, "no epoch is trained twice");
            assert_eq!(trial.state == State::Complete, newest >= FULL && trial.ended() && !failed(trial));
        }
    }

    /// The best trial of those that did not fail, among the trials that began at the same rung, is complete.
    fn check_incumbents(&self, stage: &Stage) {
        let mut best: BTreeMap<u32, &Trial> = BTreeMap::new();
        for trial in self.trials.iter().filter(|trial| !failed(trial)) {
            let incumbent = best.entry(stage.scheduler.first_target(trial.number, FULL)).or_insert(trial);
            if trial.point["x"].number() < incumbent.point["x"].number() {
                *incumbent = trial;
            }
        }
        assert!(best.values().all(|trial| trial.state == State::Complete), "an incumbent was lost: {best:?}");
    }
}

fn failed(trial: &Trial) -> bool {
    matches!(trial.state, State::Infeasible(_) | State::Abandoned)
}

/// An event of the world, with the index of the running trial that it concerns.
#[derive(Clone, Copy, Debug)]
enum Event {
    Report(usize),
    Infeasible(usize),
    Abandoned(usize),
    /// The reducer is asked, and the actions whose bit is set are lost.
    Ask(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0usize..8).prop_map(Event::Report),
        1 => (0usize..8).prop_map(Event::Infeasible),
        1 => (0usize..8).prop_map(Event::Abandoned),
        5 => any::<u8>().prop_map(Event::Ask),
    ]
}

fn scheduler() -> impl Strategy<Value = Scheduler> {
    prop_oneof![
        Just(Scheduler::None),
        Just(Scheduler::Asha { first: 1, reduction: 3 }),
        Just(Scheduler::Asha { first: 2, reduction: 2 }),
        Just(Scheduler::Hyperband { first: 1, reduction: 3 }),
        Just(Scheduler::Median { warmup: 2, least: 2 }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_trial_starts_and_ends_once_and_the_best_is_complete(
        scheduler in scheduler(),
        count in 1u32..20,
        parallelism in 1u32..6,
        events in prop::collection::vec(event(), 0..200),
        order in any::<u64>(),
    ) {
        let stage = stage(scheduler, count, parallelism.min(count));
        let (mut world, spent) = (World::new(), Spent::default());
        for event in events {
            match event {
                Event::Report(index) => world.report(index),
                Event::Infeasible(index) => world.fail(index, State::Infeasible(Cause::OutOfMemory)),
                Event::Abandoned(index) => world.fail(index, State::Abandoned),
                Event::Ask(lost) => {
                    let mut bits = lost;
                    world.act(&stage, &spent, || { bits = bits.rotate_right(1); bits & 1 == 1 });
                }
            }
        }
        // From here on nothing fails: the stage ends.
        let mut pick = order;
        for _ in 0..2_000 {
            if world.finished.is_some() {
                break;
            }
            world.act(&stage, &spent, || false);
            pick = pick.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            world.report((pick >> 33) as usize);
        }
        prop_assert_eq!(world.finished, Some(Ending::Finished));
        world.check(&stage);
        // The median rule stops the worse half of what it sees, and so never the best; but a trial that was better then
        // may fail later.
        if !matches!(scheduler, Scheduler::Median { .. }) || !world.trials.iter().any(failed) {
            world.check_incumbents(&stage);
        }
        prop_assert_eq!(stage.next(&world.trials, &spent), [Action::Finish(Ending::Finished)]);
    }

    #[test]
    fn the_order_of_the_history_has_no_effect(
        scheduler in scheduler(),
        events in prop::collection::vec(event(), 0..150),
    ) {
        let stage = stage(scheduler, 15, 3);
        let (mut world, spent) = (World::new(), Spent::default());
        for event in events {
            match event {
                Event::Report(index) => world.report(index),
                Event::Infeasible(index) => world.fail(index, State::Infeasible(Cause::NonFinite)),
                Event::Abandoned(index) => world.fail(index, State::Abandoned),
                Event::Ask(_) => world.act(&stage, &spent, || false),
            }
            let mut reversed = world.trials.clone();
            reversed.reverse();
            reversed.iter_mut().for_each(|trial| trial.reports.reverse());
            prop_assert_eq!(stage.next(&reversed, &spent), stage.next(&world.trials, &spent));
        }
    }
}

#[test]
fn a_stage_ends_when_its_budget_is_spent() {
    let limited = |budget| Stage { budget, ..stage(Scheduler::None, 10, 2) };
    for (budget, spent) in [
        (Budget { gpu_hours: Some(5.0), ..Budget::default() }, Spent { gpu_hours: 5.0, ..Spent::default() }),
        (Budget { cost: Some(9.5), ..Budget::default() }, Spent { cost: 10.0, ..Spent::default() }),
        (Budget { hours: Some(1.0), ..Budget::default() }, Spent { hours: 1.5, ..Spent::default() }),
    ] {
        let stage = limited(budget);
        let mut world = World::new();
        world.act(&stage, &Spent::default(), || false);
        assert_eq!(stage.next(&world.trials, &spent), [Action::Stop(0), Action::Stop(1)]);
        world.act(&stage, &spent, || false);
        world.act(&stage, &spent, || false);
        assert_eq!(world.finished, Some(Ending::BudgetSpent));
    }
}

#[test]
fn a_stage_without_improvement_starts_no_further_trial() {
    let stage = Stage { patience: Some(3), ..stage(Scheduler::None, 100, 1) };
    let complete = |number: u32, value: f64| {
        let point = stage.study.propose(&[], number).unwrap();
        Trial { state: State::Complete, values: vec![value], ..Trial::new(number, point, FULL) }
    };
    let losses = [3.0, 2.0, 2.5, 2.0, 4.0];
    let trials: Vec<Trial> = losses.iter().zip(0..).map(|(loss, number)| complete(number, *loss)).collect();
    assert_eq!(
        stage.next(&trials, &Spent::default()),
        [Action::Finish(Ending::NoImprovement)],
        "an equal loss is none"
    );
    assert!(matches!(stage.next(&trials[..4], &Spent::default())[..], [Action::Start(_)]));
}

#[test]
fn a_stage_ends_when_the_space_has_no_further_point() {
    let mut stage = stage(Scheduler::Asha { first: 1, reduction: 3 }, 100, 2);
    stage.study.sampler = Sampler::Grid;
    stage.study.space.parameters[0].domain = Domain::Int { low: 1, high: 5, scale: Scale::Linear };
    let (mut world, spent) = (World::new(), Spent::default());
    for turn in 0..200 {
        world.act(&stage, &spent, || false);
        world.report(turn);
    }
    assert_eq!((world.finished, world.trials.len()), (Some(Ending::Exhausted), 5));
    assert_eq!(world.trial(0).state, State::Complete, "the best");
}

#[test]
fn a_trial_that_hangs_holds_nothing_back_once_it_is_late() {
    let mut stage = stage(Scheduler::None, 40, 4);
    stage.study.sampler = Sampler::Tpe;
    let run = |late: &Late<'_>| {
        let mut trials: Vec<Trial> = Vec::new();
        for _ in 0..200 {
            for action in stage.next_beside(&trials, &Spent::default(), late) {
                action.apply(&mut trials);
            }
            for trial in trials.iter_mut().filter(|trial| trial.number != 2 && trial.state == State::Running) {
                trial.values = vec![trial.point["x"].number().unwrap()];
                trial.state = State::Complete;
            }
        }
        trials
    };
    assert_eq!(run(&Late::default()).len(), 6, "trial 6 waits for trial 2");
    let trials = run(&Late { overdue: &[2], lost: &[] });
    assert_eq!((trials.len(), trials[2].state), (40, State::Running), "it may still end");
    assert_eq!(run(&Late { overdue: &[2], lost: &[2] })[2].state, State::Stopped);
    let near = |trials: &[Trial]| trials.iter().filter(|trial| trial.point["x"].number().unwrap() < 0.1).count();
    assert!(near(&trials[20..]) >= 10, "it learns from the others: {}", near(&trials[20..]));
}
