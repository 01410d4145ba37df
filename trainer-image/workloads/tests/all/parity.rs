//! The losses equal those of the PyTorch reference program for its weights and its batches.
//!
//! `fixtures/parity.safetensors` was written once by the reference at a tiny size, every vector perturbed so that gains
//! and biases count: weights under their names here, five batches, the points and the value of its boundary loss, and
//! its losses.

use crate::differentiated::differentiated;
use pawl_contract::settings::Settings;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data, View};
use pawl_graph::executor::{ExecOptions, Executable, Executor};
use pawl_graph::graph::{DType, Program, Role};
use pawl_graph::recipe::Recipe;
use pawl_workloads::ups::config::{Config, Task};
use pawl_workloads::ups::encoder::{Encoder, Tiling};
use pawl_workloads::ups::programs::{Layout, Model};
use pawl_workloads::{Job, Request, workload};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use std::path::Path;

struct Fixture(Vec<u8>);

impl Fixture {
    fn load() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parity.safetensors");
        Self(std::fs::read(path).unwrap())
    }

    fn get(&self, name: &str) -> Array {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let view = tensors.tensor(name).unwrap();
        let values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        Array::new(view.shape().to_vec(), Data::F32(values)).unwrap()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.get(name).to_f64().iter().map(|&value| value as f32).collect()
    }
}

fn settings(auxiliary: &str) -> Map<String, Value> {
    let config = json!({
        "preset": "smoke",
        "advection": {"cells": 64, "frames": 5, "trajectories": 4},
        "darcy": {"grid": 16, "samples": 8},
        "operator": {"tokens": 16, "width": 16, "hidden": 32, "depth": 2, "heads": 2, "dropPath": 0.0},
        "decoder": {"hidden": 16, "heads": 2, "layers": 1},
        "pairs": 2,
        "loss": {"auxiliary": auxiliary},
    });
    config.as_object().unwrap().clone()
}

fn config(auxiliary: &str) -> Config {
    Config::parse(&settings(auxiliary), &Map::new()).unwrap()
}

fn job(auxiliary: &str) -> Box<dyn Job> {
    let settings_of = Settings { batch_per_gpu: Some(2), ..Default::default() };
    let request = Request { config: settings(auxiliary), settings: settings_of, seed: 0, rank: 0, world: 1 };
    workload("ups").unwrap().prepare(&request).unwrap()
}

fn program(fixture: &Fixture, config: &Config) -> Program {
    let encoders: Vec<_> = config
        .tasks
        .iter()
        .map(|&task| {
            let weight = |kind: &str| fixture.floats(&format!("encoder.{}.{kind}", task.name()));
            (task, Encoder::from_weights(Tiling::of(task, config), weight("weight"), weight("bias")))
        })
        .collect();
    let edge: Vec<[f32; 2]> = fixture.floats("edge.points").chunks_exact(2).map(|p| [p[0], p[1]]).collect();
    let layout = Layout { items: 1, pairs: 2, queries: 1024 };
    Model { config, layout, stream: DType::F32, encoders: &encoders, edge: &edge }.training(true).unwrap()
}

/// The inputs of `program` for batch `number`.
fn inputs(fixture: &Fixture, program: &Program, number: usize) -> Vec<Array> {
    let input = |name: &str| match name {
        // The reference does not ramp the weight up.
        "inverse_weight" => Array::scalar(0.01),
        "darcy2d.edge" => Array::scalar(fixture.floats("edge.value")[0]),
        "learning_rate" => Array::scalar(1.4e-3),
        name => fixture.get(&format!("batch.{number}.{name}")),
    };
    program.inputs.iter().map(|decl| input(&decl.name)).collect()
}

fn compiled(fixture: &Fixture, program: &Program) -> Box<dyn Executable> {
    let mut run = Eager::cpu().compile(std::slice::from_ref(program), &ExecOptions::default()).unwrap();
    for state in program.states.iter().filter(|s| matches!(s.role, Role::Parameter | Role::Frozen)) {
        run.write_state(&state.name, &fixture.get(&state.name)).unwrap();
    }
    run
}

