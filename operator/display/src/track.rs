//! A job as the runs of an experiment tracker: one for the job, and below it one for the baseline, for each phase with
//! a verdict, for all accepted phases together, and for the training.

use crate::report::curves;
use crate::report::evidence::{Evidence, FinishedLaunch};
use crate::sentence;
use pawl_api::status::{
    Arm, BaselineStatus, BundleStatus, LaunchStatus, PhaseState, PhaseStatus, QualityStatus, Speedup, Stage,
    TrainingStatus,
};
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;
use pawl_contract::plan::LaunchKind;
use std::collections::BTreeMap;

/// Finite values of a metric, each with the items that the gang had seen; 0 items: a result of the whole run.
pub type Curve = Vec<(u64, f64)>;

/// Whether a run may still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It may.
    Running,
    /// It has a result.
    Finished,
    /// It has none.
    Failed,
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Identifies it among the runs of the job. What is judged again for other inputs is another run.
    pub key: String,
    /// Its name for people.
    pub name: String,
    /// Whether it may still change.
    pub state: RunState,
    /// Settings by dotted name: of a phase, what it changes.
    pub settings: BTreeMap<String, String>,
    /// Verdict and explanation by name.
    pub tags: BTreeMap<&'static str, String>,
    /// Curves by the name of their metric.
    pub metrics: BTreeMap<String, Curve>,
}

/// The runs of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRuns {
    /// Unique identifier of the job.
    pub uid: String,
    /// The parent of the others.
    pub job: Run,
    /// The others, in the order of the job.
    pub children: Vec<Run>,
}

/// The runs of the job of `evidence`, as far as it has come.
pub fn runs(evidence: &Evidence) -> JobRuns {
    let Evidence { job, status, .. } = evidence;
    let mut tags = BTreeMap::from([("stage", format!("{:?}", status.stage))]);
    tags.extend(sentence::sentence(job, status).map(|result| ("result", result)));
    tags.extend(status.failure.as_ref().map(|failure| ("failure", failure.message.clone())));
    let mut metrics = BTreeMap::new();
    one(&mut metrics, "speedup", status.speedup.as_ref().map(Decimal::value));
    let parent = Run {
        key: "job".to_owned(),
        name: evidence.name().to_owned(),
        state: of_stage(status.stage),
        settings: BTreeMap::new(),
        tags,
        metrics,
    };
    let judged = status.phases.iter().filter(|phase| phase.state.is_final());
    let mut children: Vec<Run> = Vec::new();
    children.extend(status.baseline.as_ref().and_then(|baseline| of_baseline(evidence, baseline)));
    children.extend(judged.map(|phase| of_phase(evidence, phase)));
    children.extend(status.bundle.as_ref().filter(|bundle| bundle.state.is_final()).map(of_bundle));
    children.extend(status.training.as_ref().map(|training| of_training(evidence, training)));
    JobRuns { uid: job.metadata.uid.clone().unwrap_or_default(), job: parent, children }
}

const fn of_stage(stage: Stage) -> RunState {
    match stage {
        Stage::Complete => RunState::Finished,
        Stage::Failed => RunState::Failed,
        Stage::Pending
        | Stage::Preflight
        | Stage::Optimizing
        | Stage::Searching
        | Stage::Training
        | Stage::Suspended => RunState::Running,
    }
}

const fn of_state(state: PhaseState) -> RunState {
    match state {
        PhaseState::Error => RunState::Failed,
        state if state.is_final() => RunState::Finished,
        _ => RunState::Running,
    }
}

fn of_baseline(evidence: &Evidence, baseline: &BaselineStatus) -> Option<Run> {
    baseline.measured.items_per_second.as_ref()?;
    let mut metrics = measured(&baseline.measured);
    curve(&mut metrics, "loss", newest(evidence, baseline.launches.iter(), LaunchKind::Quality));
    Some(Run {
        key: format!("baseline/{}", baseline.input_hash),
        name: "baseline".to_owned(),
        state: RunState::Finished,
        settings: evidence.job.spec.settings.flat(),
        tags: BTreeMap::new(),
        metrics,
    })
}

fn of_phase(evidence: &Evidence, phase: &PhaseStatus) -> Run {
    let mut metrics = measured(&phase.measured);
    compared(&mut metrics, phase.speedup.as_ref(), phase.quality.as_ref());
    let has_quality = phase.launches.iter().any(|launch| launch.kind == LaunchKind::Quality);
    let kind = if has_quality { LaunchKind::Quality } else { LaunchKind::Measure };
    let of_arm = |arm: Arm| newest(evidence, phase.launches.iter().filter(move |launch| launch.arm == arm), kind);
    curve(&mut metrics, "loss", of_arm(Arm::Candidate));
    curve(&mut metrics, "control_loss", of_arm(Arm::Control));
    Run {
        key: format!("phase/{}/{}", phase.name, phase.input_hash),
        name: phase.name.clone(),
        state: of_state(phase.state),
        settings: sentence::patch(&evidence.job, phase).flat(),
        tags: verdict(phase.state, &phase.reason, &phase.message),
        metrics,
    }
}

