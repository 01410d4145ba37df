//! Translates the contract's settings to the engine's recipe. Every setting takes effect here, in the loop or in the
//! workload, or is rejected with the reason: none is accepted and ignored.

use crate::device::Place;
use crate::ending::Ending;
use pawl_contract::settings::{
    ActivationCheckpointing, Attention, Float8Gradients, Float8Scaling, MemoryFormat, OptimizerKernel,
    OptimizerOffload, ParameterLayout, Precision, RopeCache, Settings, Sharding, WeightQuantization,
};
use pawl_graph::graph::{DType, Program};
use pawl_graph::optim;
use pawl_graph::passes::{Float8, Pattern, Scaling};
use pawl_graph::recipe::{
    AttentionKernel, LossScale, Precision as EnginePrecision, Recipe, Sharding as EngineSharding,
};
use pawl_lower::LowerOptions;
use pawl_workloads::Job;
use std::collections::BTreeSet;

/// Rejects settings that neither this trainer at `place` nor the workload (which supports the settings in
/// `of_workload`) supports.
///
/// # Errors
/// [`Ending::Unsupported`] names the setting, the value, where it is supported, and the remedy.
pub fn check(settings: &Settings, place: Place, workload: &str, of_workload: &[&str]) -> Result<(), Ending> {
    // Destructured without `..`: a new setting must be handled here.
    let Settings {
        compile: _,
        compile_scope: _,
        precision: _,
        float8_scaling: _,
        float8_gradients: _,
        attention: _,
        optimizer_kernel: _,
        optimizer_offload: _,
        activation_checkpointing: _,
        sharding: _,
        batch_per_gpu: _,
        accumulation_steps: _,
        global_batch: _,
        eval_batch: _,
        loader_workers: _,
        loader_prefetch: _,
        loader_pinned: _,
        loader_persistent: _,
        loader_async_copy: _,
        weight_quantization,
        memory_format,
        rope_cache,
        parameter_layout,
        loss_frequency,
        query_samples,
        nccl: _,
        // On the CPU the order of sums is always fixed; on a GPU the executor is configured.
        deterministic: _,
        gradient_clip: _,
        learning_rate: _,
        warmup_steps: _,
        weight_decay,
        ema,
        workload: _,
    } = settings;
    at_place(settings, place)?;
    without_float8(settings)?;
    let has = |name: &str| of_workload.contains(&name);
    let unknown = [
        ("weightQuantization", *weight_quantization == Some(WeightQuantization::Int8)),
        ("memoryFormat", *memory_format == Some(MemoryFormat::ChannelsLast)),
        ("ropeCache", *rope_cache == Some(RopeCache::Cached)),
        ("parameterLayout", *parameter_layout == Some(ParameterLayout::Linear)),
        ("lossFrequency", loss_frequency.is_some_and(|every| every > 1)),
        ("querySamples", query_samples.is_some()),
        ("weightDecay", weight_decay.is_some()),
        ("ema", ema.is_some()),
    ];
    match unknown.into_iter().find(|(name, asked)| *asked && !has(name)) {
        Some((name, _)) => Err(Ending::Unsupported(format!(
            "settings.{name}: not supported by workload {workload}: remove it; supported are {}",
            of_workload.join(", ")
        ))),
        None => Ok(()),
    }
}

/// Rejects settings that need another device.
fn at_place(settings: &Settings, place: Place) -> Result<(), Ending> {
    match place {
        Place::Cpu => without_gpu(settings),
        #[cfg(feature = "candle-cuda")]
        Place::Cuda(_) | Place::AbsentGpu => with_candle(settings),
        #[cfg(not(feature = "candle-cuda"))]
        Place::Cuda(_) | Place::AbsentGpu => Ok(()),
    }
}

