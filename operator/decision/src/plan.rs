//! The plan of the attempt under way, worked out again from the status.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::settle::settle;
use crate::step::Next;
use crate::summary;
use jiff::Timestamp;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::AttemptPlan;

/// The plan of the attempt that `status` names: the one that [`crate::decide`] returned when it started the attempt.
///
/// `None` when there is no attempt, or its plan can no longer be worked out because launches have ended since or the
/// spec was changed.
pub fn plan(job: &TrainingJob, status: &TrainingJobStatus) -> Option<AttemptPlan> {
    let attempt = status.attempt.as_ref()?;
    // What is wanted next does not depend on the time; only waits and deadlines do.
    let mut draft = Draft::new(job, status, Timestamp::UNIX_EPOCH);
    summary::align(&mut draft);
    let Next::Run(work) = settle(&mut draft) else { return None };
    let plan = draft.attempt_plan(&attempt.name, &work);
    (fingerprint(&plan, 16) == attempt.plan_hash).then_some(plan)
}
