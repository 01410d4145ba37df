//! What decisions need to know of a pod.

use super::hindrance::{Cause, EVICTED, Hindrance, Kind, UNSCHEDULABLE};
use crate::names;
use crate::watched::{Condition, ContainerStatus, Terminated, WatchedPod};
use jiff::Timestamp;
use pawl_contract::report::{MAX_TERMINATION_MESSAGE, is_folded, truncated};

/// Longest text of an eviction, bytes.
const MAX_EVICTION: usize = 200;
/// Longest digest, bytes: the name of the algorithm and 512 bits.
const MAX_DIGEST: usize = 136;

/// A pod of a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Uid of the batch Job that made it.
    pub gang_uid: String,
    /// Index in the gang.
    pub index: u32,
    /// Its node; empty while it has none.
    pub node: String,
    /// Since when it has its node.
    pub placed: Option<Timestamp>,
    /// Its address; empty while it has none.
    pub address: String,
    /// Digest of the image of the trainer's container; empty while it was not started.
    pub image: String,
    /// Where it is.
    pub stand: Stand,
    /// When it is or was to be gone, if it was deleted.
    pub deleting: Option<Timestamp>,
    /// Why it was disrupted, if the cluster did it; empty otherwise.
    pub disruption: String,
    /// It left the watch, and nothing announced its end: its label was removed, or it was deleted by
    /// force. It counts as alive until it was looked for.
    pub hidden: bool,
    /// It is no longer there. It is remembered until its attempt is released: how it ended is evidence.
    pub gone: bool,
    /// It was deleted, and its node does not answer: nothing will say how it ended.
    pub lost: bool,
    /// What the operator knows of its node, which it reads when the pod does not end.
    pub node_seen: NodeSeen,
}

/// What is known of the node of a pod that does not end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodeSeen {
    /// Nothing yet.
    #[default]
    Unknown,
    /// The operator may not read it.
    Unreadable,
    /// It is ready.
    Ready,
    /// It answers, and is not ready, for this reason.
    NotReady(String),
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq)]
pub enum Stand {
    /// The trainer's container does not run yet.
    Waiting {
        /// What keeps it from running; `None` when the pod is merely starting.
        problem: Option<Hindrance>,
    },
    /// The trainer's container runs.
    Running,
    /// The trainer's container ended, or will never run.
    Ended(PodEnd),
}

/// How a pod ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodEnd {
    /// Exit code of the trainer's container, if it ran.
    pub exit: Option<i32>,
    /// How it ended.
    pub cause: Cause,
    /// What the trainer's container left as its termination message; kept of the first pod only.
    pub termination: String,
}

impl PodEnd {
    /// Whether there was no trainer that could end: all that is known is why it was not started.
    fn never_ran(&self) -> bool {
        self.exit.is_none() || self.is_unknown()
    }

    /// Whether nobody knows how it ended: its node was away, or it was deleted before it was started.
    pub fn is_unknown(&self) -> bool {
        self.not_started().is_some_and(|hindrance| hindrance.kind == Kind::StateUnknown)
    }

    /// What kept it from being started.
    pub fn not_started(&self) -> Option<&Hindrance> {
        match &self.cause {
            Cause::NotStarted(hindrance) => Some(hindrance),
            Cause::Exited | Cause::Message(_) | Cause::Signal(_) | Cause::OutOfMemory | Cause::OverLimit(_) => None,
        }
    }

    /// Whether the kubelet evicted it for its own use of the disk.
    pub fn over_limit(&self) -> bool {
        matches!(self.cause, Cause::OverLimit(_))
    }

    /// Whether the kubelet did not accept it on its node.
    pub fn refused_by_node(&self) -> bool {
        self.not_started().is_some_and(|hindrance| hindrance.kind == Kind::RefusedByNode)
    }

    /// Whether the kernel killed it because the memory limit was reached.
    pub fn out_of_memory(&self) -> bool {
        self.cause == Cause::OutOfMemory
    }
}

