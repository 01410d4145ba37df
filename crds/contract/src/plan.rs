//! Plans: the launches of an attempt, and the parameters of one launch.
//!
//! ```
//! use pawl_contract::plan::{AttemptPlan, LaunchKind};
//!
//! // The plan of an attempt, as the operator writes it for the agent of each pod.
//! let plan: AttemptPlan = serde_json::from_value(serde_json::json!({
//!     "contract": 1, "job": "toy", "attempt": "toy-1", "stopOnFailure": true,
//!     "replicas": 2, "ranksPerReplica": 4, "gpusPerReplica": 4,
//!     "launches": [{
//!         "contract": 1, "job": "toy", "attempt": "toy-1", "launch": "compile-p0-a-0badcafe",
//!         "kind": "Measure", "workload": {"name": "ups"}, "settings": {"batchPerGpu": 8}, "seed": 42,
//!         "budget": {"warmupSteps": 20, "windowSteps": 50}, "hangTimeoutSeconds": 300.0,
//!     }],
//! }))?;
//! assert_eq!(plan.ranks(), 8);
//! assert_eq!(plan.launches[0].kind, LaunchKind::Measure);
//! # Ok::<(), serde_json::Error>(())
//! ```

mod evaluations;

use crate::checkpoint::CheckpointRef;
use crate::happened::Happened;
use crate::script::ScriptPlan;
use crate::settings::Settings;
use crate::steady::BLOCKS;
use serde::{Deserialize, Serialize};

pub use evaluations::{Evaluated, Evaluations, MAX_LISTED};

/// Purpose of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LaunchKind {
    /// Checks settings and predicts memory; runs no kernel.
    Preflight,
    /// Measures speed over a window of steps.
    Measure,
    /// Trains a number of items and evaluates, for the quality gate.
    Quality,
    /// One trial of a search.
    Search,
    /// Trains the model, with checkpoints.
    Train,
}

/// What to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPlan {
    /// Name of a built-in workload; `None` for a custom image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The workload's own configuration, checked by the workload.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// Length of a launch. Only the fields of its kind are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Steps before the window (Measure).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Steps in the window (Measure).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_steps: Option<u64>,
    /// When a measurement whose steps are slow ends before these numbers of them (Measure). Absent: as
    /// [`Budget::limit`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_limit: Option<WindowLimit>,
    /// Least seconds of the window (Measure): it is continued by whole steps until then. Absent: the steps alone
    /// determine it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_window_seconds: Option<f64>,
    /// Items to train (Quality, Search, Train), those before a resumed checkpoint included: the launch ends with the
    /// first step that reaches them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
    /// Epochs to train (Quality, Search, Train).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
    /// Items of a complete trial, when this launch ends before them (Search): schedules are those of the complete
    /// trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_items: Option<u64>,
    /// Epochs of a complete trial, when this launch ends before them (Search).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_epochs: Option<u32>,
    /// Items between evaluations (Train). A launch always evaluates at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_every_items: Option<u64>,
    /// Evaluations that the report lists (Search). A trainer older than this field evaluates at the end alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<Evaluations>,
    /// End early when validation stops improving (Train).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
}

/// The end of a measurement by time. The warm-up ends after `seconds`, and so does the window, but neither before its
/// least number of steps: fifty steps of two seconds say no more than a dozen of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowLimit {
    /// Seconds of the warm-up, and of the window.
    pub seconds: f64,
    /// Least number of steps of the warm-up.
    pub warmup_steps: u64,
    /// Least number of steps of the window.
    pub window_steps: u64,
}

