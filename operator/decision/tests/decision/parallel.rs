//! Several trials of a search at the same time. The world checks after every decision that no trial has two gangs.

use crate::search::{of_search, rate, searched, spec, stage, states, trained, trainer, trials};
use crate::world::{Trainer, World, ended, trial_of};
use jiff::Timestamp;
use pawl_api::status::Stage;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_decision::observed::{AttemptState, Ending, WaitsFor};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn parallel(changes: Value) -> Value {
    let mut whole = stage(json!({"trials": 16, "sampler": "TPE", "parallelism": 4}));
    whole.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    json!([whole])
}

fn world(changes: Value, trainer: Trainer, order: u64) -> World {
    World { order, ..World::new(spec(parallel(changes)), trainer) }
}

/// Runs the job to its end. Returns the most attempts that were alive at the same time.
fn run(world: &mut World) -> usize {
    let mut most = 0;
    for _ in 0..5_000 {
        let moved = world.decide();
        most = most.max(world.alive().len());
        if !moved && !world.work() {
            return most;
        }
    }
    panic!("it never ends: {:#?}", world.status);
}

#[test]
fn the_order_in_which_trials_end_changes_neither_trials_nor_winner() {
    let mut results = Vec::new();
    for (sampler, patience) in [("TPE", None), ("GP", None), ("Random", Some(2))] {
        let runs: Vec<_> = (0..4)
            .map(|order| {
                let mut world = world(json!({"sampler": sampler, "patience": patience}), trainer(), order);
                let most = run(&mut world);
                assert!(most == 4 || patience.is_some(), "{sampler}: {most} at the same time");
                assert_eq!(world.status.stage, Stage::Complete);
                let names: BTreeSet<_> = world.ran.iter().map(|plan| &plan.launch).collect();
                assert_eq!(names.len(), world.ran.len(), "a launch was repeated");
                assert!(world.status.attempt.is_none() && world.status.parallel.is_empty());
                (
                    trials(&world).to_vec(),
                    world.status.search[0].winner.clone(),
                    world.status.effective_settings.clone(),
                )
            })
            .collect();
        assert!(runs.iter().all(|run| *run == runs[0]), "{sampler}");
        results.push(runs[0].0.len());
    }
    assert_eq!(results[..2], [16, 16]);
    assert!(results[2] < 16, "patience ends it");
}

#[test]
fn what_is_lost_preempted_or_restarted_is_repeated_with_the_same_result() {
    let mut undisturbed = world(json!({}), trainer(), 0);
    run(&mut undisturbed);
    let mut disturbed = world(json!({}), trainer(), 1);
    for ending in [
        Ending::Lost("killed".to_owned()),
        Ending::Preempted,
        Ending::Disrupted("node went away".to_owned()),
        Ending::Lost("killed".to_owned()),
    ] {
        disturbed.run_until(|world| world.alive().len() == 4);
        let name = disturbed.alive()[2].facts.name.clone();
        disturbed.end(&name, ending);
        disturbed.decide();
        // One that is gone without a trace.
        disturbed.run_until(|world| world.alive().len() == 4);
        let name = disturbed.alive()[1].facts.name.clone();
        disturbed.attempts.remove(&name);
        disturbed.decide();
    }
    run(&mut disturbed);
    assert_eq!(trials(&disturbed), trials(&undisturbed));
    assert_eq!(disturbed.status.effective_settings, undisturbed.status.effective_settings);
    assert!(disturbed.status.retries.is_empty());
}

#[test]
fn failures_are_counted_for_each_trial() {
    let broken = |plan: &LaunchPlan| ["-t2-", "-t3-", "-t5-"].iter().any(|trial| plan.launch.contains(trial));
    let crashing = move |plan: &LaunchPlan, _| {
        if plan.kind == LaunchKind::Search && broken(plan) { ended(plan, Outcome::Failed) } else { trained(plan) }
    };
    let mut world = world(json!({"trials": 8, "sampler": "Random"}), Box::new(crashing), 3);
    run(&mut world);
    assert_eq!((states(&world).as_str(), world.status.stage), ("CCAACACC", Stage::Complete));
    for trial in ["-t2-", "-t3-", "-t5-"] {
        let tried = of_search(&world).iter().filter(|plan| plan.launch.contains(trial)).count();
        assert_eq!(tried, 3, "lifecycle.maxRestarts is 2");
    }
}

#[test]
fn a_trial_in_its_back_off_holds_no_other_one_back() {
    let failing = |plan: &LaunchPlan, before: usize| {
        let fails = plan.kind == LaunchKind::Search && plan.launch.contains("-t1-") && before == 0;
        if fails { ended(plan, Outcome::Failed) } else { trained(plan) }
    };
    let mut world = world(json!({"trials": 8, "sampler": "Random", "parallelism": 2}), Box::new(failing), 0);
    world.run_until(|world| world.status.retry.is_some());
    let began: Timestamp = world.now;
    world.run_until(|world| world.alive().iter().any(|attempt| trial_of(&attempt.plan).ends_with("-t2")));
    assert_eq!(world.now, began, "it waits for the back-off of another trial");
    run(&mut world);
    assert_eq!(states(&world), "CCCCCCCC");
}

