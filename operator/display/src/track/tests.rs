//! The runs of a job with an accepted phase, an open one, and a training that has begun.

use super::*;
use pawl_contract::exit::Outcome;
use pawl_contract::report::LossPoint;
use serde_json::json;

fn evidence() -> Evidence {
    let job = json!({"metadata": {"name": "toy", "uid": "u-1"}, "spec": {"workload": {"name": "ups"},
        "settings": {"batchPerGpu": 8}, "phases": [
            {"name": "graph", "settings": {"compile": "Graph"}}, {"name": "later", "settings": {"compile": "Fuse"}}]}});
    let launch = |name: &str, arm: &str| {
        json!({"name": name, "kind": "Measure", "arm": arm, "pair": 0, "seed": 42, "outcome": "Done",
            "itemsPerSecond": "150"})
    };
    let status = json!({
        "stage": "Training", "speedup": "1.5", "effectiveSettings": {"batchPerGpu": 8, "compile": "Graph"},
        "baseline": {"inputHash": "b", "itemsPerSecond": "100"},
        "phases": [
            {"name": "graph", "state": "Accepted", "reason": "SpeedAboveThreshold", "inputHash": "g", "rung": 0,
             "message": "1.50 times as fast", "speedup": {"estimate": "1.5", "lower": "1.4", "pairs": 3},
             "quality": {"lossDelta": "-0.001", "seeds": 1, "items": 64},
             "launches": [launch("a", "Control"), launch("b", "Candidate")]},
            {"name": "later", "state": "Measuring", "rung": 0}],
        "training": {"revision": "r", "validation": {"items": 640, "metrics": {"loss": "0.25", "accuracy": "0.5"}}},
    });
    let finished = |name: &str, kind: LaunchKind, losses: &[(u64, f64)]| FinishedLaunch {
        title: String::new(),
        name: name.to_owned(),
        attempt: "toy-1".to_owned(),
        kind,
        seed: 42,
        outcome: Outcome::Done,
        message: String::new(),
        measured: Measured::default(),
        details: Default::default(),
        losses: losses.iter().map(|&(items, loss)| LossPoint { items, loss }).collect(),
        evaluations: Vec::new(),
    };
    let launches = vec![
        finished("a", LaunchKind::Measure, &[(8, 2.0), (16, 1.0)]),
        finished("b", LaunchKind::Measure, &[(8, 2.0), (16, f64::NAN)]),
        finished("train", LaunchKind::Train, &[(320, 0.75), (640, 0.5)]),
    ];
    Evidence::new(serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap(), Vec::new(), launches)
}

#[test]
fn a_job_is_a_run_with_one_below_it_for_each_verdict_and_the_training() {
    let JobRuns { uid, job, children } = runs(&evidence());
    assert_eq!((uid.as_str(), job.name.as_str(), job.state), ("u-1", "toy", RunState::Running));
    assert_eq!(job.metrics["speedup"], [(0, 1.5)]);
    let names: Vec<&str> = children.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(names, ["baseline", "graph", "training"], "the other phase has no verdict yet");
    let [baseline, phase, training] = &children[..] else { panic!("{children:?}") };
    assert_eq!(baseline.metrics["items_per_second"], [(0, 100.0)]);
    assert_eq!((phase.key.as_str(), phase.state), ("phase/graph/g", RunState::Finished));
    assert_eq!(phase.settings, BTreeMap::from([("compile".to_owned(), "Graph".to_owned())]));
    assert_eq!((phase.tags["verdict"].as_str(), phase.tags["reason"].as_str()), ("Accepted", "SpeedAboveThreshold"));
    assert_eq!(phase.metrics["speedup_lower"], [(0, 1.4)]);
    assert!(!phase.metrics.contains_key("speedup_upper"));
    assert_eq!(phase.metrics["validation_loss_delta"], [(0, -0.001)]);
    assert_eq!(phase.metrics["loss"], [(8, 2.0)], "trackers take finite numbers only");
    assert_eq!(phase.metrics["control_loss"], [(8, 2.0), (16, 1.0)]);
    assert_eq!(training.metrics["loss"], [(320, 0.75), (640, 0.5)]);
    assert_eq!(training.metrics["validation_loss"], [(640, 0.25)]);
    assert_eq!(training.metrics["validation_accuracy"], [(640, 0.5)]);
    assert_eq!(training.settings["compile"], "Graph");
}

#[test]
fn a_phase_that_was_not_measured_has_a_run_only_when_the_job_has_ended() {
    let mut evidence = evidence();
    let phase = &mut evidence.status.phases[1];
    (phase.state, phase.reason) = (PhaseState::RolledBack, "NoEffect".to_owned());
    let named = |evidence: &Evidence| runs(evidence).children.iter().any(|run| run.name == "later");
    assert!(!named(&evidence), "it is judged again once another phase is accepted");
    evidence.status.stage = Stage::Complete;
    assert!(named(&evidence));
}
