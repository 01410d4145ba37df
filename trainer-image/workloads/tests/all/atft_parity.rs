//! Features, graphs, losses and forecasts of the workload atft-gat-fan equal those of the PyTorch reference program,
//! and its metrics those of scipy: `make.py` wrote the files of `fixtures/atft`.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data, View};
use pawl_graph::executor::{ExecOptions, Executable, Executor};
use pawl_graph::graph::Program;
use pawl_graph::optim::OptimizerKernel;
use pawl_graph::recipe::Recipe;
use pawl_workloads::atft::AtftJob;
use pawl_workloads::atft::dataset::write_ranks;
use pawl_workloads::atft::features::column;
use pawl_workloads::atft::metrics::{pearson, ranks, sharpe, spearman};
use pawl_workloads::atft::neighbours::{DayGraph, Groups};
use pawl_workloads::atft::panel::Panel;
use pawl_workloads::{Job, RatePosition, Request};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const STOCKS: usize = 32;
const DATES: usize = 2;
const STEPS: usize = 20;
const TOTAL_STEPS: u64 = 200;
const FEATURES: usize = 8;
const LOOKBACK: usize = 8;
const HORIZONS: usize = 4;
/// The first day of the reference's features.
const FIRST: usize = 60;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/atft").join(name)
}

fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The reference's numbers.
struct Reference {
    tensors: Vec<u8>,
    numbers: Value,
}

impl Reference {
    fn read() -> Self {
        let read = |name: &str| std::fs::read(fixture(name)).unwrap();
        Self {
            tensors: read("reference.safetensors"),
            numbers: serde_json::from_slice(&read("reference.json")).unwrap(),
        }
    }

    fn array(view: &TensorView<'_>) -> Array {
        let values = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Array::new(view.shape().to_vec(), Data::F32(values)).unwrap()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let all = SafeTensors::deserialize(&self.tensors).unwrap();
        all.tensor(name).unwrap().data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }

    fn weights(&self) -> Vec<(String, Array)> {
        let all = SafeTensors::deserialize(&self.tensors).unwrap();
        let weight = |(name, view): (String, TensorView<'_>)| {
            Some((name.strip_prefix("weights.")?.to_owned(), Self::array(&view)))
        };
        all.tensors().into_iter().filter_map(weight).collect()
    }

    /// The graph of a block of 20 days, made of the returns of the 60 days before it.
    fn graph(&self, block: usize) -> DayGraph {
        let returns = self.floats("returns");
        let [sectors, segments] = ["sectors", "segments"].map(|name| numbers::<u8>(&self.numbers[name]));
        let (start, end) = ((block * 20).saturating_sub(60), block * 20);
        DayGraph::new(&returns[start * STOCKS..end * STOCKS], Groups { segments: &segments, sectors: &sectors })
    }

