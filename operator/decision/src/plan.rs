//! The plan of an attempt that has not ended, computed again from the status.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::settle::settle;
use crate::summary;
use jiff::Timestamp;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::AttemptPlan;

/// The plan of the attempt `name` in `status`: the plan that [`crate::decide`] returned when it started the attempt.
///
/// `None` when there is no such attempt, or its plan can no longer be computed because launches have ended or the spec
/// has changed since.
///
/// ```
/// use pawl_decision::{action::Action, decide, observed::Observed, plan};
///
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}},
/// }))?;
/// let decision = decide(&job, &Default::default(), &Observed::default(), jiff::Timestamp::UNIX_EPOCH);
/// let [Action::Start { plan: started, .. }] = &decision.actions[..] else { panic!() };
/// assert_eq!(plan(&job, &decision.status, "toy-1").as_ref(), Some(started));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn plan(job: &TrainingJob, status: &TrainingJobStatus, name: &str) -> Option<AttemptPlan> {
    let attempt = status.under_way().find(|attempt| attempt.name == name)?;
    // The launches do not depend on the time; only back-off and deadlines do.
    let mut draft = Draft::new(job, Vec::new(), status, Timestamp::UNIX_EPOCH);
    summary::align(&mut draft);
    let next = settle(&mut draft);
    let plan = draft.attempt_plan(name, next.work_of(&attempt.task)?);
    (fingerprint(&plan, 16) == attempt.plan_hash).then_some(plan)
}
