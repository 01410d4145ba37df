//! Recorded launches judged anew.

use crate::world::{World, factors};
use jiff::Timestamp;
use pawl_api::status::{BundleStatus, PhaseState, PhaseStatus, QualityStatus, Speedup};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::decimal::Decimal;
use pawl_decision::{Replay, replay};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A verdict without its text, whose words may be those of an earlier version, as may be the share of the error in the
/// bounds of a speedup.
type Verdict = (String, PhaseState, String, Option<(Decimal, u32)>, Option<QualityStatus>);

fn measured(speedup: Option<Speedup>) -> Option<(Decimal, u32)> {
    speedup.map(|speedup| (speedup.estimate, speedup.pairs))
}

fn verdict(phase: &PhaseStatus) -> Verdict {
    let PhaseStatus { name, state, reason, speedup, quality, .. } = phase.clone();
    (name, state, reason, measured(speedup), quality)
}

fn together(bundle: &BundleStatus) -> Verdict {
    let BundleStatus { state, reason, speedup, quality, .. } = bundle.clone();
    ("all together".to_owned(), state, reason, measured(speedup), quality)
}

/// Ladders of GPUs, and their phases of which the status has no launches: it is bounded, and one whose check fails has
/// none.
const LADDERS: [(&str, &[&str]); 6] = [
    (include_str!("../../../../tests/device/ladders/atft.json"), &["loader", "cached-graphs", "device-data"]),
    (include_str!("../../../../tests/device/ladders/huggingface-gpu.json"), &[]),
    (include_str!("../../../../tests/device/ladders/forex.json"), &["flash-attention", "fused-optimizer"]),
    (include_str!("../../../../tests/device/ladders/slm-fp8.json"), &[]),
    (include_str!("../../../../tests/device/ladders/ups-1gpu.json"), &[]),
    (
        include_str!("../../../../tests/device/ladders/vision-bdh.json"),
        &["rope-cache", "linear-layout", "channels-last", "compile", "fused-optimizer"],
    ),
];

#[test]
fn recorded_ladders_give_their_verdicts_again() {
    for (record, without) in LADDERS {
        of_ladder(record, without);
    }
}

fn of_ladder(record: &str, without: &[&str]) {
    let record: Value = serde_json::from_str(record).unwrap();
    let job: TrainingJob = serde_json::from_value(record["job"]["job"].clone()).unwrap();
    let recorded: TrainingJobStatus = serde_json::from_value(record["job"]["status"].clone()).unwrap();
    let Replay { status: replayed, kept } = replay(&job, &recorded, NOW);
    let verdicts = |status: &TrainingJobStatus| {
        let judged = status.phases.iter().filter(|phase| !kept.contains(&phase.name));
        judged.map(verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&replayed), verdicts(&recorded));
    assert_eq!(replayed.bundle.as_ref().map(together), recorded.bundle.as_ref().map(together));
    assert_eq!(kept, without);
}

/// Three phases, of which the first two are faster.
fn judged() -> World {
    let phases = json!([
        {"name": "compile", "settings": {"compile": "Graph"}},
        {"name": "fuse", "settings": {"optimizerKernel": "Fused"}},
        {"name": "recompute", "settings": {"activationCheckpointing": "Full"}},
    ]);
    let spec = json!({"workload": {"name": "ups"}, "phases": phases, "analysis": {"minPairs": 3, "maxPairs": 3}});
    let mut world = World::new(spec, factors(&[("compile", 1.5), ("optimizerKernel", 1.2)]));
    world.run();
    world
}

fn states(status: &TrainingJobStatus) -> Vec<PhaseState> {
    status.phases.iter().map(|phase| phase.state).collect()
}

#[test]
fn a_stricter_gate_is_judged_by_the_launches_that_there_are() {
    let world = judged();
    assert_eq!(states(&world.status), [PhaseState::Accepted, PhaseState::Accepted, PhaseState::RolledBack]);
    let same = replay(&world.job, &world.status, NOW);
    assert_eq!(same.kept, [""; 0]);
    assert_eq!(
        same.status.phases.iter().map(verdict).collect::<Vec<_>>(),
        world.status.phases.iter().map(verdict).collect::<Vec<_>>()
    );
    assert_eq!(same.status.bundle.as_ref().map(together), world.status.bundle.as_ref().map(together));

    let with = |change: fn(&mut Value)| {
        let mut job = serde_json::to_value(&world.job).unwrap();
        change(&mut job["spec"]);
        let job = serde_json::from_value(job).unwrap();
        replay(&job, &world.status, NOW)
    };
    let slower = with(|spec| spec["phases"][1]["minSpeedup"] = json!("1.4"));
    assert_eq!(slower.status.phases[0].state, PhaseState::Accepted);
    assert_eq!(slower.status.phases[1].state, PhaseState::RolledBack, "{:?}", slower.status.phases[1]);
    assert_eq!(slower.kept, ["recompute"], "it was measured with the second phase");
    assert!(slower.status.attempt.is_none(), "nothing is started");
    let goal = with(|spec| spec["gates"] = json!({"overallSpeedup": "3"}));
    assert_eq!(goal.status.bundle.unwrap().reason, "GoalMissed");
    // Another patch has no launches; those of the phases before it are judged.
    let patch = with(|spec| spec["phases"][2]["settings"] = json!({"attention": "Flash"}));
    assert_eq!((patch.kept, patch.status.phases[1].state), (vec!["recompute".to_owned()], PhaseState::Accepted));
    // What is over by the clock is judged all the same.
    let late = with(|spec| spec["lifecycle"] = json!({"activeDeadline": "1s"}));
    assert_eq!(late.status.bundle.as_ref().map(together), world.status.bundle.as_ref().map(together));
}
