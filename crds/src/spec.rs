//! What a user writes: the spec of a `TrainingJob`.

use crate::duration::Span;
use crate::quantity::Bytes;
use crate::status::TrainingJobStatus;
use k8s_openapi::api::core::v1::{
    Affinity, EnvVar, LocalObjectReference, ResourceRequirements, Toleration, TopologySpreadConstraint, Volume,
    VolumeMount,
};
use kube::CustomResource;
use pawl_contract::decimal::Decimal;
use pawl_contract::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A training job: what to train, a baseline, an ordered list of optimization phases, and gates. Pawl measures each
/// phase against the settings accepted so far, keeps or reverts it, then trains with what held.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "pawl.dev", version = "v1alpha1", kind = "TrainingJob", namespaced)]
#[kube(status = "TrainingJobStatus", shortname = "tj", plural = "trainingjobs")]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingJobSpec {
    /// Stop after a checkpoint and give all devices back, until set to false again.
    #[serde(default)]
    pub suspend: bool,
    /// What to train.
    pub workload: Workload,
    /// Where and how the trainer runs.
    #[serde(default)]
    pub trainer: Trainer,
    /// The baseline: every phase is judged on top of these settings.
    #[serde(default)]
    pub settings: Settings,
    /// Seeds of the launches. The quality gate needs several to know its noise.
    #[serde(default = "default_seeds")]
    pub seeds: Vec<u32>,
    /// Optimization phases, in the order in which they are tried. Names are unique.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// How phases are measured.
    #[serde(default)]
    pub analysis: Analysis,
    /// What must hold.
    #[serde(default)]
    pub gates: Gates,
    /// What happens when something does not hold.
    #[serde(default)]
    pub rollback: Rollback,
    /// Searches over hyperparameters, in order. Not available yet: declare none.
    #[serde(default)]
    pub search: Vec<Search>,
    /// The training that follows.
    #[serde(default)]
    pub train: Train,
    /// What a GPU hour costs.
    #[serde(default)]
    pub cost: Cost,
    /// Deadlines and budgets.
    #[serde(default)]
    pub lifecycle: Lifecycle,
}

fn default_seeds() -> Vec<u32> {
    vec![42, 43, 44]
}

/// What to train: a workload of the built-in trainer by name, or the command of a foreign image. Exactly one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Workload {
    /// Name of a built-in workload, such as `ups`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The workload's own configuration; preflight checks it.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Program of a foreign trainer that keeps the trainer contract.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Arguments of `command`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// Where and how the trainer runs. The world size is `replicas` times `gpusPerReplica` (at least 1 each).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trainer {
    /// Image of the trainer; default: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Pods in the gang.
    #[serde(default = "one")]
    pub replicas: u32,
    /// GPUs in each pod, one process each; 0: one process a pod, on the CPU.
    #[serde(default = "one")]
    pub gpus_per_replica: u32,
    /// The resource that the GPUs are.
    #[serde(default = "default_gpu_resource")]
    pub gpu_resource: String,
    /// What else the pods need.
    #[serde(default)]
    pub pod_template: PodTemplate,
}

fn one() -> u32 {
    1
}

fn default_gpu_resource() -> String {
    "nvidia.com/gpu".to_owned()
}

impl Default for Trainer {
    fn default() -> Self {
        Self {
            image: None,
            replicas: 1,
            gpus_per_replica: 1,
            gpu_resource: default_gpu_resource(),
            pod_template: PodTemplate::default(),
        }
    }
}

/// What the trainer's pods need besides GPUs: fields of a pod's spec, under their own names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodTemplate {
    /// Labels of the pods, such as those of a gang scheduler.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Node labels that the pods need.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Scheduling constraints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Spreading over failure domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Resources of the trainer's container, besides its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Environment of the trainer's container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Volumes of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Where the trainer's container mounts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Service account of the pods; its token is never mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Scheduler of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Runtime class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Size of `/dev/shm`. Default 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Bytes>,
}

/// One optimization phase: a patch to the settings, and how it is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Phase {
    /// Name, unique in the job: lower-case letters, digits and `-`.
    pub name: String,
    /// The speedup that is hoped for. Documentation and the waterfall; never a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_speedup: Option<Decimal>,
    /// The speedup that the lower confidence bound must clear. Default 1.02; 0.97 for an Enabler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_speedup: Option<Decimal>,
    /// Whether the phase changes the mathematics.
    #[serde(default)]
    pub numerics: Numerics,
    /// Whether the phase must be faster by itself.
    #[serde(default)]
    pub role: Role,
    /// Earlier phases without which this one is skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Phases with which this one does not go together: it is skipped when one of them is accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts_with: Vec<String>,
    /// The patch.
    #[serde(default)]
    pub settings: Settings,
    /// What to try instead when it fails, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<Fallback>,
    /// A person's word, which beats measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
}