impl PodFacts {
    /// The facts of `pod`; `None` when it is no pod of a gang.
    pub fn new(pod: &WatchedPod) -> Option<Self> {
        let meta = &pod.metadata;
        let label = |name: &str| meta.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
        let index = label(names::BATCH_INDEX)?.parse().ok()?;
        let node = pod.spec.node_name.clone().unwrap_or_default();
        Some(Self {
            name: meta.name.clone()?,
            uid: meta.uid.clone()?,
            gang_uid: label(names::BATCH_JOB_UID)?,
            index,
            node,
            placed: placed(&pod.status.conditions),
            address: pod.status.pod_ip.clone().unwrap_or_default(),
            image: trainer(pod).map(|container| digest(&container.image_id)).unwrap_or_default(),
            stand: stand(pod, index),
            deleting: meta.deletion_timestamp.as_ref().map(|time| time.0),
            disruption: disruption(&pod.status.conditions),
            hidden: false,
            gone: false,
            lost: false,
            node_seen: NodeSeen::Unknown,
        })
    }

    /// A pod that ended without having run ended for what it waited for: the kubelet only says that there was nothing
    /// to stop. One that ran after all reports the reason itself.
    pub(crate) fn explained_by(&mut self, before: &Stand) {
        match (before, &mut self.stand) {
            // While it is being deleted nothing is tried any more.
            (Stand::Waiting { problem: known }, Stand::Waiting { problem })
                if problem.is_none() && self.deleting.is_some() =>
            {
                problem.clone_from(known);
            }
            (Stand::Waiting { problem: Some(problem) }, Stand::Ended(end))
                if end.never_ran() && !end.over_limit() && !end.refused_by_node() =>
            {
                end.cause = Cause::NotStarted(problem.clone());
            }
            // What was found out stays.
            (Stand::Ended(known), Stand::Ended(end)) if known.exit == end.exit && !end.over_limit() => {
                end.cause.clone_from(&known.cause);
            }
            (Stand::Waiting { .. } | Stand::Running | Stand::Ended(_), _) => {}
        }
    }

    /// The watch does not see it any more.
    pub(crate) fn leave(&mut self) {
        let announced = self.deleting.is_some() || matches!(self.stand, Stand::Ended(_));
        if announced { self.gone = true } else { self.hidden = true }
    }

    /// Whether it still waits for an init container that has failed.
    pub fn cannot_start(&self) -> bool {
        let over = |kind| matches!(kind, Kind::InitFailed | Kind::InitKilled | Kind::StateUnknown);
        self.waits_for().is_some_and(|problem| over(problem.kind))
    }

    /// What keeps it from running, other than time.
    pub fn waits_for(&self) -> Option<&Hindrance> {
        match &self.stand {
            Stand::Waiting { problem } => problem.as_ref(),
            Stand::Running | Stand::Ended(_) => None,
        }
    }

    /// Whether its container runs or may come to run.
    pub fn alive(&self) -> bool {
        !self.gone && !self.lost && !matches!(self.stand, Stand::Ended(_))
    }
}

/// The trainer's container.
fn trainer(pod: &WatchedPod) -> Option<&ContainerStatus> {
    pod.status.container_statuses.iter().find(|container| container.name == names::CONTAINER)
}

/// When a pod got its node.
fn placed(conditions: &[Condition]) -> Option<Timestamp> {
    let placed = conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
    placed?.last_transition_time.as_ref().map(|time| time.0)
}

/// The digest of an image: `name@sha256:...` when it was pulled, `sha256:...` when it was loaded into the node.
fn digest(image_id: &str) -> String {
    let digest = image_id.rsplit_once('@').map_or(image_id, |(_, digest)| digest);
    truncated(digest, MAX_DIGEST).to_owned()
}

fn stand(pod: &WatchedPod, index: u32) -> Stand {
    let status = &pod.status;
    let container = trainer(pod);
    if let Some(terminated) = container.and_then(|container| container.state.terminated.as_ref()) {
        let end = ended(terminated, index);
        let cause = over_limit(pod).unwrap_or(end.cause);
        return Stand::Ended(PodEnd { cause, ..end });
    }
    match status.phase.as_deref() {
        Some("Succeeded" | "Failed") => Stand::Ended(never_ran(pod)),
        _ if container.is_some_and(|container| container.state.running.is_some()) => Stand::Running,
        _ => Stand::Waiting { problem: init_failure(pod).or_else(|| problem(pod)) },
    }
}

