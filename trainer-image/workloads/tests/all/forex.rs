//! The forex workload: sizes, settings, data, batches, evaluation, and what refuses to be trained.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data as Elements, View};
use pawl_graph::executor::{ExecOptions, Executor};
use pawl_graph::graph::{Builder, Init, Program, Role};
use pawl_graph::passes::Pattern;
use pawl_graph::recipe::Recipe;
use pawl_workloads::forex::Forex;
use pawl_workloads::forex::config::{Config, TIMEFRAMES};
use pawl_workloads::forex::model::Model;
use pawl_workloads::{At, Batch, Data, Job, RatePosition, Request, Workload};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

fn request(config: Value, settings: Value) -> Request {
    let settings: Settings = serde_json::from_value(settings).unwrap();
    Request { config: config.as_object().unwrap().clone(), settings, seed: 42, rank: 0, world: 1 }
}

fn prepare(config: Value, settings: Value) -> Result<Box<dyn Job>, String> {
    Forex.prepare(&request(config, settings)).map_err(|error| error.to_string())
}

fn smoke(more: Value) -> Value {
    let mut config = json!({"preset": "smoke", "data": {"bars": 2500}});
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
    let smoke = prepare(json!({"preset": "smoke"}), json!({})).unwrap();
    assert_eq!(parameters(&smoke.programs().train[0], ""), 195_088);
    let medium = prepare(json!({"preset": "medium"}), json!({"batchPerGpu": 2})).unwrap();
    let program = &medium.programs().train[0];
    for (prefix, count) in [
        ("", 11_479_728),
        ("vae.", 3_552_903),
        ("encoder.", 7_284_392),
        ("encoder.blocks.15m.0.", 348_056),
        ("encoder.attn.", 160_800),
        ("encoder.fusion.", 1_552_896),
        ("head.", 641_792),
        ("horizon_emb.", 4 * 128),
        ("target_proj.", 129),
    ] {
        assert_eq!(parameters(program, prefix), count, "{prefix}");
    }
    let deep = prepare(json!({"model": {"vaeChannels": 256, "vaeStages": 6}}), json!({"batchPerGpu": 2})).unwrap();
    assert_eq!(parameters(&deep.programs().train[0], "vae."), 17_765_415);
}

/// An optimizer that updates all parameters at once lays them out in their order, which evaluation has to share.
#[test]
fn training_and_evaluation_have_the_same_parameters_in_the_same_order() {
    let job = prepare(smoke(json!({})), json!({})).unwrap();
    let names = |program: &Program| -> Vec<String> {
        let learn = program.states.iter().filter(|state| state.role == Role::Parameter);
        learn.map(|state| state.name.clone()).collect()
    };
    let programs = job.programs();
    assert_eq!(names(&programs.train[0]), names(&programs.evaluation[0]));
}

#[test]
fn initial_weights_are_those_of_the_specification() {
    let job = prepare(json!({"preset": "medium"}), json!({"batchPerGpu": 2})).unwrap();
    let program = &job.programs().train[0];
    let init = |name: &str| program.state_decl(program.state(name).unwrap()).init.clone();
    for (name, fan_in) in
        [("vae.encoder.1.0.weight", 3 * 128), ("vae.decoder.0.0.weight", 4 * 256), ("vae.fc_mu.weight", 4096)]
    {
        assert_eq!(init(name), Init::Normal { deviation: (2.0 / f64::from(fan_in)).sqrt() }, "{name}");
    }
    assert_eq!(init("vae.fc_mu.bias"), Init::Fill(0.0));
    assert_eq!(init("head.0.bias"), Init::Uniform { bound: 1.0 / 896f64.sqrt() });
    assert_eq!(init("encoder.blocks.4h.3.s4.log_dt"), Init::UniformBetween { low: 1e-3f64.ln(), high: 0.1f64.ln() });
    let Init::Array(values) = init("encoder.blocks.5m.0.s4.log_neg_lambda") else { panic!("a given array") };
    assert!((values.to_f64()[127] - 128f64.ln()).abs() < 1e-6);
}

