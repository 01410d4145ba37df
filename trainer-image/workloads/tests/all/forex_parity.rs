//! Features, losses and samples of the forex workload equal those of the PyTorch reference program, which wrote the
//! files of `fixtures/forex` through `make.py`.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data, View};
use pawl_graph::executor::{ExecOptions, Executable, Executor};
use pawl_graph::graph::{Builder, DType, Program};
use pawl_graph::optim::OptimizerKernel;
use pawl_graph::recipe::Recipe;
use pawl_workloads::forex::ForexJob;
use pawl_workloads::forex::bars::Bars;
use pawl_workloads::forex::config::{Config, FEATURES, HORIZONS, TIMEFRAMES};
use pawl_workloads::forex::features::features;
use pawl_workloads::forex::market::Market;
use pawl_workloads::forex::model::{Draws, Model};
use pawl_workloads::{Job, RatePosition, Request};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

const BATCH: usize = 4;
const STEPS: usize = 20;
const TOTAL_STEPS: u64 = 200;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/forex").join(name)
}

fn reference() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("reference.json")).unwrap()).unwrap()
}

fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The reference's tensors.
struct Tensors(Vec<u8>);

impl Tensors {
    fn read() -> Self {
        Self(std::fs::read(fixture("reference.safetensors")).unwrap())
    }

    fn array(view: &TensorView<'_>) -> Array {
        let values = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Array::new(view.shape().to_vec(), Data::F32(values)).unwrap()
    }

    fn get(&self, name: &str) -> Array {
        Self::array(&SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap())
    }

    fn doubles(&self, name: &str) -> Vec<f64> {
        let all = SafeTensors::deserialize(&self.0).unwrap();
        all.tensor(name).unwrap().data().as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect()
    }

    fn weights(&self) -> Vec<(String, Array)> {
        let all = SafeTensors::deserialize(&self.0).unwrap();
        let weight = |(name, view): (String, TensorView<'_>)| {
            Some((name.strip_prefix("weights.")?.to_owned(), Self::array(&view)))
        };
        all.tensors().into_iter().filter_map(weight).collect()
    }

    fn bars(&self) -> Bars {
        let [open, high, low, close, volume] =
            ["open", "high", "low", "close", "volume"].map(|name| self.doubles(&format!("bars.{name}")));
        Bars { open, high, low, close, volume, ..Bars::default() }.timed()
    }
}

fn config() -> Map<String, Value> {
    let config = json!({
        "preset": "smoke",
        "model": {"width": 12, "state": 8, "blocks": 2, "heads": 3, "context": 16, "latent": 8, "vaeChannels": 8, "vaeStages": 3, "horizon": 6,
                  "timestep": 10, "head": [24, 16], "timesteps": 100, "dropout": 0.0},
        "data": {"bars": 1600, "lookback": [70, 20, 8, 4]},
    });
    config.as_object().unwrap().clone()
}

fn market(tensors: &Tensors) -> Market {
    Market::new(&tensors.bars(), &Config::parse(&config(), &Map::new()).unwrap(), &|_, _, _| {})
}

#[test]
fn features_equal_the_reference() {
    let tensors = Tensors::read();
    let bars = tensors.bars();
    for timeframe in TIMEFRAMES {
        let own = features(&bars.joined(timeframe.factor), FEATURES);
        let first = (bars.len() - 100) / timeframe.factor - 3;
        let wanted = tensors.get(&format!("features.{}", timeframe.name)).to_f64();
        assert_eq!(wanted.len(), 3 * FEATURES);
        for (i, (got, wanted)) in own[first * FEATURES..].iter().zip(&wanted).enumerate() {
            let place = format!("feature {} of {} is {got}, not {wanted}", i % FEATURES, timeframe.name);
            assert!((f64::from(*got) - wanted).abs() < 1e-4, "{place}");
        }
    }
}

#[test]
fn splits_equal_the_reference() {
    let (market, reference) = (market(&Tensors::read()), reference());
    for (range, name) in [(market.training(), "train"), (market.validation(), "val")] {
        assert_eq!(vec![range.start, range.end], numbers::<usize>(&reference[name]));
    }
}

/// The inputs of windows that end with these bars, as the first inputs of `program`.
fn windows(market: &Market, program: &Program, bars: &[usize]) -> Vec<Array> {
    let input = |(number, decl): (usize, &pawl_graph::graph::InputDecl)| {
        let mut values = vec![0.0; decl.meta.shape.elements()];
        let row = values.len() / bars.len();
        for (&bar, out) in bars.iter().zip(values.chunks_exact_mut(row)) {
            match number.checked_sub(1) {
                None => market.write_patches(bar, out),
                Some(timeframe) => market.write_features(bar, timeframe, out),
            }
        }
        Array::new(&decl.meta.shape, Data::F32(values)).unwrap()
    };
    program.inputs.iter().take(1 + TIMEFRAMES.len()).enumerate().map(input).collect()
}

