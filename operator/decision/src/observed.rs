//! The observations on which decisions are based.
//!
//! # States of an attempt
//! Five types describe the state of an attempt, each as one component sees it:
//!
//! | type | component | describes |
//! |---|---|---|
//! | [`AttemptState`] | decision core | the observed state of the gang, the only one on which decisions are based |
//! | [`AttemptStatus`](pawl_api::status::AttemptStatus) and its [`StopCause`](pawl_api::status::StopCause) | decision core | the desired state, in the status: which attempt should exist, and why it is being stopped |
//! | `PodFacts` of `pawl-controller` | operator | the state of one pod; the operator derives the [`AttemptState`] from all pods, the batch Job and the queue |
//! | `RecordState` of `pawl-local` | `pawl run` | the state on disk, which survives the process; there is no queue, so it has no counterpart of [`AttemptState::Queued`] and [`AttemptState::Pending`] |
//! | `AttemptEnd` of `pawl-contract` | agent | how the launches ended, as the agents of a gang agree; it does not cover lost nodes and deleted pods |
//!
//! The shells map the last three to [`AttemptState`]. An [`Ending`] has fewer distinctions than `AttemptEnd`, because
//! the outcomes of the launches are in the results.

use jiff::Timestamp;
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;

/// Kueue's label on a job: the queue in which its attempts wait.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// The observed state of all attempts of a job. Observations may be missing, late, or repeated.
///
/// ```
/// use pawl_decision::observed::{AttemptFacts, AttemptState, Observed};
///
/// let facts = AttemptFacts {
///     name: "toy-1".to_owned(),
///     plan_hash: "0badcafe0badcafe".to_owned(),
///     state: AttemptState::Running,
///     placement: "node-a/gpu:0,1".to_owned(),
///     trainer: "sha256:0123abcd".to_owned(),
///     results: Vec::new(),
///     progress: None,
/// };
/// let observed = Observed { attempts: vec![facts], ..Observed::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The existing attempts, in any order.
    pub attempts: Vec<AttemptFacts>,
    /// Names of the attempts whose pods were made from another template than a new attempt would be.
    pub outdated: Vec<String>,
    /// What keeps an attempt from starting or ending until somebody removes it, and how; empty when there is nothing.
    /// Displayed by the condition `Stalled`.
    pub obstacle: String,
    /// Fields of the job that this version does not know; empty when there are none. Displayed by the condition
    /// `UnknownFields`.
    pub unknown_fields: String,
    /// Build of the trainer that a new attempt would run, as [`AttemptFacts::trainer`]. Empty when unknown before it
    /// runs.
    pub build: String,
}

/// The observed state of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptFacts {
    /// `<job>-<number>`.
    pub name: String,
    /// Hash of its plan.
    pub plan_hash: String,
    /// State of its gang.
    pub state: AttemptState,
    /// Devices on which it runs; only launches with equal placement are compared. Empty when unknown.
    pub placement: String,
    /// Build of the trainer that it runs: the digest of its image, or the version of the built-in trainer. Launches of
    /// different builds are not compared. Empty when unknown.
    pub trainer: String,
    /// Results of the completed launches, in order. They outlive the gang.
    pub results: Vec<LaunchResult>,
    /// Progress of the running launch.
    pub progress: Option<Progress>,
}

/// Observed state of an attempt's gang.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptState {
    /// It waits in its Kueue queue for admission; `lifecycle.schedulingTimeout` does not apply.
    Queued,
    /// Not all of its ranks run yet.
    Pending {
        /// Time of its creation, or of its admission.
        since: Timestamp,
        /// Human-readable cause; empty when it only takes time.
        message: String,
        /// What it waits for.
        waits_for: WaitsFor,
    },
    /// All of its ranks are running.
    Running,
    /// Some of its ranks have ended or are terminating, and others still hold devices.
    Leaving(Leaving),
    /// None of its ranks is running or will run.
    Ended(Ending),
}

impl AttemptState {
    /// Whether it waits for its turn without holding devices: such waiting has no limit and is not a failure.
    pub(crate) const fn waits_in_turn(&self) -> bool {
        match self {
            Self::Queued => true,
            Self::Pending { waits_for, .. } => match waits_for {
                WaitsFor::Pods | WaitsFor::Quota | WaitsFor::Devices => true,
                WaitsFor::Containers | WaitsFor::Admission | WaitsFor::MoreDevices => false,
            },
            Self::Running | Self::Leaving(_) | Self::Ended(_) => false,
        }
    }
}

/// What a pending gang waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its containers: images, volumes.
    Containers,
    /// The API server to accept its pods: what they refer to does not exist, or something rejects them.
    Admission,
    /// Its pods to be created; why they are not is not known.
    Pods,
    /// Quota that other pods use up: none of its pods holds devices.
    Quota,
    /// Free devices: none of its pods holds any.
    Devices,
    /// Free devices for some of its pods, while others hold theirs.
    MoreDevices,
}

/// Why an attempt is terminating while some of its ranks hold devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Some of its ranks have ended by themselves, and the others follow: agents end together.
    Ending {
        /// When the first of them ended.
        since: Timestamp,
    },
    /// Its ranks were stopped.
    Draining,
    /// Kueue preempted it; unless it is stopped, its batch Job is requeued and runs again.
    Preempted,
    /// A rank was lost, and the others cannot continue without it.
    Broken,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The agents ended it; the results contain the outcomes of its launches.
    Completed,
    /// It was stopped on request.
    Stopped,
    /// Kueue preempted it. This does not count as a failure, and its launches are requeued.
    Preempted,
    /// The cluster ended it: an eviction, a preemption by the scheduler, a lost node, a deleted pod; with a
    /// human-readable cause. This does not count as a failure.
    Disrupted(String),
    /// A node did not accept a pod of it, so that no program ran; with a human-readable cause. This does not count as a
    /// failure, but the next attempt may meet the same node: it starts after a back-off.
    Refused(String),
    /// It was lost: a killed process, a missing report; with a human-readable cause.
    Lost(String),
}