#[test]
fn defaults_are_those_of_the_specification() {
    let job = prepare(json!({"preset": "medium"}), json!({"batchPerGpu": 64})).unwrap();
    let of = job.optimization();
    let adamw = &of.optimizer.others;
    assert_eq!((of.learning_rate, adamw.weight_decay, adamw.decay_vectors), (2e-4, 0.01, false));
    assert_eq!((adamw.beta1, adamw.beta2, adamw.eps, of.clip, of.average), (0.9, 0.999, 1e-8, Some(1.0), None));
    for name in adamw.undecayed {
        assert!(job.programs().train[0].state(name).is_ok(), "{name}");
    }
    // 80 % of the bars after the first 1000 and before the last 49, less the embargo of 48.
    assert_eq!(job.items_per_epoch(), 119_112);
    let at = |step: u64| RatePosition { step, items: 64 * step, step_items: 64, total_items: 64 * 10_000 };
    let factors = [0, 999, 10_000].map(|step| of.schedule.factor(at(step)) * of.learning_rate);
    assert!(
        (factors[0] - 2e-7).abs() < 1e-12 && factors[1] > 1.9e-4 && (factors[2] - 1e-6).abs() < 1e-12,
        "{factors:?}"
    );
}

#[test]
fn regions_name_scopes_that_there_are() {
    let job = prepare(smoke(json!({"data": {"placement": "Device"}})), json!({})).unwrap();
    let (program, regions) = (&job.programs().train[0], job.programs().regions);
    let count = |pattern: &&str| {
        let pattern = Pattern::new(pattern);
        let found = program.graph.scopes().iter().filter_map(|scope| pattern.region(scope).map(str::to_owned));
        found.collect::<std::collections::BTreeSet<_>>().len()
    };
    for patterns in [&regions.float32[..1], regions.blocks, regions.sublayers] {
        assert!(patterns.iter().all(|pattern| count(pattern) == 8), "{patterns:?}: two blocks of four timeframes");
    }
    assert_eq!(regions.float32[1..].iter().map(count).collect::<Vec<_>>(), [1], "windows are cut in one scope");
}