/// A training step whose random draws are inputs, and the forecast of windows from given noise.
fn programs(job: &ForexJob, kernel: OptimizerKernel) -> [Program; 2] {
    let Config { model, data, .. } = Config::parse(&config(), &Map::new()).unwrap();
    let of = Model { config: &model, lookback: data.lookback, resident_bars: None, world: 1 };
    let b = Builder::new("training");
    let inputs = of.windows(&b, BATCH).unwrap();
    let kl_weight = b.input("kl_weight", DType::F32, []);
    let draws = Draws {
        posterior: b.input("posterior", DType::F32, [BATCH, model.latent]),
        timesteps: b.input("timesteps", DType::U32, [BATCH]),
        noise: b.input("noise", DType::F32, [BATCH, HORIZONS.len(), model.latent]),
    };
    of.losses(&b, &inputs, &draws, kl_weight, None).unwrap();
    let optimization = job.optimization();
    let recipe = Recipe { clip: optimization.clip, kernel, ..Recipe::new(optimization.optimizer.clone()) };
    let training = recipe.step(&b.finish().unwrap()).unwrap();

    let b = Builder::new("forecast");
    let inputs = of.windows(&b, BATCH).unwrap();
    let noise = b.input("noise", DType::F32, [BATCH, 3, HORIZONS.len(), model.latent]);
    b.output("samples", of.forecasts(&inputs, noise, 10).unwrap());
    [training, recipe.evaluate(&b.finish().unwrap(), false).unwrap()]
}

fn run(executable: &mut dyn Executable, program: usize, inputs: &[Array]) {
    executable.run(program, &inputs.iter().map(Array::view).collect::<Vec<View<'_>>>()).unwrap();
}

/// Trains as the reference did, compares each step's losses, then the forecasts.
fn check(executor: &dyn Executor, kernel: OptimizerKernel) {
    let (tensors, reference) = (Tensors::read(), reference());
    let settings: Settings = serde_json::from_value(json!({"batchPerGpu": BATCH})).unwrap();
    let job = ForexJob::new(&Request { config: config(), settings, seed: 0, rank: 0, world: 1 }).unwrap();
    let [training, forecast] = programs(&job, kernel);
    // Programs that share arenas have the same parameters; the forecast has fewer.
    let forecasts = kernel == OptimizerKernel::PerTensor;
    let programs = if forecasts { vec![training, forecast] } else { vec![training] };
    let mut executable = executor.compile(&programs, &ExecOptions::default()).unwrap();
    let weights = tensors.weights();
    let unused = pawl_graph::executor::write_named(executable.as_mut(), &weights).unwrap();
    assert!(unused.is_empty(), "{unused:?}");

    let market = market(&tensors);
    let plan: Vec<usize> = numbers(&reference["plan"]);
    let timesteps: Vec<u32> = numbers(&reference["timesteps"]);
    let (losses, parts): (Vec<f64>, Vec<[f64; 4]>) = (numbers(&reference["losses"]), numbers(&reference["parts"]));
    let (posterior, noise) = (tensors.get("draws.posterior"), tensors.get("draws.noise"));
    let optimization = job.optimization();
    let names = ["loss", "reconstruction", "kl", "velocity", "returns"];
    let outputs = names.map(|name| programs[0].outputs.iter().position(|output| output.name == name).unwrap());
    assert_eq!((losses.len(), plan.len()), (STEPS, STEPS * BATCH));
    for step in 0..STEPS {
        let at = RatePosition {
            step: step as u64,
            items: (step * BATCH) as u64,
            step_items: BATCH as u64,
            total_items: TOTAL_STEPS * BATCH as u64,
        };
        let rate = optimization.learning_rate * optimization.schedule.factor(at);
        let kl_weight = 0.01 / (1.0 + (-0.002 * (step as f64 - 5000.0)).exp());
        let part = |of: &Array| {
            let shape = of.shape().dims()[1..].to_vec().into();
            of.part(step * of.shape().elements() / STEPS, &shape).unwrap()
        };
        let mut inputs = windows(&market, &programs[0], &plan[step * BATCH..][..BATCH]);
        inputs.push(Array::scalar(kl_weight as f32));
        inputs.push(part(&posterior));
        inputs.push(Array::new([BATCH], Data::U32(timesteps[step * BATCH..][..BATCH].to_vec())).unwrap());
        inputs.push(part(&noise));
        inputs.push(Array::scalar(rate as f32));
        run(executable.as_mut(), 0, &inputs);
        let wanted = [vec![losses[step]], parts[step].to_vec()].concat();
        for ((name, output), wanted) in names.iter().zip(outputs).zip(wanted) {
            let got = executable.output(0, output).unwrap().item();
            let message = format!("{} {kernel:?} step {step}: {name} {got} is not {wanted}", executor.name());
            assert!((got - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{message}");
        }
    }
    let scale = executable.read_state("latent_scale").unwrap().item();
    assert!((scale - reference["latentScale"].as_f64().unwrap()).abs() < 1e-5, "{scale}");

    if !forecasts {
        return;
    }
    let mut inputs = windows(&market, &programs[1], &numbers::<usize>(&reference["evaluated"]));
    inputs.push(tensors.get("sampling.noise"));
    run(executable.as_mut(), 1, &inputs);
    let (got, wanted) = (executable.output(1, 0).unwrap(), tensors.get("sampling.samples"));
    assert_eq!(got.shape(), wanted.shape());
    for (got, wanted) in got.to_f64().iter().zip(wanted.to_f64()) {
        assert!((got - wanted).abs() < 1e-3, "{}: sample {got} is not {wanted}", executor.name());
    }
}

#[test]
fn twenty_losses_and_the_samples_after_them_equal_the_reference() {
    check(&GraphCpu::default(), OptimizerKernel::PerTensor);
    check(&GraphCpu::default(), OptimizerKernel::Fused);
    check(&Eager::cpu(), OptimizerKernel::PerTensor);
}
