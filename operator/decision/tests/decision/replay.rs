//! Recorded launches judged anew.

use crate::world::{World, factors};
use jiff::Timestamp;
use pawl_api::status::{BundleStatus, PhaseState, PhaseStatus, QualityStatus, Speedup};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_decision::replay;
use rstest::rstest;
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// A verdict without its text, whose words may be those of an earlier version.
type Verdict = (String, PhaseState, String, Option<Speedup>, Option<QualityStatus>);

fn verdict(phase: &PhaseStatus) -> Verdict {
    let PhaseStatus { name, state, reason, speedup, quality, .. } = phase.clone();
    (name, state, reason, speedup, quality)
}

fn together(bundle: &BundleStatus) -> Verdict {
    let BundleStatus { state, reason, speedup, quality, .. } = bundle.clone();
    ("all together".to_owned(), state, reason, speedup, quality)
}

/// Ladders of GPUs: their gates give the recorded verdicts again.
#[rstest]
#[case::forex(include_str!("../../../../tests/device/ladders/forex.json"))]
#[case::slm_fp8(include_str!("../../../../tests/device/ladders/slm-fp8.json"))]
#[case::ups_1gpu(include_str!("../../../../tests/device/ladders/ups-1gpu.json"))]
#[case::vision_bdh(include_str!("../../../../tests/device/ladders/vision-bdh.json"))]
fn recorded_ladders_give_their_verdicts_again(#[case] record: &str) {
    let record: Value = serde_json::from_str(record).unwrap();
    let job: TrainingJob = serde_json::from_value(record["job"]["job"].clone()).unwrap();
    let recorded: TrainingJobStatus = serde_json::from_value(record["job"]["status"].clone()).unwrap();
    let replayed = replay(&job, &recorded, NOW);
    let verdicts = |status: &TrainingJobStatus| status.phases.iter().map(verdict).collect::<Vec<_>>();
    assert_eq!(verdicts(&replayed), verdicts(&recorded));
    assert_eq!(replayed.bundle.as_ref().map(together), recorded.bundle.as_ref().map(together));
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
    assert_eq!(same.phases, world.status.phases, "also their launches and their texts");
    assert_eq!(same.bundle, world.status.bundle);

    let with = |change: fn(&mut Value)| {
        let mut job = serde_json::to_value(&world.job).unwrap();
        change(&mut job["spec"]);
        let job = serde_json::from_value(job).unwrap();
        replay(&job, &world.status, NOW)
    };
    let last = with(|spec| spec["phases"][1]["minSpeedup"] = json!("1.4"));
    assert_eq!(last.phases[0].state, PhaseState::Accepted);
    assert_eq!(last.phases[1].state, PhaseState::RolledBack, "{:?}", last.phases[1]);
    assert!(!last.phases[2].state.is_final(), "it was measured with the second phase");
    assert!(last.attempt.is_none(), "nothing is started");
    let memory = with(|spec| spec["gates"] = json!({"overallSpeedup": "3"}));
    assert_eq!(memory.bundle.unwrap().reason, "GoalMissed");
}
