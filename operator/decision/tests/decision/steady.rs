//! Speed is that of a steady state, measured in pairs whose order is random.

use crate::world::{Trainer, World, done, factors, noise, speed};
use pawl_api::status::PhaseState;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::settings::Settings;
use pawl_decision::action::Action;
use pawl_decision::decide;
use pawl_decision::observed::Observed;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn fuse(analysis: Value, trainer: Trainer) -> World {
    World::new(json!({"analysis": analysis, "phases": [{"name": "fuse", "settings": {"compile": "Fuse"}}]}), trainer)
}

/// A trainer whose candidate is 1.3 times as fast, and whose launches are not steady where `unsteady` says so.
fn unsteady(unsteady: impl Fn(&LaunchPlan) -> bool + 'static) -> Trainer {
    Box::new(move |plan, _| {
        let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
        result.measured.steady = (plan.kind == LaunchKind::Measure && unsteady(plan)).then_some(false);
        result
    })
}

#[test]
fn launches_that_are_never_steady_decide_nothing() {
    let is_candidate = |plan: &LaunchPlan| plan.settings.compile.is_some();
    type Which = fn(&LaunchPlan) -> bool;
    let cases: [(&str, Which); 2] = [("all", |_| true), ("one arm", is_candidate)];
    for (name, launches) in cases {
        for then in ["RollBack", "Accept"] {
            let mut world = fuse(json!({"onInconclusive": then}), unsteady(launches));
            world.run();
            assert_eq!(world.verdict("fuse"), (PhaseState::Inconclusive, "NotSteady", 0), "{name}, {then}");
            let message = &world.phase("fuse").message;
            assert!(message.contains("raise analysis.warmupSteps or analysis.windowSteps"), "{message}");
            assert!(world.launches(LaunchKind::Measure, "fuse") <= 6, "{name}: the first look shows it");
            assert!(world.phase("fuse").measured.items_per_second.is_none() || name == "one arm");
        }
    }
}

#[test]
fn pairs_that_are_not_steady_beside_other_programs_say_so_whatever_the_verdict() {
    // The pairs of the phase, or those of all accepted phases together.
    for (task, reason) in [("fuse-", "NotSteady"), ("bundle-", "NotConfirmed")] {
        let is_unsteady = move |plan: &LaunchPlan| {
            let of_task = plan.kind == LaunchKind::Measure && plan.launch.starts_with(task);
            of_task && !plan.launch.contains("-p0-")
        };
        let trainer = move |plan: &LaunchPlan, _: usize| {
            let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
            result.measured.steady = is_unsteady(plan).then_some(false);
            result.measured.disturbance.other_cpu_share = Some(if is_unsteady(plan) { 0.41 } else { 0.02 });
            result
        };
        let fuse = json!({"name": "fuse", "settings": {"compile": "Fuse"}});
        let idle = json!({"name": "idle", "settings": {"workload": {"idle": 1}}});
        let mut world = World::new(json!({"phases": [fuse, idle]}), Box::new(trainer));
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::Inconclusive, reason, 0));
        let message = &world.phase("fuse").message;
        // Of some pairs the second launch is not run.
        let of_task = world.ran.iter().filter(|plan| is_unsteady(plan));
        let numbers: BTreeSet<&str> =
            of_task.filter_map(|plan| plan.launch.rsplit_once("-p")?.1.split('-').next()).collect();
        let unsteady = numbers.len();
        let all = unsteady + 1;
        let expected = format!(
            "{unsteady} of {all} pairs do not count (all of them were measured while other programs used the CPUs: \
             41 %): "
        );
        assert!(message.contains(&expected), "{message} lacks {expected}");
        let remedy = "measure without the other programs, or raise analysis.warmupSteps or analysis.windowSteps";
        assert!(message.ends_with(remedy), "{message}");
    }
}

#[test]
fn a_pair_with_a_launch_that_is_not_steady_is_repeated() {
    let mut world = fuse(json!({}), unsteady(|plan| plan.launch.contains("-p1-a")));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 8);
    assert_eq!(world.phase("fuse").speedup.as_ref().unwrap().pairs, 3);
}

#[test]
fn a_disturbed_pair_is_repeated_and_said_so() {
    let trainer = |plan: &LaunchPlan, _: usize| {
        let slow = if plan.launch.contains("-p1-b") { 0.5 } else { 1.0 };
        done(plan, slow * speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002))
    };
    let mut world = fuse(json!({}), Box::new(trainer));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    let phase = world.phase("fuse");
    assert!(phase.message.contains("from 3 pairs (1 disturbed pair was repeated)"), "{}", phase.message);
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 8);
}

/// A trainer whose candidate is 1.3 times as fast, beside other programs that use 41 % of the CPUs where `busy` says
/// so.
fn beside_others(busy: impl Fn(&LaunchPlan) -> bool + 'static) -> Trainer {
    Box::new(move |plan, _| {
        let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3)]) * noise(plan, 0.002));
        let share = if busy(plan) { 0.41 } else { 0.02 };
        result.measured.disturbance.other_cpu_share = (plan.kind == LaunchKind::Measure).then_some(share);
        result
    })
}

#[test]
fn a_pair_beside_other_programs_is_measured_again_in_either_arm() {
    for launch in ["-p1-a", "-p1-b"] {
        let mut world = fuse(json!({}), beside_others(move |plan| plan.launch.contains(launch)));
        world.run();
        assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
        let (phase, speedup) = (world.phase("fuse"), world.phase("fuse").speedup.as_ref().unwrap());
        assert!(phase.message.contains("(1 disturbed pair was repeated)"), "{}", phase.message);
        assert_eq!((speedup.pairs, speedup.disturbed), (3, 0));
        assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 8);
    }
}

