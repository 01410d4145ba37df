//! Reports: the outcome and the measurements of a launch.

mod termination;

use crate::CONTRACT_VERSION;
use crate::checkpoint::{BestCheckpoint, CheckpointRef, TrainedPart};
use crate::curve::{complete_quarters, quarters};
use crate::details::Details;
use crate::exit::Outcome;
use crate::fingerprint::Fingerprint;
use crate::measured::{Disturbance, Measured, rounded};
use crate::plan::{Evaluated, LaunchKind, LaunchPlan, MAX_LISTED};
use crate::provenance::{self, Provenance};
use serde::{Deserialize, Serialize};

pub use crate::text::{printable, truncated, unprintable};
pub use termination::{Folded, fold, is_folded, unfold};

/// Maximum length of the message of a [`LaunchResult`], bytes.
pub const MAX_MESSAGE: usize = 200;
/// Maximum length of a pod's termination message, bytes; Kubernetes truncates longer ones.
pub const MAX_TERMINATION_MESSAGE: usize = 4096;

/// A point of the training loss curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossPoint {
    /// Items seen by the whole gang.
    pub items: u64,
    /// Mean training loss since the previous point.
    pub loss: f64,
}

/// The rank and the step at which a launch failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Rank that failed first, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Optimizer steps done before the failure; after a divergence ([`Outcome::is_divergence`]), those at the last
    /// healthy loss.
    pub step: u64,
    /// Items that the whole gang had seen then; a checkpoint with more items may be damaged.
    pub items: u64,
}

/// The report of a rank, `report.json`. That of rank 0 is the report of the launch; those of other ranks contain only
/// the cause of their failure. Every number is finite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Contract version.
    pub contract: u32,
    /// Name of the launch.
    pub launch: String,
    /// Purpose of the launch.
    pub kind: LaunchKind,
    /// Rank that wrote this.
    pub rank: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Human-readable cause of a failure and its remedy. Empty after success.
    #[serde(default)]
    pub message: String,
    /// Measurements; the fields are inlined in the JSON.
    #[serde(flatten)]
    pub measured: Measured,
    /// Further measurements, for people.
    #[serde(default, skip_serializing_if = "Details::is_empty")]
    pub details: Details,
    /// What only the program knows of what it was measured with.
    #[serde(default, deserialize_with = "provenance::lenient", skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The training loss curve, at most 64 points, evenly spaced in items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossPoint>,
    /// The newest evaluations of the plan, the last one at the end of the launch (Search): amounts of training in
    /// epochs or items, each with the value of the metric, `null` if it is absent; also those before the checkpoint
    /// from which it resumed. Empty: the trainer does not list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<Evaluated>,
    /// Items of the complete measurement, if its time ended before them ([`crate::plan::WindowLimit`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_items: Option<u64>,
    /// Items of one epoch, when the training data are finite; also reported by a Preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_epoch: Option<u64>,
    /// As [`crate::progress::Progress::resumed_items`]. Set by the agent, from the last progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_items: Option<u64>,
    /// As [`crate::progress::Progress::trained`]. Set by the agent, from the last progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<TrainedPart>,
    /// As [`crate::progress::Progress::quarantined`]. Set by the agent, from the last progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<String>,
    /// Newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointRef>,
    /// Best complete checkpoint, by the plan's `checkpoint.best` (Train).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// As [`crate::progress::Progress::stop_seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<f64>,
    /// Where it failed; absent after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Number of the signal that ended the rank which failed first: somebody killed it, or it crashed. Set by the
    /// agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Exit code of the rank which failed first, unless a signal ended it. Set by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What the rank which failed first said, if its outcome is `Failed`. Set by the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
}

impl Report {
    /// A report of only the outcome of rank `rank`, without measurements.
    pub fn bare(plan: &LaunchPlan, rank: u32, outcome: Outcome) -> Self {
        Self {
            contract: CONTRACT_VERSION,
            launch: plan.launch.clone(),
            kind: plan.kind,
            rank,
            outcome,
            message: String::new(),
            measured: Measured::default(),
            details: Details::default(),
            provenance: None,
            losses: Vec::new(),
            evaluations: Vec::new(),
            planned_items: None,
            items_per_epoch: None,
            resumed_items: None,
            trained: Vec::new(),
            quarantined: Vec::new(),
            last_checkpoint: None,
            best_checkpoint: None,
            stop_seconds: None,
            failure: None,
            signal: None,
            exit_code: None,
            fingerprint: None,
        }
    }
}

