//! Carries out actions: starts, stops and releases attempts. Idempotent.

use crate::context::Context;
use crate::error::{Doing, Error};
use crate::facts::{AttemptFacts, GangFacts};
use crate::key::Key;
use crate::names;
use crate::objects::{Blueprint, carries_plan};
use crate::owned::{Found, Objects};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use pawl_api::TrainingJob;
use pawl_api::status::StopCause;

/// Grace period of a pod whose launch writes no checkpoint, seconds: time to write its report.
const PLAIN_GRACE: u32 = 10;

/// Creates the objects of an attempt. Returns whether its batch Job is new; `false` also when it has to wait until the
/// pods of an earlier one are gone. `planned`: whether the status has an attempt of this name, beside which it may run.
///
/// # Errors
/// [`Error::Taken`] when the name belongs to something else; [`Error::Leaving`] while an earlier object of a name is
/// being deleted; [`Error::Elsewhere`] when its queue would run it in another cluster; [`Error::Api`].
pub async fn start(
    context: &Context,
    key: &Key,
    blueprint: &Blueprint<'_>,
    planned: impl Fn(&str) -> bool,
) -> Result<bool, Error> {
    let name = &blueprint.plan.attempt;
    let known = context.facts.of(key);
    // The decision core ensures this on the same facts; a second gang would be the worst error of all.
    let beside = |facts: &AttemptFacts| facts.name == *name || planned(&facts.name);
    if known.iter().any(|facts| !beside(facts) && facts.alive().next().is_some()) {
        tracing::warn!(attempt = name, "another attempt is alive: waiting");
        return Ok(false);
    }
    let own = known.into_iter().find(|facts| facts.name == *name).unwrap_or_default();
    if own.live_gang().is_none() && own.alive().next().is_some() {
        tracing::info!(attempt = name, "pods of an earlier batch Job of this name still exist: waiting");
        return Ok(false);
    }
    let Objects { service, claim, batch_job, token, plan } = Objects::new(context, key, name);
    service.create(blueprint).await?;
    claim.create(blueprint).await?;
    let create = async || {
        let taken = token.take(blueprint)?;
        batch_job.create(&Blueprint { token: taken.as_ref(), ..*blueprint }).await
    };
    let carried = carries_plan(blueprint).is_some();
    // Nearly every name is free: what exists is read only if this one is not.
    let made = if carried && own.live_gang().is_none() { create().await? } else { None };
    let (gang, new) = match made {
        Some(gang) => (gang, true),
        None => match batch_job.find(blueprint).await? {
            Found::Own(gang) => (*gang, false),
            Found::Nothing => {
                if !carried {
                    // An earlier batch Job of this name may have left one: the garbage collector takes its time. It is
                    // removed while no batch Job exists, because afterwards its pods could read it.
                    plan.remove().await?;
                }
                (create().await?.ok_or(Error::Stale)?, true)
            }
        },
    };
    token.create(blueprint.job, &gang).await?;
    plan.create(blueprint, &gang).await?;
    Ok(new)
}

/// Stops an attempt: its batch Job is deleted in the foreground, so that it creates no more pods and exists until they
/// are gone. Of a broken gang only the running pods are stopped: deleting its batch Job would delete the others as
/// well, and how they ended is evidence. Returns whether a batch Job was deleted.
///
/// # Errors
/// [`Error::Api`].
pub async fn stop(
    context: &Context,
    key: &Key,
    attempt: &str,
    checkpoint: bool,
    cause: StopCause,
) -> Result<bool, Error> {
    let known = context.facts.of(key);
    let Some(facts) = known.iter().find(|facts| facts.name == attempt) else { return Ok(false) };
    let gang = facts.live_gang().filter(|gang| !gang.deleting && cause != StopCause::GangBroken);
    if let Some(gang) = gang {
        tracing::info!(attempt, checkpoint, ?cause, "stopping");
        delete(context, key, attempt, gang, PropagationPolicy::Foreground).await?;
    }
    stop_pods(context, key, facts, (!checkpoint).then_some(PLAIN_GRACE)).await?;
    Ok(gang.is_some())
}

/// Deletes the running pods of a gang and leaves the others. `grace` in seconds; `None`: that of the pods.
async fn stop_pods(context: &Context, key: &Key, facts: &AttemptFacts, grace: Option<u32>) -> Result<(), Error> {
    if !facts.alive().any(|pod| pod.deleting.is_none()) {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let parameters = DeleteParams { grace_period_seconds: grace, ..DeleteParams::background() };
    let attempt = &facts.name;
    tracing::info!(attempt, "deleting its running pods");
    let chosen = ListParams::default()
        .labels(&format!("{},{}={attempt}", names::SELECTOR, names::ATTEMPT))
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    pods.delete_collection(&parameters, &chosen).await.doing(|| format!("stop the pods of {attempt}")).map(|_| ())
}

/// Deletes the objects of an attempt whose results are in the status.
///
/// # Errors
/// [`Error::Api`].
pub async fn release(context: &Context, key: &Key, attempt: &str) -> Result<(), Error> {
    let known = context.facts.of(key);
    let Some(facts) = known.iter().find(|facts| facts.name == attempt) else { return Ok(()) };
    if let Some(gang) = facts.live_gang().filter(|gang| !gang.deleting) {
        delete(context, key, attempt, gang, PropagationPolicy::Background).await?;
    }
    context.facts.release(key, attempt);
    Ok(())
}

/// Deletes the objects of an attempt.
async fn delete(
    context: &Context,
    key: &Key,
    attempt: &str,
    gang: &GangFacts,
    propagation: PropagationPolicy,
) -> Result<(), Error> {
    // The plan is deleted with its owner; the Service belongs to the namespace, the claim and the tokens to jobs.
    let Objects { service: _, claim: _, batch_job, token: _, plan: _ } = Objects::new(context, key, attempt);
    batch_job.delete(gang, propagation).await
}

/// Whether `job` still is the version on which a decision was made: checked before a start that follows no write.
///
/// # Errors
/// [`Error::Stale`] when it is not; [`Error::Api`].
pub async fn still(context: &Context, job: &TrainingJob, version: &str) -> Result<(), Error> {
    let name = job.name_any();
    let jobs: Api<TrainingJob> = Api::namespaced(context.client.clone(), &job.namespace().unwrap_or_default());
    let there = jobs.get_metadata_opt(&name).await.doing(|| format!("read TrainingJob {name}"))?;
    let same = there.is_some_and(|there| {
        there.metadata.resource_version.as_deref() == Some(version) && there.metadata.uid == job.metadata.uid
    });
    if same { Ok(()) } else { Err(Error::Stale) }
}
