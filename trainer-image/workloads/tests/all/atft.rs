//! The workload atft-gat-fan: sizes, settings, data, batches, evaluation, and what refuses to be trained.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_graph::array::{Array, Data as Elements, View};
use pawl_graph::executor::{ExecOptions, Executor};
use pawl_graph::graph::{Init, Program, Role};
use pawl_graph::passes::Pattern;
use pawl_graph::recipe::{Precision, Recipe};
use pawl_workloads::atft::AtftGatFan;
use pawl_workloads::atft::config::{Config, HORIZONS};
use pawl_workloads::atft::dataset::{Dataset, Split};
use pawl_workloads::atft::metrics::spearman;
use pawl_workloads::atft::panel::Panel;
use pawl_workloads::{At, Batch, Data, Job, RatePosition, Request, Workload};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

fn request(config: Value, settings: Value) -> Request {
    let settings: Settings = serde_json::from_value(settings).unwrap();
    Request { config: config.as_object().unwrap().clone(), settings, seed: 42, rank: 0, world: 1 }
}

fn prepare(config: Value, settings: Value) -> Result<Box<dyn Job>, String> {
    AtftGatFan.prepare(&request(config, settings)).map_err(|error| error.to_string())
}

fn smoke(more: Value) -> Value {
    let mut config = json!({"preset": "smoke"});
    pawl_workloads::layered::overlay(&mut config, &more);
    config
}

/// A panel of 24 stocks, in chunks of 20.
fn small(more: Value) -> Value {
    let mut config = smoke(json!({"data": {"stocks": 24, "chunk": 20}}));
    pawl_workloads::layered::overlay(&mut config, &more);
    config
}

fn open(job: &dyn Job) -> Arc<dyn Data> {
    job.open(Path::new("unused"), &|_, _, _| {}).unwrap()
}

fn parameters(program: &Program, prefix: &str) -> usize {
    let learn = program.states.iter().filter(|s| s.role == Role::Parameter && s.name.starts_with(prefix));
    learn.map(|state| state.meta.shape.elements()).sum()
}

#[test]
fn parameter_counts_equal_the_specification() {
    let smoke = prepare(json!({"preset": "smoke"}), json!({"batchPerGpu": 128})).unwrap();
    assert_eq!(parameters(&smoke.programs().train[0], ""), 60_366);
    let medium = prepare(json!({"preset": "medium"}), json!({"batchPerGpu": 2048})).unwrap();
    let program = &medium.programs().train[0];
    for (prefix, count) in [
        ("", 5_591_726),
        ("tft.", 2_915_968 + 2_040_064),
        ("tft.vsn.", 2_915_968),
        ("tft.lstm.", 526_336),
        ("tft.attn.", 263_168),
        ("tft.gate.", 591_872),
        ("gat.", 398_592),
        ("backbone.", 131_328),
        ("fan.", 1_539),
        ("san.", 2_307),
        ("prediction_head.", 101_928),
    ] {
        assert_eq!(parameters(program, prefix), count, "{prefix}");
    }
    for (hidden, layers, count) in
        [(256, 3, 5_658_542), (384, 2, 10_305_070), (512, 4, 16_907_694), (768, 2, 32_604_334)]
    {
        let size = json!({"batchPerGpu": 2048, "workload": {"model": {"hidden": hidden, "gatLayers": layers}}});
        let job = prepare(json!({"preset": "full"}), size).unwrap();
        assert_eq!(parameters(&job.programs().train[0], ""), count, "{hidden}, {layers} layers");
    }
}

/// An optimizer that updates all parameters at once lays them out in their order, which evaluation has to share.
#[test]
fn training_and_evaluation_have_the_same_parameters_in_the_same_order() {
    let job = prepare(smoke(json!({})), json!({"batchPerGpu": 128})).unwrap();
    let names = |program: &Program| -> Vec<String> {
        let learn = program.states.iter().filter(|state| state.role == Role::Parameter);
        learn.map(|state| state.name.clone()).collect()
    };
    let programs = job.programs();
    assert_eq!(names(&programs.train[0]), names(&programs.evaluation[0]));
}

