//! Slow-downs in training: a slow machine is not a slow setting.

use crate::training::{FACTORS, spec};
use crate::world::{World, done, ended, noise};
use pawl_api::status::{PhaseState, Stage};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_decision::observed::Ending;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What is slow: factors of the speed of every setting, by its JSON; the empty text is in all of them, as the machine
/// is.
type Slow = Rc<RefCell<BTreeMap<&'static str, f64>>>;

/// A training whose launches become slow by what the test sets.
struct Training {
    world: World,
    slow: Slow,
    factors: &'static [(&'static str, f64)],
    speed: Box<dyn Fn(&LaunchPlan) -> f64>,
}

impl Training {
    fn begin(spec: Value, factors: &'static [(&'static str, f64)]) -> Self {
        let slow = Slow::default();
        let (of_trainer, of_training) = (slow.clone(), slow.clone());
        let speed = move |plan: &LaunchPlan, slow: &Slow| {
            let text = serde_json::to_string(&plan.settings).unwrap();
            let has = |needle: &str| text.contains(needle);
            let fast = factors.iter().filter(|(needle, _)| has(needle)).map(|(_, factor)| factor).product::<f64>();
            100.0 * fast * slow.borrow().iter().filter(|(needle, _)| has(needle)).map(|(_, f)| f).product::<f64>()
        };
        let trainer = move |plan: &LaunchPlan, _| done(plan, speed(plan, &of_trainer) * noise(plan, 0.002));
        let mut world = World::new(spec, Box::new(trainer));
        trains(&mut world);
        Self { world, slow, factors, speed: Box::new(move |plan| speed(plan, &of_training)) }
    }

    /// The next throughput window, and what follows from it until the training runs again.
    fn window(&mut self) {
        let speed = (self.speed)(&self.world.alive()[0].plan.launches[0]);
        self.world.progress(|progress| {
            progress.windows += 1;
            progress.step += 10;
            progress.items += 100;
            progress.items_per_second = Some(speed);
        });
        trains(&mut self.world);
    }

    fn windows(&mut self, count: usize) {
        (0..count).for_each(|_| self.window());
    }

    fn starts(&self) -> usize {
        let starts = self.world.events.iter().filter(|event| event.message.contains(": Train, 1 launches"));
        starts.count()
    }

    fn accepted(&self) -> usize {
        self.world.status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted).count()
    }

    fn degraded(&self) -> (&str, &str) {
        let degraded = self.world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
        (degraded.reason.as_str(), degraded.message.as_str())
    }
}

/// Decides and works until the training runs, and no launch of another kind.
fn trains(world: &mut World) {
    world.decide();
    let runs = |world: &World| world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
    world.run_until(runs);
    world.decide();
}

const FIVE: &[(&str, f64)] = &[("p0", 1.1), ("p1", 1.1), ("p2", 1.1), ("p3", 1.1), ("p4", 1.1)];

fn five() -> Value {
    let phase = |(name, _): &(&str, f64)| json!({"name": name, "settings": {"workload": {*name: 1}}});
    let phases: Vec<Value> = FIVE.iter().map(phase).collect();
    json!({"phases": phases, "train": {"items": 1_000_000_000_000u64}})
}

#[test]
fn a_slow_node_reverts_nothing() {
    let mut training = Training::begin(five(), FIVE);
    assert_eq!((training.accepted(), training.starts()), (5, 1));
    training.windows(10);
    training.slow.borrow_mut().insert("", 0.79);
    training.windows(400);
    assert_eq!(training.accepted(), 5, "{:#?}", training.world.status.phases);
    assert_eq!(training.world.count_events("SlowMachine"), 1);
    assert_eq!(training.starts(), 2, "one stop for the measurement");
    let measured = training.world.launches(LaunchKind::Measure, "slow-");
    assert_eq!(measured, 2, "one pair, whatever the number of phases");
    let (reason, message) = training.degraded();
    assert_eq!(reason, "TrainingDegraded");
    assert!(message.contains("the machine is slow; no phase is rolled back"), "{message}");
    // The same machine becomes slower still: that is seen.
    training.slow.borrow_mut().insert("", 0.6);
    training.windows(20);
    assert_eq!((training.accepted(), training.world.count_events("SlowMachine")), (5, 2));
    // It recovers: nothing is degraded, and the promise of the measurements holds again.
    training.slow.borrow_mut().clear();
    training.windows(5);
    assert_eq!(training.degraded().0, "AsPlanned");
    assert_eq!(training.world.status.training.as_ref().unwrap().slow_machine, None);
}

