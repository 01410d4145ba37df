//! Carries out what was decided: starts, stops and releases attempts. Doing it twice is the same as doing it once.

use crate::build::{self, Blueprint};
use crate::context::Context;
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts, Key, PlanFacts};
use crate::names;
use crate::watched::WatchedJob;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use pawl_api::TrainingJob;
use pawl_api::status::StopCause;
use pawl_rendezvous::Token;

/// From SIGTERM to SIGKILL of a pod whose launch writes no checkpoint, seconds: time to say what was found.
const PLAIN_GRACE: u32 = 10;

/// Makes the objects of an attempt exist. Returns whether its batch Job was made just now; `false` also when it has to
/// wait until pods of an earlier one are gone.
///
/// # Errors
/// [`Error::Taken`] when the name belongs to something else; [`Error::Api`].
pub async fn start(context: &Context, key: &Key, blueprint: &Blueprint<'_>) -> Result<bool, Error> {
    let name = &blueprint.plan.attempt;
    let known = context.facts.of(key);
    // The decision core sees to it, on these facts; but two gangs alive would be worth a second look.
    if known.iter().any(|facts| facts.name != *name && facts.alive().next().is_some()) {
        tracing::warn!(attempt = name, "another attempt is alive: waiting");
        return Ok(false);
    }
    let own = known.into_iter().find(|facts| facts.name == *name).unwrap_or_default();
    if own.live_gang().is_none() && own.alive().next().is_some() {
        tracing::info!(attempt = name, "pods of an earlier batch Job of this name are still there: waiting");
        return Ok(false);
    }
    if own.live_gang().is_none() && own.plan.is_some() {
        remove_plan(context, key, name).await?;
    }
    // Without a name that the others find, a gang would hold its GPUs in vain.
    if blueprint.plan.replicas > 1 {
        context.services.ensure(&context.client, &key.namespace).await?;
    }
    // What else there is belongs to the batch Job. The plan comes last: when it is there, all is.
    let Some((uid, new)) = create_gang(context, key, blueprint).await? else { return Ok(false) };
    if blueprint.plan.replicas > 1 {
        create_token(context, key, blueprint, &uid, new).await?;
    }
    create_plan(context, key, blueprint, &uid).await?;
    Ok(new)
}

/// Makes the batch Job. Returns its uid and whether it is new; `None` when one of its name is still being deleted.
async fn create_gang(context: &Context, key: &Key, blueprint: &Blueprint<'_>) -> Result<Option<(String, bool)>, Error> {
    let name = &blueprint.plan.attempt;
    let jobs: Api<Job> = Api::namespaced(context.client.clone(), &key.namespace);
    let doing = || format!("create batch Job {name}");
    match jobs.create(&parameters(), &build::gang(blueprint)).await {
        Ok(made) => {
            let uid = made.uid().unwrap_or_default();
            context.facts.assume(key, name, assumed(blueprint, &made));
            tracing::info!(attempt = name, replicas = blueprint.plan.replicas, "started");
            Ok(Some((uid, true)))
        }
        Err(error) if code(&error) == Some(409) => {
            let there: Api<WatchedJob> = Api::namespaced(context.client.clone(), &key.namespace);
            let there = there.get_opt(name).await.doing(|| format!("read batch Job {name}"))?;
            let Some(there) = there.as_ref().and_then(GangFacts::new) else { return Err(Error::Stale) };
            same_gang(blueprint, &there).map(|uid| uid.map(|uid| (uid, false)))
        }
        Err(error) => Err(error).doing(doing),
    }
}

/// The uid of a batch Job that has the name of the attempt, when it is the attempt's; `None` when it is about to go.
fn same_gang(blueprint: &Blueprint<'_>, there: &GangFacts) -> Result<Option<String>, Error> {
    if there.deleting {
        return Ok(None);
    }
    let taken = |why: String| Error::Taken { kind: "batch Job", name: blueprint.plan.attempt.clone(), why };
    if Some(&there.job_uid) != blueprint.job.metadata.uid.as_ref() {
        return Err(taken(format!("the annotation {} of its pods names another job", names::JOB_UID)));
    }
    if there.plan_hash != blueprint.plan_hash {
        return Err(taken(format!("it runs the plan {:?}, {:?} is wanted", there.plan_hash, blueprint.plan_hash)));
    }
    Ok(Some(there.uid.clone()))
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

/// Makes the ConfigMap of the plan. It cannot be changed, so one that is there under this owner is right.
pub(crate) async fn create_plan(
    context: &Context,
    key: &Key,
    blueprint: &Blueprint<'_>,
    gang_uid: &str,
) -> Result<(), Error> {
    let name = &blueprint.plan.attempt;
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &key.namespace);
    let object = build::plan(blueprint, gang_uid)
        .map_err(|error| Error::Local { what: "the plan's ConfigMap", why: error.to_string() })?;
    match maps.create(&parameters(), &object).await {
        Ok(_) => {
            let plan = PlanFacts { gang_uid: gang_uid.to_owned(), intact: true };
            context.facts.assume_plan(key, name, plan);
            Ok(())
        }
        Err(error) if code(&error) == Some(409) => {
            let there = maps.get_metadata_opt(name).await.doing(|| format!("read ConfigMap {name}"))?;
            match there.map(|there| PlanFacts::new(&there.metadata)) {
                Some(plan) if plan.gang_uid == gang_uid => Ok(()),
                // What an earlier batch Job of this name left, or somebody else made: pods must not read it.
                Some(_) => {
                    remove_plan(context, key, name).await?;
                    Err(Error::Stale)
                }
                None => Err(Error::Stale),
            }
        }
        Err(error) => Err(error).doing(|| format!("create ConfigMap {name}")),
    }
}

