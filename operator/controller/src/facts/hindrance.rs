//! What keeps a pod from running, and how its container ended: what Kubernetes says is read here, and nowhere else.
//!
//! A `reason` is a word for programs, and compared as it is. A `message` is for people; decisions read none, except
//! that the scheduler names a volume only there ([`Hindrance::of_scheduling`]), and the Job controller a quota
//! ([`Hindrance::of_creation`]).

use pawl_contract::report::truncated;
use std::fmt;

/// Longest text about a pod, bytes.
const MAX_TEXT: usize = 256;
/// The kubelet's reason for a container that it cannot find: it was never started, or its node was away.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Reason of the condition `PodScheduled` of a pod for which no node has room.
pub const UNSCHEDULABLE: &str = "Unschedulable";

/// The kubelet's reasons for a pod that it did not accept although the scheduler had chosen its node: devices or labels
/// are different than the scheduler knew, or the node shuts down or is short of a resource. On another node, or later,
/// it is accepted. (`pkg/kubelet/lifecycle/predicate.go`, `pkg/kubelet/cm` and `pkg/kubelet/eviction` of kubernetes
/// 1.34; others, such as `SysctlForbidden`, are the pod's own.)
const NODE_REASONS: [&str; 13] = [
    "Evicted",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "NodeShutdown",
    "Preempting",
    "SMTAlignmentError",
    "TaintToleration",
    "Terminated",
    "TopologyAffinityError",
    "UncoreCacheAlignmentError",
    "UnexpectedAdmissionError",
];
/// The begin of such a reason that names a resource, as `OutOfcpu` does.
const OUT_OF: &str = "OutOf";
/// The kubelet's reason for a pod that it ended to get back a resource.
pub const EVICTED: &str = "Evicted";

/// Reason of the event of a batch Job whose pods the API server refuses.
pub const FAILED_CREATE: &str = "FailedCreate";

/// What decisions distinguish of what keeps a pod from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No node has room for it.
    NoRoom,
    /// No node has the volume that it mounts, or the volume does not exist.
    NoVolume,
    /// The API server does not create it before others have given their quota back.
    NoQuota,
    /// The API server does not create it: it refers to what does not exist, or a limit, a policy or a webhook rejects
    /// it.
    Refused,
    /// The kubelet did not accept it on its node: no program ran.
    RefusedByNode,
    /// An init container failed, so that its trainer will never run.
    InitFailed,
    /// A signal ended an init container, so that its trainer will never run: where the pod is being deleted, that may
    /// be why.
    InitKilled,
    /// The kubelet could not find the container: its node was away, or the container was deleted before it was started.
    StateUnknown,
    /// Another reason, such as an image that cannot be pulled.
    Other,
}

/// What keeps a pod from running, other than time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hindrance {
    /// What decisions distinguish.
    pub kind: Kind,
    /// The reason, one word where Kubernetes gives one, such as `ErrImagePull`.
    pub reason: String,
    /// For people.
    pub text: String,
}

impl Hindrance {
    fn new(kind: Kind, reason: &str, message: &str) -> Self {
        let whole = match (reason, message) {
            (reason, "") => reason.to_owned(),
            ("", message) => message.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        };
        let reason = truncated(reason, MAX_TEXT).to_owned();
        Self { kind, reason, text: truncated(&whole, MAX_TEXT).to_owned() }
    }

    /// From the condition `PodScheduled`. For a volume the scheduler has no other reason than for missing room, and
    /// names it in the message alone: `pod has unbound immediate PersistentVolumeClaims`, `persistentvolumeclaim "x"
    /// not found`, `node(s) didn't find available persistent volumes to bind`
    /// (`pkg/scheduler/framework/plugins/volumebinding` in kubernetes 1.20 to 1.34). The claim doesn't say it either:
    /// one that is bound once its pod is scheduled has the phase `Pending` while no node has room for the pod, too.
    pub fn of_scheduling(reason: &str, message: &str) -> Self {
        let lower = message.to_ascii_lowercase();
        let volume = ["persistentvolumeclaim", "persistent volumes"].iter().any(|named| lower.contains(named));
        let kind = match (reason, volume) {
            (UNSCHEDULABLE, false) => Kind::NoRoom,
            (UNSCHEDULABLE, true) => Kind::NoVolume,
            _ => Kind::Other,
        };
        Self::new(kind, reason, message)
    }

    /// From the event by which the Job controller reports that a pod is refused. For an exhausted quota it has no other
    /// reason than for what has to be corrected: `pods "toy-1-0-" is forbidden: exceeded quota: limits, requested: ...`
    /// in `plugin/pkg/admission/resourcequota` of kubernetes 1.20 to 1.34. The API server's answer to a creation, with
    /// `dryRun` or without, doesn't say it either: its reason is `Forbidden`, without causes, as for a limit or a
    /// policy.
    pub fn of_creation(message: &str) -> Self {
        let kind = if message.contains(" is forbidden: exceeded quota: ") { Kind::NoQuota } else { Kind::Refused };
        Self::new(kind, FAILED_CREATE, message)
    }

    /// From the state of a container, or of a pod, that does not run.
    pub fn of_container(reason: &str, message: &str) -> Self {
        let kind = if reason == STATUS_UNKNOWN { Kind::StateUnknown } else { Kind::Other };
        Self::new(kind, reason, message)
    }

    /// From the status of a pod that failed before the kubelet started any container of it.
    pub fn of_pod(reason: &str, message: &str) -> Self {
        let kind = if NODE_REASONS.contains(&reason) || reason.starts_with(OUT_OF) {
            Kind::RefusedByNode
        } else {
            Kind::Other
        };
        Self::new(kind, reason, message)
    }