fn ended(terminated: &Terminated, index: u32) -> PodEnd {
    let message = terminated.message.as_deref().unwrap_or_default();
    let folded = is_folded(message);
    let for_people = if folded { "" } else { message };
    let cause = Cause::of(terminated.exit_code, terminated.reason.as_deref().unwrap_or_default(), for_people);
    let termination = if index == 0 && folded { truncated(message, MAX_TERMINATION_MESSAGE) } else { "" };
    PodEnd { exit: Some(terminated.exit_code), cause, termination: termination.to_owned() }
}

/// Why the kubelet evicted a pod that used more of the node's disk than it may. One that is evicted because its node is
/// short of a resource has a condition that says so.
fn over_limit(pod: &WatchedPod) -> Option<Cause> {
    let status = &pod.status;
    let evicted = status.reason.as_deref() == Some(EVICTED) && disruption(&status.conditions).is_empty();
    let started = |container: &ContainerStatus| container.state.terminated.is_some();
    let ran = status.init_container_statuses.iter().chain(&status.container_statuses).any(started);
    let message = status.message.as_deref().unwrap_or_default();
    (evicted && ran).then(|| Cause::OverLimit(truncated(message.trim(), MAX_EVICTION).to_owned()))
}

/// A pod that ended without its trainer: evicted, refused by the kubelet, or its init container failed.
fn never_ran(pod: &WatchedPod) -> PodEnd {
    let status = &pod.status;
    if let Some(cause) = over_limit(pod) {
        return PodEnd { exit: None, cause, ..PodEnd::default() };
    }
    let accepted = !status.init_container_statuses.is_empty() || !status.container_statuses.is_empty();
    let hindrance = init_failure(pod).unwrap_or_else(|| {
        let phase = status.phase.as_deref().unwrap_or_default();
        let reason = status.reason.as_deref().unwrap_or(phase);
        let message = status.message.as_deref().unwrap_or_default();
        if accepted { Hindrance::of_container(reason, message) } else { Hindrance::of_pod(reason, message) }
    });
    PodEnd { exit: None, cause: Cause::NotStarted(hindrance), ..PodEnd::default() }
}

/// How an init container failed. Pods are not restarted, so that the trainer will never run; a kubelet whose node lost
/// its power in the meantime does not say so. A sidecar is restarted, and is ended with its pod.
fn init_failure(pod: &WatchedPod) -> Option<Hindrance> {
    let mut containers = pod.status.init_container_statuses.iter().filter(|container| !is_sidecar(pod, container));
    containers.find_map(|container| {
        let terminated = container.state.terminated.as_ref().filter(|terminated| terminated.exit_code != 0)?;
        let reason = terminated.reason.as_deref().unwrap_or_default();
        let message = terminated.message.as_deref();
        Some(Hindrance::of_init_container(&container.name, terminated.exit_code, reason, message))
    })
}

fn is_sidecar(pod: &WatchedPod, container: &ContainerStatus) -> bool {
    let mut all = pod.spec.init_containers.iter();
    all.any(|known| known.name == container.name && known.restart_policy.as_deref() == Some("Always"))
}

/// Why a pod does not run, unless that only takes time.
fn problem(pod: &WatchedPod) -> Option<Hindrance> {
    let status = &pod.status;
    let unscheduled = |condition: &&Condition| condition.type_ == "PodScheduled" && condition.status == "False";
    if let Some(condition) = status.conditions.iter().find(unscheduled) {
        let reason = condition.reason.as_deref().unwrap_or(UNSCHEDULABLE);
        return Some(Hindrance::of_scheduling(reason, condition.message.as_deref().unwrap_or_default()));
    }
    let before = status.init_container_statuses.iter().map(|container| (container, true));
    let mut all = before.chain(status.container_statuses.iter().map(|container| (container, false)));
    all.find_map(|(container, is_before)| {
        let waiting = container.state.waiting.as_ref()?;
        let (reason, message) = (waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default());
        if matches!(reason, "ContainerCreating" | "PodInitializing" | "") {
            return None;
        }
        // Otherwise it would be read as about the trainer's image.
        let whose = if is_before { format!("init container {}: ", container.name) } else { String::new() };
        Some(Hindrance::of_container(reason, &format!("{whose}{message}")))
    })
}