    /// The inputs of the dates `days`, in the order of the programs.
    fn inputs(&self, program: &Program, days: &[usize]) -> Vec<Array> {
        let table = self.floats("features");
        let (mut features, mut edges) = (Vec::new(), [const { Vec::new() }; 3]);
        let (mut offsets, mut attributes) = (vec![0], Vec::new());
        let [mut returns, mut scores, mut ranks] = [const { Vec::new() }; 3];
        for (number, day) in days.iter().enumerate() {
            for stock in 0..STOCKS {
                for back in (0..LOOKBACK).rev() {
                    let row = (day - back - FIRST) * STOCKS + stock;
                    features.extend_from_slice(&table[row * FEATURES..(row + 1) * FEATURES]);
                }
            }
            let graph = self.graph(day / 20);
            for node in 0..STOCKS as u32 {
                let degree = graph.targets.iter().filter(|target| **target == node).count() as u32;
                offsets.push(offsets.last().unwrap() + degree);
            }
            let start = edges[0].len() as u32;
            edges[2].extend(graph.reversed().iter().map(|edge| edge + start));
            let first = (number * STOCKS) as u32;
            edges[0].extend(graph.sources.iter().map(|stock| stock + first));
            edges[1].extend(graph.targets.iter().map(|stock| stock + first));
            attributes.extend(graph.attributes.concat());
            let rows = (day - FIRST) * STOCKS * HORIZONS..(day - FIRST + 1) * STOCKS * HORIZONS;
            returns.extend_from_slice(&self.floats("targets.returns")[rows.clone()]);
            let own = self.floats("targets.scores")[rows].to_vec();
            let mut ranked = vec![0.0; own.len()];
            write_ranks(&own, &mut ranked);
            scores.extend(own);
            ranks.extend(ranked);
        }
        let of = |name: &str| match name {
            "features" => Data::F32(features.clone()),
            "edges.source" => Data::U32(edges[0].clone()),
            "edges.target" => Data::U32(edges[1].clone()),
            "edges.reverse" => Data::U32(edges[2].clone()),
            "edges.offset" => Data::U32(offsets.clone()),
            "edges.attribute" => Data::F32(attributes.clone()),
            "returns" => Data::F32(returns.clone()),
            "scores" => Data::F32(scores.clone()),
            "ranks" => Data::F32(ranks.clone()),
            other => panic!("an input {other}"),
        };
        let array = |decl: &pawl_graph::graph::InputDecl| {
            // Edges are padded.
            let values = match of(&decl.name) {
                Data::F32(mut values) => {
                    values.resize(decl.meta.shape.elements(), 0.0);
                    Data::F32(values)
                }
                Data::U32(mut values) => {
                    values.resize(decl.meta.shape.elements(), 0);
                    Data::U32(values)
                }
                other => other,
            };
            Array::new(decl.meta.shape.clone(), values).unwrap()
        };
        program.inputs.iter().filter(|decl| decl.name != "learning_rate").map(array).collect()
    }
}

fn job() -> AtftJob {
    let config = json!({
        "preset": "smoke",
        "model": {"hidden": 16, "heads": 2, "selectionWidth": 4, "dropout": 0.0, "headDropout": 0.0, "gatLayers": 2, "gatDropout": 0.0,
                  "edgeDropout": 0.0, "windows": [2, 4, 8], "slices": 3},
        "data": {"stocks": STOCKS, "chunk": STOCKS, "days": 168, "features": FEATURES, "lookback": LOOKBACK},
    });
    let settings: Settings =
        serde_json::from_value(json!({"batchPerGpu": STOCKS * DATES, "evalBatch": STOCKS})).unwrap();
    AtftJob::new(&Request { config: config.as_object().unwrap().clone(), settings, seed: 42, rank: 0, world: 1 })
        .unwrap()
}

#[test]
fn features_of_returns_equal_the_reference() {
    let reference = Reference::read();
    let returns = reference.floats("returns");
    let wanted = reference.floats("columns");
    let empty = vec![0.0; returns.len()];
    let panel = Panel {
        days: returns.len() / STOCKS,
        stocks: STOCKS,
        seed: 0,
        sectors: numbers(&reference.numbers["sectors"]),
        segments: numbers(&reference.numbers["segments"]),
        market: vec![0.0; returns.len() / STOCKS],
        turnover: empty.clone(),
        latent: [empty.clone(), empty.clone(), empty.clone(), empty.clone()],
        signal: empty,
        returns,
    };
    // Those that are made of a stock's own returns, or of its sector's.
    for number in (8..42).chain([55, 56]).chain(57..63) {
        let own = column(&panel, number);
        for (place, day) in [125, 140, 160].into_iter().enumerate() {
            for stock in 0..STOCKS {
                let (got, wanted) = (own[day * STOCKS + stock], wanted[(place * STOCKS + stock) * 96 + number]);
                assert!(
                    (got - wanted).abs() < 2e-3,
                    "feature {number} of stock {stock} on day {day}: {got}, not {wanted}"
                );
            }
        }
    }
}

#[test]
fn graphs_equal_the_reference() {
    let reference = Reference::read();
    for block in [3, 4] {
        let (own, wanted) = (reference.graph(block), &reference.numbers["edges"][block.to_string()]);
        assert_eq!(own.sources, numbers::<u32>(&wanted["sources"]));
        assert_eq!(own.targets, numbers::<u32>(&wanted["targets"]));
        let attributes = reference.floats(&format!("attributes.{block}"));
        assert!(own.attributes.concat().iter().zip(&attributes).all(|(got, wanted)| (got - wanted).abs() < 1e-5));
        assert_eq!(own.attributes.len() * 3, attributes.len());
    }
}