/// Rejects settings of 8-bit floats with any other precision.
fn without_float8(settings: &Settings) -> Result<(), Ending> {
    let given = [
        ("float8Scaling", settings.float8_scaling.is_some()),
        ("float8Gradients", settings.float8_gradients.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((name, _)) if settings.precision() != Precision::Fp8 => Err(Ending::Unsupported(format!(
            "settings.{name}: only 8-bit floats have it: set settings.precision: fp8 (a later phase names the one that does in requires), or \
             remove settings.{name}"
        ))),
        _ => Ok(()),
    }
}

/// Rejects settings that need a GPU.
fn without_gpu(settings: &Settings) -> Result<(), Ending> {
    let gpu = |setting: &str, value: &str, reason: &str| {
        Err(Ending::Unsupported(format!(
            "settings.{setting}: {value} needs a GPU: {reason}; run on GPUs, or remove it for the CPU"
        )))
    };
    if settings.precision() == Precision::Tf32 {
        return gpu("precision", "tf32", "TensorFloat-32 is a mode of NVIDIA's tensor cores");
    }
    if settings.optimizer_offload() == OptimizerOffload::Cpu {
        return gpu("optimizerOffload", "Cpu", "on the CPU the optimizer's state is in host memory already");
    }
    if settings.loader_pinned() {
        return gpu("loaderPinned", "true", "page-locked memory speeds up copies to a GPU");
    }
    if settings.loader_async_copy() {
        return gpu("loaderAsyncCopy", "true", "on the CPU batches are used in place");
    }
    match settings.nccl.iter().flatten().next() {
        Some((name, value)) => gpu(&format!("nccl.{name}"), value, "ranks on CPUs communicate over TCP, not NCCL"),
        None => Ok(()),
    }
}

/// Rejects scopes in `compileScope` that none of `programs` has.
///
/// # Errors
/// [`Ending::InvalidPlan`] names the scope, and those that there are.
pub fn check_scopes(settings: &Settings, programs: &[Program]) -> Result<(), Ending> {
    let excluded = settings.compile_scope.iter().flat_map(|scope| &scope.exclude);
    let paths = || programs.iter().flat_map(|program| program.graph.scopes()).filter(|path| !path.is_empty());
    let includes = |outer: &str, path: &str| {
        path.strip_prefix(outer).is_some_and(|inner| inner.is_empty() || inner.starts_with('/'))
    };
    let known = |scope: &str| scope == LowerOptions::EVERYTHING || paths().any(|path| includes(scope, path));
    match excluded.into_iter().find(|scope| !known(scope)) {
        Some(unknown) => {
            let outermost: BTreeSet<&str> = paths().filter_map(|path| path.split('/').next()).collect();
            let all = outermost.into_iter().collect::<Vec<_>>().join(", ");
            Err(Ending::InvalidPlan(format!(
                "settings.compileScope.exclude: {unknown} is not a scope of the model: choose from {all}, or a scope within one of them"
            )))
        }
        None => Ok(()),
    }
}

/// Rejects settings that Candle's kernels on a GPU do not have.
#[cfg(feature = "candle-cuda")]
fn with_candle(settings: &Settings) -> Result<(), Ending> {
    use pawl_contract::settings::Compile;
    let Settings {
        compile, precision, optimizer_offload, loader_pinned, loader_async_copy, deterministic, nccl, ..
    } = settings;
    let unsupported = [
        ("compile", compile.is_some_and(|compile| compile != Compile::None)),
        ("precision: tf32", *precision == Some(Precision::Tf32)),
        ("precision: fp8", *precision == Some(Precision::Fp8)),
        ("optimizerOffload", *optimizer_offload == Some(OptimizerOffload::Cpu)),
        ("loaderPinned", *loader_pinned == Some(true)),
        ("loaderAsyncCopy", *loader_async_copy == Some(true)),
        ("deterministic", *deterministic == Some(true)),
        ("nccl", nccl.as_ref().is_some_and(|variables| !variables.is_empty())),
    ];
    match unsupported.into_iter().find(|(_, given)| *given) {
        Some((setting, _)) => Err(Ending::Unsupported(format!(
            "settings.{setting}: not supported by Candle's kernels, with which this trainer is built (candle-cuda): remove it, or use \
             a trainer that is built with cuda"
        ))),
        None => Ok(()),
    }
}

/// What the ranks hold a part of.
fn sharding(sharding: Sharding, world_size: u32) -> Result<EngineSharding, Ending> {
    match sharding {
        Sharding::None => Ok(EngineSharding::None),
        sharding if world_size == 1 => Err(Ending::Unsupported(format!(
            "settings.sharding: {sharding:?} needs several ranks: one rank holds all states; use more GPUs, or remove it"
        ))),
        Sharding::Zero1 => Ok(EngineSharding::Zero1),
        Sharding::Zero2 => Ok(EngineSharding::Zero2),
        Sharding::Full => Ok(EngineSharding::Full),
    }
}

/// The recipe that trains `job` with `settings` on rank `rank` of `world_size`.
///
/// # Errors
/// When settings contradict each other.
pub fn recipe(settings: &Settings, job: &dyn Job, (rank, world_size): (u32, u32)) -> Result<Recipe, Ending> {
    let optimization = job.optimization();
    let regions = job.programs().regions;
    let patterns = |regions: &[&str]| regions.iter().map(|region| Pattern::new(region)).collect::<Vec<_>>();
    let accumulation = settings.accumulation(world_size).map_err(|e| Ending::InvalidPlan(e.to_string()))?;
    let clip = settings.gradient_clip.as_ref().map(|limit| limit.value());
    if let Some(limit) = clip.filter(|limit| *limit <= 0.0) {
        return Err(Ending::InvalidPlan(format!(
            "settings.gradientClip: {limit} must be above 0: remove it for no clipping"
        )));
    }
    let mut recipe = Recipe::new(optimization.optimizer.clone());
    recipe.attention = match settings.attention() {
        Attention::Math => AttentionKernel::Math,
        Attention::Flash => AttentionKernel::Flash,
    };
    (recipe.precision, recipe.loss_scale) = match settings.precision() {
        Precision::Fp32 | Precision::Tf32 => (EnginePrecision::F32, LossScale::None),
        Precision::Bf16 => (EnginePrecision::BF16, LossScale::None),
        Precision::Fp16 => (EnginePrecision::F16, LossScale::Dynamic),
        Precision::Fp8 if regions.float8.is_empty() => {
            let problem = "settings.precision: fp8: this workload marks no layers for 8-bit floats: set bf16";
            return Err(Ending::Unsupported(problem.into()));
        }
        Precision::Fp8 => (EnginePrecision::FP8, LossScale::None),
    };
    recipe.float8 = Float8 {
        scaling: match settings.float8_scaling() {
            Float8Scaling::Row => Scaling::Row,
            Float8Scaling::Tensor => Scaling::Tensor,
            Float8Scaling::Delayed => Scaling::Delayed,
        },
        gradients: match settings.float8_gradients() {
            Float8Gradients::E4m3 => DType::E4M3,
            Float8Gradients::E5m2 => DType::E5M2,
        },
    };
    recipe.skip_non_finite = optimization.skip_non_finite;
    recipe.float8_scopes = patterns(regions.float8);
    recipe.full_precision = patterns(regions.float32);
    recipe.recompute = match settings.activation_checkpointing() {
        ActivationCheckpointing::None => Vec::new(),
        ActivationCheckpointing::Selective => patterns(regions.sublayers),
        ActivationCheckpointing::Full => patterns(regions.blocks),
    };
    recipe.rematerialize = patterns(regions.rematerialized);
    recipe.kernel = match settings.optimizer_kernel() {
        OptimizerKernel::PerTensor => optim::OptimizerKernel::PerTensor,
        OptimizerKernel::Fused => optim::OptimizerKernel::Fused,
    };
    recipe.accumulation = accumulation as usize;
    (recipe.rank, recipe.world) = (rank as usize, world_size as usize);
    recipe.sharding = sharding(settings.sharding(), world_size)?;
    recipe.clip = clip.or(optimization.clip);
    recipe.average = optimization.average;
    recipe.groups = optimization.groups.clone();
    Ok(recipe)
}
