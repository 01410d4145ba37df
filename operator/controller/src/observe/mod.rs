//! From facts to observations, the input of decisions. Pure: facts and live data in, [`Observed`] out.
//!
//! - [`state()`]: where an attempt is, and whether its gang was preempted or is broken;
//! - `ending`: how it ended, and why;
//! - `results`: what its launches found: the termination message of the first pod, and what agent 0 reported before.

mod ending;
mod placement;
mod results;
mod state;

#[cfg(test)]
mod tests;

pub use state::{Signature, hindrance, signature, state};

use crate::facts::{AttemptFacts, NodeSeen, PodFacts};
use jiff::{SignedDuration, Timestamp};
use pawl_api::status::AttemptStatus;
use pawl_contract::live;
use pawl_decision::observed::{self, AttemptState, Observed};
use std::sync::Arc;

/// A pod that has not ended this long after its grace period needs attention.
const STUCK: SignedDuration = SignedDuration::from_secs(60);
/// A gang of which a part has ended, and the rest has not this long after, needs attention: agents end together, after
/// their last checkpoint.
const LINGERING: SignedDuration = SignedDuration::from_secs(600);

/// What is known of a job's attempts.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// Uid of the `TrainingJob`.
    pub job_uid: &'a str,
    /// GPUs of each pod, for the placement.
    pub gpus: u32,
    /// The memory limit of the trainer's container, if the job sets one.
    pub memory: Option<&'a str>,
    /// The attempts in the status. Their launches, in order, identify the one in which a pod was killed.
    pub under_way: &'a [&'a AttemptStatus],
    /// The facts of its attempts.
    pub attempts: &'a [AttemptFacts],
    /// The last answer of agent 0 of each running attempt.
    pub live: &'a [Arc<live::Attempt>],
    /// Now.
    pub now: Timestamp,
}

/// The observations on which decisions are based.
pub fn observe(scene: &Scene<'_>) -> Observed {
    let there = scene.attempts.iter().filter(|facts| !facts.released || facts.alive().next().is_some());
    let obstacle = scene.attempts.iter().find_map(|facts| obstacle(facts, scene.now)).unwrap_or_default();
    let attempts = there.filter_map(|facts| attempt(scene, facts)).collect();
    Observed { attempts, obstacle, ..Observed::default() }
}

/// The attempts under way whose gangs were made from another template than `wanted` says. Of a gang that an earlier
/// version made, that is not known.
pub fn outdated(
    under_way: &[&AttemptStatus],
    attempts: &[AttemptFacts],
    wanted: impl Fn(&AttemptStatus) -> String,
) -> Vec<String> {
    let gang = |name: &str| attempts.iter().find(|facts| facts.name == name)?.live_gang();
    let known = under_way.iter().filter(|attempt| gang(&attempt.name).is_some_and(|gang| !gang.template.is_empty()));
    let outdated = known.filter(|attempt| gang(&attempt.name).is_some_and(|gang| gang.template != wanted(attempt)));
    outdated.map(|attempt| attempt.name.clone()).collect()
}

/// Whether the attempt has not ended long after it should have. As long as a pod may run, no other gang may start.
pub fn is_stuck(facts: &AttemptFacts, now: Timestamp) -> bool {
    stuck(facts, now).is_some() || lingering(facts, now)
}

/// A pod that has not ended long after it was deleted.
fn stuck(facts: &AttemptFacts, now: Timestamp) -> Option<&PodFacts> {
    let overdue = |until: Timestamp| until.checked_add(STUCK).is_ok_and(|late| late < now);
    facts.alive().find(|pod| pod.deleting.is_some_and(overdue))
}

/// Whether nothing has changed for long of a gang of which a part has ended, and no pod is being deleted.
fn lingering(facts: &AttemptFacts, now: Timestamp) -> bool {
    let since = facts.changed.and_then(|changed| changed.checked_add(LINGERING).ok());
    let is_leaving = matches!(state(facts, now), Some(AttemptState::Leaving(_)));
    is_leaving && since.is_some_and(|since| since < now) && facts.alive().all(|pod| pod.deleting.is_none())
}