/// What the cluster did to a pod.
fn disruption(conditions: &[Condition]) -> String {
    let target = |condition: &&Condition| condition.type_ == "DisruptionTarget" && condition.status == "True";
    let Some(condition) = conditions.iter().find(target) else { return String::new() };
    let reason = condition.reason.as_deref().unwrap_or("DisruptionTarget");
    Hindrance::of_container(reason, condition.message.as_deref().unwrap_or_default()).text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn facts(status: Value) -> PodFacts {
        let pod = json!({
            "metadata": {"name": "toy-1-0-x", "uid": "u", "labels": {
                "batch.kubernetes.io/job-name": "toy-1", "batch.kubernetes.io/controller-uid": "g",
                "batch.kubernetes.io/job-completion-index": "0"}},
            "spec": {"nodeName": "node-1"}, "status": status,
        });
        PodFacts::new(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn terminated(state: Value) -> PodEnd {
        let status =
            json!({"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": state}}]});
        match facts(status).stand {
            Stand::Ended(end) => end,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn why_a_pod_waits_is_told_when_it_is_a_problem() {
        let waiting = |status: Value| match facts(status).stand {
            Stand::Waiting { problem } => problem.map(|problem| problem.text).unwrap_or_default(),
            other => panic!("{other:?}"),
        };
        let scheduled = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."}]});
        assert_eq!(waiting(scheduled), "Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.");
        let container = |reason: &str, message: &str| {
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}], "containerStatuses":
                [{"name": "trainer", "state": {"waiting": {"reason": reason, "message": message}}}]})
        };
        assert_eq!(waiting(container("ImagePullBackOff", "no such image")), "ImagePullBackOff: no such image");
        assert_eq!(waiting(container("ContainerCreating", "")), "");
        assert_eq!(waiting(json!({})), "");
    }

    #[test]
    fn how_a_pod_ended_is_told() {
        let end = terminated(json!({"exitCode": 137, "reason": "OOMKilled"}));
        assert_eq!(end.cause, Cause::OutOfMemory);
        let end = terminated(json!({"exitCode": 137, "reason": "Error"}));
        assert_eq!(end.cause, Cause::Signal(9));
        let end = terminated(json!({"exitCode": 10, "reason": "Error", "message": "{\"pawl\":[]}"}));
        assert_eq!((end.exit, &end.cause, end.termination.as_str()), (Some(10), &Cause::Exited, "{\"pawl\":[]}"));
        let end = terminated(json!({"exitCode": 1, "reason": "Error", "message": "no such plan"}));
        assert_eq!(end.cause, Cause::Message("no such plan".to_owned()));
    }

    #[test]
    fn a_pod_that_never_ran_says_why() {
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
        let Stand::Ended(end) = facts(evicted).stand else { panic!() };
        assert_eq!((end.exit, end.cause.to_string().as_str()), (None, "Evicted: low on memory"));
        let broken = json!({"phase": "Failed", "initContainerStatuses":
            [{"name": "agent", "state": {"terminated": {"exitCode": 2, "message": "read-only"}}}]});
        let Stand::Ended(end) = facts(broken).stand else { panic!() };
        assert_eq!(end.cause.to_string(), "init container agent exited with 2: read-only");
        assert!(!end.is_unknown());
        let preempted = json!({"phase": "Running", "conditions": [{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler", "message": "preempting to accommodate a higher priority pod"}]});
        assert!(facts(preempted).disruption.starts_with("PreemptionByScheduler: "));
    }

    /// The node lost its power while the init container ran; its kubelet says `Pending` for ever.
    #[test]
    fn a_pod_whose_init_container_was_lost_with_its_node_cannot_start() {
        let message = "The container could not be located when the pod was terminated";
        let init = |state: Value| {
            facts(json!({"phase": "Pending", "initContainerStatuses": [{"name": "agent", "state": state}],
                "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}]}))
        };
        let lost =
            init(json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}}));
        assert!(lost.cannot_start() && lost.alive(), "{lost:?}");
        assert!(!init(json!({"running": {}})).cannot_start());
        assert!(!init(json!({"terminated": {"exitCode": 0, "reason": "Completed"}})).cannot_start());
        let mut ended = facts(json!({"phase": "Failed", "initContainerStatuses": [{"name": "agent", "state":
            {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}}}]}));
        ended.explained_by(&lost.stand);
        let Stand::Ended(end) = ended.stand else { panic!("{ended:?}") };
        assert!(end.is_unknown() && end.cause.to_string().ends_with(message), "{end:?}");
    }

    fn with_init_containers(status: Value) -> PodFacts {
        let pod = json!({
            "metadata": {"name": "toy-1-0-x", "uid": "u", "labels": {
                "batch.kubernetes.io/controller-uid": "g", "batch.kubernetes.io/job-completion-index": "0"}},
            "spec": {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "fetch"}]},
            "status": status,
        });
        PodFacts::new(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn what_keeps_an_init_container_from_its_end_is_told_with_its_name() {
        let waiting = |name: &str, reason: &str, message: &str| {
            let waiting = json!({"name": name, "state": {"waiting": {"reason": reason, "message": message}}});
            let pod = with_init_containers(json!({"phase": "Pending", "initContainerStatuses": [waiting]}));
            assert!(!pod.cannot_start(), "{pod:?}");
            pod.waits_for().map(|problem| (problem.reason.clone(), problem.text.clone()))
        };
        let problem = |reason: &str, text: &str| Some((reason.to_owned(), text.to_owned()));
        assert_eq!(
            waiting("fetch", "ErrImagePull", "no such image"),
            problem("ErrImagePull", "ErrImagePull: init container fetch: no such image")
        );
        assert_eq!(
            waiting("proxy", "CrashLoopBackOff", "back-off 10s"),
            problem("CrashLoopBackOff", "CrashLoopBackOff: init container proxy: back-off 10s")
        );
        assert_eq!(waiting("fetch", "PodInitializing", ""), None);
    }

    /// The kubelet ends sidecars with the pod, and restarts them before: their exit codes do not explain a pod.
    #[test]
    fn an_init_container_that_fails_is_the_reason_and_a_sidecar_is_not() {
        let ended = |name: &str, exit_code: i32| {
            let state = json!({"exitCode": exit_code, "reason": "Error", "message": "no bucket"});
            json!({"name": name, "state": {"terminated": state}})
        };
        let statuses = |fetch: i32| json!([ended("proxy", 143), ended("fetch", fetch)]);
        let failed = with_init_containers(json!({"phase": "Failed", "initContainerStatuses": statuses(3)}));
        let Stand::Ended(end) = failed.stand else { panic!("{failed:?}") };
        assert_eq!(end.not_started().map(|hindrance| hindrance.kind), Some(Kind::InitFailed));
        assert_eq!(end.cause.to_string(), "init container fetch exited with 3: no bucket");

        let early = with_init_containers(json!({"phase": "Pending", "initContainerStatuses": statuses(3)}));
        assert!(early.cannot_start(), "its pod is not restarted: {early:?}");
        let restarted = with_init_containers(json!({"phase": "Pending", "initContainerStatuses": [ended("proxy", 1)]}));
        assert!(!restarted.cannot_start() && restarted.waits_for().is_none(), "{restarted:?}");

        let trainer = json!([{"name": "trainer", "state": {"running": {}}}]);
        let running = with_init_containers(
            json!({"phase": "Running", "initContainerStatuses": statuses(0), "containerStatuses": trainer}),
        );
        assert_eq!(running.stand, Stand::Running);
        let evicted =
            json!({"phase": "Failed", "reason": "NodeShutdown", "initContainerStatuses": [ended("proxy", 143)]});
        let Stand::Ended(end) = with_init_containers(evicted).stand else { panic!() };
        assert_eq!(end.cause.to_string(), "NodeShutdown");
    }

    #[test]
    fn what_a_pod_waited_for_is_why_it_never_ran() {
        let at = |state: Value, deleting: bool| {
            let mut pod =
                facts(json!({"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}));
            pod.deleting = deleting.then_some(Timestamp::UNIX_EPOCH);
            pod
        };
        let unknown = || json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
        let mut known = at(json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}), false);
        let steps =
            [at(json!({"waiting": {"reason": "PodInitializing"}}), true), at(unknown(), true), at(unknown(), true)];
        for mut next in steps {
            next.explained_by(&known.stand);
            known = next;
        }
        let Stand::Ended(end) = known.stand else { panic!("{known:?}") };
        assert_eq!((end.exit, end.cause.to_string().as_str()), (Some(137), "ErrImagePull: no such image"));
        // One that ran after all, before it was seen running, reports the reason itself.
        let refused = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "no such plan"}});
        let mut ran = at(refused, false);
        ran.explained_by(&Stand::Waiting { problem: Some(Hindrance::of_container("ErrImagePull", "")) });
        let Stand::Ended(end) = ran.stand else { panic!("{ran:?}") };
        assert_eq!(end.cause, Cause::Message("no such plan".to_owned()));
        // A pod that is still wanted is tried again: what was wrong may be right now.
        let mut again = at(json!({"waiting": {"reason": "ContainerCreating"}}), false);
        again.explained_by(&Stand::Waiting { problem: Some(Hindrance::of_container("ErrImagePull", "")) });
        assert_eq!(again.stand, Stand::Waiting { problem: None });
    }

    #[test]
    fn the_digest_of_an_image_is_known_once_its_container_is_created() {
        let of = |id: &str| {
            let status = json!({"containerStatuses": [{"name": "sidecar", "imageID": "sha256:0"},
                {"name": "trainer", "image": "registry:5000/trainer:1", "imageID": id}]});
            facts(status).image
        };
        assert_eq!(of("registry:5000/trainer@sha256:ab12"), "sha256:ab12");
        assert_eq!(of("sha256:cd34"), "sha256:cd34");
        assert_eq!(of(""), "");
        assert_eq!(facts(json!({})).image, "");
    }

    /// Exit code 30 hid it: the agent ended its ranks as it does on request.
    #[test]
    fn an_eviction_for_its_own_disk_is_told_from_one_for_its_nodes() {
        let evicted = |conditions: Value| {
            facts(json!({"phase": "Failed", "reason": "Evicted", "conditions": conditions,
                "message": "Usage of EmptyDir volume \"scratch\" exceeds the limit \"32Mi\". ",
                "containerStatuses": [{"name": "trainer", "state": {"terminated": {"exitCode": 30, "reason": "Completed"}}}]}))
        };
        let own = evicted(json!([]));
        let Stand::Ended(end) = &own.stand else { panic!("{own:?}") };
        assert!(end.over_limit() && end.exit == Some(30), "{end:?}");
        assert!(end.cause.to_string().contains("volume \"scratch\""), "{}", end.cause);
        let of_node =
            evicted(json!([{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]));
        let Stand::Ended(end) = &of_node.stand else { panic!("{of_node:?}") };
        assert!(!end.over_limit() && of_node.disruption.contains("TerminationByKubelet"), "{of_node:?}");
        // The end of the container may be reported first.
        let mut later = own.clone();
        later.explained_by(
            &facts(json!({"containerStatuses": [{"name": "trainer",
            "state": {"terminated": {"exitCode": 30, "reason": "Completed"}}}]}))
            .stand,
        );
        assert_eq!(later, own);
    }

    #[test]
    fn a_pod_that_its_node_refuses_ran_no_program() {
        let refused = facts(json!({"phase": "Failed", "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to no healthy devices present"}));
        let Stand::Ended(end) = &refused.stand else { panic!("{refused:?}") };
        assert!(end.refused_by_node() && end.exit.is_none(), "{end:?}");
    }

    #[test]
    fn a_container_that_ended_counts_although_the_phase_lags() {
        let status = json!({"phase": "Running", "containerStatuses":
            [{"name": "sidecar", "state": {"running": {}}}, {"name": "trainer", "state": {"terminated": {"exitCode": 0}}}]});
        assert!(!facts(status).alive());
    }
}
