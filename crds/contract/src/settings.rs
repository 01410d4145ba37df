//! The typed optimization settings: a baseline is a full set, a phase is a patch.

use crate::decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(inline))]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
    };
}

choices!(/// How the step is executed.
Compile {
    /// One library call per operation. (Not written `Off`: YAML 1.1, and with it kubectl, reads that as `false`.)
    #[default] None,
    /// Fused kernels, launched one by one.
    Fuse,
    /// Fused kernels over a static memory plan, launched as one graph.
    Graph,
});
choices!(/// How attention is computed.
Attention {
    /// Scores are materialized.
    #[default] Math,
    /// Scores are never materialized.
    Flash,
});
choices!(/// Optimizer kernel implementation.
OptimizerKernel {
    /// One update per tensor.
    #[default] PerTensor,
    /// One fused update over flat buffers that hold all tensors.
    Fused,
});
choices!(/// Where optimizer state lives.
OptimizerOffload {
    /// On the device.
    #[default] None,
    /// In host memory, copied asynchronously.
    Cpu,
});
choices!(/// Activations that are recomputed in the backward pass.
ActivationCheckpointing {
    /// No recomputation: all activations are kept.
    #[default] None,
    /// The attention and MLP sub-layers of each block, each recomputed on its own.
    Selective,
    /// Each block as a whole.
    Full,
});
choices!(/// State that is sharded over the ranks.
Sharding {
    /// Nothing: data parallel.
    #[default] None,
    /// Optimizer state.
    Zero1,
    /// Optimizer state and gradients.
    Zero2,
    /// Optimizer state, gradients and parameters.
    Full,
});
choices!(/// Quantization of frozen weights.
WeightQuantization {
    /// None.
    #[default] None,
    /// 8-bit integers.
    Int8,
});
choices!(/// Layout of image tensors.
MemoryFormat {
    /// NCHW.
    #[default] ChannelsFirst,
    /// NHWC.
    ChannelsLast,
});
choices!(/// When rotary tables are computed.
RopeCache {
    /// In every step.
    #[default] PerStep,
    /// Once.
    Cached,
});
choices!(/// Layout of the parameters that a workload can rearrange.
ParameterLayout {
    /// As published.
    #[default] Raw,
    /// As plain matrices.
    Linear,
});

/// Arithmetic of matrix products and activations; weights and statistics stay fp32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    Fp32,
    /// 32-bit floats, products in TensorFloat-32.
    Tf32,
    /// 16-bit floats with loss scaling.
    Fp16,
    /// bfloat16.
    Bf16,
    /// bfloat16, with products of linear layers in blocks over 8-bit floats.
    Fp8,
}

choices!(/// Which 8-bit floats share a scale, and from which values it is computed.
Float8Scaling {
    /// One scale a row of activations and gradients, and an output of a weight.
    #[default] Row,
    /// One an operand.
    Tensor,
    /// One an operand, from the 16 micro-steps before.
    Delayed,
});

/// 8-bit format of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum Float8Gradients {
    /// Finer.
    #[default]
    E4m3,
    /// A larger range.
    E5m2,
}

/// Sub-models excluded from `compile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompileScope {
    /// Scopes of the model, such as `decoder`, that run uncompiled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16), inner(length(max = 128))))]
    pub exclude: Vec<String>,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident : $type:ty),+ $(,)?) => {
        /// Settings, or a patch to settings: absent fields are left unchanged. A field that is absent everywhere has its default.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Settings {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<$type>,)+
        }

        impl Settings {
            /// These settings with `patch` applied. Maps (`nccl`, `workload`) are merged by key.
            ///
            /// ```
            /// use pawl_contract::settings::{Compile, Settings};
            ///
            /// let baseline = Settings { batch_per_gpu: Some(8), ..Settings::default() };
            /// let patch = Settings { compile: Some(Compile::Graph), ..Settings::default() };
            /// let settings = baseline.with(&patch);
            /// assert_eq!((settings.batch_per_gpu, settings.compile), (Some(8), Some(Compile::Graph)));
            /// ```
            pub fn with(&self, patch: &Self) -> Self {
                Self { $($field: Merge::merge(&self.$field, &patch.$field),)+ }
            }

            /// Names of all settings, as in a manifest.
            ///
            /// ```
            /// use pawl_contract::settings::Settings;
            ///
            /// assert!(Settings::names().any(|name| name == "batchPerGpu"));
            /// ```
            pub fn names() -> impl Iterator<Item = String> {
                [$(stringify!($field)),+].into_iter().map(camel_case)
            }
        }
    };
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &word[..1].to_uppercase() + &word[1..])
}

/// How one field of a patch changes one field of the settings.
trait Merge: Sized {
    fn merge(base: &Option<Self>, patch: &Option<Self>) -> Option<Self>;
}

