//! The table of the settings: the one place that says of each its name, documentation, type, default, whether it
//! changes the numerics, and its range. All else is derived from a row: the fields of [`Settings`] and their defaults,
//! schema and validation rules, the reference, and the table of the Python package.

use super::choices::{
    ActivationCheckpointing, Attention, Compile, Float8Gradients, Float8Scaling, MemoryFormat, OptimizerKernel,
    OptimizerOffload, ParameterLayout, Precision, RopeCache, Sharding, WeightQuantization,
};
use super::row::{Kind, NcclVariables, Numerics, Setting, Typed, WorkloadSettings, camel_case, ends, value_or};
use crate::decimal::Decimal;
use serde::{Deserialize, Serialize};
use std::ops::Bound::{Excluded, Included};
use std::sync::LazyLock;

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

impl Typed for CompileScope {
    const KIND: Kind = Kind::Composite;
}

/// A row: `field: Type = default, Keeps or Changes, range, remedy;`. A setting without a default has the workload's or
/// the script's; a decimal number has a range and the remedy of an error.
macro_rules! settings {
    ($($(#[$meta:meta])* $field:ident : $type:ty $(= $default:expr)?, $numerics:ident
        $(, $range:expr $(, $remedy:literal)?)?;)+) => {
        /// Settings, or a patch to settings: absent fields are left unchanged. A field that is absent everywhere has
        /// its default.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[cfg_attr(feature = "schema", schemars(transform = described))]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct Settings {
            $($(#[$meta])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<$type>,)+
        }

        static TABLE: LazyLock<Vec<Setting>> = LazyLock::new(|| {
            vec![$(Setting {
                name: camel_case(stringify!($field)),
                kind: <$type as Typed>::KIND,
                default: optional!($(serde_json::to_value::<$type>($default).ok())?),
                numerics: Numerics::$numerics,
                range: optional!($(Some(ends(&$range)))?),
                remedy: optional!($($(Some($remedy))?)?),
            }),+]
        });

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
                Self { $($field: Typed::merge(&self.$field, &patch.$field),)+ }
            }

            /// These settings without those that have the value of `other`, and without those in `names`.
            pub(crate) fn without(self, other: &Self, names: &[&str]) -> Self {
                let is_named = |field| names.contains(&camel_case(field).as_str());
                Self { $($field: self.$field.filter(|value| {
                    !is_named(stringify!($field)) && other.$field.as_ref() != Some(value)
                }),)+ }
            }

            /// The defaults, all of them given.
            ///
            /// ```
            /// use pawl_contract::settings::{Compile, Settings};
            ///
            /// let defaults = Settings::of_defaults();
            /// assert_eq!((defaults.compile, defaults.loader_prefetch), (Some(Compile::None), Some(2)));
            /// assert_eq!(defaults.learning_rate, None, "that of the workload");
            /// ```
            pub fn of_defaults() -> Self {
                Self { $($field: optional!($(Some($default))?),)+ }
            }

            $($(
                #[doc = concat!("`", stringify!($field), "`, by default `", stringify!($default), "`.")]
                pub fn $field(&self) -> $type {
                    value_or(&self.$field, || $default)
                }
            )?)+
        }
    };
}

/// The schema of the settings with what their rows say.
#[cfg(feature = "schema")]
fn described(schema: &mut schemars::Schema) {
    super::describe::describe(&TABLE, schema);
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        $value
    };
}

impl Settings {
    /// What is known of each setting.
    ///
    /// ```
    /// use pawl_contract::settings::{Numerics, Settings};
    ///
    /// let changing = Settings::table().iter().filter(|row| row.numerics == Numerics::Changes);
    /// assert!(changing.clone().any(|row| row.name == "precision") && !changing.clone().any(|row| row.name == "compile"));
    /// ```
    pub fn table() -> &'static [Setting] {
        &TABLE
    }

    /// What is known of the setting of this name, as in a manifest.
    ///
    /// ```
    /// use pawl_contract::settings::Settings;
    ///
    /// let prefetch = Settings::row("loaderPrefetch").and_then(|row| row.default.clone());
    /// assert_eq!(prefetch, Some(2.into()));
    /// ```
    pub fn row(name: &str) -> Option<&'static Setting> {
        TABLE.iter().find(|row| row.name == name)
    }

    /// Names of all settings, as in a manifest.
    ///
    /// ```
    /// use pawl_contract::settings::Settings;
    ///
    /// assert!(Settings::names().any(|name| name == "batchPerGpu"));
    /// ```
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|row| row.name.as_str())
    }
}