#[test]
fn gangs_that_wait_in_a_queue_do_not_stop_the_clock_while_others_run() {
    let mut world = world(json!({"parallelism": 2}), trainer(), 0);
    world.run_until(|world| world.alive().len() == 2);
    let names: Vec<String> = world.alive().iter().map(|attempt| attempt.facts.name.clone()).collect();
    let queue = |world: &mut World, name: &String, state: AttemptState| {
        world.attempts.get_mut(name).unwrap().facts.state = state;
    };
    queue(&mut world, &names[1], AttemptState::Queued);
    world.wait(10).decide();
    let queued = |world: &World| world.status.under_way().filter(|attempt| attempt.queued_since.is_some()).count();
    assert_eq!((queued(&world), world.status.progress.as_str()), (1, "search rates: trial 2/16"));
    queue(&mut world, &names[0], AttemptState::Queued);
    world.wait(10).decide();
    assert_eq!((queued(&world), world.status.progress.as_str()), (2, "queued"));
    world.wait(90).decide();
    queue(&mut world, &names[0], AttemptState::Running);
    world.decide();
    assert!((90..111).contains(&world.status.suspended_seconds), "{}", world.status.suspended_seconds);
    queue(&mut world, &names[1], AttemptState::Running);
    world.wait(50).decide();
    assert!(world.status.suspended_seconds < 111);
    run(&mut world);
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn the_time_in_which_another_gang_ran_is_no_time_in_a_queue() {
    let mut world = world(json!({"parallelism": 2, "trials": 2, "sampler": "Random"}), trainer(), 0);
    world.run_until(|world| world.alive().len() == 2);
    let names: Vec<String> = world.alive().iter().map(|attempt| attempt.facts.name.clone()).collect();
    world.attempts.get_mut(&names[1]).unwrap().facts.state = AttemptState::Queued;
    world.wait(10).decide();
    world.wait(90).end(&names[0], Ending::Lost("killed".to_owned()));
    world.decide();
    world.wait(5).decide();
    world.attempts.get_mut(&names[1]).unwrap().facts.state = AttemptState::Running;
    world.decide();
    assert!(world.status.suspended_seconds <= 10, "{}", world.status.suspended_seconds);
}

#[test]
fn another_number_of_trials_at_a_time_does_not_reopen_a_search() {
    let mut world = world(json!({"sampler": "Random"}), trainer(), 0);
    world.run_until(|world| world.status.stage == Stage::Training);
    let (before, winner) = (of_search(&world).len(), world.status.search[0].winner.clone());
    world.job.spec.search[0].parallelism = 2;
    world.job.metadata.generation = Some(2);
    run(&mut world);
    assert_eq!((of_search(&world).len(), &world.status.search[0].winner), (before, &winner));
    assert_eq!(world.status.stage, Stage::Complete);
}

#[test]
fn one_gang_that_finds_no_devices_is_given_up_alone() {
    let mut world = world(json!({"sampler": "Random"}), trainer(), 0);
    world.run_until(|world| world.alive().len() == 4);
    let name = world.alive()[3].facts.name.clone();
    let (since, waits_for) = (world.now, WaitsFor::Containers);
    world.attempts.get_mut(&name).unwrap().facts.state =
        AttemptState::Pending { since, message: "no image".to_owned(), waits_for };
    world.wait(3600).decide();
    assert_eq!(world.attempts[&name].facts.state, AttemptState::Ended(Ending::Stopped));
    assert_eq!(world.alive().len(), 3, "the others run on");
    run(&mut world);
    assert_eq!(states(&world), "C".repeat(16));
}

#[test]
fn all_gangs_stop_when_the_job_is_suspended_and_fewer_run_when_parallelism_is_lowered() {
    let mut undisturbed = world(json!({"sampler": "Random"}), trainer(), 0);
    run(&mut undisturbed);
    let mut world = world(json!({"sampler": "Random"}), trainer(), 0);
    world.run_until(|world| world.alive().len() == 4);
    world.edit(|spec| spec["suspend"] = true.into());
    world.run();
    assert_eq!((world.alive().len(), world.status.stage), (0, Stage::Suspended));
    world.edit(|spec| spec["suspend"] = false.into());
    world.run_until(|world| world.alive().len() == 4);
    world.edit(|spec| spec["search"][0]["parallelism"] = 1.into());
    world.decide();
    assert_eq!(world.alive().len(), 4, "what runs ends as it began");
    run(&mut world);
    assert_eq!(trials(&world), trials(&undisturbed));
}

#[test]
fn budgets_end_all_running_trials() {
    // A launch takes 36 seconds on one device.
    for budget in [json!({"gpuHours": "0.055"}), json!({"cost": "0.11"}), json!({"wallTime": "3m"})] {
        let mut job = spec(parallel(json!({"budget": budget})));
        job["cost"] = json!({"gpuHour": "2"});
        let mut world = World::new(job, trainer());
        run(&mut world);
        let search = &world.status.search[0];
        assert_eq!((search.reason.as_str(), world.status.stage), ("BudgetSpent", Stage::Complete), "{budget}");
        let states = states(&world);
        assert!(states.ends_with("SSS") && states.starts_with('C') && states.len() < 16, "{budget}: {states}");
    }
}

#[test]
fn finalists_are_repeated_at_the_same_time() {
    let mut alone = World::new(spec(json!([stage(json!({"finalists": 4}))])), trainer());
    run(&mut alone);
    let mut together = World::new(spec(json!([stage(json!({"finalists": 4, "parallelism": 3}))])), trainer());
    let mut most = 0;
    while together.decide() || together.work() {
        let repeats = |plan: &&LaunchPlan| plan.launch.contains("-f");
        most = most.max(together.alive().iter().filter(|a| a.plan.launches.iter().any(|p| repeats(&p))).count());
    }
    assert_eq!(most, 3);
    assert_eq!(together.status.search[0].winner, alone.status.search[0].winner);
    assert_eq!(together.status.search[0].finalists, alone.status.search[0].finalists);
}

#[test]
fn a_status_of_the_time_before_the_gangs_lets_none_of_them_run_twice() {
    let mut world = world(json!({}), trainer(), 0);
    world.run_until(|world| world.alive().len() == 1);
    let old = world.status.clone();
    world.run_until(|world| world.alive().len() == 4);
    world.status = old;
    // `decide` checks that no trial has two gangs.
    run(&mut world);
    assert_eq!((states(&world), world.status.stage), ("C".repeat(16), Stage::Complete));
}

#[test]
fn another_build_of_the_trainer_beside_the_old_one_is_reported_once() {
    let mut world = world(json!({"sampler": "Random"}), trainer(), 0);
    world.run_until(|world| world.alive().len() == 2);
    world.build = "sha256:bbbbbbbbbbbbbbbb".to_owned();
    run(&mut world);
    assert_eq!(states(&world), "C".repeat(16));
    assert_eq!(world.count_events("TrainerChanged"), 1);
}

/// The rate at which the loss of [`trained`] is smallest is 1e-3.
fn distance(plan: &LaunchPlan) -> f64 {
    (rate(plan) / 1e-3).ln().abs()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn whatever_fails_every_trial_ends_once_and_promotions_keep_the_best(
        pruner in prop_oneof![Just("None"), Just("ASHA"), Just("Hyperband"), Just("Median")],
        parallelism in 2u32..6,
        order in 1u64..u64::MAX,
        faults in prop::collection::vec((0usize..8, 0usize..4, 1usize..30), 0..8),
    ) {
        let pruning = json!({"first": 1, "least": 2});
        let changes = json!({"pruner": pruner, "parallelism": parallelism, "pruning": pruning, "sampler": "Random",
                             "trials": 9, "finalists": 1});
        let mut world = world(changes, trainer(), order);
        for (which, how, after) in faults {
            for _ in 0..after {
                if !world.decide() {
                    world.work();
                }
            }
            let alive: Vec<String> = world.alive().iter().map(|attempt| attempt.facts.name.clone()).collect();
            let Some(name) = alive.get(which % alive.len().max(1)) else { continue };
            match how {
                0 => drop(world.end(name, Ending::Disrupted("node went away".to_owned()))),
                1 => drop(world.end(name, Ending::Preempted)),
                2 => drop(world.attempts.remove(name)),
                _ => drop(world.end(name, Ending::Stopped)),
            }
        }
        run(&mut world);
        prop_assert_eq!(world.status.stage, Stage::Complete);
        let states = states(&world);
        prop_assert!(states.len() == 9 && states.chars().all(|state| "CS".contains(state)), "{}", states);
        let ran = of_search(&world);
        let best = ran.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
        let first_rung = |plan: &&&LaunchPlan| plan.checkpoint.is_none() || pruner != "Hyperband";
        if ran.iter().all(|plan| first_rung(&plan)) {
            prop_assert_eq!(world.ran.last().map(rate), Some(rate(best)), "the best was lost");
        }
        // Each amount of training of a trial ends once.
        let mut results = BTreeSet::new();
        for line in trials(&world) {
            let reports: Vec<&str> = line.split(';').nth(3).unwrap().split(',').collect();
            prop_assert!(reports.iter().collect::<BTreeSet<_>>().len() == reports.len(), "{}", line);
            results.insert(line.clone());
        }
        prop_assert_eq!(results.len(), 9);
    }
}

#[test]
fn one_trial_at_a_time_is_a_search_as_before() {
    let serial = searched(json!([stage(json!({"sampler": "TPE", "trials": 12}))]), trainer());
    assert!(serial.status.parallel.is_empty() && serial.status.retries.is_empty());
    let text = serde_json::to_string(&serial.status).unwrap();
    assert!(!text.contains("\"parallel\"") && !text.contains("\"retries\""));
}