fn run(executable: &mut dyn Executable, inputs: &[Array]) {
    let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
    executable.run(0, &views).unwrap();
}

#[test]
fn first_losses_and_gradients_equal_the_reference() {
    let fixture = Fixture::load();
    for (auxiliary, mode) in [("Live", "live"), ("Frozen", "frozen")] {
        let program = differentiated(program(&fixture, &config(auxiliary)));
        let mut executable = compiled(&fixture, &program);
        run(&mut *executable, &inputs(&fixture, &program, 0));
        for (at, output) in program.outputs.iter().enumerate() {
            let value = executable.output(0, at).unwrap();
            match output.name.as_str() {
                name @ ("loss" | "core") => {
                    let want = f64::from(fixture.floats(&format!("{mode}.{name}"))[0]);
                    assert!((value.item() / want - 1.0).abs() < 1e-5, "{mode} {name}: {} is not {want}", value.item());
                }
                name if name.starts_with("gradient.") => {
                    // The reference left each gradient's norm and its product with cos(0), cos(1), ...
                    let want = fixture.floats(&format!("{mode}.{name}"));
                    let values = value.to_f64();
                    let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
                    let product: f64 = values.iter().enumerate().map(|(i, v)| v * (i as f64).cos()).sum();
                    let scale = f64::from(want[0]);
                    assert!((norm - scale).abs() <= 1e-4 * scale + 1e-9, "{mode} {name}: {norm} is not {scale}");
                    assert!((product - f64::from(want[1])).abs() <= 1e-4 * scale + 1e-9, "{mode} {name}: {product}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn five_steps_of_muon_and_adamw_follow_the_reference() {
    let fixture = Fixture::load();
    for (auxiliary, mode) in [("Live", "live"), ("Frozen", "frozen")] {
        let job = job(auxiliary);
        let optimization = job.optimization();
        let recipe = Recipe { groups: optimization.groups.clone(), ..Recipe::new(optimization.optimizer.clone()) };
        let program = recipe.step(&program(&fixture, &config(auxiliary))).unwrap();
        let loss = program.outputs.iter().position(|output| output.name == "loss").unwrap();
        let mut executable = compiled(&fixture, &program);
        for (number, want) in fixture.floats(&format!("{mode}.loss")).into_iter().enumerate() {
            run(&mut *executable, &inputs(&fixture, &program, number));
            let got = executable.output(0, loss).unwrap().item();
            // Orthogonalisation is in bfloat16, whose rounding differs between libraries.
            let bound = if number == 0 { 1e-5 } else { 1e-3 };
            assert!((got / f64::from(want) - 1.0).abs() < bound, "{mode} step {number}: {got} is not {want}");
        }
    }
}

#[test]
fn encoded_fields_equal_the_reference() {
    let fixture = Fixture::load();
    let config = config("Live");
    for (task, first_row, cells) in [(Task::Advection1d, 0, 64), (Task::Darcy2d, 2, 256)] {
        let weight = |kind: &str| fixture.floats(&format!("encoder.{}.{kind}", task.name()));
        let encoder = Encoder::from_weights(Tiling::of(task, &config), weight("weight"), weight("bias"));
        let (fields, latents) =
            (fixture.floats(&format!("batch.0.{}.field", task.name())), fixture.floats("batch.0.z0"));
        for row in 0..2 {
            let mut latent = vec![0.0; 256];
            encoder.encode(&fields[row * cells..(row + 1) * cells], &mut Vec::new(), &mut latent);
            let want = &latents[(first_row + row) * 256..(first_row + row + 1) * 256];
            assert!(latent.iter().zip(want).all(|(got, want)| (got - want).abs() < 2e-6), "{task:?} row {row}");
        }
    }
}
