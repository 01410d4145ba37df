//! The training steps that are measured, with their inputs and the peer's arguments.

use std::path::Path;

use anyhow::bail;
use pawl_contract::settings::Settings;
use pawl_graph::{
    array::{Array, Data},
    graph::{DType, InputDecl, Program},
    random,
    recipe::{AttentionKernel, Recipe},
};
use pawl_workloads::{At, Batch, Job, Request, Workload, ups::Ups, vision_bdh::VisionBdh};
use serde_json::{Map, Value, json};

use crate::UpsSmall;

/// A training step, ready to run.
pub struct Case {
    /// Name of the benchmark.
    pub name: &'static str,
    /// Its sizes, for the report.
    pub shape: Value,
    /// Forward, backward, update.
    pub program: Program,
    /// The program's inputs.
    pub inputs: Vec<Array>,
    /// The arguments with which the peer has the same shape; those for the number of steps are added.
    pub peer: Vec<String>,
}

/// One training step (forward, backward, update, average) of UPS with auxiliary losses, shaped by the arguments. The
/// peer runs in its baseline mode.
///
/// # Errors
/// When the workload refuses the arguments.
pub fn ups(args: &UpsSmall) -> anyhow::Result<Case> {
    if args.preset == "small" && args.run.torch.is_some() {
        bail!("the peer knows the presets smoke and medium: choose one of them to compare");
    }
    let mut config: Map<String, Value> = Map::new();
    config.insert("preset".into(), json!(args.preset));
    if let Some(pairs) = args.pairs {
        config.insert("pairs".into(), json!(pairs));
    }
    let settings: Settings = serde_json::from_value(json!({"batchPerGpu": args.items}))?;
    let program = ups_step(Value::Object(config), settings)?;
    let items = args.items.to_string();
    let mut peer = vec!["--mode", "baseline", "--preset", &args.preset, "--items", &items, "--accum", "1", "--no-eval"];
    let pairs = args.pairs.map(|pairs| pairs.to_string());
    peer.extend(pairs.iter().flat_map(|pairs| ["--pairs", pairs]));
    Ok(Case {
        name: "ups-small",
        shape: json!({"preset": args.preset, "items": args.items, "pairs": args.pairs}),
        inputs: inputs(&program)?,
        peer: peer.into_iter().map(str::to_owned).collect(),
        program,
    })
}

/// One training step of UPS with this configuration.
///
/// # Errors
/// When the workload refuses it.
pub fn ups_step(config: Value, settings: Settings) -> anyhow::Result<Program> {
    let config = config.as_object().cloned().unwrap_or_default();
    let job = Ups.prepare(&Request { config, settings, seed: 42, rank: 0, world: 1 })?;
    step(job.as_ref(), AttentionKernel::Flash, job.optimization().average.or(Some(0.999)))
}

/// One training step of Vision-BDH in float32, on its first batch. The peer runs in its optimised mode without mixed
/// precision: eager on a CPU, where `torch.compile` makes it slower.
///
/// # Errors
/// When the workload refuses the arguments.
pub fn vision_bdh(args: &crate::VisionBdh) -> anyhow::Result<Case> {
    let images = args.batch.max(1);
    let config = json!({"preset": args.preset, "data": {"training": images, "validation": 1, "test": 0}});
    let settings = json!({"batchPerGpu": images, "parameterLayout": "Linear", "ropeCache": "Cached"});
    let request = Request {
        config: config.as_object().cloned().unwrap_or_default(),
        settings: serde_json::from_value(settings)?,
        seed: 42,
        rank: 0,
        world: 1,
    };
    let job = VisionBdh.prepare(&request)?;
    let program = step(job.as_ref(), AttentionKernel::Math, None)?;
    let mut batch = Batch::default();
    job.open(Path::new("."), &|_, _, _| {})?.train(At { items: 0, micro: 0 }, &mut batch)?;
    batch.inputs.push(Array::scalar(job.optimization().learning_rate as f32));
    let batch_size = images.to_string();
    let peer =
        ["--mode", "optimised", "--amp", "none", "--preset", &args.preset, "--batch", &batch_size, "--accum", "1"];
    Ok(Case {
        name: "vision-bdh",
        shape: json!({"preset": args.preset, "batch": images}),
        inputs: batch.inputs,
        peer: peer.into_iter().chain(["--device", "cpu"]).map(str::to_owned).collect(),
        program,
    })
}

/// The job's training step.
fn step(job: &dyn Job, attention: AttentionKernel, average: Option<f64>) -> anyhow::Result<Program> {
    let optimization = job.optimization();
    let recipe = Recipe {
        attention,
        groups: optimization.groups.clone(),
        clip: optimization.clip,
        average,
        ..Recipe::new(optimization.optimizer.clone())
    };
    Ok(recipe.step(&job.programs().train[0])?)
}

/// Data like a batch's of UPS: floats uniform in [-1, 1), indices in range, scalars as in training.
///
/// # Errors
/// When an input is declared with an invalid shape.
pub fn inputs(program: &Program) -> anyhow::Result<Vec<Array>> {
    let draw = |decl: &InputDecl| {
        let stream = random::stream(1, &decl.name);
        let values = (0..decl.meta.shape.elements() as u64).map(|i| match (decl.name.as_str(), decl.meta.dtype) {
            ("learning_rate", _) => 1.4e-3,
            ("inverse_weight", _) => 0.01,
            (_, DType::U32) => (random::bits(stream, i) % 64) as f64,
            _ => 2.0 * random::uniform_f64(stream, i) - 1.0,
        });
        Ok(Array::new(&decl.meta.shape, Data::from_f64(decl.meta.dtype, values))?)
    };
    program.inputs.iter().map(draw).collect()
}
