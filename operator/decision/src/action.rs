//! What a decision asks the shell to do.

use pawl_api::TrainingJobStatus;
use pawl_api::status::StopCause;
use pawl_contract::plan::AttemptPlan;
use std::time::Duration;

/// The outcome of [`crate::decide`]. [`Decision::carry_out`] does what it says, in the order of the
/// [protocol](crate::protocol): the status, the actions, the events.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write, when it differs, before anything is done: it says what will be done.
    pub status: TrainingJobStatus,
    /// What to do, in order, after the status was written. Each is idempotent.
    pub actions: Vec<Action>,
    /// What to report to people, last.
    pub events: Vec<Event>,
    /// When to decide again even if nothing changes.
    pub requeue_after: Option<Duration>,
}

/// Something to do. Doing it twice is the same as doing it once.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the attempt exist.
    Start {
        /// What it runs.
        plan: AttemptPlan,
        /// Hash of the plan, kept with the attempt: [`crate::observed::AttemptFacts::plan_hash`].
        plan_hash: String,
    },
    /// End the attempt.
    Stop {
        /// Name of the attempt.
        attempt: String,
        /// Let its ranks end in their own time: a training launch writes a checkpoint first.
        checkpoint: bool,
        /// Why. After [`StopCause::GangBroken`] only the ranks that are left are stopped: what the others reported
        /// stays where it is until the attempt is released.
        cause: StopCause,
    },
    /// Remove what is left of an attempt that ended and whose results are in the status.
    Release {
        /// Name of the attempt.
        attempt: String,
    },
}

/// Something to tell people: a Kubernetes event, a line of `pawl run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether it needs attention.
    pub kind: EventKind,
    /// Why, in one CamelCase word.
    pub reason: String,
    /// What happened, with metric, value and threshold.
    pub message: String,
    /// The phase it is about, if one.
    pub phase: Option<String>,
}

/// Whether an event needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// As planned.
    Normal,
    /// Look at it.
    Warning,
}
