//! Edits of a search, and ends of a search without a complete trial.

use crate::search::{of_search, of_trials, rate, spec, stage, states, trained, trainer, trials};
use crate::world::{World, trial_of};
use pawl_api::status::{SearchState, Stage};
use pawl_decision::observed::AttemptState;
use serde_json::{Value, json};

/// A search of 16 trials, of which 10 have ended.
fn under_way() -> World {
    let parameters = json!([
        {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
        {"name": "weightDecay", "values": ["0.1", "0.01", "0"]},
    ]);
    let mut job = spec(json!([stage(json!({"trials": 16, "finalists": 1, "parameters": parameters}))]));
    job["settings"]["weightDecay"] = "0.01".into();
    let mut world = World::new(job, trainer());
    world.run_until(|world| world.status.search.first().is_some_and(|search| search.trials.len() == 11));
    world
}

/// How many trials an edit of the stage leaves to run.
fn left(change: impl FnOnce(&mut Value)) -> (usize, World) {
    let mut world = under_way();
    let before = of_trials(&world).len();
    world.edit(|spec| change(&mut spec["search"][0]));
    world.run();
    assert_eq!((world.status.stage, trials(&world).len()), (Stage::Complete, 16), "{:?}", world.status.failure);
    (of_trials(&world).len() - before, world)
}

#[test]
fn an_edit_keeps_the_trials_that_fit() {
    let values = |values: Value| move |stage: &mut Value| stage["parameters"][1]["values"] = values;
    for (name, (count, world)) in [
        ("another order", left(values(json!(["0", "0.01", "0.1"])))),
        ("a value more", left(values(json!(["0.1", "0.01", "0", "0.2"])))),
        ("a wider range", left(|stage| stage["parameters"][0]["max"] = "3e-1".into())),
        ("another sampler", left(|stage| stage["sampler"] = "TPE".into())),
        ("parameters in another order", left(|stage| stage["parameters"].as_array_mut().unwrap().reverse())),
    ] {
        assert_eq!(count, 6, "{name}: {:?}", trials(&world));
        let points: std::collections::BTreeSet<&str> =
            trials(&world).iter().map(|line| line.rsplit(';').next().unwrap()).collect();
        assert_eq!(points.len(), 16, "{name}: a point was measured twice");
        let kept = world.events.iter().any(|event| event.message.contains("10 of 11 trials are kept"));
        assert!(kept, "{name}");
    }
    // Trial 0 has a rate of 0.1.
    let (count, world) = left(|stage| stage["parameters"][0]["min"] = "1e-3".into());
    assert!((7..16).contains(&count), "{count}");
    let rates = trials(&world).iter().map(|line| line.rsplit(';').next().unwrap().split(',').next().unwrap());
    assert!(rates.map(|rate| rate.parse::<f64>().unwrap()).all(|rate| rate >= 1e-3), "{:?}", trials(&world));
}

#[test]
fn an_edit_of_what_results_depend_on_begins_anew() {
    for change in
        [json!({"epochs": 8}), json!({"seed": 7}), json!({"objectives": [{"metric": "nrmse", "goal": "Minimize"}]})]
    {
        let (count, _) = left(|stage| stage.as_object_mut().unwrap().extend(change.as_object().unwrap().clone()));
        assert!(count >= 16, "{change}: {count}");
    }
}

#[test]
fn a_budget_that_ends_before_a_trial_is_complete_keeps_the_accepted_settings() {
    // A launch takes a hundredth of an hour: three of one epoch each.
    let limited = json!({"pruner": "ASHA", "pruning": {"first": 1, "reduction": 3}, "budget": {"gpuHours": "0.025"}});
    let mut world = World::new(spec(json!([stage(limited), stage(json!({"name": "second", "trials": 2}))])), trainer());
    world.run();
    assert_eq!(world.status.stage, Stage::Complete, "{:?}", world.status.failure);
    let search = &world.status.search[0];
    assert_eq!((search.state, search.reason.as_str(), &search.winner), (SearchState::Done, "BudgetSpent", &None));
    assert!(states(&world).chars().all(|state| state == 'S'), "{}", states(&world));
    let second = of_search(&world).into_iter().find(|plan| plan.launch.starts_with("search-1-")).unwrap();
    assert_eq!(rate(second), 0.1, "the next stage begins with the accepted settings");
    let degraded = world.status.conditions.iter().find(|condition| condition.type_ == "Degraded").unwrap();
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", "BudgetSpent"));
    assert_eq!(world.count_events("BudgetSpent"), 1);
    // More budget continues it.
    world.edit(|spec| spec["search"][0]["budget"] = json!({}));
    world.run();
    assert!(world.status.search[0].winner.is_some(), "{:?}", world.status.search[0]);
}

#[test]
fn an_exhausted_space_ends() {
    let parameters =
        json!([{"name": "batchPerGpu", "values": ["4", "8", "16"]}, {"name": "weightDecay", "values": ["0", "0.1"]}]);
    for sampler in ["TPE", "GP", "Random", "Sobol", "Grid"] {
        let changes = json!({"sampler": sampler, "trials": 30, "finalists": 1, "parameters": parameters});
        let mut job = spec(json!([stage(changes)]));
        job["settings"]["weightDecay"] = "0".into();
        let mut world = World::new(job, Box::new(|plan, _| trained(plan)));
        world.run();
        assert_eq!((trials(&world).len(), world.status.search[0].reason.as_str()), (6, "SpaceExhausted"), "{sampler}");
        assert_eq!(world.status.stage, Stage::Complete);
    }
}

#[test]
fn a_trial_that_never_runs_does_not_hold_up_the_others() {
    let changes = json!({"trials": 40, "parallelism": 4, "sampler": "TPE", "finalists": 1});
    let mut world = World { order: 1, ..World::new(spec(json!([stage(changes)])), trainer()) };
    let mut most = 0;
    for _ in 0..5_000 {
        for attempt in world.attempts.values_mut().filter(|attempt| trial_of(&attempt.plan).ends_with("-t2")) {
            if attempt.facts.state == AttemptState::Running {
                // It waits for devices, without limit.
                attempt.facts.state = AttemptState::Queued;
            }
        }
        let before = world.now;
        let moved = world.decide();
        most = most.max(trials_so_far(&world));
        // While only it is alive, the clock runs on.
        if !moved && !world.work() && world.now == before {
            break;
        }
    }
    assert_eq!((most, world.status.stage), (40, Stage::Complete), "{:?}", world.status.search);
    assert_eq!(states(&world), format!("CCS{}", "C".repeat(37)));
    let hours = world.now.duration_since("2026-01-01T00:00:00Z".parse().unwrap()).as_secs_f64() / 3600.0;
    assert!(hours < 2.0, "{hours}");
}

fn trials_so_far(world: &World) -> usize {
    world.status.search.first().map_or(0, |search| search.trials.len())
}