async fn remove_plan(context: &Context, key: &Key, name: &str) -> Result<(), Error> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &key.namespace);
    match maps.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(404) => Ok(()),
        Err(error) => Err(error).doing(|| format!("delete ConfigMap {name}")),
    }
}

/// Makes the Secret of the token. One that a new gang finds is an earlier gang's, and is replaced; otherwise the pods
/// may have read it already.
pub(crate) async fn create_token(
    context: &Context,
    key: &Key,
    blueprint: &Blueprint<'_>,
    gang_uid: &str,
    new: bool,
) -> Result<(), Error> {
    let name = &blueprint.plan.attempt;
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &key.namespace);
    let token = Token::random().map_err(|error| Error::Local { what: "a token", why: error.to_string() })?;
    let object = build::token(blueprint, gang_uid, &token);
    match secrets.create(&parameters(), &object).await {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(409) && !new => Ok(()),
        Err(error) if code(&error) == Some(409) => {
            let deleted = secrets.delete(name, &DeleteParams::default()).await;
            if let Err(error) = deleted
                && code(&error) != Some(404)
            {
                return Err(error).doing(|| format!("delete Secret {name}"));
            }
            secrets.create(&parameters(), &object).await.doing(|| format!("create Secret {name}")).map(|_| ())
        }
        Err(error) => Err(error).doing(|| format!("create Secret {name}")),
    }
}

/// Ends an attempt: its batch Job makes no more pods, and those that there are stop. The batch Job stays, being deleted,
/// until they are gone. Of a broken gang only the pods that are alive are stopped: deleting its batch Job would delete
/// the others as well, and how they ended is evidence. Returns whether a batch Job was deleted just now.
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
        delete_gang(context, key, attempt, gang, PropagationPolicy::Foreground).await?;
    }
    stop_pods(context, key, facts, (!checkpoint).then_some(PLAIN_GRACE)).await?;
    Ok(gang.is_some())
}

/// Stops the pods of a gang that are alive, and leaves the others. `grace` in seconds; `None`: that of the pods.
async fn stop_pods(context: &Context, key: &Key, facts: &AttemptFacts, grace: Option<u32>) -> Result<(), Error> {
    if !facts.alive().any(|pod| pod.deleting.is_none()) {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let parameters = DeleteParams { grace_period_seconds: grace, ..DeleteParams::background() };
    let attempt = &facts.name;
    tracing::info!(attempt, "its pods are stopped");
    let chosen = ListParams::default()
        .labels(&format!("{},{}={attempt}", names::SELECTOR, names::ATTEMPT))
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    pods.delete_collection(&parameters, &chosen).await.doing(|| format!("stop the pods of {attempt}")).map(|_| ())
}

/// Removes what is left of an attempt whose results are in the status.
///
/// # Errors
/// [`Error::Api`].
pub async fn release(context: &Context, key: &Key, attempt: &str) -> Result<(), Error> {
    let known = context.facts.of(key);
    let Some(facts) = known.iter().find(|facts| facts.name == attempt) else { return Ok(()) };
    if let Some(gang) = facts.live_gang().filter(|gang| !gang.deleting) {
        delete_gang(context, key, attempt, gang, PropagationPolicy::Background).await?;
    }
    context.facts.release(key, attempt);
    Ok(())
}

/// Deletes exactly this batch Job, never another one of its name.
async fn delete_gang(
    context: &Context,
    key: &Key,
    attempt: &str,
    gang: &GangFacts,
    propagation: PropagationPolicy,
) -> Result<(), Error> {
    let jobs: Api<Job> = Api::namespaced(context.client.clone(), &key.namespace);
    let parameters = DeleteParams {
        propagation_policy: Some(propagation),
        preconditions: Some(Preconditions { uid: Some(gang.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    match jobs.delete(attempt, &parameters).await {
        Ok(_) => {
            context.facts.assume_deleting(key, attempt, &gang.uid);
            Ok(())
        }
        Err(error) if matches!(code(&error), Some(404 | 409)) => {
            context.facts.gang_gone(key, attempt, &gang.uid);
            Ok(())
        }
        Err(error) => Err(error).doing(|| format!("delete batch Job {attempt}")),
    }
}

/// The field manager of everything that is made.
pub(crate) fn parameters() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Whether `job` still is the version on which a decision was made: asked before a start that follows no write.
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
