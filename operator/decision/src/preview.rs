//! The launches that a job may need, without measurements.

use crate::draft::Draft;
use crate::launch::{EvidenceTarget, Work};
use crate::problems;
use crate::train::policy;
use jiff::Timestamp;
use pawl_api::status::{Arm, Purpose};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::{AttemptPlan, Budget, LaunchKind, LaunchPlan};
use pawl_contract::settings::Settings;

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

/// The launches that the preflight of a job consists of, each with the path of what is new in it: `spec` for the
/// baseline, then phases and their fallbacks, such as `spec.phases[1]` and `spec.phases[1].fallbacks[0]`.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}, "phases": [{"name": "batch", "settings": {"batchPerGpu": 16},
///         "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 12}}]}]},
/// }))?;
/// let checks = pawl_decision::checks(&job);
/// assert_eq!(
///     checks.iter().map(|(at, _)| at.as_str()).collect::<Vec<_>>(),
///     ["spec", "spec.phases[0]", "spec.phases[0].fallbacks[0]"]
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn checks(job: &TrainingJob) -> Vec<(String, LaunchPlan)> {
    let status = TrainingJobStatus::default();
    let draft = Draft::new(job, Vec::new(), &status, Timestamp::UNIX_EPOCH);
    let seed = job.spec.seeds.first().copied().unwrap_or_default();
    let place = |phase: Option<String>, fallback: u32| {
        let index = phase.and_then(|name| job.spec.phases.iter().position(|phase| phase.name == name));
        match (index, fallback.checked_sub(1)) {
            (None, _) => "spec".to_owned(),
            (Some(phase), None) => format!("spec.phases[{phase}]"),
            (Some(phase), Some(fallback)) => format!("spec.phases[{phase}].fallbacks[{fallback}]"),
        }
    };
    let check = |(phase, fallback, settings): (_, _, Settings)| {
        let launch = draft.planned("check", LaunchKind::Preflight, &settings, seed, Budget::default());
        (place(phase, fallback), launch)
    };
    problems::settings(&job.spec).into_iter().map(check).collect()
}