impl Budget {
    /// When a measurement ends by time: as the plan says, or after 20 seconds and a quarter of the steps, but not
    /// before the ten steps of the window by which it is seen to be steady, nor before twice the steps that a loader
    /// prepares ahead.
    ///
    /// ```
    /// use pawl_contract::plan::{Budget, WindowLimit};
    ///
    /// let budget = Budget { warmup_steps: Some(20), window_steps: Some(50), ..Budget::default() };
    /// assert_eq!(budget.limit(0), Some(WindowLimit { seconds: 20.0, warmup_steps: 5, window_steps: 13 }));
    /// assert_eq!(budget.limit(8), Some(WindowLimit { seconds: 20.0, warmup_steps: 16, window_steps: 16 }));
    /// assert_eq!(Budget::default().limit(0), None);
    /// ```
    pub fn limit(&self, queue_steps: u64) -> Option<WindowLimit> {
        let window = self.window_steps?;
        let usual = || WindowLimit {
            seconds: WindowLimit::SECONDS,
            warmup_steps: self.warmup_steps.unwrap_or_default().div_ceil(4).max(2 * queue_steps),
            window_steps: window.div_ceil(4).max(BLOCKS as u64).max(2 * queue_steps).min(window),
        };
        Some(self.window_limit.unwrap_or_else(usual))
    }
}

impl LaunchPlan {
    /// When the launch, a measurement with so many micro-steps a step, ends by time.
    pub fn window_limit(&self, accumulation: u32) -> Option<WindowLimit> {
        self.budget.limit(self.settings.queue_steps(accumulation)).filter(|_| self.kind == LaunchKind::Measure)
    }
}

impl WindowLimit {
    /// Seconds where a plan names no limit.
    pub const SECONDS: f64 = 20.0;

    /// Whether a warm-up or a window of so many steps, of which at least `least` are needed, has lasted long enough.
    ///
    /// ```
    /// let limit = pawl_contract::plan::WindowLimit { seconds: 20.0, warmup_steps: 5, window_steps: 13 };
    /// assert!(limit.is_reached((13, 26.0), limit.window_steps));
    /// assert!(!limit.is_reached((10, 20.0), limit.window_steps) && !limit.is_reached((40, 8.0), limit.window_steps));
    /// ```
    pub fn is_reached(&self, (steps, seconds): (u64, f64), least: u64) -> bool {
        steps >= least && seconds >= self.seconds
    }
}

/// Seconds of a window whose GPU utilization is reported. The driver averages it over up to a second before each
/// reading, so that at most a tenth of the window is of what came before.
pub const UTILIZATION_SECONDS: u64 = 10;

/// The name of the validation loss among the metrics of an evaluation: every trainer reports it.
pub const LOSS: &str = "loss";

/// Which direction of a metric is an improvement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Better {
    /// Smaller values are better: a loss, an error.
    #[default]
    Smaller,
    /// Larger values are better: an accuracy, a correlation.
    Larger,
}

impl Better {
    /// Whether `value` is better than `reference` by more than `least`, in the unit of the metric; false when either is
    /// NaN.
    ///
    /// ```
    /// use pawl_contract::plan::Better;
    ///
    /// assert!(Better::Smaller.improves(0.8, 1.0, 0.1));
    /// assert!(!Better::Larger.improves(0.8, 1.0, 0.1));
    /// ```
    pub fn improves(self, value: f64, reference: f64, least: f64) -> bool {
        self.regression(value, reference) < -least
    }

    /// Difference by which `value` is worse than `reference`, in the unit of the metric; negative when it is better.
    pub fn regression(self, value: f64, reference: f64) -> f64 {
        match self {
            Self::Smaller => value - reference,
            Self::Larger => reference - value,
        }
    }
}

fn loss() -> String {
    LOSS.to_owned()
}

/// A validation metric and its direction. Default: the validation loss, smaller is better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Criterion {
    /// Name of the validation metric, such as `nrmse`.
    #[serde(default = "loss")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63)))]
    pub metric: String,
    /// Which direction is an improvement.
    #[serde(default)]
    pub better: Better,
}

impl Default for Criterion {
    fn default() -> Self {
        Self { metric: loss(), better: Better::Smaller }
    }
}

/// End training when a validation metric has not improved by more than `min_delta` for `patience` evaluations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EarlyStopping {
    /// The metric and its direction; its fields are inlined in the JSON.
    #[serde(flatten)]
    pub criterion: Criterion,
    /// Evaluations without improvement before the end.
    pub patience: u32,
    /// Minimum improvement, in the unit of the metric.
    pub min_delta: f64,
}