macro_rules! replaced {
    ($($type:ty),+ $(,)?) => { $(impl Merge for $type {
        fn merge(base: &Option<Self>, patch: &Option<Self>) -> Option<Self> {
            patch.clone().or_else(|| base.clone())
        }
    })+ };
}
replaced!(
    Compile,
    CompileScope,
    Precision,
    Float8Scaling,
    Float8Gradients,
    Attention,
    OptimizerKernel,
    OptimizerOffload,
    ActivationCheckpointing,
    Sharding,
    WeightQuantization,
    MemoryFormat,
    RopeCache,
    ParameterLayout,
    Decimal,
    bool,
    u32,
);

/// NCCL environment variables by name.
pub type NcclVariables = BTreeMap<String, String>;
/// Settings specific to the workload.
pub type WorkloadSettings = serde_json::Map<String, Value>;

macro_rules! merged_by_key {
    ($($type:ty),+ $(,)?) => { $(impl Merge for $type {
        fn merge(base: &Option<Self>, patch: &Option<Self>) -> Option<Self> {
            let mut all = base.clone();
            if let Some(patch) = patch {
                all.get_or_insert_default().extend(patch.iter().map(|(k, v)| (k.clone(), v.clone())));
            }
            all
        }
    })+ };
}
merged_by_key!(NcclVariables, WorkloadSettings);

settings! {
    /// How the step is executed. Default `None`.
    compile: Compile,
    /// Sub-models excluded from `compile`.
    compile_scope: CompileScope,
    /// Arithmetic of matrix products and activations. Default `fp32`.
    precision: Precision,
    /// With `precision: fp8`: which numbers share a scale. Default `Row`.
    float8_scaling: Float8Scaling,
    /// With `precision: fp8`: format of gradients. Default `e4m3`.
    float8_gradients: Float8Gradients,
    /// How attention is computed. Default `Math`.
    attention: Attention,
    /// Optimizer kernel implementation. Default `PerTensor`.
    optimizer_kernel: OptimizerKernel,
    /// Where optimizer state lives. Default `None`.
    optimizer_offload: OptimizerOffload,
    /// Activations that are recomputed in the backward pass. Default `None`.
    activation_checkpointing: ActivationCheckpointing,
    /// States of which each rank holds a part only; needs several ranks. The built-in trainer's optimizer is then computed in shards, whatever
    /// `optimizerKernel`. Default `None`.
    sharding: Sharding,
    /// Items per rank and micro-step, at least 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1048576)))]
    batch_per_gpu: u32,
    /// Micro-steps per optimizer step, at least 1. Default 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65536)))]
    accumulation_steps: u32,
    /// Items per optimizer step over all ranks; must be divisible by batchPerGpu x ranks. Accumulation is derived from it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1073741824)))]
    global_batch: u32,
    /// Items per rank in evaluation. Default: `batchPerGpu`.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1048576)))]
    eval_batch: u32,
    /// Threads that prepare batches; 0 prepares them inside the step. Default 0.
    #[cfg_attr(feature = "schema", schemars(range(max = 256)))]
    loader_workers: u32,
    /// Batches that each worker prepares ahead, at least 1. Default 2.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 256)))]
    loader_prefetch: u32,
    /// Use page-locked (pinned) host memory for batches. Default false.
    loader_pinned: bool,
    /// Keep worker threads between epochs. Default false.
    loader_persistent: bool,
    /// Copy the next batch to the device while the current step runs. Default false.
    loader_async_copy: bool,
    /// Quantization of frozen weights. Default `None`.
    weight_quantization: WeightQuantization,
    /// Layout of image tensors. Default `ChannelsFirst`.
    memory_format: MemoryFormat,
    /// When rotary tables are computed. Default `PerStep`.
    rope_cache: RopeCache,
    /// Layout of the parameters that a workload can rearrange. Default `Raw`.
    parameter_layout: ParameterLayout,
    /// Compute auxiliary losses every n micro-steps, at least 1. Default 1.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65536)))]
    loss_frequency: u32,
    /// Query points of auxiliary losses.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1048576)))]
    query_samples: u32,
    /// Environment variables for NCCL, such as `NCCL_MIN_NCHANNELS`.
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 64)))]
    nccl: NcclVariables,
    /// Bitwise reproducible results. Default false.
    deterministic: bool,
    /// Maximum norm of the gradient, above 0; a larger gradient is scaled down. Default: no clipping.
    gradient_clip: Decimal,
    /// Learning rate, above 0. Default: the workload's.
    learning_rate: Decimal,
    /// Optimizer steps of linear learning-rate warm-up from 0. Default 0.
    #[cfg_attr(feature = "schema", schemars(range(max = 100000000)))]
    warmup_steps: u32,
    /// Decoupled weight decay, at least 0. Default: the workload's.
    weight_decay: Decimal,
    /// Decay of the exponential moving average of the weights, at least 0 and below 1. Default: the workload's.
    ema: Decimal,
    /// Settings specific to the workload; preflight validates them.
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 64, "x-kubernetes-preserve-unknown-fields" = true)))]
    workload: WorkloadSettings,
}

/// Error: `globalBatch` is not divisible by `batchPerGpu` x ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchMismatch {
    /// Requested items per optimizer step.
    pub global_batch: u32,
    /// `batchPerGpu`.
    pub batch_per_gpu: u32,
    /// Ranks in the gang.
    pub world_size: u32,
}

