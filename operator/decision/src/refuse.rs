//! Specs that cannot be run, and jobs that failed.

use crate::draft::Draft;
use crate::fingerprint::fingerprint;
use crate::gates::batch::items_per_step;
use crate::problems;
use crate::reason::Reason;
use crate::step::{Next, Step};
use pawl_api::status::Stage;

/// A failed job stays failed until its spec changes.
pub(crate) fn failed(draft: &mut Draft<'_>) -> Step {
    let Some(failure) = &draft.status.failure else { return Step::Pass };
    if failure.spec_hash == fingerprint(draft.spec, 16) {
        return Step::Go(Next::Idle(Stage::Failed));
    }
    draft.normal(Reason::Reopened, "the spec changed: the job is retried", None);
    draft.status.failure = None;
    draft.status.retry = None;
    Step::Moved
}

/// Fails a job whose spec is known to be invalid before any launch.
pub(crate) fn refuse(draft: &mut Draft<'_>) -> Step {
    if let Some(search) = draft.spec.search.first() {
        let message = format!("search[{}]: searches are not available yet: remove spec.search", search.name);
        draft.fail(Reason::SearchUnavailable, &message);
        return Step::Moved;
    }
    let world = draft.spec.trainer.world_size();
    let mismatches = problems::all(draft.spec, |settings| items_per_step(settings, world).err());
    if !mismatches.is_empty() {
        draft.fail(Reason::BatchMismatch, &problems::listed(&mismatches));
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
    let problems = pawl_api::validate(draft.job);
    let first = problems.first()?;
    let more = problems.len() - 1;
    let others = if more == 0 { String::new() } else { format!(" (and {more} more: run pawl validate)") };
    Some(format!("{first}{others}"))
}
