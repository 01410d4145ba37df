//! Puts right what people or the cluster broke of the attempt under way: labels, owners, a plan or a token that is
//! missing, a batch Job or a pod that lost its label and so went out of sight, pods on a node that is dead, and the
//! namespace's Service.

use crate::apply;
use crate::build::{self, Blueprint};
use crate::context::Context;
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts, Key, PlanFacts, PodFacts};
use crate::names;
use crate::observe::{hindrance, state};
use crate::watched::{WatchedJob, WatchedPod};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use pawl_api::status::AttemptStatus;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::AttemptPlan;
use pawl_decision::observed::AttemptState;
use std::time::Duration;

/// A gang whose pods have nodes and still do not run after so long may lack its token: somebody deleted it. Nothing else
/// can have happened to it, for the plan comes after it; and pulling an image takes long as well, so this is seldom tried.
const SLOW_START: SignedDuration = SignedDuration::from_secs(60);
/// A Service of somebody else under the name of ours is looked at so often.
const SERVICE_EVERY: Duration = Duration::from_secs(60);
/// The token is tried no more often than this.
const TOKEN_EVERY: Duration = Duration::from_secs(120);
/// A deleted pod whose kubelet does not end it for so long after its grace period is looked after.
const OVERDUE: SignedDuration = SignedDuration::from_secs(5);
/// A dead node is asked after no more often than this.
const NODE_EVERY: Duration = Duration::from_secs(2);

/// Brings the facts to where they say what is: a batch Job out of sight is looked for, pods of dead nodes are given up.
///
/// # Errors
/// [`Error::Api`].
pub async fn look(context: &Context, key: &Key, now: Timestamp) -> Result<(), Error> {
    for facts in context.facts.of(key) {
        let out_of_sight = facts.gang.as_ref().filter(|gang| gang.gone && !gang.deleting);
        if let Some(gang) = out_of_sight
            && facts.alive().any(|pod| pod.deleting.is_none())
        {
            look_for_gang(context, key, &facts.name, gang).await?;
        }
        for pod in facts.alive().filter(|pod| pod.hidden) {
            look_for_pod(context, key, &facts.name, pod).await?;
        }
        for pod in facts.alive().filter(|pod| may_be_lost(pod, now)) {
            if node_is_dead(context, key, pod).await? {
                tracing::warn!(pod = pod.name, node = pod.node, "its node does not answer: given up");
                context.facts.lose(key, &facts.name, &pod.uid);
            }
        }
    }
    Ok(())
}

/// Whether nobody may ever tell how a pod ended: it was deleted by the cluster, or should be gone by now.
pub fn may_be_lost(pod: &PodFacts, now: Timestamp) -> bool {
    let Some(until) = pod.deleting else { return false };
    let overdue = until.checked_add(OVERDUE).is_ok_and(|late| late < now);
    !pod.node.is_empty() && (overdue || !pod.disruption.is_empty())
}

/// Whether a node is gone, or its kubelet does not report any more.
async fn node_is_dead(context: &Context, key: &Key, pod: &PodFacts) -> Result<bool, Error> {
    if !context.jobs.may_try(key, &format!("node {}", pod.node), NODE_EVERY) {
        return Ok(false);
    }
    let nodes: Api<Node> = Api::all(context.client.clone());
    match nodes.get_opt(&pod.node).await {
        Ok(None) => Ok(true),
        Ok(Some(node)) => {
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown"))
        }
        // An operator of single namespaces may not read nodes: then the cluster has to remove the pod.
        Err(error) if code(&error) == Some(403) => Ok(false),
        Err(error) => Err(error).doing(|| format!("read Node {}", pod.node)),
    }
}

/// A batch Job that the watch lost although its pods live: somebody took its label, or deleted it.
async fn look_for_gang(context: &Context, key: &Key, attempt: &str, gang: &GangFacts) -> Result<(), Error> {
    let jobs: Api<WatchedJob> = Api::namespaced(context.client.clone(), &key.namespace);
    let there = jobs.get_opt(attempt).await.doing(|| format!("read batch Job {attempt}"))?;
    let found = there.as_ref().and_then(GangFacts::new).filter(|found| found.uid == gang.uid);
    if let Some(found) = found {
        context.facts.assume(key, attempt, found);
    }
    Ok(())
}

/// A pod that the watch does not see any more although nothing ended it. Two gangs of a job must never run, so it counts
/// until it is not there. (It is listed, not read: the operator has no other use for that right.)
async fn look_for_pod(context: &Context, key: &Key, attempt: &str, pod: &PodFacts) -> Result<(), Error> {
    let pods: Api<WatchedPod> = Api::namespaced(context.client.clone(), &key.namespace);
    let named = ListParams::default().fields(&format!("metadata.name={}", pod.name));
    let there = pods.list(&named).await.doing(|| format!("look for Pod {}", pod.name))?;
    let same = there.items.iter().find(|there| there.metadata.uid.as_ref() == Some(&pod.uid));
    context.facts.looked_for(key, attempt, &pod.uid, same);
    Ok(())
}

