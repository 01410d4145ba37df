//! Repairs what other clients or the cluster broke of the running attempt: labels, owners, a missing plan or token, a
//! batch Job or a pod that lost its label and left the watch, pods on a dead node, and the namespace's Service.

use crate::context::Context;
use crate::error::{Doing, Error, code};
use crate::facts::{AttemptFacts, GangFacts, NodeSeen, PodFacts};
use crate::key::Key;
use crate::objects::{self, Blueprint};
use crate::owned::Objects;
use crate::refusals::FRESH;
use crate::watched::{WatchedJob, WatchedPod};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::ListParams;
use pawl_api::status::AttemptStatus;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::report::truncated;
use std::time::Duration;

/// A pod is overdue when its kubelet has not removed it this long after its grace period.
const OVERDUE: SignedDuration = SignedDuration::from_secs(5);
/// The Job controller makes pods within a second, unless they are refused.
const SLOW_PODS: Duration = FRESH;
/// Minimum interval between looks why pods of one batch Job are refused.
const REFUSAL_EVERY: Duration = Duration::from_secs(20);
/// Longest reason for which a node is not ready, bytes.
const MAX_NODE_TEXT: usize = 120;
/// Minimum interval between reads of a node.
const NODE_EVERY: Duration = Duration::from_secs(2);

/// Updates facts that the watches cannot: finds a batch Job or pod that lost its label, gives up pods of dead nodes,
/// and asks why pods are not made.
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
            match node(context, key, pod).await? {
                Node::Dead => {
                    tracing::warn!(pod = pod.name, node = pod.node, "its node is not ready: the pod counts as lost");
                    context.facts.lose(key, &facts.name, &pod.uid);
                }
                Node::Seen(NodeSeen::Unknown) => {}
                Node::Seen(seen) => context.facts.node_seen(key, &facts.name, &pod.uid, &seen),
            }
        }
        if let Some(gang) = facts.incomplete_gang().filter(|gang| is_late(gang, now))
            && context.jobs.may_try(key, &format!("pods {}", gang.uid), REFUSAL_EVERY)
        {
            let refusal = context.refusals.of(&context.client, &key.namespace, &gang.uid).await?;
            context.facts.refused(key, &facts.name, &gang.uid, refusal);
        }
    }
    Ok(())
}

/// Whether the pods of a batch Job should have been made by now.
fn is_late(gang: &GangFacts, now: Timestamp) -> bool {
    gang.since.checked_add(SLOW_PODS).is_ok_and(|late| late <= now)
}

/// Whether the end of a pod may never be reported: the cluster deleted it, or it is overdue.
pub fn may_be_lost(pod: &PodFacts, now: Timestamp) -> bool {
    let Some(until) = pod.deleting else { return false };
    let overdue = until.checked_add(OVERDUE).is_ok_and(|late| late < now);
    !pod.node.is_empty() && (overdue || !pod.disruption.is_empty())
}

/// What is known of a node.
enum Node {
    /// It is deleted, or its kubelet no longer reports.
    Dead,
    /// It may be alive.
    Seen(NodeSeen),
}

/// The node of a pod.
async fn node(context: &Context, key: &Key, pod: &PodFacts) -> Result<Node, Error> {
    if !context.jobs.may_try(key, &format!("node {}", pod.node), NODE_EVERY) {
        return Ok(Node::Seen(NodeSeen::Unknown));
    }
    let nodes: Api<core::Node> = Api::all(context.client.clone());
    match nodes.get_opt(&pod.node).await {
        Ok(None) => Ok(Node::Dead),
        Ok(Some(node)) => {
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
            Ok(match ready.map(|ready| (ready.status.as_str(), ready)) {
                Some(("Unknown", _)) => Node::Dead,
                Some(("False", ready)) => Node::Seen(NodeSeen::NotReady(not_ready(ready))),
                Some(_) | None => Node::Seen(NodeSeen::Ready),
            })
        }
        Err(error) if code(&error) == Some(403) => Ok(Node::Seen(NodeSeen::Unreadable)),
        Err(error) => Err(error).doing(|| format!("read Node {}", pod.node)),
    }
}