/// A window counts at most as the tolerance for the alarm, but what is said and expected from then on is what was
/// measured.
#[test]
fn a_machine_that_is_far_slower_is_expected_to_be_as_slow_as_it_is() {
    let mut training = Training::begin(five(), FIVE);
    training.windows(10);
    let promised = (training.speed)(&training.world.alive()[0].plan.launches[0]);
    training.slow.borrow_mut().insert("", 0.3);
    training.windows(400);
    assert_eq!((training.accepted(), training.world.count_events("SlowMachine")), (5, 1));
    let slow = training.world.status.training.as_ref().unwrap().slow_machine.clone().unwrap();
    let found = slow.items_per_second.value() / promised;
    assert!((found - 0.3).abs() < 0.005, "{found} of what was expected");
    let said = format!("{:.1} items/s on average", slow.items_per_second.value());
    assert!(training.degraded().1.contains(&said), "{said}: {}", training.degraded().1);
}

#[test]
fn a_phase_is_not_blamed_for_a_slow_down_of_which_it_explains_little() {
    let mut training = Training::begin(five(), FIVE);
    training.windows(10);
    let full = std::mem::replace(&mut training.speed, Box::new(|_| 0.0));
    training.speed = Box::new(move |plan| 0.3 * full(plan));
    training.slow.borrow_mut().insert("p4", 0.88);
    training.windows(10);
    assert_eq!(training.accepted(), 5, "{:#?}", training.world.status.phases);
    assert_eq!(training.world.count_events("SlowdownCheck"), 1);
}

#[test]
fn a_phase_that_became_slow_is_reverted_and_no_other() {
    for slow in ["p4", "p2", "p0"] {
        let mut training = Training::begin(five(), FIVE);
        training.windows(10);
        training.slow.borrow_mut().insert(slow, 0.75);
        training.windows(10);
        for phase in &training.world.status.phases {
            let state = if phase.name == slow { PhaseState::RolledBack } else { PhaseState::Accepted };
            assert_eq!(phase.state, state, "{slow} is slow: {phase:#?}");
        }
        assert_eq!(training.world.verdict(slow).1, "ThroughputBelowPromise");
        let factors = training.factors.iter().filter(|(name, _)| *name != slow);
        let speed = factors.map(|(_, factor)| factor).product::<f64>() * 100.0;
        let promised = training.world.status.training.as_ref().unwrap();
        training.slow.borrow_mut().insert("", 1.0);
        assert!(promised.promised_items_per_second.as_ref().is_none_or(|p| (p.value() / speed - 1.0).abs() < 0.01));
    }
}

#[test]
fn a_slow_down_that_only_the_training_sees_reverts_nothing_and_stops_it_ever_more_rarely() {
    let mut training = Training::begin(spec(json!({"train": {"items": 100_000_000}})), FACTORS);
    let full = training.speed;
    training.speed = Box::new(|_| 100.0);
    // The launches of the comparison are as fast as measured; on other devices each time, so that the promise is the
    // same.
    for window in 0..1_000 {
        training.world.placement = format!("node-{window}");
        training.window();
    }
    assert_eq!(training.accepted(), 2);
    let checks = training.world.count_events("SlowdownCheck");
    assert!((2..=5).contains(&checks), "{checks} checks");
    assert_eq!(training.degraded().0, "TrainingDegraded");
    training.speed = full;
    training.windows(5);
    assert_eq!(training.degraded().0, "AsPlanned");
}

