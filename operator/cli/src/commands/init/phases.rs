//! The phases that are proposed for scripts.

use super::quoted;
use serde_json::{Value, json};

/// Workers of the data loader in the phase `loader-workers`.
pub const MORE_WORKERS: u32 = 4;
/// Micro-batches of a step.
pub const ACCUMULATION: &str = "accumulationSteps";
/// Multiples of the batch of the baseline that are tried, where a step has one micro-batch. More need another learning
/// rate.
pub const MULTIPLES: [u32; 5] = [2, 3, 4, 6, 8];
/// Triggers of fallbacks with a smaller batch.
pub const LACKS_MEMORY: [&str; 2] = ["OutOfMemory", "HostOutOfMemory"];
/// As [`LACKS_MEMORY`], and a batch that fits but is too large to learn as well.
pub const TOO_LARGE: [&str; 4] = ["OutOfMemory", "HostOutOfMemory", "SpeedBelowThreshold", "QualityBelowThreshold"];
/// The settings of a phase and its fallbacks, at most.
const CHOICES: usize = 9;

/// A phase that scripts usually have an option for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// More workers of the data loader.
    LoaderWorkers,
    /// One kernel for the update of all parameters.
    FusedOptimizer,
    /// Attention that writes no matrix of weights.
    Attention,
    /// Products in bfloat16.
    Bf16,
    /// Fused kernels.
    Compile,
    /// Twice the batch.
    LargerBatch,
    /// The micro-batches of a step as one, of the same items.
    OneMicroBatch,
    /// Activations are computed again in the backward pass.
    GradientCheckpointing,
    /// Parameters are sharded.
    Fsdp,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 9] = [
        Self::LoaderWorkers,
        Self::FusedOptimizer,
        Self::Attention,
        Self::Bf16,
        Self::Compile,
        Self::LargerBatch,
        Self::OneMicroBatch,
        Self::GradientCheckpointing,
        Self::Fsdp,
    ];

    /// Its name in a manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoaderWorkers => "loader-workers",
            Self::FusedOptimizer => "fused-optimizer",
            Self::Attention => "attention",
            Self::Bf16 => "bf16",
            Self::Compile => "compile",
            Self::LargerBatch => "larger-batch",
            Self::OneMicroBatch => "one-micro-batch",
            Self::GradientCheckpointing => "gradient-checkpointing",
            Self::Fsdp => "fsdp",
        }
    }

    /// The setting that it changes.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::LoaderWorkers => "loaderWorkers",
            Self::FusedOptimizer => "optimizerKernel",
            Self::Attention => "attention",
            Self::Bf16 => "precision",
            Self::Compile => "compile",
            Self::LargerBatch => "batchPerGpu",
            Self::OneMicroBatch => ACCUMULATION,
            Self::GradientCheckpointing => "activationCheckpointing",
            Self::Fsdp => "sharding",
        }
    }

    /// Whether it changes the numerics: it is judged by the validation loss too.
    pub const fn is_changed(self) -> bool {
        match self {
            Self::Bf16 | Self::LargerBatch | Self::Fsdp => true,
            Self::LoaderWorkers
            | Self::FusedOptimizer
            | Self::Attention
            | Self::Compile
            | Self::OneMicroBatch
            | Self::GradientCheckpointing => false,
        }
    }

    /// Why it may help, or what it costs.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::LoaderWorkers => "Batches are loaded while the step before is computed.",
            Self::FusedOptimizer => "One kernel updates all parameters, instead of some for each.",
            Self::Attention => "Attention whose matrix of weights is never written to memory.",
            Self::Bf16 => "Half the bytes, and matrix products on tensor cores.",
            Self::Compile => "Fewer kernels, with less traffic between them.",
            Self::LargerBatch => "Fewer steps for the same items, each with more work for the device.",
            Self::OneMicroBatch => "A step has the same items in fewer and larger micro-batches: the largest that fit.",
            Self::GradientCheckpointing => {
                "Costs speed, saves memory: worth it only with a batch that needs the memory, in the same phase."
            }
            Self::Fsdp => "FSDP instead of data parallelism (DDP): saves memory, costs communication.",
        }
    }

    /// Its entry in `spec.phases` for a baseline with this batch and number of micro-batches, with a comment.
    pub fn entry(self, batch: u32, accumulation: u32, comment: &str) -> String {
        self.entry_of(self.choices(batch, accumulation), &LACKS_MEMORY, comment)
    }

    /// As [`Self::entry`], with these settings and then those of its fallbacks, which are tried when one of these
    /// triggers occurs.
    pub fn entry_of(self, choices: Vec<Value>, when: &[&str], comment: &str) -> String {
        let mut fields = vec![("name", json!(self.name()))];
        if self.is_changed() {
            fields.push(("numerics", json!("Changed")));
        }
        let mut choices = choices.into_iter();
        fields.push(("settings", choices.next().unwrap_or_default()));
        let fallbacks: Vec<Value> = choices.map(|settings| json!({"when": when, "settings": settings})).collect();
        if !fallbacks.is_empty() {
            fields.push(("fallbacks", Value::Array(fallbacks)));
        }
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
        format!("    # {comment}\n    - {{{}}}\n", fields.join(", "))
    }

    /// Its settings, and those that are tried where they do not fit.
    fn choices(self, batch: u32, accumulation: u32) -> Vec<Value> {
        match self {
            Self::LargerBatch => {
                let between = batch.saturating_add(batch / 2);
                let batches = [batch.saturating_mul(2), between];
                batches.into_iter().filter(|&more| more > batch).map(|more| json!({self.setting(): more})).collect()
            }
            Self::OneMicroBatch => {
                let fewer = (1..accumulation).filter(|fewer| accumulation.is_multiple_of(*fewer));
                let choice = |fewer: u32| {
                    let more = batch.saturating_mul(accumulation / fewer);
                    json!({ACCUMULATION: fewer, Self::LargerBatch.setting(): more})
                };
                fewer.map(choice).take(CHOICES).collect()
            }
            Self::LoaderWorkers => vec![json!({self.setting(): MORE_WORKERS})],
            Self::FusedOptimizer => vec![json!({self.setting(): "Fused"})],
            Self::Attention => vec![json!({self.setting(): "Flash"})],
            Self::Bf16 => vec![json!({self.setting(): "bf16"})],
            Self::Compile => vec![json!({self.setting(): "Fuse"})],
            Self::GradientCheckpointing | Self::Fsdp => vec![json!({self.setting(): "Full"})],
        }
    }
}

/// A value as YAML on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => match text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            true => text.clone(),
            false => quoted(text),
        },
        Value::Array(values) => format!("[{}]", values.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {}", flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
