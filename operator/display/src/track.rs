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

/// Begins the keys of phases.
const PHASE: &str = "phase/";

impl Run {
    /// Whether it is one of a phase, which may have the name of any other one.
    pub fn is_phase(&self) -> bool {
        self.key.starts_with(PHASE)
    }

    /// What it is of: `job`, `baseline`, `phase`, `bundle` or `training`.
    pub fn kind(&self) -> &str {
        self.key.split('/').next().unwrap_or_default()
    }
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
    // What was found without a measurement, as that a phase changes nothing, is open again once another phase is
    // accepted.
    let has_ended = of_stage(status.stage) != RunState::Running;
    let is_judged = |phase: &&PhaseStatus| phase.state.is_final() && (has_ended || !phase.input_hash.is_empty());
    let judged = status.phases.iter().filter(is_judged);
    let mut children: Vec<Run> = Vec::new();
    children.extend(status.baseline.as_ref().and_then(|baseline| of_baseline(evidence, baseline)));
    children.extend(judged.map(|phase| of_phase(evidence, phase)));
    children.extend(status.bundle.as_ref().filter(|bundle| bundle.state.is_final()).map(of_bundle));
    // Before it has begun, it has no settings.
    let begun = status.training.as_ref().filter(|training| !training.revision.is_empty());
    children.extend(begun.map(|training| of_training(evidence, training)));
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
        key: format!("{PHASE}{}/{}", phase.name, phase.input_hash),
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
    for (name, points) in evaluations(evidence, training) {
        curve(&mut metrics, &format!("validation_{name}"), points.into_iter().collect());
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

/// The values of each validation metric, by items.
fn evaluations(evidence: &Evidence, training: &TrainingStatus) -> BTreeMap<String, BTreeMap<u64, f64>> {
    let whole = Measured::<f64>::from(&training.measured);
    let of_launch = |launch: &FinishedLaunch| {
        let Measured { first_validation, validation, .. } = launch.measured.clone();
        launch.evaluations.iter().cloned().chain(first_validation).chain(validation).collect::<Vec<_>>()
    };
    let reported = evidence.training().flat_map(of_launch);
    let mut found: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    for evaluation in whole.first_validation.into_iter().chain(whole.validation).chain(reported) {
        for (name, value) in evaluation.metrics {
            found.entry(name).or_default().insert(evaluation.items, value);
        }
    }
    found
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
mod tests;