/// Whether a phase changes the mathematics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Numerics {
    /// The same mathematics: the loss trajectory must agree.
    #[default]
    Equivalent,
    /// Other mathematics: the quality gate must be passed.
    Changed,
}

/// Whether a phase must be faster by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// It must be faster.
    #[default]
    Optimization,
    /// It may cost a little; it is kept only if a phase that requires it is accepted.
    Enabler,
}

/// A person's word on a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Pin {
    /// Keep it, unmeasured.
    Accepted,
    /// Leave it out, unmeasured.
    RolledBack,
    /// Measure and judge it, but do not keep it.
    DryRun,
}

/// A rung of a phase's ladder: a patch on top of the phase's, tried when one of `when` happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fallback {
    /// What it answers. (Not `on`: YAML 1.1, and with it kubectl, reads that key as `true`.)
    pub when: Vec<Trigger>,
    /// The patch.
    pub settings: Settings,
}

/// What a fallback answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Trigger {
    /// A device ran out of memory, or the memory plan predicts it.
    OutOfMemory,
    /// The host ran out of memory.
    HostOutOfMemory,
    /// A loss or gradient became NaN or infinite.
    NonFinite,
    /// The loss spiked.
    LossSpike,
    /// A rank made no progress.
    Hang,
    /// Steps wait for data.
    LoaderBound,
    /// The speedup is below `minSpeedup`.
    SpeedBelowThreshold,
    /// Validation is worse than the gate allows.
    QualityBelowThreshold,
    /// Peak or predicted memory is above `gates.gpuMemory`.
    MemoryAboveGate,
    /// Offloading costs more than `gates.maxOffloadOverhead`.
    OffloadOverhead,
    /// The trainer cannot do what the settings ask for.
    Unsupported,
}

/// How phases are measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Analysis {
    /// Steps before the window.
    pub warmup_steps: u32,
    /// Steps in the window.
    pub window_steps: u32,
    /// Pairs before the first look.
    pub min_pairs: u32,
    /// Pairs after which the verdict is Inconclusive. 1 to 7.
    pub max_pairs: u32,
    /// Error probability of a verdict in percent, shared by the looks.
    pub alpha_percent: Decimal,
    /// What an inconclusive phase becomes.
    pub on_inconclusive: OnInconclusive,
    /// Items that the quality gate trains.
    pub quality_items: u64,
    /// Whether the control launches of the phase before may be used again when the revision is the same.
    pub reuse_control: bool,
}

impl Default for Analysis {
    fn default() -> Self {
        Self {
            warmup_steps: 20,
            window_steps: 50,
            min_pairs: 3,
            max_pairs: 7,
            alpha_percent: decimal("5"),
            on_inconclusive: OnInconclusive::RollBack,
            quality_items: 200_000,
            reuse_control: false,
        }
    }
}

fn decimal(text: &str) -> Decimal {
    text.parse().expect("a literal of this file")
}

/// What an inconclusive phase becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnInconclusive {
    /// It is rolled back.
    #[default]
    RollBack,
    /// It is kept.
    Accept,
}

/// What must hold. What is absent is not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gates {
    /// Speedup of all accepted phases together over the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overall_speedup: Option<Decimal>,
    /// Largest increase of the validation loss over the original baseline, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss_delta: Option<Decimal>,
    /// Largest relative increase of validation metrics over the original baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validation_metrics: Vec<MetricGate>,
    /// Largest peak memory of a GPU (of a rank's tensors, on the CPU).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Bytes>,
    /// Least device utilization, 0 to 1. Below it, training is reported as Degraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_gpu_utilization: Option<Decimal>,
    /// Largest share of a step that optimizer offload may cost, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_offload_overhead: Option<Decimal>,
}

/// A bound on a validation metric for which smaller is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricGate {
    /// Name of the metric, such as `nrmse`.
    pub name: String,
    /// Largest relative increase over the original baseline, such as `"0.03"`.
    pub max_relative_increase: Decimal,
}

/// What happens when something does not hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rollback {
    /// What is reverted when training stops holding.
    pub scope: Scope,
    /// What happens when the accepted phases together miss a gate.
    pub on_goal_missed: OnGoalMissed,
}

/// What is reverted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// The responsible phase, and those that require it.
    #[default]
    Phase,
    /// The responsible phase and every phase accepted after it.
    Dependents,
    /// Every phase.
    All,
}

/// What happens when the accepted phases together miss a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnGoalMissed {
    /// Train with what was accepted, and say Degraded.
    #[default]
    KeepAccepted,
    /// Train with the baseline.
    RollBackAll,
    /// Stop and wait for a person.
    Pause,
}

