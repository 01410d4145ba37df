//! The batch Job of an attempt: it makes the pods of the gang.

use super::{Attempt, creation, repairing};
use crate::build::{self, Blueprint};
use crate::error::{Doing, Error, code};
use crate::facts::GangFacts;
use crate::names;
use crate::watched::WatchedJob;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use pawl_api::TrainingJob;
use pawl_api::status::AttemptStatus;

/// The batch Job.
pub(crate) struct BatchJob<'a>(pub(super) Attempt<'a>);

impl BatchJob<'_> {
    /// Creates it. Returns its uid and whether it is new; `None` when one of its name is still being deleted.
    ///
    /// # Errors
    /// [`Error::Taken`] when the name belongs to something else; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>) -> Result<Option<(String, bool)>, Error> {
        let Attempt { context, key, name } = self.0;
        match self.0.api::<Job>().create(&creation(), &build::gang(blueprint)).await {
            Ok(made) => {
                context.facts.assume(key, name, assumed(blueprint, &made));
                tracing::info!(attempt = name, replicas = blueprint.plan.replicas, "started");
                Ok(Some((made.uid().unwrap_or_default(), true)))
            }
            Err(error) if code(&error) == Some(409) => {
                let existing: Api<WatchedJob> = self.0.api();
                let existing = existing.get_opt(name).await.doing(|| format!("read batch Job {name}"))?;
                let Some(existing) = existing.as_ref().and_then(GangFacts::new) else { return Err(Error::Stale) };
                if is_replaced(blueprint, &existing) {
                    // The caches do not show it yet. It is stopped by the decision that sees it.
                    context.facts.assume(key, name, existing);
                    return Err(Error::Stale);
                }
                same_gang(blueprint, &existing).map(|uid| uid.map(|uid| (uid, false)))
            }
            Err(error) => Err(error).doing(|| format!("create batch Job {name}")),
        }
    }

    /// Restores labels, annotations, owner and size.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub(crate) async fn repair(
        &self,
        job: &TrainingJob,
        attempt: &AttemptStatus,
        gang: &GangFacts,
    ) -> Result<(), Error> {
        if gang.intact {
            return Ok(());
        }
        let name = self.0.name;
        tracing::warn!(attempt = name, "its batch Job was changed by another client: restored");
        let patch = Patch::Apply(build::gang_repair(job, attempt));
        let repaired = self.0.api::<Job>().patch_metadata(name, &repairing(), &patch).await;
        repaired.doing(|| format!("repair batch Job {name}")).map(|_| ())
    }

    /// Deletes exactly this batch Job, never another one of its name; token and plan go with it.
    ///
    /// # Errors
    /// [`Error::Api`].
    pub(crate) async fn delete(&self, gang: &GangFacts, propagation: PropagationPolicy) -> Result<(), Error> {
        let Attempt { context, key, name } = self.0;
        let parameters = DeleteParams {
            propagation_policy: Some(propagation),
            preconditions: Some(Preconditions { uid: Some(gang.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.0.api::<Job>().delete(name, &parameters).await {
            Ok(_) => {
                context.facts.assume_deleting(key, name, &gang.uid);
                Ok(())
            }
            Err(error) if matches!(code(&error), Some(404 | 409)) => {
                context.facts.gang_gone(key, name, &gang.uid);
                Ok(())
            }
            Err(error) => Err(error).doing(|| format!("delete batch Job {name}")),
        }
    }
}

/// Whether a batch Job is the attempt's with the plan that it had before the job was edited.
fn is_replaced(blueprint: &Blueprint<'_>, existing: &GangFacts) -> bool {
    let is_own = Some(&existing.job_uid) == blueprint.job.metadata.uid.as_ref();
    is_own && !existing.deleting && existing.plan_hash != blueprint.plan_hash
}

/// The uid of a batch Job that has the name of the attempt, when it is the attempt's; `None` when it is about to go.
fn same_gang(blueprint: &Blueprint<'_>, existing: &GangFacts) -> Result<Option<String>, Error> {
    if existing.deleting {
        return Ok(None);
    }
    let taken = |why: String| Error::Taken { kind: "batch Job", name: blueprint.plan.attempt.clone(), why };
    if Some(&existing.job_uid) != blueprint.job.metadata.uid.as_ref() {
        return Err(taken(format!("the annotation {} of its pods names another job", names::JOB_UID)));
    }
    Ok(Some(existing.uid.clone()))
}

fn assumed(blueprint: &Blueprint<'_>, made: &Job) -> GangFacts {
    let meta = made.meta();
    GangFacts {
        uid: meta.uid.clone().unwrap_or_default(),
        job_uid: blueprint.job.uid().unwrap_or_default(),
        plan_hash: blueprint.plan_hash.to_owned(),
        replicas: blueprint.plan.replicas,
        since: meta.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default(),
        started: None,
        suspended: made.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)),
        taken: false,
        finished: None,
        deleting: false,
        gone: false,
        intact: true,
    }
}
