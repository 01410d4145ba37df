//! UPS as the trainer runs it: data, loader, programs, optimiser and evaluation together.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, View};
use pawl_graph::executor::{ExecOptions, Executable, Executor};
use pawl_graph::graph::Program;
use pawl_graph::recipe::Recipe;
use pawl_workloads::{Data, Job, Loader, Request, Schedule, workload};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const BATCH: u32 = 4;

struct CompiledUps {
    job: Box<dyn Job>,
    data: Arc<dyn Data>,
    programs: Vec<Program>,
    executable: Box<dyn Executable>,
    _directory: tempfile::TempDir,
}

/// Places of the compiled programs: training variants (auxiliary, plain), their two updates, then the evaluations.
const UPDATE: usize = 2;
const EVALUATION: usize = 4;

impl CompiledUps {
    fn new(executor: &dyn Executor, config: Value) -> Self {
        let settings = Settings {
            batch_per_gpu: Some(BATCH),
            loss_frequency: Some(2),
            query_samples: Some(64),
            ..Default::default()
        };
        let settings = Settings { ema: Some("0.9".parse().unwrap()), ..settings };
        let config = config.as_object().unwrap().clone();
        let request = Request { config, settings, seed: 42, rank: 0, world: 1 };
        let job = workload("ups").unwrap().prepare(&request).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let data = job.open(directory.path(), &|_, _, _| {}).unwrap();
        let optimization = job.optimization();
        let recipe = Recipe {
            groups: optimization.groups.clone(),
            average: optimization.average,
            ..Recipe::new(optimization.optimizer.clone())
        };
        let [auxiliary, plain] = &job.programs().train[..] else { panic!("two variants") };
        let mut programs = vec![
            recipe.micro_step(auxiliary).unwrap(),
            recipe.micro_step(plain).unwrap(),
            recipe.apply(&[auxiliary, plain]).unwrap(),
            recipe.apply(&[plain]).unwrap(),
        ];
        programs.extend(job.programs().evaluation.iter().map(|program| recipe.evaluate(program, true).unwrap()));
        let executable = executor.compile(&programs, &ExecOptions { seed: 42, ..Default::default() }).unwrap();
        Self { job, data, programs, executable, _directory: directory }
    }

    fn run(&mut self, program: usize, inputs: &[Array]) {
        let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
        self.executable.run(program, &views).unwrap();
    }

    fn output(&mut self, program: usize, name: &str) -> f64 {
        let at = self.programs[program].outputs.iter().position(|output| output.name == name).unwrap();
        self.executable.output(program, at).unwrap().item()
    }

    /// Trains; gives the core loss of every step.
    fn train(&mut self, steps: usize) -> Vec<f64> {
        let rate = [Array::scalar(self.job.optimization().learning_rate as f32)];
        let schedule = Schedule::new(0, u64::from(BATCH), 1);
        let mut loader = Loader::new(Arc::clone(&self.data), schedule.clone().take(steps), 1, 2);
        schedule
            .take(steps)
            .map(|at| {
                let batch = loader.next_batch().unwrap().unwrap();
                let variant = batch.program;
                assert_eq!(variant, self.job.variant(at));
                self.run(variant, &batch.inputs);
                self.run(UPDATE + variant, &rate);
                loader.recycle(batch);
                self.output(variant, "core")
            })
            .collect()
    }

    fn evaluate(&mut self) -> BTreeMap<String, f64> {
        let mut sums = vec![0.0; self.data.sums()];
        for index in 0..self.data.evaluations() {
            let batch = self.data.evaluation(index).unwrap();
            let program = EVALUATION + batch.program;
            self.run(program, &batch.inputs);
            let count = self.programs[program].outputs.len();
            let outputs: Vec<Array> = (0..count).map(|at| self.executable.output(program, at).unwrap()).collect();
            self.data.add(index, &outputs, &mut sums);
        }
        self.data.metrics(&sums)
    }

    fn state(&mut self, name: &str) -> Array {
        self.executable.read_state(name).unwrap()
    }
}

#[test]
fn training_learns() {
    let mut compiled = CompiledUps::new(&GraphCpu::default(), json!({"preset": "smoke"}));
    let first = compiled.evaluate();
    let losses = compiled.train(120);
    let last = compiled.evaluate();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (begin, end) = (mean(&losses[..4]), mean(&losses[116..]));
    assert!(end < 0.5 * begin, "the core loss went from {begin} to {end}");
    for metric in ["loss", "nrmse", "nrmse_advection1d", "nrmse_darcy2d"] {
        assert!(last[metric] < first[metric], "{metric} went from {} to {}", first[metric], last[metric]);
    }
    for metric in ["physical_nrmse_advection1d", "physical_nrmse_darcy2d"] {
        assert!(last[metric].is_finite() && last[metric] > 0.0, "{metric}");
    }
}

#[test]
fn the_decoder_rests_on_steps_without_auxiliary_losses() {
    let mut compiled = CompiledUps::new(&GraphCpu::default(), json!({"preset": "smoke"}));
    let names = ["decoder.h1.weight", "decoder.h1.bias", "operator.inp.weight"];
    let mut before = names.map(|name| compiled.state(name));
    let moved: Vec<[bool; 3]> = (0..4)
        .map(|step| {
            let schedule = Schedule::new(step * u64::from(BATCH), u64::from(BATCH), 1).take(1);
            let mut loader = Loader::new(Arc::clone(&compiled.data), schedule, 0, 1);
            let batch = loader.next_batch().unwrap().unwrap();
            compiled.run(batch.program, &batch.inputs);
            compiled.run(UPDATE + batch.program, &[Array::scalar(1e-3)]);
            let after = names.map(|name| compiled.state(name));
            let moved = [0, 1, 2].map(|i| after[i] != before[i]);
            before = after;
            moved
        })
        .collect();
    assert_eq!(moved, [[true, true, true], [false, false, true], [true, true, true], [false, false, true]]);
}

#[test]
fn executors_agree() {
    let config = json!({
        "preset": "smoke",
        "advection": {"cells": 64, "frames": 5, "trajectories": 4},
        "darcy": {"grid": 16, "samples": 8},
        "operator": {"tokens": 16, "width": 16, "hidden": 32, "depth": 2, "heads": 2, "dropPath": 0.4},
        "decoder": {"hidden": 16},
        "pairs": 2,
    });
    let mut losses = [&Eager::cpu() as &dyn Executor, &GraphCpu::default()].map(|executor| {
        let mut compiled = CompiledUps::new(executor, config.clone());
        (compiled.train(6), compiled.evaluate())
    });
    let (graph, eager) = (losses[1].clone(), &mut losses[0]);
    assert!((graph.0[0] / eager.0[0] - 1.0).abs() < 1e-5, "{} is not {}", graph.0[0], eager.0[0]);
    // Later steps inherit the rounding of bfloat16 iterations.
    for (graph, eager) in graph.0.iter().zip(&eager.0) {
        assert!((graph / eager - 1.0).abs() < 5e-3, "{graph} is not {eager}");
    }
    for (name, value) in &eager.1 {
        assert!((graph.1[name] / value - 1.0).abs() < 5e-3, "{name}: {} is not {value}", graph.1[name]);
    }
}