fn run(executable: &mut dyn Executable, program: usize, inputs: &[Array]) {
    executable.run(program, &inputs.iter().map(Array::view).collect::<Vec<View<'_>>>()).unwrap();
}

fn check(executor: &dyn Executor, kernel: OptimizerKernel) {
    let (reference, job) = (Reference::read(), job());
    let optimization = job.optimization();
    let recipe = Recipe { clip: optimization.clip, kernel, ..Recipe::new(optimization.optimizer.clone()) };
    let programs = [
        recipe.step(&job.programs().train[0]).unwrap(),
        recipe.evaluate(&job.programs().evaluation[0], false).unwrap(),
    ];
    let loss = programs[0].outputs.iter().position(|output| output.name == "loss").unwrap();
    let mut executable = executor.compile(&programs, &ExecOptions::default()).unwrap();
    let unused = pawl_graph::executor::write_named(executable.as_mut(), &reference.weights()).unwrap();
    assert!(unused.is_empty(), "{unused:?}");

    let losses: Vec<f64> = numbers(&reference.numbers["losses"]);
    let plan: Vec<Vec<usize>> = numbers(&reference.numbers["plan"]);
    assert_eq!((losses.len(), plan.len()), (STEPS, STEPS));
    let items = (STOCKS * DATES) as u64;
    for (step, (days, wanted)) in plan.iter().zip(losses).enumerate() {
        let (step, step_items) = (step as u64, items);
        let at = RatePosition { step, items: items * step, step_items, total_items: TOTAL_STEPS * items };
        let rate = optimization.learning_rate * optimization.schedule.factor(at);
        let mut inputs = reference.inputs(&programs[0], days);
        inputs.push(Array::scalar(rate as f32));
        run(executable.as_mut(), 0, &inputs);
        let got = executable.output(0, loss).unwrap().item();
        assert!((got - wanted).abs() < 1e-4, "{} {kernel:?} step {step}: loss {got} is not {wanted}", executor.name());
    }

    let evaluated: Vec<usize> = numbers(&reference.numbers["evaluated"]);
    let dates: Vec<f64> = numbers(&reference.numbers["dates"]);
    for (day, wanted) in evaluated.into_iter().zip(dates) {
        run(executable.as_mut(), 1, &reference.inputs(&programs[1], &[day]));
        let [loss, medians] = [0, 1].map(|output| executable.output(1, output).unwrap().to_f64());
        assert!((loss[0] - wanted).abs() < 1e-4, "{} day {day}: loss {} is not {wanted}", executor.name(), loss[0]);
        let wanted = reference.floats(&format!("medians.{day}"));
        assert_eq!(medians.len(), wanted.len());
        for (got, wanted) in medians.iter().zip(wanted) {
            assert!((got - f64::from(wanted)).abs() < 1e-4, "{}: {got} is not {wanted}", executor.name());
        }
    }
}

#[test]
fn twenty_losses_and_the_forecasts_after_them_equal_the_reference() {
    check(&GraphCpu::default(), OptimizerKernel::PerTensor);
    check(&GraphCpu::default(), OptimizerKernel::Fused);
    check(&Eager::cpu(), OptimizerKernel::PerTensor);
}

#[test]
fn metrics_equal_scipy() {
    let reference = Reference::read();
    let samples = reference.numbers["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2);
    for sample in samples {
        let [a, b, ranked] = ["a", "b", "ranks"].map(|name| numbers::<f64>(&sample[name]));
        assert_eq!(ranks(&a), ranked);
        for (name, got) in [("spearman", spearman(&a, &b)), ("pearson", pearson(&a, &b)), ("sharpe", sharpe(&b))] {
            let wanted = sample[name].as_f64().unwrap();
            assert!((got - wanted).abs() < 1e-9, "{name}: {got} is not {wanted}");
        }
    }
}