#[test]
fn a_verdict_of_a_machine_that_is_never_calm_says_so() {
    let mut world = fuse(json!({}), beside_others(|_| true));
    world.run();
    assert_eq!(world.verdict("fuse"), (PhaseState::Accepted, "SpeedAboveThreshold", 0));
    let (phase, speedup) = (world.phase("fuse"), world.phase("fuse").speedup.as_ref().unwrap());
    let expected = "(4 of 4 pairs were measured while other programs used the CPUs: 41 %)";
    assert!(phase.message.contains(expected), "{}", phase.message);
    assert_eq!((speedup.pairs, speedup.disturbed), (4, 4));
    assert_eq!(world.launches(LaunchKind::Measure, "fuse"), 8, "one more pair tells that it stays so");
}

#[test]
fn all_phases_together_rest_on_the_same_pairs_also_without_a_required_speedup() {
    let phases = json!([
        {"name": "fuse", "settings": {"compile": "Fuse"}}, {"name": "flash", "settings": {"attention": "Flash"}},
    ]);
    let mut world = World::new(
        json!({"phases": phases}),
        Box::new(|plan, _| {
            let mut result = done(plan, speed(&plan.settings, &[("Fuse", 1.3), ("Flash", 1.2)]) * noise(plan, 0.002));
            result.measured.disturbance.shared_gpu_share = Some(1.0);
            result
        }),
    );
    world.run();
    let bundle = world.status.bundle.as_ref().unwrap();
    assert_eq!((bundle.state, bundle.reason.as_str()), (PhaseState::Accepted, "GoalMet"));
    let speedup = bundle.speedup.as_ref().unwrap();
    assert_eq!((speedup.pairs, speedup.disturbed), (4, 4));
    let expected = "(4 of 4 pairs were measured while other programs used the GPU: 100 %)";
    assert!(bundle.message.contains(expected), "{}", bundle.message);
}

/// Items per second of a loader of 20 ms a batch and steps of 10 ms, with a queue that is full at the first step.
fn behind_a_queue(plan: &LaunchPlan) -> f64 {
    let queue = f64::from(plan.settings.loader_prefetch.unwrap_or(1));
    let (warmup, window) = (plan.budget.warmup_steps.unwrap_or(0), plan.budget.window_steps.unwrap_or(1));
    let (mut ready, mut seconds) = (queue, 0.0);
    for step in 0..warmup + window {
        // A step makes half of a batch, and waits for one that is missing.
        let wait = if ready >= 1.0 { 0.0 } else { 0.02 * (1.0 - ready) };
        ready = (ready + (wait + 0.01) / 0.02 - 1.0).clamp(0.0, queue);
        seconds += if step >= warmup { wait + 0.01 } else { 0.0 };
    }
    8.0 * window as f64 / seconds
}

#[test]
fn a_prefetch_queue_is_used_up_before_the_window() {
    let trainer = |plan: &LaunchPlan, _: usize| done(plan, behind_a_queue(plan) * noise(plan, 0.002));
    let spec = json!({"settings": {"loaderWorkers": 1, "loaderPrefetch": 1},
        "phases": [{"name": "prefetch", "settings": {"loaderPrefetch": 64}}]});
    let mut world = World::new(spec, Box::new(trainer));
    world.run();
    assert_eq!(world.verdict("prefetch"), (PhaseState::RolledBack, "SpeedBelowThreshold", 0));
    let budgets: Vec<_> =
        world.ran.iter().filter(|plan| plan.kind == LaunchKind::Measure).map(|plan| &plan.budget).collect();
    assert!(!budgets.is_empty());
    assert!(
        budgets.iter().all(|budget| (budget.warmup_steps, budget.window_steps) == (Some(128), Some(128))),
        "both arms"
    );
}

#[test]
fn pairs_begin_with_either_arm() {
    let phases = (0..16).map(|i| json!({"name": format!("p{i}"), "settings": {"workload": {format!("p{i}"): 1}}}));
    let mut world = World::new(json!({"phases": phases.collect::<Vec<_>>()}), factors(&[]));
    world.run();
    let order = |phase: usize| -> String {
        let of_phase =
            |plan: &&LaunchPlan| plan.launch.starts_with(&format!("p{phase}-")) && plan.kind == LaunchKind::Measure;
        let control = |plan: &LaunchPlan| plan.settings == Settings { batch_per_gpu: Some(8), ..Settings::default() };
        world.ran.iter().filter(of_phase).map(|plan| if control(plan) { 'A' } else { 'B' }).collect()
    };
    let orders: BTreeSet<String> = (0..16).map(order).collect();
    assert!(orders.len() > 2, "{orders:?}");
    assert!(orders.iter().any(|order| order.starts_with('A')) && orders.iter().any(|order| order.starts_with('B')));
}

#[test]
fn what_is_under_way_keeps_its_order() {
    let mut world = fuse(json!({}), factors(&[("Fuse", 1.3)]));
    world.run_until(|world| world.status.attempt.as_ref().is_some_and(|attempt| attempt.launches.len() == 7));
    let launches = &mut world.status.attempt.as_mut().unwrap().launches;
    launches[1..].reverse();
    let as_planned_before = launches.clone();
    // Whoever takes over the job has not seen the attempt yet.
    let decision = decide(&world.job, &world.status, &Observed::default(), world.now);
    let [Action::Start { plan, .. }] = &decision.actions[..] else { panic!("{:?}", decision.actions) };
    let names: Vec<String> = plan.launches.iter().map(|launch| launch.launch.clone()).collect();
    assert_eq!(names, as_planned_before);
}
