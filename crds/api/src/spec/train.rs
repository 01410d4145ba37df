//! The training that follows the phases: its length, checkpoints, guard, price and deadlines.

use super::decimal;
use crate::duration::Span;
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::{Better, Criterion, LOSS, ResumeFrom};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The training that follows the phases. Without `items` and `epochs` the job does not train.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Train {
    /// Items to train. At most one of `items` and `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000000000_u64))]
    pub items: Option<u64>,
    /// Epochs to train.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000))]
    pub epochs: Option<u32>,
    /// Items between evaluations. Default: an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000000000_u64))]
    pub eval_every: Option<u64>,
    /// Stop when a validation metric no longer improves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// When checkpoints are written, and where.
    pub checkpoint: Checkpoint,
    /// Start from a checkpoint of another job. Without it a job starts from its own checkpoints, or from the beginning.
    /// Workload, weights and frozen arrays must match; settings, seed and number of GPUs may differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeFrom>,
    /// What a change of the settings does to a training that has begun: of the baseline, of the accepted phases, or of
    /// the winner of a search. Default: one under way continues, and a finished one is left as it is while a new one
    /// begins. Another workload, command or seed always begins a new training, whose checkpoints are in a directory of
    /// their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_change: Option<OnChange>,
    /// Guard on throughput and quality during training.
    pub guard: Guard,
}

/// What a change of the settings does to a training that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnChange {
    /// It continues from its last checkpoint with the new settings; a finished one stays as it is.
    Continue,
    /// A new training begins; the checkpoints so far are kept.
    Restart,
}

/// End training when a validation metric stops improving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EarlyStopping {
    /// Name of the validation metric, such as `nrmse`. Default: `loss`.
    #[serde(default = "loss")]
    #[schemars(length(min = 1, max = 63))]
    pub metric: String,
    /// Which direction of the metric is an improvement.
    #[serde(default)]
    pub better: Better,
    /// Evaluations without improvement before the end.
    #[schemars(range(min = 1, max = 10000))]
    pub patience: u32,
    /// Minimum improvement, in the unit of the metric, at least 0. Default 0.
    #[serde(default = "zero")]
    pub min_delta: Decimal,
}

fn loss() -> String {
    LOSS.to_owned()
}

fn zero() -> Decimal {
    decimal("0")
}

/// When checkpoints are written, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Time between checkpoints, at least 1s.
    pub every: Span,
    /// Checkpoints kept.
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
    /// `pvc://claim/dir`, `s3://bucket/dir`, `gs://bucket/dir`, `az://container/dir` or `file:///dir`. Each job writes
    /// to NAMESPACE/NAME/UID there (`status.training.storage`). Default: the state directory (local), or the operator's
    /// default storage. `None`: on a cluster, the checkpoints are deleted with the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub storage: Option<String>,
    /// The metric that selects the best checkpoint, which is kept in addition to the newest ones. Default: the metric
    /// of `earlyStopping`, otherwise the validation loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Criterion>,
}

/// Value of [`Checkpoint::storage`] for a job whose checkpoints may be deleted with its pods.
pub const NO_STORAGE: &str = "None";

impl Train {
    /// Whether the job trains; without, it only judges phases or searches.
    pub fn is_asked_for(&self) -> bool {
        self.items.is_some() || self.epochs.is_some()
    }

    /// The field of the length of the training, and its value.
    pub fn length(&self) -> Option<(String, String)> {
        let items = self.items.map(|items| ("train.items".to_owned(), items.to_string()));
        items.or(self.epochs.map(|epochs| ("train.epochs".to_owned(), epochs.to_string())))
    }
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every: "10m".parse().expect("a literal of this file"), keep: 3, storage: None, best: None }
    }
}

/// Guard on throughput and quality during training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Guard {
    /// Whether the guard is enabled.
    pub enabled: bool,
    /// Relative loss of throughput, compared with the measurements, that is found after `windows` windows, above 0 and
    /// below 1. Half of it takes about three times as many; a fifth of it is tolerated.
    pub throughput_tolerance: Decimal,
    /// Windows after which a loss of `throughputTolerance` is found; more if the windows are noisy.
    #[schemars(range(min = 1, max = 1000))]
    pub windows: u32,
}

impl Default for Guard {
    fn default() -> Self {
        Self { enabled: true, throughput_tolerance: decimal("0.2"), windows: 5 }
    }
}

/// The price of the devices: at most one of `gpuHour` and `machineHour`. Without a price, only device hours are
/// reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cost {
    /// Price of one GPU for one hour, at least 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<Decimal>,
    /// Price of one machine (a replica with all its GPUs) for one hour, at least 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_hour: Option<Decimal>,
    /// Currency of the price.
    #[schemars(length(min = 1, max = 8))]
    pub currency: String,
}

impl Default for Cost {
    fn default() -> Self {
        Self { gpu_hour: None, machine_hour: None, currency: "USD".to_owned() }
    }
}

/// Deadlines and retry limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Lifecycle {
    /// The job fails if it has been active for longer than this, at least 1s. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline: Option<Span>,
    /// All pods of a gang must run within this time, at least 1s; otherwise the gang is deleted, its GPUs are released,
    /// and it is tried again. Time in which no pod finds free GPUs does not count.
    pub scheduling_timeout: Span,
    /// A rank that completes no step within this time, at least 1s, is considered hung.
    pub hang_timeout: Span,
    /// Time for a checkpoint between SIGTERM and SIGKILL of training, at least 1s. Default: 60s, or what the slowest
    /// checkpoint needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_grace: Option<Span>,
    /// Maximum number of infrastructure failures per phase or trial, and in training since the newest checkpoint.
    /// Preemptions, evictions, lost nodes, full storages and waiting for GPUs do not count. A program that ends with
    /// the same exit code three times in a row, before any launch of the job has succeeded, is not started again.
    #[schemars(range(max = 1000))]
    pub max_restarts: u32,
    /// The job is deleted this long after it finished. Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<Span>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        let span = |text: &str| text.parse().expect("a literal of this file");
        Self {
            active_deadline: None,
            scheduling_timeout: span("10m"),
            hang_timeout: span("5m"),
            checkpoint_grace: None,
            max_restarts: 10,
            ttl_after_finished: None,
        }
    }
}