/// Puts right what of the attempt under way is broken. Returns when to look again, if something has to wait.
///
/// # Errors
/// [`Error::Api`].
pub async fn repair(
    context: &Context,
    key: &Key,
    job: &TrainingJob,
    status: &TrainingJobStatus,
    now: Timestamp,
) -> Result<Option<Duration>, Error> {
    let Some(attempt) = status.attempt.as_ref().filter(|attempt| attempt.stop.is_none()) else { return Ok(None) };
    let known = context.facts.of(key);
    let Some(facts) = known.iter().find(|facts| facts.name == attempt.name) else { return Ok(None) };
    let Some(gang) = facts.working_gang() else { return Ok(None) };
    if Some(gang.job_uid.as_str()) != job.metadata.uid.as_deref() {
        return Ok(None);
    }
    if !gang.intact {
        repair_gang(context, key, job, attempt).await?;
    }
    match &facts.plan {
        Some(plan) if plan.gang_uid == gang.uid && plan.intact => {}
        Some(_) => repair_plan(context, key, job, &facts.name, &gang.uid).await?,
        None => restore_plan(context, key, job, status, facts, gang).await?,
    }
    if may_lack_token(facts, gang, now)
        && context.jobs.may_try(key, "token", TOKEN_EVERY)
        && let Some(plan) = pawl_decision::plan(job, status)
    {
        let blueprint = blueprint(context, job, &plan, &attempt.plan_hash);
        apply::create_token(context, key, &blueprint, &gang.uid, false).await?;
    }
    if gang.replicas > 1 { repair_service(context, key, job).await } else { Ok(None) }
}

/// Of a gang that runs, the pods have met: a foreign Service of that name is reported and delays nothing.
async fn repair_service(context: &Context, key: &Key, job: &TrainingJob) -> Result<Option<Duration>, Error> {
    match context.services.ensure(&context.client, &key.namespace).await {
        Err(error @ Error::Taken { .. }) => {
            context.events.warn(job, "ServiceTaken", error.to_string()).await;
            Ok(Some(SERVICE_EVERY))
        }
        result => result,
    }
}

fn blueprint<'a>(context: &'a Context, job: &'a TrainingJob, plan: &'a AttemptPlan, hash: &'a str) -> Blueprint<'a> {
    Blueprint { job, plan, plan_hash: hash, images: &context.images }
}

async fn repair_gang(context: &Context, key: &Key, job: &TrainingJob, attempt: &AttemptStatus) -> Result<(), Error> {
    tracing::warn!(attempt = attempt.name, "its batch Job was changed by somebody: put right");
    let jobs: Api<Job> = Api::namespaced(context.client.clone(), &key.namespace);
    let patch = Patch::Apply(build::gang_repair(job, attempt));
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    let repaired = jobs.patch_metadata(&attempt.name, &parameters, &patch).await;
    repaired.doing(|| format!("repair batch Job {}", attempt.name)).map(|_| ())
}

async fn repair_plan(
    context: &Context,
    key: &Key,
    job: &TrainingJob,
    attempt: &str,
    gang_uid: &str,
) -> Result<(), Error> {
    tracing::warn!(attempt, "the ConfigMap of its plan was changed by somebody: put right");
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &key.namespace);
    let patch = Patch::Apply(build::plan_repair(&job.name_any(), attempt, gang_uid));
    let parameters = PatchParams::apply(names::FIELD_MANAGER).force();
    maps.patch_metadata(attempt, &parameters, &patch).await.doing(|| format!("repair ConfigMap {attempt}")).map(|_| ())
}

/// The ConfigMap of the plan is out of sight: its label was taken, or it was deleted, which matters while a pod has yet
/// to read it.
async fn restore_plan(
    context: &Context,
    key: &Key,
    job: &TrainingJob,
    status: &TrainingJobStatus,
    facts: &AttemptFacts,
    gang: &GangFacts,
) -> Result<(), Error> {
    let name = &facts.name;
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &key.namespace);
    let there = maps.get_metadata_opt(name).await.doing(|| format!("read ConfigMap {name}"))?;
    if let Some(there) = there {
        let plan = PlanFacts::new(&there.metadata);
        if plan.gang_uid != gang.uid || !plan.intact {
            repair_plan(context, key, job, name, &gang.uid).await?;
        }
        context.facts.assume_plan(key, name, PlanFacts { gang_uid: gang.uid.clone(), intact: true });
        return Ok(());
    }
    let Some(hash) = status.attempt.as_ref().map(|attempt| attempt.plan_hash.as_str()) else { return Ok(()) };
    let Some(plan) = pawl_decision::plan(job, status) else {
        // Launches have ended since: what is left of the plan is another plan. Every pod has read it by now.
        return Ok(());
    };
    // Deleted, or never made: the operator was stopped in the middle of a start, and what comes before it may lack too.
    tracing::warn!(attempt = name, "the ConfigMap of its plan is missing: made again");
    let blueprint = blueprint(context, job, &plan, hash);
    if plan.replicas > 1 {
        apply::create_token(context, key, &blueprint, &gang.uid, false).await?;
    }
    apply::create_plan(context, key, &blueprint, &gang.uid).await
}

/// Whether a gang that does not come up may be missing its Secret.
fn may_lack_token(facts: &AttemptFacts, gang: &GangFacts, now: Timestamp) -> bool {
    let slow = gang.since.checked_add(SLOW_START).is_ok_and(|late| late < now);
    let waits = matches!(state(facts, now), Some(AttemptState::Pending { .. })) && hindrance(facts).is_none();
    gang.replicas > 1 && slow && waits && facts.alive().any(|pod| !pod.node.is_empty())
}