/// Why a node is not ready, such as `KubeletNotReady: PLEG is not healthy`.
fn not_ready(condition: &core::NodeCondition) -> String {
    let parts = [&condition.reason, &condition.message].into_iter().flatten();
    let text = parts.map(String::as_str).collect::<Vec<_>>().join(": ");
    truncated(&text, MAX_NODE_TEXT).to_owned()
}

/// Reads a batch Job that left the watch although its pods run: its label was removed, or it was deleted.
async fn look_for_gang(context: &Context, key: &Key, attempt: &str, gang: &GangFacts) -> Result<(), Error> {
    let jobs: Api<WatchedJob> = Api::namespaced(context.client.clone(), &key.namespace);
    let there = jobs.get_opt(attempt).await.doing(|| format!("read batch Job {attempt}"))?;
    let found = there.as_ref().and_then(GangFacts::new).filter(|found| found.uid == gang.uid);
    if let Some(found) = found {
        context.facts.assume(key, attempt, found);
    }
    Ok(())
}

/// Looks for a pod that left the watch although it did not end. Two gangs of a job must never run, so it counts until
/// it is gone. (It is listed, not read: the operator needs no `get` on pods otherwise.)
async fn look_for_pod(context: &Context, key: &Key, attempt: &str, pod: &PodFacts) -> Result<(), Error> {
    let pods: Api<WatchedPod> = Api::namespaced(context.client.clone(), &key.namespace);
    let named = ListParams::default().fields(&format!("metadata.name={}", pod.name));
    let there = pods.list(&named).await.doing(|| format!("look for Pod {}", pod.name))?;
    let same = there.items.iter().find(|there| there.metadata.uid.as_ref() == Some(&pod.uid));
    context.facts.looked_for(key, attempt, &pod.uid, same);
    Ok(())
}

/// Repairs the objects of the running attempts. Returns when to look again, if a cool-down has not passed.
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
    let known = context.facts.of(key);
    let mut later = None;
    for attempt in status.under_way().filter(|attempt| attempt.stop.is_none()) {
        let Some(facts) = known.iter().find(|facts| facts.name == attempt.name) else { continue };
        let again = repair_attempt(context, key, (job, status), attempt, facts, now).await?;
        later = later.into_iter().chain(again).min();
    }
    Ok(later)
}

async fn repair_attempt(
    context: &Context,
    key: &Key,
    (job, status): (&TrainingJob, &TrainingJobStatus),
    attempt: &AttemptStatus,
    facts: &AttemptFacts,
    now: Timestamp,
) -> Result<Option<Duration>, Error> {
    // What another controller manages is left to it.
    let Some(gang) = facts.working_gang().filter(|gang| gang.manager.is_empty()) else { return Ok(None) };
    if Some(gang.job_uid.as_str()) != job.metadata.uid.as_deref() {
        return Ok(None);
    }
    // The cluster protects the claim while pods with a node use it. A gang that waits for a claim that is gone is
    // deleted after lifecycle.schedulingTimeout; the next one creates it.
    let Objects { service, claim: _, batch_job, token, plan } = Objects::new(context, key, &attempt.name);
    batch_job.repair(job, attempt, gang).await?;
    let missing = plan.repair(facts, gang).await?;
    if token.may_be_missing(facts, gang, now) {
        token.create(job, gang).await?;
    }
    // When launches have ended since, their plan can no longer be worked out; every pod has read it by then.
    if missing && let Some(content) = pawl_decision::plan(job, status, &attempt.name) {
        let record = objects::record(job, status, &content);
        let blueprint = Blueprint { record: record.as_deref(), ..context.blueprint(job, &content, &attempt.plan_hash) };
        // Deleted, or never created: the operator was stopped in the middle of a start.
        tracing::warn!(attempt = attempt.name, "the ConfigMap of its plan is missing: created again");
        plan.create(&blueprint, gang).await?;
    }
    service.repair(job, gang).await
}
