//! The typed optimization settings: a baseline is a full set, a phase is a patch.

mod choices;
#[cfg(feature = "schema")]
mod describe;
mod row;
mod table;

pub use choices::{
    ActivationCheckpointing, Attention, Compile, Float8Gradients, Float8Scaling, MemoryFormat, OptimizerKernel,
    OptimizerOffload, ParameterLayout, Precision, RopeCache, Sharding, WeightQuantization,
};
pub use row::{Kind, NcclVariables, Numerics, Range, Setting, WorkloadSettings};
pub use table::{CompileScope, Settings};

use serde_json::Value;
use std::collections::BTreeMap;

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
            return Ok(self.accumulation_steps());
        };
        let micro = u64::from(self.batch_per_gpu()) * u64::from(world_size);
        if u64::from(global_batch) % micro != 0 {
            return Err(BatchMismatch { global_batch, batch_per_gpu: self.batch_per_gpu(), world_size });
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
        // Without workers batches are prepared inside the step, unless a prefetch is given.
        let loaders = self.loader_workers().max(self.loader_prefetch.is_some().into());
        let batches = u64::from(loaders) * u64::from(self.loader_prefetch());
        batches.div_ceil(u64::from(accumulation.max(1)))
    }

    /// Items per optimizer step over all ranks.
    ///
    /// # Errors
    /// As [`Settings::accumulation`].
    pub fn items_per_step(&self, world_size: u32) -> Result<u64, BatchMismatch> {
        let accumulation = self.accumulation(world_size)?;
        Ok(u64::from(self.batch_per_gpu()) * u64::from(accumulation) * u64::from(world_size))
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
    use std::ops::{Bound, RangeBounds};

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

    #[test]
    fn a_number_has_a_range_and_a_decimal_number_an_example() {
        for Setting { name, kind, range, remedy, .. } in Settings::table() {
            assert_eq!(range.is_some(), matches!(kind, Kind::Integer | Kind::Decimal), "{name}: the range of its row");
            assert_eq!(remedy.is_some(), *kind == Kind::Decimal, "{name}: the remedy of its row");
            let excludes =
                range.is_some_and(|(low, high)| [low, high].iter().any(|end| matches!(end, Bound::Excluded(_))));
            assert!(
                !excludes || *kind == Kind::Decimal,
                "{name}: the schema of an integer includes the ends of its range"
            );
        }
    }

    #[test]
    fn a_default_is_what_a_manifest_may_say_and_is_in_the_range() {
        let defaults = Settings::of_defaults();
        assert_eq!(serde_json::from_value::<Settings>(serde_json::to_value(&defaults).unwrap()).unwrap(), defaults);
        for Setting { name, default, range, .. } in Settings::table() {
            let number = default.as_ref().and_then(Value::as_f64);
            let (Some(number), Some(range)) = (number, range) else { continue };
            assert!(range.contains(&number), "{name}: {number}");
        }
        assert_eq!(defaults.clone().without(&defaults, &[]), Settings::default());
        let left = parse(r#"{"compile": "Graph", "loaderPrefetch": 4}"#).without(&defaults, &["loaderPrefetch"]);
        assert_eq!(left, parse(r#"{"compile": "Graph"}"#));
    }
}