impl std::fmt::Display for BatchMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { global_batch, batch_per_gpu, world_size } = self;
        write!(
            f,
            "settings.globalBatch: {global_batch} is not a multiple of batchPerGpu x ranks = {batch_per_gpu} x \
             {world_size}: choose a multiple of {}",
            u64::from(*batch_per_gpu) * u64::from(*world_size)
        )
    }
}

impl std::error::Error for BatchMismatch {}

impl Settings {
    /// Items per rank and micro-step: `batchPerGpu`, by default 1.
    pub fn batch(&self) -> u32 {
        self.batch_per_gpu.unwrap_or(1)
    }

    /// Micro-steps per optimizer step for `world_size` ranks, derived from `globalBatch` when that is set.
    ///
    /// ```
    /// use pawl_contract::settings::Settings;
    ///
    /// let settings = Settings { batch_per_gpu: Some(8), global_batch: Some(96), ..Settings::default() };
    /// assert_eq!(settings.accumulation(4)?, 3);
    /// assert!(settings.accumulation(5).is_err());
    /// # Ok::<(), pawl_contract::settings::BatchMismatch>(())
    /// ```
    ///
    /// # Errors
    /// [`BatchMismatch`] when `globalBatch` is not divisible by `batchPerGpu` x `world_size`.
    pub fn accumulation(&self, world_size: u32) -> Result<u32, BatchMismatch> {
        let Some(global_batch) = self.global_batch else {
            return Ok(self.accumulation_steps.unwrap_or(1));
        };
        let micro = u64::from(self.batch()) * u64::from(world_size);
        if u64::from(global_batch) % micro != 0 {
            return Err(BatchMismatch { global_batch, batch_per_gpu: self.batch(), world_size });
        }
        Ok((u64::from(global_batch) / micro) as u32)
    }

    /// Steps whose batches the loaders of a rank prepare ahead, with so many micro-steps each.
    ///
    /// ```
    /// let settings = r#"{"batchPerGpu": 8, "loaderWorkers": 4, "loaderPrefetch": 3}"#;
    /// let settings: pawl_contract::settings::Settings = serde_json::from_str(settings)?;
    /// assert_eq!((settings.queue_steps(1), settings.queue_steps(5)), (12, 3));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn queue_steps(&self, accumulation: u32) -> u64 {
        let workers = self.loader_workers.unwrap_or(0);
        let batches = match self.loader_prefetch {
            Some(prefetch) => u64::from(workers.max(1)) * u64::from(prefetch),
            // The default of the contract.
            None => 2 * u64::from(workers),
        };
        batches.div_ceil(u64::from(accumulation.max(1)))
    }

    /// Items per optimizer step over all ranks.
    ///
    /// # Errors
    /// As [`Settings::accumulation`].
    pub fn items_per_step(&self, world_size: u32) -> Result<u64, BatchMismatch> {
        let accumulation = self.accumulation(world_size)?;
        Ok(u64::from(self.batch()) * u64::from(accumulation) * u64::from(world_size))
    }

    /// The values of all settings that are set, by dotted name such as `nccl.NCCL_ALGO`.
    ///
    /// ```
    /// use pawl_contract::settings::Settings;
    ///
    /// let settings: Settings = serde_json::from_str(r#"{"batchPerGpu": 8, "nccl": {"NCCL_ALGO": "Ring"}}"#)?;
    /// assert_eq!(settings.flat()["nccl.NCCL_ALGO"], "Ring");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn flat(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        if let Ok(Value::Object(fields)) = serde_json::to_value(self) {
            for (name, value) in fields {
                insert(&mut all, name, &value);
            }
        }
        all
    }
}

fn insert(all: &mut BTreeMap<String, String>, name: String, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                insert(all, format!("{name}.{key}"), value);
            }
        }
        Value::String(text) => {
            all.insert(name, text.clone());
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            all.insert(name, value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Settings {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_patch_touches_only_what_it_names() {
        let base = parse(r#"{"precision": "fp16", "batchPerGpu": 8, "nccl": {"NCCL_A": "1", "NCCL_B": "2"}}"#);
        let patched = base.with(&parse(r#"{"batchPerGpu": 16, "nccl": {"NCCL_B": "3"}}"#));
        let expected = r#"{"precision": "fp16", "batchPerGpu": 16, "nccl": {"NCCL_A": "1", "NCCL_B": "3"}}"#;
        assert_eq!(patched, parse(expected));
        assert_eq!(base.with(&Settings::default()), base);
    }

    #[test]
    fn accumulation_is_derived_exactly_or_refused() {
        let settings = parse(r#"{"batchPerGpu": 8, "globalBatch": 96, "accumulationSteps": 7}"#);
        assert_eq!(settings.accumulation(4), Ok(3));
        assert_eq!(settings.items_per_step(4), Ok(96));
        let message = settings.accumulation(5).unwrap_err().to_string();
        assert!(message.contains("globalBatch: 96") && message.contains("multiple of 40"), "{message}");
    }
}