/// A search over hyperparameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Search {
    /// Name, unique in the job.
    pub name: String,
    /// Number of trials.
    pub trials: u32,
    /// Epochs of a trial.
    pub epochs: u32,
    /// How the next trial is chosen.
    #[serde(default)]
    pub sampler: Sampler,
    /// When a trial is ended early.
    #[serde(default)]
    pub pruner: Pruner,
    /// What is optimized.
    pub objective: Objective,
    /// Trials at a time.
    #[serde(default = "one")]
    pub parallelism: u32,
    /// What is varied.
    pub parameters: Vec<Parameter>,
}

/// How the next trial of a search is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Sampler {
    /// Tree-structured Parzen estimator.
    #[default]
    TPE,
    /// Uniformly at random.
    Random,
    /// Every combination.
    Grid,
}

/// When a trial of a search is ended early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Pruner {
    /// Never.
    #[default]
    None,
    /// When it is worse than the median of its peers.
    Median,
    /// By successive halving over several brackets.
    Hyperband,
}

/// What a search optimizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Objective {
    /// Name of the validation metric.
    pub metric: String,
    /// Which way is better.
    pub goal: Goal,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Goal {
    /// Smaller is better.
    Minimize,
    /// Larger is better.
    Maximize,
}

/// A parameter of a search: a range (`min`, `max`, `scale`) or a list of `values`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameter {
    /// Name of a setting, or of a workload setting.
    pub name: String,
    /// Smallest value of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Decimal>,
    /// Largest value of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// How a range is sampled.
    #[serde(default)]
    pub scale: Scale,
    /// The values of a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a range is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// Evenly in the logarithm.
    Log,
}

/// The training that follows the phases. Without `items` and `epochs` there is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Train {
    /// Items to train. At most one of `items` and `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
    /// Epochs to train.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u32>,
    /// Items between evaluations. Default: an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_every: Option<u64>,
    /// End when validation stops improving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// When checkpoints are written, and where.
    pub checkpoint: Checkpoint,
    /// What is watched meanwhile.
    pub guard: Guard,
}

/// End training when the validation loss stops improving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EarlyStopping {
    /// Evaluations without improvement before the end.
    pub patience: u32,
    /// The least improvement that counts. Default 0.
    #[serde(default = "zero")]
    pub min_delta: Decimal,
}

fn zero() -> Decimal {
    decimal("0")
}

/// When checkpoints are written, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Time between checkpoints.
    pub every: Span,
    /// Checkpoints kept.
    pub keep: u32,
    /// `pvc://claim/dir`, `s3://bucket/dir`, `gs://bucket/dir` or `file:///dir`. Default: the state directory (local), or
    /// storage that lives as long as the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every: "10m".parse().expect("a literal of this file"), keep: 3, storage: None }
    }
}

/// What is watched during training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Guard {
    /// Whether training is watched at all.
    pub enabled: bool,
    /// Share of the promised throughput that may be missing.
    pub throughput_tolerance: Decimal,
    /// Consecutive slow windows before a phase is reverted.
    pub windows: u32,
}

impl Default for Guard {
    fn default() -> Self {
        Self { enabled: true, throughput_tolerance: decimal("0.2"), windows: 5 }
    }
}

/// What a GPU hour costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cost {
    /// Price of one GPU for one hour. Absent: costs are not counted, hours are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<Decimal>,
    /// Currency of the price.
    pub currency: String,
}

impl Default for Cost {
    fn default() -> Self {
        Self { gpu_hour: None, currency: "USD".to_owned() }
    }
}

/// Deadlines and budgets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Lifecycle {
    /// The job fails when it has been active for so long. Absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline: Option<Span>,
    /// All pods of a gang must run within this time, or all devices are given back.
    pub scheduling_timeout: Span,
    /// A rank without a step for this time hangs.
    pub hang_timeout: Span,
    /// Infrastructure failures that are survived: per trial, and in training.
    pub max_restarts: u32,
    /// The job is deleted so long after it finished. Absent: never.
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
            max_restarts: 10,
            ttl_after_finished: None,
        }
    }
}

impl Trainer {
    /// Ranks of one pod.
    pub fn ranks_per_replica(&self) -> u32 {
        self.gpus_per_replica.max(1)
    }

    /// Ranks of the gang.
    pub fn world_size(&self) -> u32 {
        self.replicas.saturating_mul(self.ranks_per_replica())
    }
}

impl Phase {
    /// The speedup that the lower bound must clear.
    pub fn min_speedup(&self) -> f64 {
        match (&self.min_speedup, self.role) {
            (Some(value), _) => value.value(),
            (None, Role::Optimization) => 1.02,
            (None, Role::Enabler) => 0.97,
        }
    }
}