#[test]
fn defaults_are_those_of_the_specification() {
    let job = prepare(json!({"preset": "medium"}), json!({"batchPerGpu": 4096})).unwrap();
    let of = job.optimization();
    let adamw = &of.optimizer.others;
    assert_eq!((of.learning_rate, adamw.weight_decay, adamw.decay_vectors), (5e-4, 1e-5, false));
    assert_eq!((adamw.beta1, adamw.beta2, adamw.eps, of.clip, of.average), (0.9, 0.999, 1e-8, Some(1.0), None));
    let at = |step: u64| RatePosition { step, items: 8 * step, step_items: 8, total_items: 8 * 1000 };
    let factors = [0, 49, 1000].map(|step| of.schedule.factor(at(step)));
    assert!((factors[0] - 0.02).abs() < 1e-9 && factors[1] > 0.99 && (factors[2] - 0.002).abs() < 1e-12, "{factors:?}");
    // 70 % of the 649 days between the first whole window and the last known return, less two gaps of 20 days.
    assert_eq!(job.items_per_epoch(), 426 * 2048);
    let program = &job.programs().train[0];
    let init = |name: &str| program.state_decl(program.state(name).unwrap()).init.clone();
    let uniform = |bound: f64| Init::Uniform { bound };
    assert_eq!(init("tft.vsn.w2"), uniform(1.0 / 48f64.sqrt()));
    assert_eq!(init("tft.attn.qkv.weight"), uniform((6.0f64 / 1024.0).sqrt()));
    assert_eq!(init("gat.layers.0.a_src"), uniform((6.0f64 / 40.0).sqrt()));
    assert_eq!(init("prediction_head.heads.2.5.weight"), Init::Normal { deviation: 0.02 });
}

#[test]
fn regions_name_scopes_that_there_are() {
    let job = prepare(smoke(json!({"data": {"placement": "Device"}})), json!({"batchPerGpu": 128})).unwrap();
    let (program, regions) = (&job.programs().train[0], job.programs().regions);
    let count = |pattern: &&str| {
        let pattern = Pattern::new(pattern);
        let found = program.graph.scopes().iter().filter_map(|scope| pattern.region(scope).map(str::to_owned));
        found.collect::<std::collections::BTreeSet<_>>().len()
    };
    for pattern in [regions.float32, regions.blocks, regions.sublayers, regions.rematerialized].concat() {
        let expected = match pattern {
            _ if !pattern.contains('*') => 1,
            // 16 features, four at a time.
            "tft/selection/features/chunk.*" => 4,
            _ => 2,
        };
        assert_eq!(count(&pattern), expected, "{pattern}");
    }
}