/// The compact result of a finished launch, the input of decisions: at most about 500 bytes of JSON, with the chain of
/// a training about 2,000.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchResult {
    /// Name of the launch.
    pub launch: String,
    /// How it ended.
    pub outcome: Outcome,
    /// First [`MAX_MESSAGE`] bytes of the message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Measurements with six significant digits; the fields are inlined in the JSON.
    #[serde(flatten)]
    pub measured: Measured,
    /// Mean training loss of each quarter of the launch (Measure), with six significant digits: fewer if its time ended
    /// before its last step; empty without a curve whose points are at the same steps in every launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<f64>,
    /// As [`Report::evaluations`], with six significant digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<Evaluated>,
    /// Items of one epoch, when the training data are finite; also reported by a Preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_per_epoch: Option<u64>,
    /// As [`Report::resumed_items`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_items: Option<u64>,
    /// As [`Report::trained`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<TrainedPart>,
    /// As [`crate::progress::Progress::quarantined`]. Set by the agent, from the last progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<String>,
    /// Newest complete checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// Best complete checkpoint, by the plan's `checkpoint.best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// As [`crate::progress::Progress::stop_seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_seconds: Option<f64>,
    /// Items seen before the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at_items: Option<u64>,
    /// As [`Report::signal`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// As [`Report::exit_code`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// As [`Report::fingerprint`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
}

impl LaunchResult {
    /// A result of only the outcome, without measurements.
    pub fn bare(launch: &str, outcome: Outcome) -> Self {
        Self {
            launch: launch.to_owned(),
            outcome,
            message: String::new(),
            measured: Measured::default(),
            curve: Vec::new(),
            evaluations: Vec::new(),
            items_per_epoch: None,
            resumed_items: None,
            trained: Vec::new(),
            quarantined: Vec::new(),
            checkpoint: None,
            best_checkpoint: None,
            stop_seconds: None,
            failed_at_items: None,
            signal: None,
            exit_code: None,
            fingerprint: None,
        }
    }
}

impl From<&Report> for LaunchResult {
    fn from(report: &Report) -> Self {
        let mut measured = report.measured.rounded();
        let points: Vec<(u64, f64)> = report.losses.iter().map(|point| (point.items, point.loss)).collect();
        let mut curve = match report.planned_items {
            Some(planned) => complete_quarters(&points, planned),
            None => quarters(&points.iter().map(|(_, loss)| *loss).collect::<Vec<_>>()),
        };
        match measured.loss {
            None => measured = Measured { loss: curve.last().copied(), ..measured }.rounded(),
            // A trainer that reads losses at times reports the mean of all steps: its points are of other steps in each
            // launch.
            Some(_) => curve.clear(),
        }
        if report.kind != LaunchKind::Measure {
            curve.clear();
        }
        if report.kind != LaunchKind::Measure {
            measured.disturbance = Disturbance::default();
        }
        // Verdicts on quality need to know what was learnt.
        if !matches!(report.kind, LaunchKind::Train | LaunchKind::Quality) {
            (measured.first_validation, measured.initial_weights_share) = (None, None);
        }
        let older = report.evaluations.len().saturating_sub(MAX_LISTED);
        let evaluations =
            report.evaluations.iter().skip(older).map(|(amount, value)| (*amount, value.and_then(rounded)));
        Self {
            launch: report.launch.clone(),
            outcome: report.outcome,
            message: truncated(&report.message, MAX_MESSAGE).to_owned(),
            measured,
            curve: curve.into_iter().filter_map(rounded).collect(),
            evaluations: evaluations.collect(),
            items_per_epoch: report.items_per_epoch,
            resumed_items: report.resumed_items,
            trained: report.trained.clone(),
            quarantined: report.quarantined.clone(),
            checkpoint: report.last_checkpoint.clone(),
            best_checkpoint: report.best_checkpoint.clone(),
            stop_seconds: report.stop_seconds.and_then(rounded),
            failed_at_items: report.failure.as_ref().map(|f| f.items),
            signal: report.signal,
            exit_code: report.exit_code,
            fingerprint: report.fingerprint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_curve_is_that_of_measurements_whose_points_are_at_the_same_steps() {
        let losses: Vec<_> = (1..=8).map(|step| json!({"items": step, "loss": step})).collect();
        let result = |kind: &str, own_mean: Option<f64>| {
            let report = json!({"contract": 1, "launch": "l", "kind": kind, "rank": 0, "outcome": "Done", "loss": own_mean,
                "losses": losses});
            let result = LaunchResult::from(&serde_json::from_value::<Report>(report).unwrap());
            (result.measured.loss, result.curve)
        };
        assert_eq!(result("Measure", None), (Some(7.5), vec![1.5, 3.5, 5.5, 7.5]));
        assert_eq!(
            result("Measure", Some(4.5)),
            (Some(4.5), vec![]),
            "losses are read at times: of other steps in each launch"
        );
        assert_eq!(result("Quality", None), (Some(7.5), vec![]));
    }
}