/// A checkpoint of another job from which training starts.
///
/// The workload, the names and shapes of its weights, and the frozen arrays (such as statistics of the data) must
/// match. Settings, seed, number of ranks and data order may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResumeFrom {
    /// The other job's checkpoints: `status.training.storage` of that job, or a path. Its newest complete checkpoint is
    /// used. Training never writes there.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub storage: String,
    /// Take only the weights: optimizer state, step and items start anew. Default: false, training continues at the
    /// checkpoint's step and items, which count towards `items` and `epochs`.
    #[serde(default)]
    pub weights_only: bool,
}

/// When a launch writes checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointPolicy {
    /// Seconds between checkpoints.
    pub every_seconds: f64,
    /// Complete checkpoints kept; older ones are deleted.
    pub keep: u32,
    /// Whether to start from the newest complete checkpoint, if any.
    pub resume: bool,
    /// Maximum number of items of a checkpoint to resume from: later ones may be damaged. The trainer deletes them
    /// before its first step (the agent moves those of a script that does not implement the contract aside); once it
    /// has trained, the plans of later attempts have no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_not_after_items: Option<u64>,
    /// The newest checkpoint that the job is known to have written. A trainer that finds no checkpoint at all although
    /// one is expected ends with [`crate::exit::Outcome::CheckpointUnreadable`]: the storage was emptied, or is another
    /// one. It begins anew if this one, or one written after it, is or was after the last good position, and none
    /// before that is left. The agent does so for a script that does not implement the contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<CheckpointRef>,
    /// Instead of `expected`, the newest checkpoint that the job is known to have written if that is after
    /// `resume_not_after_items`. Nothing of it may be resumed, but a storage in which neither it, nor a later one, nor
    /// a note of its deletion is left was emptied, or is another one: the same error. Trainers older than this field
    /// begin anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_after_limit: Option<CheckpointRef>,
    /// Where a job that has no checkpoint of its own starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeFrom>,
    /// Criterion of the best checkpoint, applied to the evaluation at the same number of items. A trainer keeps it in
    /// addition to the newest `keep`, and reports it as [`crate::report::Report::best_checkpoint`].
    #[serde(default)]
    pub best: Criterion,
    /// Directory in the storage, for a trial of a search: the agent sets the storage of the ranks to it. Absent: the
    /// storage itself, which holds the checkpoints of the training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
}

impl CheckpointPolicy {
    /// Names the newest checkpoint that the job is known to have written, as good or as after the limit.
    #[must_use]
    pub fn expecting(self, known: Option<CheckpointRef>) -> Self {
        let limit = self.resume_not_after_items;
        let (expected, expected_after_limit) = match known {
            Some(known) if limit.is_some_and(|limit| known.items > limit) => (None, Some(known)),
            good => (good, None),
        };
        Self { expected, expected_after_limit, ..self }
    }

    /// The newest checkpoint that the job is known to have written, good or not.
    pub fn known(&self) -> Option<&CheckpointRef> {
        self.expected.as_ref().or(self.expected_after_limit.as_ref())
    }
}

/// One launch: new processes on every rank, one seed, no state of earlier launches. Serialized as `plan.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchPlan {
    /// Contract version.
    pub contract: u32,
    /// Name of the job.
    pub job: String,
    /// Name of the attempt.
    pub attempt: String,
    /// Name of the launch, unique within the job and deterministic.
    pub launch: String,
    /// Human-readable title, such as `compile: pair 2 of 3, control`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Purpose of the launch.
    pub kind: LaunchKind,
    /// What to train.
    pub workload: WorkloadPlan,
    /// The settings: the baseline with every applicable patch.
    pub settings: Settings,
    /// Seed of weights and data order.
    pub seed: u64,
    /// Length of the launch.
    pub budget: Budget,
    /// Checkpoint policy, for [`LaunchKind::Train`], and for a [`LaunchKind::Search`] that may be continued later. In a
    /// [`LaunchKind::Preflight`]: that of the training which will follow; the trainer proves that it can write, read,
    /// list and delete in the storage, and ends with [`crate::exit::Outcome::CheckpointUnreadable`] if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointPolicy>,
    /// Seconds without a completed step after which a rank is considered hung.
    pub hang_timeout_seconds: f64,
}

