//! The launches that a job may need, without measurements.

use crate::draft::Draft;
use crate::launch::{EvidenceTarget, Work};
use crate::train::policy;
use jiff::Timestamp;
use pawl_api::status::{Arm, Purpose};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::{AttemptPlan, LaunchKind};

/// A measuring launch of the baseline and of each phase, as if all earlier phases were accepted, and the training with
/// all of them. Their titles are `baseline`, the names of the phases, and `training`.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"command": ["train"]}, "phases": [{"name": "compile", "settings": {"compile": "Graph"}}]},
/// }))?;
/// let plan = pawl_decision::preview(&job);
/// assert_eq!(plan.launches.iter().map(|launch| launch.title.as_str()).collect::<Vec<_>>(), ["baseline", "compile"]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn preview(job: &TrainingJob) -> AttemptPlan {
    let status = TrainingJobStatus::default();
    let draft = Draft::new(job, Vec::new(), &status, Timestamp::UNIX_EPOCH);
    let mut settings = job.spec.settings.clone();
    let launch = |title: &str, kind, settings: &_, target| {
        let mut launch = draft.launch(title, kind, settings, (target, Arm::Control, 0));
        title.clone_into(&mut launch.plan.title);
        launch
    };
    let mut launches = vec![launch("baseline", LaunchKind::Measure, &settings, EvidenceTarget::Baseline)];
    for (index, phase) in job.spec.phases.iter().enumerate() {
        settings = settings.with(&phase.settings);
        launches.push(launch(&phase.name, LaunchKind::Measure, &settings, EvidenceTarget::Phase(index)));
    }
    if job.spec.train.is_asked_for() {
        let mut training = launch("training", LaunchKind::Train, &settings, EvidenceTarget::Train);
        training.plan.checkpoint = Some(policy(&draft));
        launches.push(training);
    }
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let work = Work { purpose: Purpose::Train, phase: None, task: String::new(), launches, stop_on_failure: false };
    draft.attempt_plan(&format!("{name}-1"), &work)
}
