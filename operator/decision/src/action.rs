//! Decisions: the status to write, the actions to take, the events to emit.

use jiff::Timestamp;
use pawl_api::TrainingJobStatus;
use pawl_api::status::StopCause;
use pawl_contract::happened::Happened;
use pawl_contract::plan::AttemptPlan;
use std::time::Duration;

/// The result of [`crate::decide`]. [`Decision::carry_out`] carries it out in the order of the
/// [protocol](crate::protocol): the status, the actions, the events.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write before any action, if it differs from the current one: it contains the intended actions.
    pub status: TrainingJobStatus,
    /// The actions, in order, to take after the status was written. Each is idempotent.
    pub actions: Vec<Action>,
    /// The events, to be emitted last.
    pub events: Vec<Event>,
    /// Time after which to decide again even if nothing changes; `None`: only after a change.
    pub requeue_after: Option<Duration>,
}

/// An idempotent action on an attempt.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a decision has one or two actions")]
pub enum Action {
    /// Create the attempt, unless it exists.
    Start {
        /// Its plan.
        plan: AttemptPlan,
        /// Hash of the plan, stored with the attempt: [`crate::observed::AttemptFacts::plan_hash`].
        plan_hash: String,
    },
    /// Stop the attempt.
    Stop {
        /// Name of the attempt.
        attempt: String,
        /// Whether the ranks get their full grace period: a training launch writes a checkpoint first.
        checkpoint: bool,
        /// Why. After [`StopCause::GangBroken`] only the remaining ranks are stopped: the reports of the others are
        /// kept until the attempt is released.
        cause: StopCause,
    },
    /// Delete the objects of an attempt that has ended and whose results are in the status.
    Release {
        /// Name of the attempt.
        attempt: String,
    },
}

/// An event for the user: a Kubernetes event, or a line in the output of `pawl run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether it requires attention.
    pub kind: EventKind,
    /// Reason, in one CamelCase word.
    pub reason: String,
    /// What happened, with metric, value and threshold.
    pub message: String,
    /// The phase that it concerns, if any.
    pub phase: Option<String>,
}

impl Event {
    /// This as the records keep it, of a decision at `time`.
    pub fn at(self, time: Timestamp) -> Happened {
        let Self { kind, reason, message, phase } = self;
        let (time, warning) = (time.as_second().try_into().unwrap_or_default(), kind == EventKind::Warning);
        Happened { time, warning, reason, message, phase }.bounded()
    }
}

/// Whether an event requires attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Normal operation.
    Normal,
    /// It requires attention.
    Warning,
}