#[test]
fn mistakes_name_the_field_the_value_and_the_remedy() {
    let none = || json!({});
    let cases = [
        (json!({"preset": "tiny"}), none(), ["workload.config.preset", "tiny", "choose smoke"]),
        (smoke(json!({"model": {"width": 201}})), none(), ["config.model.width", "201", "between 1 and 200"]),
        (smoke(json!({"model": {"heads": 3}})), none(), ["config.model.heads", "3", "divide model.width (40)"]),
        (smoke(json!({"model": {"timestep": 15}})), none(), ["config.model.timestep", "15", "even"]),
        (smoke(json!({"model": {"head": []}})), none(), ["config.model.head", "[]", "at least one width"]),
        (smoke(json!({"model": {"vaeChannels": 36}})), none(), ["config.model.vaeChannels", "36", "power of 2"]),
        (smoke(json!({"model": {"vaeStages": 7}})), none(), ["config.model.vaeStages", "7", "between 1 and 6"]),
        (smoke(json!({"model": {"dropout": 1.0}})), none(), ["config.model.dropout", "1", "less than 1"]),
        (smoke(json!({"data": {"bars": 1200}})), none(), ["config.data.bars", "1200", "between 1500"]),
        (
            smoke(json!({"data": {"lookback": [1, 2, 3, 0]}})),
            none(),
            ["config.data.lookback", "0", "for each timeframe"],
        ),
        (smoke(json!({"data": {"lookback": [1, 2]}})), none(), ["config.data.lookback", "[1,2]", "length"]),
        (smoke(json!({"evaluation": {"samples": 1}})), none(), ["config.evaluation.samples", "1", "between 2"]),
        (smoke(json!({"evaluation": {"steps": 101}})), none(), ["config.evaluation.steps", "101", "between 1 and 100"]),
        (smoke(json!({"schedule": {"floor": 2.0}})), none(), ["config.schedule.floor", "2", "between 0 and 1"]),
        (smoke(none()), json!({"learningRate": "11"}), ["settings.learningRate", "11", "less than 10"]),
        (smoke(none()), json!({"attention": "Flash"}), ["settings.attention", "Flash", "set Math"]),
        (smoke(none()), json!({"batchPerGpu": 8, "globalBatch": 12}), ["settings.globalBatch", "12", "8"]),
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
fn batches_depend_on_seed_and_position_only() {
    let job = prepare(smoke(json!({})), json!({"batchPerGpu": 4})).unwrap();
    let data = open(job.as_ref());
    let at = At { items: 8, micro: 1 };
    let first = batch(data.as_ref(), at);
    assert_eq!(first, batch(data.as_ref(), at));
    assert_ne!(first.inputs[0], batch(data.as_ref(), At { items: 8, micro: 0 }).inputs[0]);

    // Two ranks see what one rank sees in two micro-steps.
    let mut second = request(smoke(json!({})), json!({"batchPerGpu": 4}));
    (second.rank, second.world) = (1, 2);
    let second = Forex.prepare(&second).unwrap();
    let of_rank = batch(open(second.as_ref()).as_ref(), At { items: 8, micro: 0 });
    assert_eq!(of_rank.inputs[..5], first.inputs[..5]);

    // Of a window, only the future patches lie after its last bar: the present one ends at price 0.
    let patches = first.inputs[0].to_f64();
    for window in patches.chunks_exact(5 * 64 * 7) {
        assert_eq!(window[63 * 7 + 3], 0.0);
        assert_ne!(window[(64 + 63) * 7 + 3], 0.0);
        assert_eq!(window[64 * 7..(64 + 63) * 7], window[7..64 * 7], "one bar later");
    }
}

/// All bars and features are on the device, and a program cuts windows from them: those that the loader writes, bit for
/// bit.
#[test]
fn windows_that_programs_cut_are_those_of_the_loader() {
    let place = |placement: &str| smoke(json!({"data": {"placement": placement}}));
    let settings = json!({"batchPerGpu": 3, "evalBatch": 3});
    let (host, device) =
        (prepare(place("Host"), settings.clone()).unwrap(), prepare(place("Device"), settings).unwrap());
    let (loaded, resident) = (open(host.as_ref()), open(device.as_ref()));
    assert!(loaded.resident().unwrap().is_empty());

    let config = Config::parse(place("Device").as_object().unwrap(), &Default::default()).unwrap();
    let model = Model {
        config: &config.model,
        lookback: config.data.lookback,
        resident_bars: config.data.resident_bars(),
        world: 1,
    };
    let b = Builder::new("windows");
    let windows = model.windows(&b, 3).unwrap();
    b.output("patches", windows.patches);
    for (timeframe, &features) in TIMEFRAMES.iter().zip(&windows.features) {
        b.output(timeframe.name, features);
    }
    let program = b.finish().unwrap();
    // The last batch of the evaluation has a row of padding, which is no window.
    let rows = |inputs: &[Array], rows: usize| -> Vec<Vec<f64>> {
        let part = |array: &Array| array.to_f64()[..array.shape().elements() / 3 * rows].to_vec();
        inputs.iter().take(5).map(part).collect()
    };
    let last = loaded.evaluations() - 1;
    let real = config.evaluation.windows - 3 * last;
    let at = At { items: 6, micro: 0 };
    let batches = [
        (batch(loaded.as_ref(), at), batch(resident.as_ref(), at), 3),
        (loaded.evaluation(last).unwrap(), resident.evaluation(last).unwrap(), real),
    ];
    let executors: [&dyn Executor; 2] = [&GraphCpu::default(), &Eager::cpu()];
    for executor in executors {
        let mut executable = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        for (name, array) in resident.resident().unwrap() {
            executable.write_state(&name, &array).unwrap();
        }
        for (wanted, numbers, count) in &batches {
            executable.run(0, &[numbers.inputs[0].view()]).unwrap();
            let got: Vec<Array> = (0..5).map(|output| executable.output(0, output).unwrap()).collect();
            assert!(rows(&got, *count) == rows(&wanted.inputs, *count), "{}", executor.name());
        }
    }
}

/// A search varies the size of the model by these settings.
#[test]
fn settings_of_the_workload_change_the_model() {
    let patch = json!({"workload": {"model": {"state": 4, "blocks": 3}, "evaluation": {"steps": 7}}});
    let job = prepare(smoke(json!({})), patch).unwrap();
    let program = &job.programs().train[0];
    let shape = |name: &str| program.state_decl(program.state(name).unwrap()).meta.shape.clone();
    assert_eq!(shape("encoder.blocks.1h.2.s4.C").dims(), [40, 4]);
    assert!(program.state("encoder.blocks.1h.3.s4.C").is_err());
}

#[test]
fn the_factor_of_the_divergence_rises_with_the_updates() {
    let job = prepare(smoke(json!({})), json!({"batchPerGpu": 4, "globalBatch": 8})).unwrap();
    let data = open(job.as_ref());
    let names: Vec<&str> = job.programs().train[0].inputs.iter().map(|input| input.name.as_str()).collect();
    let place = names.iter().position(|name| *name == "kl_weight").unwrap();
    let weight = |step: u64| batch(data.as_ref(), At { items: 8 * step, micro: 0 }).inputs[place].item();
    for (step, wanted) in [(0, 4.539_787e-7), (5000, 0.005), (20_000, 0.01)] {
        assert!((weight(step) - wanted).abs() < 1e-6 * wanted, "step {step}: {}", weight(step));
    }
}

#[test]
fn evaluation_counts_each_window_once_whatever_the_batch() {
    let mut all = Vec::new();
    for eval_batch in [16, 24] {
        let config = smoke(json!({"evaluation": {"windows": 40, "samples": 4, "steps": 3}}));
        let job = prepare(config, json!({"batchPerGpu": 4, "evalBatch": eval_batch})).unwrap();
        let data = open(job.as_ref());
        assert_eq!(data.evaluations(), usize::div_ceil(40, eval_batch));
        let program = job.programs().evaluation[0].clone();
        let mut executable =
            GraphCpu::default().compile(&[program], &ExecOptions { seed: 42, ..ExecOptions::default() }).unwrap();
        let mut sums = vec![0.0; data.sums()];
        for index in 0..data.evaluations() {
            let inputs = data.evaluation(index).unwrap().inputs;
            executable.run(0, &inputs.iter().map(Array::view).collect::<Vec<View<'_>>>()).unwrap();
            let outputs: Vec<Array> = (0..6).map(|output| executable.output(0, output).unwrap()).collect();
            data.add(index, &outputs, &mut sums);
        }
        all.push(data.metrics(&sums));
    }
    assert_eq!(all[0].len(), 21);
    for (name, value) in &all[0] {
        assert!(value.is_finite() && (value - all[1][name]).abs() < 1e-4 * value.abs().max(1.0), "{name}: {all:?}");
    }
    assert!(all[0]["crps_5m"] > 0.0 && (0.0..=1.0).contains(&all[0]["coverage_240m"]));
}

#[test]
fn the_smoke_size_learns_and_every_micro_step_draws_anew() {
    let job = prepare(smoke(json!({})), json!({"batchPerGpu": 8})).unwrap();
    let data = open(job.as_ref());
    let optimization = job.optimization();
    let recipe = Recipe { clip: optimization.clip, ..Recipe::new(optimization.optimizer.clone()) };
    let program = recipe.step(&job.programs().train[0]).unwrap();
    let loss = program.outputs.iter().position(|output| output.name == "loss").unwrap();
    let counter = program.inputs.iter().position(|input| input.name == "counter").unwrap();
    let mut executable = GraphCpu::default()
        .compile(std::slice::from_ref(&program), &ExecOptions { seed: 42, ..Default::default() })
        .unwrap();
    let mut run = |batch: &Batch, rate: f32| {
        let rate = Array::scalar(rate);
        let views: Vec<View<'_>> = batch.inputs.iter().chain([&rate]).map(Array::view).collect();
        executable.run(0, &views).unwrap();
        executable.output(0, loss).unwrap().item()
    };
    // With learning rate 0, the weights stay: only the draws differ between counters.
    let mut first = batch(data.as_ref(), At { items: 0, micro: 0 });
    let once = run(&first, 0.0);
    first.inputs[counter] = Array::new([], Elements::U32(vec![7])).unwrap();
    assert!((run(&first, 0.0) - once).abs() > 1e-3);

    let losses: Vec<f64> =
        (0..80).map(|step| run(&batch(data.as_ref(), At { items: 8 * step, micro: 0 }), 2e-3)).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[60..]) < 0.8 * mean(&losses[..10]), "{losses:?}");
}
