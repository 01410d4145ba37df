//! The current attempt, and the retries of its task.

use super::CheckpointStatus;
use pawl_contract::exit::Outcome;
use pawl_contract::fingerprint::Fingerprint;
use pawl_contract::plan::LaunchKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Purpose of an attempt.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
)]
pub enum Purpose {
    /// Checks the baseline and every phase.
    #[default]
    Preflight,
    /// Measures a phase.
    Speed,
    /// Trains for the quality gate of a phase.
    Quality,
    /// Measures all accepted phases against the baseline.
    Bundle,
    /// Measures all accepted phases against all but one.
    LeaveOneOut,
    /// Runs a trial of a search.
    Search,
    /// Trains the model.
    Train,
}

/// The current attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttemptStatus {
    /// `<job>-<number>`.
    pub name: String,
    /// Its purpose.
    pub purpose: Purpose,
    /// The phase that it evaluates, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Hash of its plan.
    pub plan_hash: String,
    /// Time of the start decision, or of admission by Kueue.
    pub started: String,
    /// Time since which it waits in its Kueue queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_since: Option<String>,
    /// Whether it was observed: an attempt that was observed and no longer exists was lost, one that never was is
    /// started.
    pub seen: bool,
    /// The task it belongs to: a phase, a trial of a search, the training and others. Retries are counted per task.
    #[serde(rename = "trial")]
    pub task: String,
    /// Its launches.
    pub launches: Vec<String>,
    /// Launches whose results are in this status.
    pub folded: Vec<String>,
    /// Newest checkpoint of the training when the attempt was started: it must find one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumes: Option<CheckpointStatus>,
    /// Limit with which its training was started, which discards the checkpoints with more items before its first step;
    /// absent without one, and once it has trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discards_after_items: Option<u64>,
    /// Reason for stopping it; absent unless it is being stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopCause>,
}

/// Reason for stopping an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StopCause {
    /// Its launches are no longer needed.
    NotWanted,
    /// Not all of its ranks started in time.
    SchedulingTimeout,
    /// Only some of its pods found free devices in time: they are released.
    Unschedulable,
    /// Its queue preempted it.
    Preempted,
    /// A rank was lost, and the others cannot continue without it.
    GangBroken,
}

/// For `skip_serializing_if`.
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// In what way a program ended by itself: failures are compared by it, not by their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Manner {
    /// Kind of its launch.
    pub kind: LaunchKind,
    /// Its outcome; `Done` when its report is no evidence.
    pub outcome: Outcome,
    /// Exit code of the rank that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// A failure of a program itself, with what distinguishes it from another, and how often it has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnFailure {
    /// Its launch.
    pub launch: String,
    /// Kind of its launch.
    pub kind: LaunchKind,
    /// Whether it was a launch of the settings accepted so far.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
    /// Its outcome.
    pub outcome: Outcome,
    /// Exit code of the rank that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal of the rank that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What that rank said, hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Number of times.
    pub count: u32,
}

impl OwnFailure {
    /// Whether this is the same failure, at another time. Checks are of one launch each; launches of a measurement
    /// differ by their pair.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self { launch, kind, control, outcome, exit_code, signal, fingerprint, count: _ } = other;
        let same = (self.kind, self.control, self.outcome) == (*kind, *control, *outcome);
        let alike = (self.exit_code, self.signal, self.fingerprint) == (*exit_code, *signal, *fingerprint);
        same && alike && (self.kind != LaunchKind::Preflight || self.launch == *launch)
    }
}

/// Infrastructure failures in the current task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryStatus {
    /// The task.
    #[serde(rename = "trial")]
    pub task: String,
    /// Outcome of the control launch, when the accepted settings failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_outcome: Option<Outcome>,
    /// Whether the failed settings are those of the baseline.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub baseline_failed: bool,
    /// Failures since the newest checkpoint.
    pub count: u32,
    /// Disruptions since then: they do not count.
    #[serde(skip_serializing_if = "is_zero")]
    pub disruptions: u32,
    /// In what way the newest failure's program ended; absent when no program ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manner: Option<Manner>,
    /// Failures in a row in which a program ended in the same way, while nothing has succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    pub repeated: u32,
    /// The newest failure of a program itself, and how often it has happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_failure: Option<OwnFailure>,
    /// Earliest time of the next attempt (back-off).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    /// The newest failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
