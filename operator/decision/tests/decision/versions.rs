//! Files of each version: plans, and jobs with their statuses, which all later versions must read and decide on without
//! stopping a gang or repeating a launch.
//!
//! For a new version: change the three paths below, run `PAWL_WRITE_VERSION=yes cargo test -p pawl-decision --test
//! decision plans_and_hashes`, and keep the tests of the old ones.

#![expect(clippy::disallowed_methods, reason = "the files are fixtures of these tests")]

use crate::world::{Attempt, World, factors};
use jiff::Timestamp;
use pawl_api::TrainingJob;
use pawl_api::spec::JudgingBudget;
use pawl_api::status::{LaunchStatus, PhaseState, PhaseStatus, Stage};
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_decision::decide;
use pawl_decision::observed::{AttemptFacts, AttemptState};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PLANS: &str = "tests/fixtures/plans-1";
/// Plans of the attempts that run in the jobs.
const RUNNING: &str = "tests/fixtures/plans-1/running";
const JOBS: &str = "../../crds/api/tests/fixtures/v1alpha1-1";

fn directory(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(directory_path: &str, name: &str) -> Value {
    let path = directory(directory_path).join(name).with_extension("json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// A job of three phases and a training: accepted, judged by its quality too, and rolled back.
fn ladder() -> World {
    let spec = json!({
        "workload": {"name": "ups", "config": {"tasks": ["darcy2d"]}},
        "trainer": {"image": "trainer:1", "replicas": 2, "gpusPerReplica": 4},
        "settings": {"batchPerGpu": 8, "globalBatch": 128},
        "phases": [
            {"name": "graph", "settings": {"compile": "Graph"}},
            {"name": "half", "numerics": "Changed", "settings": {"precision": "bf16"},
                "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 4}}]},
            {"name": "recompute", "settings": {"activationCheckpointing": "Full"}},
        ],
        "gates": {"overallSpeedup": "1.2", "validationLossDelta": "0.05"},
        "train": {"items": 100_000, "checkpoint": {"every": "10m", "storage": "pvc://models/runs"}},
    });
    let mut world = World::new(spec, factors(&[("Graph", 1.4), ("bf16", 1.3), ("Full", 0.8)]));
    world.job.metadata.namespace = Some("team".to_owned());
    world.job.metadata.uid = Some("7f3a".to_owned());
    world.job.metadata.generation = Some(1);
    world
}

/// All settings by name, and a custom command.
fn other() -> World {
    let spec = json!({
        "workload": {"command": ["python", "train.py"], "args": ["--small"]},
        "trainer": {"gpusPerReplica": 1},
        "seeds": [7],
        "settings": {"batchPerGpu": 4, "learningRate": "0.001", "nccl": {"NCCL_DEBUG": "WARN"}, "workload": {"depth": 3}},
        "phases": [{"name": "loader", "settings": {"loaderWorkers": 4}, "minSpeedup": "1.01"}],
        "analysis": {"minPairs": 1, "maxPairs": 1},
        "train": {"epochs": 2, "earlyStopping": {"patience": 3}},
    });
    World::new(spec, factors(&[("\"loaderWorkers\":4", 1.05)]))
}

/// The plans of all attempts, with their hashes, and the hashes of the inputs of all verdicts.
fn golden(mut world: World) -> Value {
    let mut plans: Vec<(AttemptPlan, String)> = Vec::new();
    for _ in 0..5_000 {
        let moved = world.decide();
        for attempt in world.alive() {
            if plans.last().is_none_or(|(plan, _)| plan.attempt != attempt.plan.attempt) {
                plans.push((attempt.plan.clone(), attempt.facts.plan_hash.clone()));
            }
        }
        if !moved & !world.work() {
            break;
        }
    }
    let status = &world.status;
    assert_eq!(status.stage, Stage::Complete, "{:?}", status.failure);
    json!({
        "plans": plans.iter().map(|(plan, hash)| json!({"hash": hash, "plan": plan})).collect::<Vec<_>>(),
        "baseline": status.baseline.as_ref().map(|baseline| &baseline.input_hash),
        "phases": status.phases.iter().map(|phase| &phase.input_hash).collect::<Vec<_>>(),
        "checked": status.phases.iter().map(|phase| &phase.checked).collect::<Vec<_>>(),
        "bundle": status.bundle.as_ref().map(|bundle| &bundle.input_hash),
        "revision": status.revision,
        "target": status.training.as_ref().map(|training| &training.completed),
    })
}

/// The jobs, each at another point.
fn jobs() -> Vec<(&'static str, World)> {
    let at = |enough: fn(&World) -> bool| {
        let mut world = ladder();
        world.run_until(enough);
        world
    };
    let in_training = |world: &World| world.status.stage == Stage::Training && !world.alive().is_empty();
    let mut training = at(in_training);
    for window in 1..=3 {
        training.wait(60).progress(|progress| {
            (progress.windows, progress.step, progress.items) = (window, 50 * window, 6_400 * window);
            progress.items_per_second = Some(182.0);
            let name = format!("{:08}-step-{}-by-9.1", 50 * window, 50 * window);
            progress.last_checkpoint = Some(CheckpointRef { name, step: 50 * window, items: 6_400 * window });
        });
        training.decide();
    }
    let mut stalled = ladder();
    stalled.trainer = Box::new(|plan, _| crate::world::ended(plan, Outcome::Unsupported));
    stalled.run();
    let mut complete = ladder();
    complete.run();
    vec![
        ("preflight", at(|world| !world.alive().is_empty())),
        ("ladder", at(|world| world.launches(LaunchKind::Measure, "graph") == 2)),
        ("quality", at(|world| world.launches(LaunchKind::Quality, "half") == 1)),
        ("guarded-training", training),
        ("complete", complete),
        ("stalled", stalled),
    ]
}

/// Writes the files of a new version.
fn write_the_files() {
    let write = |path: &str, name: &str, value: &Value| {
        let path = directory(path).join(name).with_extension("json");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{value:#}\n")).unwrap();
    };
    write(PLANS, "ladder", &golden(ladder()));
    write(PLANS, "other", &golden(other()));
    for (name, world) in jobs() {
        let mut job = world.job.clone();
        job.status = Some(world.status.clone());
        write(JOBS, name, &serde_json::to_value(job).unwrap());
        if let [running] = world.alive()[..] {
            write(RUNNING, name, &serde_json::to_value(&running.plan).unwrap());
        }
    }
}

#[test]
fn plans_and_hashes_are_those_of_earlier_versions() {
    if std::env::var_os("PAWL_WRITE_VERSION").is_some() {
        write_the_files();
    }
    for (name, world) in [("ladder", ladder()), ("other", other())] {
        let (found, expected) = (golden(world), read(PLANS, name));
        let plans = |all: &Value| all["plans"].as_array().unwrap().clone();
        let found = if expected["bundle"].is_null() { unconfirmed(found, &expected) } else { found };
        for (found, expected) in plans(&found).iter().zip(&plans(&expected)) {
            let [mut found, expected] = [found, expected].map(Clone::clone);
            with_reference(&mut found, &expected);
            if order(&found) != order(&expected) {
                // Later versions begin pairs in a random order; nothing else of a plan depends on it but its hash.
                found["plan"]["launches"].as_array_mut().unwrap().sort_by_key(|launch| {
                    let name = launch["launch"].as_str().unwrap();
                    order(&expected).iter().position(|known| known == name)
                });
                found["hash"] = expected["hash"].clone();
            }
            assert_eq!(found, expected, "{name}: this plan has changed: a field with its default must not be written");
        }
        assert_eq!(plans(&found).len(), plans(&expected).len(), "{name}");
        for part in ["baseline", "phases", "checked", "bundle", "revision", "target"] {
            assert_eq!(found[part], expected[part], "{name}: a hash has changed: running jobs would be measured again");
        }
    }
}

/// Without the pairs of all accepted phases together, which later versions measure also if that is a single one without
/// a gate.
fn unconfirmed(mut found: Value, expected: &Value) -> Value {
    let plans = found["plans"].as_array_mut().unwrap();
    let of_bundle = |plan: &Value| plan["plan"]["launches"][0]["launch"].as_str().unwrap().starts_with("bundle-");
    let before = plans.len();
    plans.retain(|plan| !of_bundle(plan));
    assert_eq!(plans.len(), before - 1, "one attempt");
    let last = plans.last_mut().unwrap();
    let text = last.to_string().replace(&format!("\"job-{before}\""), &format!("\"job-{}\"", before - 1));
    *last = serde_json::from_str(&text).unwrap();
    // The name of the attempt is hashed, too.
    last["hash"] = expected["plans"].as_array().unwrap().last().unwrap()["hash"].clone();
    found["bundle"] = Value::Null;
    found
}

/// Replaces the baseline's quality launches by the expected ones: later versions run them with the accepted settings
/// that change no numerics, if there are none yet.
fn with_reference(found: &mut Value, expected: &Value) {
    let mut replaced = false;
    let known = expected["plan"]["launches"].as_array().unwrap();
    for launch in found["plan"]["launches"].as_array_mut().unwrap() {
        if launch["launch"].as_str().unwrap().starts_with("baseline-s") {
            let expected = known.iter().find(|known| known["title"] == launch["title"]).unwrap();
            launch["launch"] = expected["launch"].clone();
            launch["settings"] = expected["settings"].clone();
            replaced = true;
        }
    }
    if replaced {
        found["hash"] = expected["hash"].clone();
    }
}

/// Names of the launches of a plan beside its hash.
fn order(of: &Value) -> Vec<String> {
    of["plan"]["launches"].as_array().unwrap().iter().map(|it| it["launch"].as_str().unwrap().to_owned()).collect()
}

/// The job of a file, and its running attempt, as this version sees it.
fn resumed(name: &str) -> World {
    let mut job: TrainingJob = serde_json::from_value(read(JOBS, name)).unwrap();
    let status = job.status.take().unwrap();
    let mut world = ladder();
    world.now = "2026-01-02T00:00:00Z".parse::<Timestamp>().unwrap();
    if let Some(attempt) = &status.attempt {
        let plan: AttemptPlan = serde_json::from_value(read(RUNNING, name)).unwrap();
        if attempt.folded.is_empty() {
            assert_eq!(
                pawl_decision::plan(&job, &status, &attempt.name).as_ref(),
                Some(&plan),
                "{name}: it would be planned otherwise"
            );
        }
        let facts = AttemptFacts {
            name: attempt.name.clone(),
            plan_hash: attempt.plan_hash.clone(),
            state: AttemptState::Running,
            placement: world.placement.clone(),
            trainer: world.build.clone(),
            results: Vec::new(),
            progress: None,
        };
        world.attempts.insert(attempt.name.clone(), Attempt { plan, facts });
    }
    (world.job, world.status) = (job, status);
    world
}

const NAMES: [&str; 6] = ["preflight", "ladder", "quality", "guarded-training", "complete", "stalled"];

#[test]
fn a_status_of_an_earlier_version_is_decided_on_without_touching_its_gang() {
    for name in NAMES {
        let world = resumed(name);
        let decision = decide(&world.job, &world.status, &world.observed(), world.now);
        assert_eq!(decision.actions, [], "{name}");
        assert_eq!(decision.events, [], "{name}");
        assert_eq!(decision.status.attempts, world.status.attempts, "{name}");
        let states = |status: &pawl_api::TrainingJobStatus| -> Vec<PhaseState> {
            status.phases.iter().map(|phase| phase.state).collect()
        };
        assert_eq!(
            (decision.status.stage, states(&decision.status)),
            (world.status.stage, states(&world.status)),
            "{name}"
        );
        // Another version may well write more, but a second look changes nothing.
        assert_eq!(
            decide(&world.job, &decision.status, &world.observed(), world.now).status,
            decision.status,
            "{name}"
        );
    }
}

#[test]
fn a_job_of_an_earlier_version_comes_to_its_end_without_repeating_a_launch() {
    for name in NAMES.into_iter().filter(|name| *name != "stalled") {
        let mut world = resumed(name);
        // Its quality launches train for longer than the default budget allows.
        world.job.spec.analysis.budget_percent = Some(JudgingBudget::Unlimited);
        let lists = world.status.phases.iter().map(|phase| &phase.launches);
        let baseline = world.status.baseline.iter().map(|baseline| &baseline.launches);
        let launches = lists.chain(baseline).flatten().map(|launch: &LaunchStatus| launch.name.clone());
        let known: BTreeSet<String> = launches.collect();
        // What the plan of the running attempt still holds of them is not run again by an agent either.
        let folded = world.status.attempt.iter().flat_map(|attempt| attempt.folded.clone()).collect::<Vec<_>>();
        for attempt in world.attempts.values_mut() {
            attempt.plan.launches.retain(|launch| !folded.contains(&launch.launch));
        }
        let attempts = world.status.attempts;
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{name}: {:?}", world.status.failure);
        let ends: Vec<_> = world.status.phases.iter().map(|phase| phase.state).collect();
        assert_eq!(ends, [PhaseState::Accepted, PhaseState::Accepted, PhaseState::RolledBack], "{name}");
        let repeated: Vec<_> = world.ran.iter().filter(|launch| known.contains(&launch.launch)).collect();
        assert!(repeated.is_empty(), "{name}: {repeated:?}");
        assert_eq!(world.count_events("Superseded") + world.count_events("TrainerChanged"), 0, "{name}");
        assert!(name != "complete" || world.status.attempts == attempts, "{name}: it was started again");
    }
}

/// The jobs give no budget, and their quality launches train for longer than a tenth of the training.
#[test]
fn what_an_earlier_version_judged_is_not_judged_again_for_the_default_budget() {
    for name in ["guarded-training", "complete"] {
        let mut world = resumed(name);
        assert_eq!(world.job.spec.analysis.budget_percent, None, "{name}");
        let judged = world.status.phases.clone();
        world.run();
        let verdicts = |phases: &[PhaseStatus]| -> Vec<_> {
            phases.iter().map(|phase| (phase.state, phase.reason.clone(), phase.input_hash.clone())).collect()
        };
        assert_eq!(verdicts(&world.status.phases), verdicts(&judged), "{name}");
        assert!(world.ran.iter().all(|launch| launch.kind == LaunchKind::Train), "{name}");
    }
}

#[test]
fn a_failed_job_of_an_earlier_version_stays_failed() {
    let mut world = resumed("stalled");
    world.run();
    assert_eq!((world.status.stage, world.ran.len()), (Stage::Failed, 0), "its unchanged spec was tried again");
}
