//! Specs that cannot be run, and jobs that failed.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::gates::batch::items_per_step;
use crate::problems;
use crate::reason::Reason;
use crate::step::{Next, Step};
use pawl_api::Problem;
use pawl_api::status::{Stage, TrainingJobStatus};

/// A failed job stays failed until its spec changes, or the policy that refused it.
pub(crate) fn failed(draft: &mut Draft<'_>) -> Step {
    let Some(failure) = &draft.status.failure else { return Step::Pass };
    let allowed_now = Reason::NotAllowed.is(&failure.reason) && draft.refused.is_empty();
    // Earlier versions hashed the spec with what was filled in.
    let same = [draft.written, draft.spec].iter().any(|spec| failure.spec_hash == fingerprint(spec, 16));
    if same && !allowed_now {
        return Step::Go(Next::Idle(Stage::Failed));
    }
    let what = match () {
        () if allowed_now => "the policy allows its pod template",
        () if failure.spec_hash.is_empty() => "its user starts it again",
        () => "the spec changed",
    };
    draft.normal(Reason::Reopened, format!("{what}: the job is retried"), None);
    draft.status.failure = None;
    draft.status.retry = None;
    draft.status.retries.clear();
    Step::Moved
}

/// Lets the next decision retry a failed job although its spec is the same: what failed may have been mended elsewhere,
/// in its script for example. Nothing happens to a job that has not failed.
pub fn retry(status: &mut TrainingJobStatus) {
    if let Some(failure) = &mut status.failure {
        failure.spec_hash.clear();
        status.invalid.clear();
    }
}

/// Fails a job whose spec is known to be invalid before any launch.
pub(crate) fn refuse(draft: &mut Draft<'_>) -> Step {
    let world = draft.spec.trainer.world_size();
    let mismatches = problems::all(draft.spec, |settings| items_per_step(settings, world).err());
    if !mismatches.is_empty() {
        draft.fail(Reason::BatchMismatch, &problems::listed(&mismatches));
        return Step::Moved;
    }
    // Each time: the policy of the operator changes without the spec. A job that is done starts no pod.
    let done = draft.status.stage == Stage::Complete && !draft.spec_is_new;
    if !done && let Some(message) = first_of(&draft.refused, "see spec.trainer.podTemplate") {
        draft.fail(Reason::NotAllowed, &message);
        return Step::Moved;
    }
    // Once per generation: its errors are in the status from then on.
    if draft.spec_is_new
        && let Some(message) = invalid(draft)
    {
        draft.fail(Reason::InvalidSpec, &message);
        return Step::Moved;
    }
    Step::Pass
}

/// Errors of the spec that its schema and CEL rules cannot express, so that the API server accepts them.
fn invalid(draft: &Draft<'_>) -> Option<String> {
    first_of(&pawl_api::validate(draft.job), "run pawl validate")
}

/// The first problem, and how many others there are; `others` says where they are found.
fn first_of(problems: &[Problem], others: &str) -> Option<String> {
    let (first, more) = problems.split_first()?;
    let others = if more.is_empty() { String::new() } else { format!(" (and {} more: {others})", more.len()) };
    Some(format!("{first}{others}"))
}