/// What to do about a gang of which a part has ended.
fn of_the_rest(facts: &AttemptFacts) -> String {
    let job = &facts.name;
    match facts.alive().next() {
        Some(PodFacts { name: pod, node, .. }) => format!(
            "pod {pod} has not ended, although another pod of {job} has: a process of it may be stuck on node {node}: look at its log, \
             then run `kubectl delete pod {pod}`"
        ),
        None => format!(
            "batch Job {job} neither creates the rest of its pods nor ends: `kubectl describe job {job}` shows why; if nothing does, \
             look whether the kube-controller-manager runs, or delete the batch Job"
        ),
    }
}

/// What to do about a batch Job whose pods another controller makes. In another cluster they would not find their
/// token, and nobody would read what they report.
fn managed_elsewhere(job: &str, manager: &str) -> String {
    format!(
        "batch Job {job} is managed by {manager} (spec.managedBy), so that no pod of it runs here, and its token is in this cluster only: \
         let the label kueue.x-k8s.io/queue-name of the TrainingJob name a queue without MultiKueue, or create the TrainingJob in the \
         cluster with the devices"
    )
}

/// What to do about a pod that does not end, by what is known of its node.
fn obstacle(facts: &AttemptFacts, now: Timestamp) -> Option<String> {
    if let Some(gang) = facts.working_gang().filter(|gang| !gang.manager.is_empty()) {
        return Some(managed_elsewhere(&facts.name, &gang.manager));
    }
    let Some(stuck) = stuck(facts, now) else {
        return lingering(facts, now).then(|| of_the_rest(facts));
    };
    let (pod, node) = (&stuck.name, &stuck.node);
    if node.is_empty() {
        return Some(format!(
            "pod {pod} does not end, though it was never on a node: a finalizer keeps it: `kubectl get pod {pod} -o yaml` shows which, \
             and who has to remove it"
        ));
    }
    let force = format!("run `kubectl delete pod {pod} --force`");
    Some(match &stuck.node_seen {
        NodeSeen::Unreadable => format!(
            "pod {pod} does not end, and the operator may not read node {node}: if the node is lost, {force}, or let the operator \
             find out with rbac.nodes=true in the values of the chart"
        ),
        NodeSeen::NotReady(why) => {
            format!(
                "pod {pod} does not end, and its node {node} is not ready ({why}): repair it, or turn it off and {force}"
            )
        }
        NodeSeen::Ready => format!(
            "pod {pod} does not end, though its node {node} is ready: a process of it is stuck, in a driver or a file system \
             for example: restart the node; if the pod stays, {force} once the node is off"
        ),
        NodeSeen::Unknown => format!("pod {pod} does not end: look at its node {node}; once the node is off, {force}"),
    })
}

fn attempt(scene: &Scene<'_>, facts: &AttemptFacts) -> Option<observed::AttemptFacts> {
    let state = state(facts, scene.now)?;
    let live = scene.live.iter().map(Arc::as_ref).find(|live| live.attempt == facts.name);
    let launches = scene.under_way.iter().find(|attempt| attempt.name == facts.name);
    let launches = launches.map_or(&[][..], |attempt| &attempt.launches);
    let results = results::results(facts, live, launches, matches!(state, AttemptState::Ended(_)), scene.memory);
    // A batch Job of an earlier TrainingJob of this name is no attempt of this one, whatever its plan.
    let own = |gang: &&crate::facts::GangFacts| gang.job_uid == scene.job_uid;
    let plan_hash = facts.gang.as_ref().filter(own).map(|gang| gang.plan_hash.clone()).unwrap_or_default();
    let running = matches!(state, AttemptState::Running | AttemptState::Leaving(_));
    Some(observed::AttemptFacts {
        name: facts.name.clone(),
        plan_hash,
        state,
        placement: placement::placement(facts, scene.gpus),
        trainer: placement::trainer(facts),
        results,
        progress: live.filter(|_| running).and_then(|live| live.progress.clone()),
    })
}
