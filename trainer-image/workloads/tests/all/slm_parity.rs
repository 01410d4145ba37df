//! The language model's losses and gradients equal those of the PyTorch reference program, which wrote
//! `fixtures/slm.safetensors` through `fixtures/slm.py`.

use crate::differentiated::differentiated;
use pawl_contract::settings::{RopeCache, Settings};
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data, View};
use pawl_graph::executor::{ExecOptions, Executable, Executor};
use pawl_graph::graph::{Program, Role};
use pawl_graph::recipe::{AttentionKernel, Recipe};
use pawl_workloads::slm::SlmJob;
use pawl_workloads::slm::loss::IGNORED;
use pawl_workloads::{Job, Request};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::path::Path;

struct Fixture(Vec<u8>);

impl Fixture {
    fn load() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/slm.safetensors");
        Self(std::fs::read(path).unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let view = tensors.tensor(name).unwrap_or_else(|_| panic!("no tensor {name}"));
        match view.dtype() {
            safetensors::Dtype::F32 => {
                view.data().as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
            }
            safetensors::Dtype::F64 => view.data().as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            safetensors::Dtype::I32 => {
                view.data().as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Step `number` of five of the small cases: tokens, targets, how many count.
    fn small_batch(&self, number: usize) -> Vec<Array> {
        let of = |name: &str| self.numbers(name)[number * 36..(number + 1) * 36].to_vec();
        let tokens: Vec<u32> = of("small.tokens").iter().map(|&id| id as u32).collect();
        let target = |id: &f64| if *id < 0.0 { IGNORED } else { *id as u32 };
        let targets: Vec<u32> = of("small.targets").iter().map(target).collect();
        let count = targets.iter().filter(|&&id| id != IGNORED).count();
        assert_eq!(count, 31);
        let array = |ids| Array::new([3, 12], Data::U32(ids)).unwrap();
        vec![array(tokens), array(targets), Array::scalar(count as f32)]
    }

    /// Step `number` of twenty of the case `tiny`.
    fn tiny_batch(&self, number: usize) -> Vec<Array> {
        let rows = self.numbers("tiny.tokens")[number * 260..(number + 1) * 260].to_vec();
        let window = |shift: usize| {
            let ids = rows.chunks(65).flat_map(|row| row[shift..shift + 64].iter().map(|&id| id as u32)).collect();
            Array::new([4, 64], Data::U32(ids)).unwrap()
        };
        vec![window(0), window(1), Array::scalar(256.0)]
    }
}

/// The job of a small case.
fn small(case: &str, chunk: usize, settings: Settings) -> SlmJob {
    let config = json!({
        "size": "tiny",
        "method": if case == "lora" { "Lora" } else { "Full" },
        "sequence": 12,
        "architecture": {"vocabulary": 48, "width": 16, "layers": 2, "heads": 4, "kvHeads": 2, "headSize": 4, "feedForward": 24,
                         "tied": case != "lora"},
        "lora": {"rank": 4, "alpha": 8.0, "dropout": 0.0},
        "loss": {"chunk": chunk},
    });
    job(config, Settings { batch_per_gpu: Some(3), weight_decay: Some("0.1".parse().unwrap()), ..settings })
}

fn job(config: Value, settings: Settings) -> SlmJob {
    let config = config.as_object().unwrap().clone();
    SlmJob::new(&Request { config, settings, seed: 0, rank: 0, world: 1 }).unwrap()
}

fn compiled(executor: &dyn Executor, fixture: &Fixture, case: &str, program: &Program) -> Box<dyn Executable> {
    let mut executable = executor.compile(std::slice::from_ref(program), &ExecOptions::default()).unwrap();
    for state in program.states.iter().filter(|s| matches!(s.role, Role::Parameter | Role::Frozen)) {
        let values = fixture.numbers(&format!("{case}.weight.{}", state.name)).iter().map(|&v| v as f32).collect();
        executable.write_state(&state.name, &Array::new(&state.meta.shape, Data::F32(values)).unwrap()).unwrap();
    }
    executable
}

fn run(executable: &mut dyn Executable, inputs: &[Array]) {
    let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
    executable.run(0, &views).unwrap();
}

fn assert_near(got: f64, want: f64, scale: f64, bound: f64, what: &str) {
    assert!((got - want).abs() <= bound * scale.abs() + 1e-9, "{what}: {got} is not {want}");
}

#[test]
fn first_losses_and_gradients_equal_the_reference() {
    let fixture = Fixture::load();
    for (case, chunk) in [("tied", 0), ("tied", 7), ("lora", 0), ("lora", 10)] {
        let job = small(case, chunk, Settings::default());
        let program = differentiated(job.programs().train[0].clone());
        let mut executable = compiled(&Eager::cpu(), &fixture, case, &program);
        run(&mut *executable, &fixture.small_batch(0));
        let mut compared = 0;
        for (at, output) in program.outputs.iter().enumerate() {
            let value = executable.output(0, at).unwrap();
            if output.name == "loss" {
                let want = fixture.numbers(&format!("{case}.loss"))[0];
                assert_near(value.item(), want, want, 1e-6, &format!("{case} loss"));
                continue;
            }
            let want = fixture.numbers(&format!("{case}.{}", output.name));
            let values = value.to_f64();
            let norm = values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let product: f64 = values.iter().enumerate().map(|(i, v)| v * (i as f64).cos()).sum();
            assert_near(norm, want[0], want[0], 2e-5, &format!("{case} {}", output.name));
            assert_near(product, want[1], want[0], 2e-5, &format!("{case} {}", output.name));
            compared += 1;
        }
        assert_eq!(compared, if case == "lora" { 28 } else { 20 });
    }
}

#[test]
fn five_steps_follow_the_reference_however_they_are_computed() {
    let fixture = Fixture::load();
    let cached = Settings { rope_cache: Some(RopeCache::Cached), ..Settings::default() };
    for (executor, settings, attention, chunk) in [
        (&Eager::cpu() as &dyn Executor, Settings::default(), AttentionKernel::Math, 0),
        (&Eager::cpu(), cached.clone(), AttentionKernel::Flash, 5),
        (&GraphCpu::default(), Settings::default(), AttentionKernel::Flash, 7),
        (&GraphCpu::default(), cached, AttentionKernel::Math, 36),
    ] {
        for case in ["tied", "lora"] {
            let job = small(case, chunk, settings.clone());
            let optimization = job.optimization();
            let recipe = Recipe { attention, clip: optimization.clip, ..Recipe::new(optimization.optimizer.clone()) };
            let program = recipe.step(&job.programs().train[0]).unwrap();
            let mut executable = compiled(executor, &fixture, case, &program);
            for (number, want) in fixture.numbers(&format!("{case}.loss")).into_iter().enumerate() {
                let mut inputs = fixture.small_batch(number);
                inputs.push(Array::scalar(1e-2));
                run(&mut *executable, &inputs);
                let got = executable.output(0, 0).unwrap().item();
                assert_near(got, want, want, 1e-4, &format!("{} {case} step {number}", executor.name()));
            }
        }
    }
}

#[test]
fn twenty_losses_of_the_tiny_size_equal_the_reference() {
    let fixture = Fixture::load();
    let settings = Settings { batch_per_gpu: Some(4), ..Settings::default() };
    let job = job(json!({"size": "tiny"}), settings);
    let optimization = job.optimization();
    let recipe = Recipe { clip: optimization.clip, ..Recipe::new(optimization.optimizer.clone()) };
    let program = recipe.step(&job.programs().train[0]).unwrap();
    // The reference drew the same random weights: normal, from streams keyed by seed 0 and their names.
    let options = ExecOptions { seed: 0, ..ExecOptions::default() };
    let mut executable = GraphCpu::default().compile(std::slice::from_ref(&program), &options).unwrap();
    for (number, want) in fixture.numbers("tiny.loss").into_iter().enumerate() {
        let mut inputs = fixture.tiny_batch(number);
        inputs.push(Array::scalar(1e-3));
        run(&mut *executable, &inputs);
        assert_near(executable.output(0, 0).unwrap().item(), want, want, 1e-4, &format!("step {number}"));
    }
}
