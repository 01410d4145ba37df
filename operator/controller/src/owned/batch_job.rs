//! The batch Job of an attempt: it makes the pods of the gang.

use super::{Attempt, creation, repairing};
use crate::error::{Doing, Error, code};
use crate::facts::{GangFacts, manager};
use crate::names;
use crate::objects::{self, Blueprint};
use crate::watched::WatchedJob;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use pawl_api::TrainingJob;
use pawl_api::status::AttemptStatus;

/// What has the name of an attempt's batch Job.
pub(crate) enum Found {
    Nothing,
    /// The attempt's batch Job.
    Own(Box<GangFacts>),
}

/// The batch Job.
pub(crate) struct BatchJob<'a>(pub(super) Attempt<'a>);

impl BatchJob<'_> {
    /// Looks whether it exists: caches may be old.
    ///
    /// # Errors
    /// [`Error::Taken`] when the name belongs to something else; [`Error::Stale`] when it runs the plan that the
    /// attempt had before the job was edited; [`Error::Leaving`] while it is being deleted; [`Error::Api`].
    pub(crate) async fn find(&self, blueprint: &Blueprint<'_>) -> Result<Found, Error> {
        let Attempt { context, key, name } = self.0;
        let jobs: Api<WatchedJob> = self.0.api();
        let there = jobs.get_opt(name).await.doing(|| format!("read batch Job {name}"))?;
        let Some(there) = there else { return Ok(Found::Nothing) };
        let there = GangFacts::new(&there).ok_or(Error::Stale)?;
        if is_replaced(blueprint, &there) {
            // The caches do not show it yet. It is stopped by the decision that sees it.
            context.facts.assume(key, name, there);
            return Err(Error::Stale);
        }
        if there.deleting {
            let why = format!(
                "is being deleted, and is created again once its pods and finalizers are gone: `kubectl get job {name} -o yaml` \
                 shows them"
            );
            return Err(Error::Leaving { kind: "batch Job", name: name.to_owned(), why });
        }
        if Some(&there.job_uid) != blueprint.job.metadata.uid.as_ref() {
            let why = format!("the annotation {} of its pods names another job", names::JOB_UID);
            return Err(Error::Taken { kind: "batch Job", name: name.to_owned(), why });
        }
        Ok(Found::Own(Box::new(there)))
    }

    /// Creates it; `None` when the name is not free.
    ///
    /// # Errors
    /// [`Error::Elsewhere`]; [`Error::Api`].
    pub(crate) async fn create(&self, blueprint: &Blueprint<'_>) -> Result<Option<GangFacts>, Error> {
        let Attempt { context, key, name } = self.0;
        let gang = objects::gang(blueprint);
        if gang.labels().contains_key(names::QUEUE) || context.jobs.was_handed_on(key) {
            self.stays_here(&gang).await?;
        }
        match self.0.api::<Job>().create(&creation(), &gang).await {
            // Its namespace has a default queue, or the check was added to its queue just now.
            Ok(made) if objects::runs_elsewhere(&made) => {
                context.jobs.hand_on(key, true);
                self.delete(&assumed(blueprint, &made), PropagationPolicy::Background).await?;
                Err(self.elsewhere(&made))
            }
            Ok(made) => {
                let gang = assumed(blueprint, &made);
                context.facts.assume(key, name, gang.clone());
                tracing::info!(attempt = name, replicas = blueprint.plan.replicas, "started");
                Ok(Some(gang))
            }
            Err(error) if code(&error) == Some(409) => Ok(None),
            Err(error) => Err(error).doing(|| format!("create batch Job {name}")),
        }
    }

    /// Asks by a dry run whether the queue would run it in another cluster: the webhook of Kueue says so on creation.
    /// A Job that exists would already run there, and hold devices for results that nobody reads.
    ///
    /// # Errors
    /// [`Error::Elsewhere`]; [`Error::Api`].
    async fn stays_here(&self, gang: &Job) -> Result<(), Error> {
        let Attempt { context, key, name } = self.0;
        match self.0.api::<Job>().create(&PostParams { dry_run: true, ..creation() }, gang).await {
            Ok(made) if objects::runs_elsewhere(&made) => Err(self.elsewhere(&made)),
            Ok(_) => {
                context.jobs.hand_on(key, false);
                Ok(())
            }
            // What has the name is read next.
            Err(error) if code(&error) == Some(409) => Ok(()),
            Err(error) => Err(error).doing(|| format!("create batch Job {name} (dry run)")),
        }
    }

    /// The queue is in the answer: that of a namespace is in no label of the job.
    fn elsewhere(&self, made: &Job) -> Error {
        let queue = made.labels().get(names::QUEUE).cloned().unwrap_or_default();
        Error::Elsewhere { name: self.0.name.to_owned(), queue }
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
        let patch = Patch::Apply(objects::gang_repair(job, attempt));
        let repaired = self.0.api::<Job>().patch_metadata(name, &repairing(), &patch).await;
        repaired.doing(|| format!("repair batch Job {name}")).map(|_| ())
    }

    /// Deletes exactly this batch Job, never another one of its name; its plan goes with it.
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

fn assumed(blueprint: &Blueprint<'_>, made: &Job) -> GangFacts {
    let meta = made.meta();
    GangFacts {
        uid: meta.uid.clone().unwrap_or_default(),
        job_uid: blueprint.job.uid().unwrap_or_default(),
        plan_hash: blueprint.plan_hash.to_owned(),
        template: blueprint.template_hash(),
        carries_plan: objects::carries_plan(blueprint).is_some(),
        token_secret: blueprint.token.map(|token| token.secret.clone()),
        replicas: blueprint.plan.replicas,
        since: meta.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default(),
        started: None,
        suspended: made.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)),
        taken: false,
        finished: None,
        deleting: false,
        gone: false,
        intact: true,
        manager: manager(made.spec.as_ref().and_then(|spec| spec.managed_by.as_deref())),
    }
}