settings! {
    /// How the step is executed.
    compile: Compile = Compile::None, Keeps;
    /// Sub-models excluded from `compile`.
    compile_scope: CompileScope = CompileScope::default(), Keeps;
    /// Arithmetic of matrix products and activations.
    precision: Precision = Precision::Fp32, Changes;
    /// With `precision: fp8`: which numbers share a scale.
    float8_scaling: Float8Scaling = Float8Scaling::Row, Changes;
    /// With `precision: fp8`: format of gradients.
    float8_gradients: Float8Gradients = Float8Gradients::E4m3, Changes;
    /// How attention is computed.
    attention: Attention = Attention::Math, Keeps;
    /// Optimizer kernel implementation.
    optimizer_kernel: OptimizerKernel = OptimizerKernel::PerTensor, Keeps;
    /// Where optimizer state lives.
    optimizer_offload: OptimizerOffload = OptimizerOffload::None, Keeps;
    /// Activations that are recomputed in the backward pass.
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing::None, Keeps;
    /// States of which each rank holds a part only; needs several ranks. The built-in trainer's optimizer is then
    /// computed in shards, whatever `optimizerKernel`.
    sharding: Sharding = Sharding::None, Keeps;
    /// Items per rank and micro-step.
    batch_per_gpu: u32 = 1, Keeps, 1..=1_048_576;
    /// Micro-steps per optimizer step.
    accumulation_steps: u32 = 1, Keeps, 1..=65_536;
    /// Items per optimizer step over all ranks; must be divisible by batchPerGpu x ranks. Accumulation is derived from
    /// it.
    global_batch: u32, Keeps, 1..=1_073_741_824;
    /// Items per rank in evaluation. Default: `batchPerGpu`.
    eval_batch: u32, Keeps, 1..=1_048_576;
    /// Threads that prepare batches; 0 prepares them inside the step.
    loader_workers: u32 = 0, Keeps, 0..=256;
    /// Batches that each worker prepares ahead.
    loader_prefetch: u32 = 2, Keeps, 1..=256;
    /// Use page-locked (pinned) host memory for batches.
    loader_pinned: bool = false, Keeps;
    /// Keep worker threads between epochs.
    loader_persistent: bool = false, Keeps;
    /// Copy the next batch to the device while the current step runs.
    loader_async_copy: bool = false, Keeps;
    /// Quantization of frozen weights.
    weight_quantization: WeightQuantization = WeightQuantization::None, Changes;
    /// Layout of image tensors.
    memory_format: MemoryFormat = MemoryFormat::ChannelsFirst, Keeps;
    /// When rotary tables are computed.
    rope_cache: RopeCache = RopeCache::PerStep, Keeps;
    /// Layout of the parameters that a workload can rearrange.
    parameter_layout: ParameterLayout = ParameterLayout::Raw, Keeps;
    /// Compute auxiliary losses every n micro-steps.
    loss_frequency: u32 = 1, Changes, 1..=65_536;
    /// Query points of auxiliary losses.
    query_samples: u32, Changes, 1..=1_048_576;
    /// Environment variables for NCCL, such as `NCCL_MIN_NCHANNELS`.
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 64)))]
    nccl: NcclVariables = NcclVariables::new(), Keeps;
    /// Bitwise reproducible results.
    deterministic: bool = false, Keeps;
    /// Maximum norm of the gradient; a larger gradient is scaled down. Default: no clipping.
    gradient_clip: Decimal, Changes, (Excluded(0.0), Included(1e30)), "write a norm such as \"1.0\", or leave it out for no clipping";
    /// Learning rate. Default: the workload's.
    // A smaller one is 0 in the arithmetic of GPUs.
    learning_rate: Decimal, Changes, 1e-30..=1e30, "write a rate such as \"1.4e-3\"";
    /// Optimizer steps of linear learning-rate warm-up from 0.
    warmup_steps: u32 = 0, Changes, 0..=100_000_000;
    /// Decoupled weight decay. Default: the workload's.
    weight_decay: Decimal, Changes, 0.0..=1000.0, "write a decay such as \"0.03\", or \"0\" for none";
    /// Decay of the exponential moving average of the weights. Default: the workload's.
    ema: Decimal, Changes, 0.0..1.0, "write a decay such as \"0.999\"";
    /// Settings specific to the workload; preflight validates them.
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = 64, "x-kubernetes-preserve-unknown-fields" = true)))]
    workload: WorkloadSettings = WorkloadSettings::new(), Keeps;
}