#[test]
fn a_small_slow_down_is_found_and_its_phase_too() {
    let mut training = Training::begin(five(), FIVE);
    training.windows(10);
    // Less than the tolerance of 0.2.
    training.slow.borrow_mut().insert("p3", 0.9);
    training.windows(25);
    assert_eq!((training.accepted(), training.world.verdict("p3").1), (4, "ThroughputBelowPromise"));
}

#[test]
fn the_promise_is_that_of_all_phases_together_and_not_of_the_launches_that_selected_one() {
    let promised = |noise_of_pairs: f64| {
        let trainer = move |plan: &LaunchPlan, _| {
            let fast = if plan.settings.compile.is_some() { 1.3 } else { 1.0 };
            let fast = if plan.settings.precision.is_some() { fast * 1.2 } else { fast };
            // The launches that selected the newest phase were lucky.
            let luck = if plan.launch.starts_with("fuse-") && plan.settings.compile.is_some() { 1.1 } else { 1.0 };
            done(plan, 100.0 * fast * luck * noise(plan, noise_of_pairs))
        };
        let mut world = World::new(spec(json!({})), Box::new(trainer));
        trains(&mut world);
        world.status.training.unwrap().promised_items_per_second.unwrap().value()
    };
    assert!((promised(0.0) - 156.0).abs() < 0.01, "{}", promised(0.0));
    let noisy = promised(0.04);
    assert!(noisy < 156.0 && noisy > 140.0, "the lower bound of its interval: {noisy}");
}

#[test]
fn without_the_measurement_nothing_is_reverted() {
    let mut training = Training::begin(spec(json!({"train": {"items": 100_000_000}})), FACTORS);
    training.slow.borrow_mut().insert("", 0.7);
    training.world.trainer = Box::new(|plan, _| match plan.launch.starts_with("slow-") {
        true if plan.launch.contains("-p0-a") => ended(plan, Outcome::OutOfMemory),
        _ => done(plan, 100.0),
    });
    training.windows(6);
    assert_eq!(training.accepted(), 2);
    assert_eq!(training.world.count_events("SlowdownUnexplained"), 1);
    assert!(training.degraded().1.contains("could not be measured"), "{}", training.degraded().1);
}

#[test]
fn a_lost_attempt_repeats_the_pair_and_a_training_that_ends_meanwhile_is_done() {
    let mut training = Training::begin(spec(json!({"train": {"items": 100_000_000}})), FACTORS);
    training.slow.borrow_mut().insert("", 0.7);
    training.windows(4);
    let measures = |world: &World| {
        let attempt = world.alive().first().map(|attempt| attempt.plan.launches[0].launch.clone());
        attempt.is_some_and(|launch| launch.starts_with("slow-"))
    };
    let speed = (training.speed)(&training.world.alive()[0].plan.launches[0]);
    training.world.progress(|progress| (progress.windows, progress.items_per_second) = (5, Some(speed)));
    training.world.run_until(measures);
    assert_eq!(training.world.status.stage, Stage::Training);
    training.world.end_alive(Ending::Disrupted("the pod was deleted".to_owned()));
    trains(&mut training.world);
    assert_eq!((training.accepted(), training.world.count_events("SlowMachine")), (2, 1));

    // The training reaches its last item while it is being stopped for the measurement.
    let mut training = Training::begin(spec(json!({"train": {"items": 100_000_000}})), FACTORS);
    training.slow.borrow_mut().insert("", 0.7);
    training.windows(4);
    let plan = training.world.alive()[0].plan.launches[0].clone();
    let speed = (training.speed)(&plan);
    training.world.progress(|progress| (progress.windows, progress.items_per_second) = (5, Some(speed)));
    let name = training.world.alive()[0].facts.name.clone();
    training.world.decide();
    training.world.attempts.get_mut(&name).unwrap().facts.results.push(done(&plan, speed));
    training.world.run();
    assert_eq!(training.world.status.stage, Stage::Complete);
    assert_eq!(training.world.launches(LaunchKind::Measure, "slow-"), 0);
    assert_eq!(training.world.status.training.as_ref().unwrap().slowdown, None);
}
