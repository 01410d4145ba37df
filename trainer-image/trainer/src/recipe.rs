//! Translates the contract's settings to the engine's recipe. Every setting takes effect here, in the loop or in the
//! workload (`tests/lint/settings` names one that doesn't), or is rejected with the reason: none is accepted and
//! ignored.

use crate::device::Place;
use crate::ending::Ending;
use pawl_contract::settings::{
    ActivationCheckpointing, Attention, Float8Gradients, Float8Scaling, OptimizerKernel, OptimizerOffload, Precision,
    Settings, Sharding,
};
use pawl_graph::graph::{DType, Op, Program};
use pawl_graph::optim;
use pawl_graph::passes::{Float8, Pattern, Scaling};
use pawl_graph::recipe::{
    AttentionKernel, LossScale, Precision as EnginePrecision, Recipe, Sharding as EngineSharding,
};
use pawl_lower::LowerOptions;
use pawl_workloads::{Job, Programs, Regions};
use std::collections::BTreeSet;

/// Rejects settings that neither this trainer at `place` nor the workload (which supports the settings in
/// `of_workload`) supports.
///
/// # Errors
/// [`Ending::Unsupported`] names the setting, the value, where it is supported, and the remedy.
pub fn check(settings: &Settings, place: Place, workload: &str, of_workload: &[&str]) -> Result<(), Ending> {
    at_place(settings, place)?;
    without_float8(settings)?;
    // Listed by a workload: without use in one that does not list it.
    let mut of_workloads = pawl_workloads::registry().iter().flat_map(|workload| workload.settings());
    match of_workloads.find(|name| !of_workload.contains(name) && is_asked(settings, name)) {
        Some(name) => Err(Ending::Unsupported(format!(
            "settings.{name}: not supported by workload {workload}: remove it; supported are {}",
            of_workload.join(", ")
        ))),
        None => Ok(()),
    }
}

/// Whether `settings` give the one called `name` a value other than its default.
fn is_asked(settings: &Settings, name: &str) -> bool {
    let given = serde_json::to_value(settings).ok().and_then(|all| all.get(name).cloned());
    given.is_some() && given != Settings::row(name).and_then(|row| row.default.clone())
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

/// The kernel of attention, of which the workload has to have some that it applies to.
fn attention(settings: &Settings, programs: &Programs) -> Result<AttentionKernel, Ending> {
    let attends = |program: &Program| {
        program.graph.nodes().iter().any(|node| matches!(node.op, Op::Attention(_) | Op::NormedAttention(_)))
    };
    match settings.attention() {
        Attention::Math => Ok(AttentionKernel::Math),
        Attention::Flash if programs.train.iter().any(attends) => Ok(AttentionKernel::Flash),
        Attention::Flash => {
            let problem = "settings.attention: Flash: this workload has no attention that it applies to: set Math";
            Err(Ending::Unsupported(problem.into()))
        }
    }
}

/// The regions that are recomputed in the backward pass, of which the workload has to mark some.
fn recomputed(settings: &Settings, regions: Regions) -> Result<&'static [&'static str], Ending> {
    let asked = settings.activation_checkpointing();
    let (marked, what) = match asked {
        ActivationCheckpointing::None => return Ok(&[]),
        ActivationCheckpointing::Selective => (regions.sublayers, "sublayers"),
        ActivationCheckpointing::Full => (regions.blocks, "blocks"),
    };
    if marked.is_empty() {
        return Err(Ending::Unsupported(format!(
            "settings.activationCheckpointing: {asked:?}: this workload marks no {what} that can be recomputed: set None"
        )));
    }
    Ok(marked)
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
    recipe.attention = attention(settings, job.programs())?;
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
    recipe.recompute = patterns(recomputed(settings, regions)?);
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

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_graph::graph::Builder;

    fn settings(text: &str) -> Settings {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_setting_of_other_workloads_is_refused_unless_it_has_its_default() {
        let check = |text: &str| check(&settings(text), Place::Cpu, "slm", &["ropeCache"]).map_err(|e| e.to_string());
        for text in [r#"{"ropeCache": "Cached"}"#, r#"{"lossFrequency": 1, "weightQuantization": "None"}"#] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for text in [r#"{"lossFrequency": 2}"#, r#"{"querySamples": 1}"#, r#"{"weightQuantization": "Int8"}"#] {
            assert!(check(text).unwrap_err().contains("not supported by workload slm"), "{text}");
        }
    }

    #[test]
    fn a_setting_without_use_in_the_model_is_refused() {
        let b = Builder::new("training");
        b.output("loss", b.scalar(1.0, DType::F32));
        let regions = Regions { float32: &[], float8: &[], blocks: &["blocks.*"], sublayers: &[], rematerialized: &[] };
        let programs = Programs { train: vec![b.finish().unwrap()], evaluation: Vec::new(), regions };
        assert!(attention(&settings("{}"), &programs).is_ok());
        let refused = attention(&settings(r#"{"attention": "Flash"}"#), &programs).unwrap_err();
        assert!(refused.to_string().contains("settings.attention: Flash"), "{refused}");
        let recomputed =
            |value: &str| recomputed(&settings(&format!(r#"{{"activationCheckpointing": "{value}"}}"#)), regions);
        assert_eq!(recomputed("Full").ok(), Some(regions.blocks));
        assert!(recomputed("Selective").unwrap_err().to_string().contains("marks no sublayers"));
    }
}