impl LaunchPlan {
    /// The title for display: [`Self::title`], or the name of the launch where that is empty.
    pub fn display_title(&self) -> &str {
        if self.title.is_empty() { &self.launch } else { &self.title }
    }
}

/// An attempt: one gang that runs launches in order on the same devices, then ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptPlan {
    /// Contract version.
    pub contract: u32,
    /// Name of the job.
    pub job: String,
    /// `<job>-<attempt number>`.
    pub attempt: String,
    /// Agents in the gang.
    pub replicas: u32,
    /// Ranks per agent.
    pub ranks_per_replica: u32,
    /// GPUs per agent; 0 when the ranks run on the CPU.
    pub gpus_per_replica: u32,
    /// The gang for which a preflight attempt checks the settings, when it differs from the gang of this attempt: one
    /// rank without a GPU checks the settings of the whole gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<GangSize>,
    /// Program and arguments of a rank, with placeholders ([`crate::template`]); empty: the built-in trainer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// How the command is run, beyond the contract.
    #[serde(default, skip_serializing_if = "ScriptPlan::is_default")]
    pub script: ScriptPlan,
    /// Timeout of the rendezvous of all agents in seconds, from the start of each agent; absent: the agent's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gather_seconds: Option<f64>,
    /// The launches, in order.
    pub launches: Vec<LaunchPlan>,
    /// Whether the attempt ends after the first launch whose outcome is not [`crate::exit::Outcome::Done`].
    pub stop_on_failure: bool,
    /// What happened to the job lately, for its records: the operator has no other way to its storage. No part of what
    /// is run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Happened>,
}

impl AttemptPlan {
    /// Number of ranks of this attempt.
    pub fn ranks(&self) -> u32 {
        self.replicas * self.ranks_per_replica
    }

    /// World size that each rank uses: that of [`Self::checks`] in a preflight, otherwise the number of ranks of this
    /// attempt.
    pub fn world_size(&self) -> u32 {
        self.checks.map_or_else(|| self.ranks(), |gang| gang.replicas * gang.ranks_per_replica)
    }

    /// Whether it does more than check settings.
    pub fn measures(&self) -> bool {
        self.launches.iter().any(|launch| launch.kind != LaunchKind::Preflight)
    }
}

/// Size of a gang: agents, ranks and GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GangSize {
    /// Agents.
    pub replicas: u32,
    /// Ranks per agent.
    pub ranks_per_replica: u32,
    /// GPUs per agent; 0 when the ranks run on the CPU.
    pub gpus_per_replica: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn early_stopping_and_the_best_checkpoint_are_about_the_loss_unless_a_metric_is_named() {
        let read = |value| serde_json::from_value::<EarlyStopping>(value).unwrap();
        let by_loss = read(json!({"patience": 2, "minDelta": 0.01}));
        assert_eq!(by_loss.criterion, Criterion { metric: "loss".to_owned(), better: Better::Smaller });
        let written = json!({"metric": "rankIC", "better": "Larger", "patience": 2, "minDelta": 0.01});
        assert_eq!(serde_json::to_value(read(written.clone())).unwrap(), written);

        let policy = json!({"everySeconds": 60.0, "keep": 3, "resume": true});
        let policy: CheckpointPolicy = serde_json::from_value(policy).unwrap();
        assert_eq!(policy.best, Criterion::default());
        assert_eq!(serde_json::to_value(&policy).unwrap()["best"], json!({"metric": "loss", "better": "Smaller"}));
    }

    #[test]
    fn an_improvement_has_a_direction_and_a_least_size() {
        for (better, value, improves) in [
            (Better::Smaller, 0.8, true),
            (Better::Smaller, 0.95, false),
            (Better::Smaller, 1.2, false),
            (Better::Larger, 1.2, true),
            (Better::Larger, 1.05, false),
            (Better::Larger, f64::NAN, false),
        ] {
            assert_eq!(better.improves(value, 1.0, 0.1), improves, "{better} {value}");
        }
    }
}