    /// From the state of an init container that ended with `exit_code`.
    pub fn of_init_container(name: &str, exit_code: i32, reason: &str, message: Option<&str>) -> Self {
        if reason == STATUS_UNKNOWN {
            return Self::of_container(reason, message.unwrap_or_default());
        }
        let failed = format!("init container {name} exited with {exit_code}");
        let kind = if exit_code > 128 { Kind::InitKilled } else { Kind::InitFailed };
        Self::new(kind, &failed, message.unwrap_or(reason))
    }
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How the container of a trainer ended; its text is empty where the exit code is sufficient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// It exited by itself.
    #[default]
    Exited,
    /// It exited by itself, and left a message for people.
    Message(String),
    /// A signal killed it.
    Signal(i32),
    /// The kernel killed it because the memory limit was reached.
    OutOfMemory,
    /// The kubelet evicted its pod, which used more of the node's disk than its containers and volumes may: the text
    /// names the container or the volume.
    OverLimit(String),
    /// It was not started.
    NotStarted(Hindrance),
}

impl Cause {
    /// From the terminated state of a container. `message` is empty when it is a report for the agent.
    pub fn of(exit_code: i32, reason: &str, message: &str) -> Self {
        match (reason, exit_code) {
            ("OOMKilled", _) => Self::OutOfMemory,
            // The container could not be started, or its state was lost: nothing ran that could exit.
            ("ContainerCannotRun" | "StartError" | STATUS_UNKNOWN, _) => {
                Self::NotStarted(Hindrance::of_container(reason, message))
            }
            (_, 129..=192) => Self::Signal(exit_code - 128),
            _ if message.is_empty() => Self::Exited,
            _ => Self::Message(truncated(message, MAX_TEXT).to_owned()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited => Ok(()),
            Self::Message(text) => f.write_str(text),
            Self::Signal(signal) => write!(f, "its container was killed by signal {signal}"),
            Self::OutOfMemory => f.write_str("its memory limit was reached (OOMKilled)"),
            Self::OverLimit(text) => write!(f, "evicted: {text}"),
            Self::NotStarted(hindrance) => hindrance.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Unschedulable", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", Kind::NoRoom)]
    #[case("Unschedulable", "persistentvolumeclaim \"persistent\" not found", Kind::NoVolume)]
    #[case(
        "Unschedulable",
        "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        Kind::NoVolume
    )]
    #[case("Unschedulable", "2 node(s) didn't find available persistent volumes to bind.", Kind::NoVolume)]
    #[case("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", Kind::Other)]
    fn what_the_scheduler_waits_for(#[case] reason: &str, #[case] message: &str, #[case] kind: Kind) {
        let hindrance = Hindrance::of_scheduling(reason, message);
        assert_eq!((hindrance.kind, hindrance.reason.as_str()), (kind, reason));
        assert_eq!(hindrance.to_string(), format!("{reason}: {message}"));
    }

    #[rstest]
    #[case(
        "Error creating: pods \"toy-1-0-\" is forbidden: exceeded quota: limits, requested: pods=1, used: pods=4, limited: pods=4",
        Kind::NoQuota
    )]
    #[case(
        "Error creating: pods \"toy-1-0-\" is forbidden: failed quota: limits: must specify limits.memory for: trainer",
        Kind::Refused
    )]
    #[case(
        "Error creating: pods \"toy-1-0-\" is forbidden: error looking up service account team/x: serviceaccount \"x\" not found",
        Kind::Refused
    )]
    #[case("Error creating: admission webhook \"quota.example.org\" denied the request: no budget", Kind::Refused)]
    fn why_a_pod_is_refused(#[case] message: &str, #[case] kind: Kind) {
        let hindrance = Hindrance::of_creation(message);
        assert_eq!((hindrance.kind, hindrance.reason.as_str()), (kind, "FailedCreate"));
    }

    #[rstest]
    #[case("UnexpectedAdmissionError", Kind::RefusedByNode)]
    #[case("OutOfcpu", Kind::RefusedByNode)]
    #[case("OutOfnvidia.com/gpu", Kind::RefusedByNode)]
    #[case("NodeAffinity", Kind::RefusedByNode)]
    #[case("SysctlForbidden", Kind::Other)]
    #[case("Failed", Kind::Other)]
    fn what_the_kubelet_refuses_is_not_the_pods_fault(#[case] reason: &str, #[case] kind: Kind) {
        assert_eq!(Hindrance::of_pod(reason, "Pod was rejected").kind, kind);
    }

    /// A message is what a program, an image or a registry says: it may name anything.
    #[rstest]
    #[case(Cause::of(1, "Error", "its container was killed by signal 9"), Cause::Message("its container was killed by signal 9".to_owned()))]
    #[case(Cause::of(1, "Error", "ContainerStatusUnknown"), Cause::Message("ContainerStatusUnknown".to_owned()))]
    #[case(Cause::of(137, "Error", "Unschedulable"), Cause::Signal(9))]
    #[case(Cause::of(255, "Error", ""), Cause::Exited)]
    #[case(Cause::of(137, "OOMKilled", ""), Cause::OutOfMemory)]
    fn a_message_decides_nothing(#[case] found: Cause, #[case] expected: Cause) {
        assert_eq!(found, expected);
        for message in ["ContainerStatusUnknown", "init container agent exited with 1", "Unschedulable: no GPU"] {
            assert_eq!(Hindrance::of_container("ErrImagePull", message).kind, Kind::Other);
            assert_eq!(Hindrance::of_container("", message).kind, Kind::Other);
        }
    }
}