#[test]
fn mistakes_name_the_field_the_value_and_the_remedy() {
    let one = || json!({"batchPerGpu": 128});
    let cases = [
        (json!({"preset": "tiny"}), one(), ["workload.config.preset", "tiny", "choose smoke"]),
        (smoke(json!({"model": {"hidden": 36}})), one(), ["config.model.hidden", "36", "multiple of 8"]),
        (smoke(json!({"model": {"heads": 3}})), one(), ["config.model.heads", "3", "divide model.hidden (32)"]),
        (
            smoke(json!({"model": {"windows": [9]}})),
            one(),
            ["config.model.windows", "[9]", "between 1 and data.lookback (8)"],
        ),
        (smoke(json!({"model": {"dropout": 1.0}})), one(), ["config.model.dropout", "1", "less than 1"]),
        (smoke(json!({"model": {"headDropout": 0.7}})), one(), ["config.model.headDropout", "0.7", "less than 2/3"]),
        (smoke(json!({"data": {"chunk": 129}})), one(), ["config.data.chunk", "129", "between 20 and 128"]),
        (smoke(json!({"data": {"days": 150}})), one(), ["config.data.days", "150", "between 168"]),
        (smoke(json!({"data": {"features": 97}})), one(), ["config.data.features", "97", "between 1 and 96"]),
        (
            // A name was searched among as many features as were asked for.
            smoke(
                json!({"data": {"source": "Parquet", "directory": "d", "marketFeatures": ["close"], "features": 97}}),
            ),
            one(),
            ["config.data.features", "97", "between 1 and 96"],
        ),
        (smoke(json!({"loss": {"ic": -1.0}})), one(), ["config.loss.ic", "-1", "between 0"]),
        (smoke(json!({"loss": {"rank": 1.0}})), one(), ["config.loss.rank", "1", "is not a field"]),
        (smoke(json!({"evaluation": {"days": 1}})), one(), ["config.evaluation.days", "1", "between 2"]),
        (
            smoke(json!({})),
            json!({"batchPerGpu": 100}),
            ["settings.batchPerGpu", "100", "multiple of data.chunk (128)"],
        ),
        (
            smoke(json!({})),
            json!({"batchPerGpu": 128, "evalBatch": 64}),
            ["settings.evalBatch", "64", "data.chunk (128)"],
        ),
        (
            smoke(json!({})),
            json!({"batchPerGpu": 128, "attention": "Flash"}),
            ["settings.attention", "Flash", "set Math"],
        ),
        (
            smoke(json!({})),
            json!({"batchPerGpu": 128, "learningRate": "11"}),
            ["settings.learningRate", "11", "less than 10"],
        ),
    ];
    for (config, settings, parts) in cases {
        let Err(error) = prepare(config.clone(), settings) else { panic!("{config} was accepted") };
        for part in parts {
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
    }
}

fn batch(data: &dyn Data, at: At) -> Batch {
    let mut batch = Batch::default();
    data.train(at, &mut batch).unwrap();
    batch
}

#[test]
fn a_graph_that_has_no_room_says_how_much_it_needs() {
    let job = prepare(smoke(json!({"data": {"edgesPerStock": 4}})), json!({"batchPerGpu": 128})).unwrap();
    let data = open(job.as_ref());
    let error = data.train(At { items: 0, micro: 0 }, &mut Batch::default()).unwrap_err().to_string();
    for part in ["workload.config.data.edgesPerStock: 4", "too little room", "set at least 8"] {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[test]
fn batches_depend_on_seed_and_position_only() {
    let job = prepare(small(json!({})), json!({"batchPerGpu": 40})).unwrap();
    let data = open(job.as_ref());
    let at = At { items: 80, micro: 1 };
    let first = batch(data.as_ref(), at);
    assert_eq!(first, batch(data.as_ref(), at));
    assert_ne!(first.inputs[0], batch(data.as_ref(), At { items: 80, micro: 0 }).inputs[0]);

    // Two ranks see what one rank sees in two micro-steps; only their draws differ, which is the last input.
    let mut second = request(small(json!({})), json!({"batchPerGpu": 40}));
    (second.rank, second.world) = (1, 2);
    let second = AtftGatFan.prepare(&second).unwrap();
    let of_rank = batch(open(second.as_ref()).as_ref(), At { items: 80, micro: 0 });
    assert_eq!(of_rank, first);
}

/// Edges and targets are those of the stocks of the chunk, whatever the place of the features.
#[test]
fn a_chunk_has_the_windows_targets_and_edges_of_its_stocks() {
    let (host, device) = (small(json!({})), small(json!({"data": {"placement": "Device"}})));
    let settings = json!({"batchPerGpu": 40});
    let (host, device) = (prepare(host, settings.clone()).unwrap(), prepare(device, settings).unwrap());
    let at = At { items: 0, micro: 0 };
    let (loaded, numbered) = (open(host.as_ref()), open(device.as_ref()));
    let (windows, rows) = (batch(loaded.as_ref(), at), batch(numbered.as_ref(), at));
    assert_eq!(windows.inputs[1..], rows.inputs[1..]);
    let numbers = rows.inputs[0].to_f64();

    let config = Config::parse(small(json!({})).as_object().unwrap(), &Default::default()).unwrap();
    let panel = Panel::simulated(config.data.days, config.data.stocks, config.data.signal, config.data.seed);
    let dataset = Dataset::of_panel(&panel, &config.data, &|_, _, _| {});
    let input = |name: &str| {
        let place = host.programs().train[0].inputs.iter().position(|input| input.name == name).unwrap();
        windows.inputs[place].to_f64()
    };
    let [features, returns, ranks] = ["features", "returns", "ranks"].map(input);
    let [sources, targets, offsets] = ["edges.source", "edges.target", "edges.offset"].map(input);
    let train = dataset.days(Split::Train);
    for (sample, row) in numbers.iter().map(|row| *row as usize).enumerate() {
        let (day, stock) = (row / 24, row % 24);
        assert!(train.contains(&day));
        let mut window = [0.0; 8 * 16];
        dataset.write_windows(day, &[stock as u32], &mut window).unwrap();
        assert!(features[sample * 128..][..128].iter().zip(window).all(|(got, wanted)| *got == f64::from(wanted)));
        let wanted = f64::from(panel.returns[(day + 1) * 24 + stock]);
        assert!((returns[sample * 4] - wanted).abs() < 1e-7, "the return of the next day");
    }
    for horizon in 0..HORIZONS.len() {
        let column = |all: &[f64]| all[..80].iter().skip(horizon).step_by(4).copied().collect::<Vec<f64>>();
        assert!((spearman(&column(&returns), &column(&ranks)) - 1.0).abs() < 1e-12);
    }
    // Every node has a loop, and all of its edges are between its offsets.
    for node in 0..40 {
        let own = offsets[node] as usize..offsets[node + 1] as usize;
        assert!(own.clone().any(|edge| sources[edge] as usize == node), "node {node}");
        assert!(own.clone().all(|edge| targets[edge] as usize == node && sources[edge] as usize / 20 == node / 20));
    }
}

#[test]
fn splits_lie_apart_and_features_know_nothing_of_the_future() {
    let config = Config::parse(small(json!({})).as_object().unwrap(), &Default::default()).unwrap();
    let data = &config.data;
    let panel = Panel::simulated(data.days, data.stocks, data.signal, data.seed);
    let dataset = Dataset::of_panel(&panel, data, &|_, _, _| {});
    let [train, validation, test] = [Split::Train, Split::Validation, Split::Test].map(|split| dataset.days(split));
    assert_eq!((train.start, test.end), (68, 239));
    assert!(train.end + 20 == validation.start && validation.end + 20 == test.start);
    assert_eq!((train.len(), validation.len(), test.len()), (92, 20, 19));

    // Another future changes neither features, nor the graph, of the days before it.
    let mut other = panel.clone();
    let day = 150;
    for values in [&mut other.returns, &mut other.turnover, &mut other.signal].into_iter().chain(&mut other.latent) {
        values[(day + 1) * 24..].iter_mut().for_each(|value| *value = -*value);
    }
    other.market[day + 1..].iter_mut().for_each(|value| *value = -*value);
    let other = Dataset::of_panel(&other, data, &|_, _, _| {});
    let known = (day + 1) * 24 * data.features;
    let [own, others] = [&dataset, &other].map(|dataset| dataset.features().unwrap());
    assert!(own[..known] == others[..known] && own[known..] != others[known..]);
    assert_eq!(dataset.graph(day), other.graph(day));
}

/// What the specification measured of its generator: the correlation of the ranks of the signal and the returns.
#[test]
fn the_signal_predicts_as_much_as_specified() {
    let (days, stocks) = (135, 1024);
    let panel = Panel::simulated(days, stocks, 0.05, 42);
    let oracle = |ahead: usize| {
        let of_day = |day: usize| {
            let signal: Vec<f64> = panel.signal[day * stocks..][..stocks].iter().map(|v| f64::from(*v)).collect();
            let sum = |stock: usize| (1..=ahead).map(|d| f64::from(panel.returns[(day + d) * stocks + stock])).sum();
            spearman(&signal, &(0..stocks).map(sum).collect::<Vec<f64>>())
        };
        (0..days - ahead).map(of_day).sum::<f64>() / (days - ahead) as f64
    };
    // The standard error of a mean over dates is about 0.003 in 1 day, and more in 5, which overlap.
    let (one, five) = (oracle(1), oracle(5));
    assert!((0.040..0.066).contains(&one) && (0.050..0.095).contains(&five), "{one} {five}");
    let deviation = |values: &[f32]| {
        let square = |v: &f32| f64::from(*v).powi(2);
        (values.iter().map(square).sum::<f64>() / values.len() as f64).sqrt()
    };
    assert!(panel.latent.iter().all(|series| (deviation(series) - 1.0).abs() < 0.02));
    assert!((0.018..0.03).contains(&deviation(&panel.returns)), "{}", deviation(&panel.returns));
    let again = Panel::simulated(days, 64, 0.05, 42);
    assert_eq!(again.returns, Panel::simulated(days, 64, 0.05, 42).returns);
    assert_ne!(again.returns, Panel::simulated(days, 64, 0.05, 43).returns);
}

#[test]
fn evaluation_counts_each_date_once_whatever_the_batch() {
    let mut all = Vec::new();
    for eval_batch in [40, 60] {
        let config = small(json!({"evaluation": {"days": 10}}));
        let job = prepare(config, json!({"batchPerGpu": 20, "evalBatch": eval_batch})).unwrap();
        let data = open(job.as_ref());
        assert_eq!(data.evaluations(), usize::div_ceil(10, eval_batch / 20));
        let program = job.programs().evaluation[0].clone();
        let mut executable =
            GraphCpu::default().compile(&[program], &ExecOptions { seed: 42, ..ExecOptions::default() }).unwrap();
        let mut sums = vec![0.0; data.sums()];
        for index in 0..data.evaluations() {
            let inputs = data.evaluation(index).unwrap().inputs;
            executable.run(0, &inputs.iter().map(Array::view).collect::<Vec<View<'_>>>()).unwrap();
            let outputs = [0, 1].map(|output| executable.output(0, output).unwrap());
            data.add(index, &outputs, &mut sums);
        }
        assert_eq!(sums[0], 10.0);
        all.push(data.metrics(&sums));
    }
    assert_eq!(all[0].len(), 16);
    for (name, value) in &all[0] {
        assert!(value.is_finite() && (value - all[1][name]).abs() < 1e-3 * value.abs().max(1.0), "{name}: {all:?}");
    }
}

#[test]
fn the_smoke_size_learns_to_rank() {
    let job = prepare(smoke(json!({})), json!({"batchPerGpu": 128, "evalBatch": 128})).unwrap();
    let data = open(job.as_ref());
    let optimization = job.optimization();
    let recipe = Recipe { clip: optimization.clip, ..Recipe::new(optimization.optimizer.clone()) };
    let programs = [
        recipe.step(&job.programs().train[0]).unwrap(),
        recipe.evaluate(&job.programs().evaluation[0], false).unwrap(),
    ];
    let loss = programs[0].outputs.iter().position(|output| output.name == "loss").unwrap();
    let options = ExecOptions { seed: 42, ..ExecOptions::default() };
    let mut executable = GraphCpu::default().compile(&programs, &options).unwrap();
    let mut losses = Vec::new();
    for step in 0..80 {
        let inputs = batch(data.as_ref(), At { items: 128 * step, micro: 0 }).inputs;
        let rate = Array::scalar(2e-3_f32);
        let views: Vec<View<'_>> = inputs.iter().chain([&rate]).map(Array::view).collect();
        executable.run(0, &views).unwrap();
        losses.push(executable.output(0, loss).unwrap().item());
    }
    let mut sums = vec![0.0; data.sums()];
    for index in 0..data.evaluations() {
        let inputs = data.evaluation(index).unwrap().inputs;
        executable.run(1, &inputs.iter().map(Array::view).collect::<Vec<View<'_>>>()).unwrap();
        let outputs = [0, 1].map(|output| executable.output(1, output).unwrap());
        data.add(index, &outputs, &mut sums);
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[70..]) < mean(&losses[..10]) - 0.05, "{losses:?}");
    let metrics = data.metrics(&sums);
    // 20 dates of 128 stocks: the standard error of the mean is 0.02.
    assert!(metrics["rankic_1d"] > 0.06, "{metrics:?}");
}

/// Bfloat16, recomputation in the backward pass, and features on the device are other ways to the same losses.
#[test]
fn every_way_to_train_gives_the_losses_of_float32() {
    let losses = |placement: &str, change: &dyn Fn(&mut Recipe, &dyn Job)| -> Vec<f64> {
        let config = small(json!({"data": {"placement": placement}}));
        let job = prepare(config, json!({"batchPerGpu": 40})).unwrap();
        let data = open(job.as_ref());
        let mut recipe = Recipe::new(job.optimization().optimizer.clone());
        change(&mut recipe, job.as_ref());
        let program = recipe.step(&job.programs().train[0]).unwrap();
        let loss = program.outputs.iter().position(|output| output.name == "loss").unwrap();
        let options = ExecOptions { seed: 42, ..ExecOptions::default() };
        let mut executable = GraphCpu::default().compile(&[program], &options).unwrap();
        for (name, array) in data.resident().unwrap() {
            executable.write_state(&name, &array).unwrap();
        }
        let mut step = |step: u64| {
            let inputs = batch(data.as_ref(), At { items: 40 * step, micro: 0 }).inputs;
            let rate = Array::scalar(1e-3_f32);
            executable.run(0, &inputs.iter().chain([&rate]).map(Array::view).collect::<Vec<View<'_>>>()).unwrap();
            executable.output(0, loss).unwrap().item()
        };
        (0..3).map(&mut step).collect()
    };
    let patterns = |regions: &[&str]| regions.iter().map(|region| Pattern::new(region)).collect::<Vec<_>>();
    let wanted = losses("Host", &|_, _| {});
    let bf16 = losses("Host", &|recipe, job| {
        recipe.precision = Precision::BF16;
        recipe.full_precision = patterns(job.programs().regions.float32);
    });
    let selective = losses("Host", &|recipe, job| recipe.recompute = patterns(job.programs().regions.sublayers));
    let full = losses("Host", &|recipe, job| recipe.recompute = patterns(job.programs().regions.blocks));
    let again = losses("Host", &|recipe, job| recipe.rematerialize = patterns(job.programs().regions.rematerialized));
    let resident = losses("Device", &|_, _| {});
    for (name, tolerance, got) in [
        ("bf16", 0.03, bf16),
        ("selective", 1e-4, selective),
        ("full", 1e-4, full),
        ("again", 1e-4, again),
        ("resident", 1e-4, resident),
    ] {
        let near = got.iter().zip(&wanted).all(|(got, wanted)| (got - wanted).abs() < tolerance);
        assert!(near && got.len() == 3, "{name}: {got:?} are not {wanted:?}");
    }
}

/// The stages of the published system: without graph attention and adaptive normalization, without the former, and with
/// both at two rates.
fn curriculum() -> Value {
    let stage = |epochs: u32, neighbours: bool, adaptive: bool, rate: f64| json!({"epochs": epochs, "neighbours": neighbours, "adaptive": adaptive, "rate": rate});
    json!({"curriculum": [stage(5, false, false, 1.0), stage(10, false, true, 1.0), stage(8, true, true, 0.2), stage(6, true, true, 0.1)]})
}

#[test]
fn a_curriculum_changes_parts_and_rates_by_epoch() {
    let job = prepare(small(curriculum()), json!({"batchPerGpu": 20})).unwrap();
    assert_eq!(job.programs().train.len(), 3);
    let epoch = job.items_per_epoch();
    let at = |epochs: u64, more: u64| {
        let items = epochs * epoch + more;
        (job.variant(At { items, micro: 0 }), job.optimization().stage_factor(items))
    };
    let stages = [at(0, 0), at(4, epoch - 20), at(5, 0), at(14, 0), at(15, 0), at(22, 0), at(23, 0), at(999, 0)];
    assert_eq!(stages, [(0, 1.0), (0, 1.0), (1, 1.0), (1, 1.0), (2, 0.2), (2, 0.2), (2, 0.1), (2, 0.1)]);
    let error = prepare(
        small(json!({"model": {"gatLayers": 0}, "curriculum": curriculum()["curriculum"]})),
        json!({"batchPerGpu": 20}),
    );
    let error = error.err().unwrap();
    assert!(error.contains("config.curriculum[2].neighbours: true needs layers: set model.gatLayers"), "{error}");
}

#[test]
fn a_stage_neither_trains_nor_evaluates_the_parts_that_it_leaves_out() {
    let job = prepare(small(curriculum()), json!({"batchPerGpu": 20})).unwrap();
    let data = open(job.as_ref());
    let optimization = job.optimization();
    let recipe = Recipe {
        clip: optimization.clip,
        groups: optimization.groups.clone(),
        ..Recipe::new(optimization.optimizer.clone())
    };
    let mut programs: Vec<Program> = job.programs().train.iter().map(|program| recipe.step(program).unwrap()).collect();
    programs.push(recipe.evaluate(&job.programs().evaluation[0], false).unwrap());
    let evaluation = programs.len() - 1;
    let options = ExecOptions { seed: 42, ..ExecOptions::default() };
    let mut executable = GraphCpu::default().compile(&programs, &options).unwrap();
    let step_of_epoch = |epoch: u64| At { items: epoch * job.items_per_epoch(), micro: 0 };
    // Which of these parameters a step changes, and whether what the neighbours say matters to the evaluation after it.
    const NAMES: [&str; 3] = ["gat.layers.0.lin.weight", "fan.gamma", "backbone.weight"];
    let mut step_and_evaluate = |epoch: u64| {
        let of_stage = batch(data.as_ref(), step_of_epoch(epoch));
        let rate = Array::scalar(1e-3_f32);
        let before = NAMES.map(|name| executable.read_state(name).unwrap());
        let views: Vec<View<'_>> = of_stage.inputs.iter().chain([&rate]).map(Array::view).collect();
        executable.run(of_stage.program, &views).unwrap();
        let changed = [0, 1, 2].map(|i| executable.read_state(NAMES[i]).unwrap() != before[i]);
        let inputs = data.evaluation(0).unwrap().inputs;
        let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
        let said = executable.read_state("gat.beta.1").unwrap();
        let other = Array::new(said.shape().clone(), Elements::F32(vec![2.0; said.shape().elements()])).unwrap();
        let medians = [&said, &other].map(|bias| {
            executable.write_state("gat.beta.1", bias).unwrap();
            executable.run(evaluation, &views).unwrap();
            executable.output(evaluation, 1).unwrap().to_f64()
        });
        executable.write_state("gat.beta.1", &said).unwrap();
        (changed, medians[0] != medians[1])
    };
    assert_eq!(step_and_evaluate(0), ([false, false, true], false));
    assert_eq!(step_and_evaluate(5), ([false, true, true], false));
    assert_eq!(step_and_evaluate(15), ([true, true, true], true));
}