fn of_bundle(bundle: &BundleStatus) -> Run {
    let mut metrics = measured(&bundle.measured);
    compared(&mut metrics, bundle.speedup.as_ref(), bundle.quality.as_ref());
    Run {
        key: format!("bundle/{}", bundle.input_hash),
        name: "all together".to_owned(),
        state: of_state(bundle.state),
        settings: BTreeMap::new(),
        tags: verdict(bundle.state, &bundle.reason, &bundle.message),
        metrics,
    }
}

fn of_training(evidence: &Evidence, training: &TrainingStatus) -> Run {
    let status = &evidence.status;
    let mut metrics = BTreeMap::new();
    one(&mut metrics, "items_per_second", training.measured.items_per_second.as_ref().map(Decimal::value));
    curve(&mut metrics, "loss", whole(curves::whole(evidence)));
    curve(&mut metrics, "validation_loss", whole(curves::validation(evidence)));
    for validation in training.measured.first_validation.iter().chain(&training.measured.validation) {
        for (name, value) in validation.metrics.iter().filter(|(name, _)| *name != "loss") {
            let points: &mut Curve = metrics.entry(format!("validation_{name}")).or_default();
            points.extend(Some((validation.items, value.value())).filter(|(_, value)| value.is_finite()));
            points.dedup_by_key(|(items, _)| *items);
        }
    }
    let settings = status.effective_settings.as_ref().unwrap_or(&evidence.job.spec.settings);
    Run {
        key: format!("training/{}", training.revision),
        name: "training".to_owned(),
        state: of_stage(status.stage),
        settings: settings.flat(),
        tags: BTreeMap::new(),
        metrics,
    }
}

fn verdict(state: PhaseState, reason: &str, message: &str) -> BTreeMap<&'static str, String> {
    let all = [("verdict", state.to_string()), ("reason", reason.to_owned()), ("message", message.to_owned())];
    all.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

/// What launches with equal settings have measured.
fn measured(measured: &Measured<Decimal>) -> BTreeMap<String, Curve> {
    let mut metrics = BTreeMap::new();
    one(&mut metrics, "items_per_second", measured.items_per_second.as_ref().map(Decimal::value));
    one(&mut metrics, "peak_memory_bytes", measured.peak_memory_bytes.map(|bytes| bytes as f64));
    metrics
}

fn compared(metrics: &mut BTreeMap<String, Curve>, speedup: Option<&Speedup>, quality: Option<&QualityStatus>) {
    let value = |number: Option<&Decimal>| number.map(Decimal::value);
    if let Some(Speedup { estimate, lower, upper, pairs, disturbed: _ }) = speedup {
        one(metrics, "speedup", Some(estimate.value()));
        one(metrics, "speedup_lower", value(lower.as_ref()));
        one(metrics, "speedup_upper", value(upper.as_ref()));
        one(metrics, "pairs", Some(f64::from(*pairs)));
    }
    if let Some(quality) = quality {
        one(metrics, "validation_loss_delta", Some(quality.loss_delta.value()));
        one(metrics, "validation_loss_delta_upper", value(quality.loss_delta_upper.as_ref()));
    }
}

/// Adds a result of the whole run.
fn one(metrics: &mut BTreeMap<String, Curve>, name: &str, value: Option<f64>) {
    curve(metrics, name, value.map(|value| (0, value)).into_iter().collect());
}

/// Adds a curve, unless it has no finite value.
fn curve(metrics: &mut BTreeMap<String, Curve>, name: &str, points: Curve) {
    let finite: Curve = points.into_iter().filter(|(_, value)| value.is_finite()).collect();
    if !finite.is_empty() {
        metrics.insert(name.to_owned(), finite);
    }
}

/// The losses of the newest of `launches` of this kind whose report is available.
fn newest<'a>(
    evidence: &Evidence,
    launches: impl DoubleEndedIterator<Item = &'a LaunchStatus>,
    kind: LaunchKind,
) -> Curve {
    let reported = |launch: &LaunchStatus| evidence.launch(&launch.name).filter(|known| !known.losses.is_empty());
    let found: Option<&FinishedLaunch> = launches.rev().filter(|launch| launch.kind == kind).find_map(reported);
    found.map(|launch| launch.losses.iter().map(|point| (point.items, point.loss)).collect()).unwrap_or_default()
}

/// Points of a figure, whose horizontal axis are whole items.
fn whole(points: Vec<(f64, f64)>) -> Curve {
    points.into_iter().map(|(items, value)| (items as u64, value)).collect()
}

#[cfg(test)]
mod tests {
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
        Evidence::new(
            serde_json::from_value(job).unwrap(),
            serde_json::from_value(status).unwrap(),
            Vec::new(),
            launches,
        )
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
        assert_eq!(
            (phase.tags["verdict"].as_str(), phase.tags["reason"].as_str()),
            ("Accepted", "SpeedAboveThreshold")
        );
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
}
