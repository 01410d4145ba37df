//! Vision-BDH: sizes, settings, data, batches, and what refuses to be trained.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_graph::array::{Array, Data as Elements, View};
use pawl_graph::executor::{ExecOptions, Executor};
use pawl_graph::graph::{Program, Role};
use pawl_graph::passes::Pattern;
use pawl_graph::recipe::Recipe;
use pawl_workloads::vision_bdh::images::BYTES;
use pawl_workloads::{At, Batch, Data, Job, Loader, RatePosition, Request, Schedule, Warmup, WorkloadError, workload};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

fn request(config: Value, settings: Value) -> Request {
    let settings: Settings = serde_json::from_value(settings).unwrap();
    Request { config: config.as_object().unwrap().clone(), settings, seed: 42, rank: 0, world: 1 }
}

fn prepare(config: Value, settings: Value) -> Result<Box<dyn Job>, String> {
    workload("vision-bdh").unwrap().prepare(&request(config, settings)).map_err(|error| error.to_string())
}

fn smoke(more: Value) -> Value {
    let mut config = json!({"preset": "smoke"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn open(job: &dyn Job) -> Arc<dyn Data> {
    job.open(Path::new("unused"), &|_, _, _| {}).unwrap()
}

fn parameters(program: &Program) -> usize {
    let learn = program.states.iter().filter(|state| state.role == Role::Parameter);
    learn.map(|state| state.meta.shape.elements()).sum()
}

#[test]
fn parameter_counts_equal_the_specification() {
    let generated = json!({"source": "Generated"});
    for (config, count) in [
        (json!({"preset": "smoke"}), 61_306),
        (json!({"preset": "medium"}), 3_562_954),
        (json!({"preset": "full", "data": generated}), 3_562_954),
    ] {
        for layout in ["Raw", "Linear"] {
            let job = prepare(config.clone(), json!({"parameterLayout": layout})).unwrap();
            assert_eq!(parameters(&job.programs().train[0]), count);
            assert_eq!(parameters(&job.programs().evaluation[0]), count);
        }
    }
}

#[test]
fn initial_weights_have_the_bounds_of_the_specification() {
    let job = prepare(json!({"preset": "medium"}), json!({})).unwrap();
    let program = &job.programs().train[0];
    let bound = |name: &str| match program.state_decl(program.state(name).unwrap()).init {
        pawl_graph::graph::Init::Uniform { bound } => bound,
        ref other => panic!("{name}: {other:?}"),
    };
    for (name, wanted) in
        [("enc", 0.07024), ("enc_v", 0.07024), ("dec", 0.03077), ("patch.weight", 0.043853), ("head.weight", 0.172345)]
    {
        assert!((bound(name) - wanted).abs() < 1e-5, "{name}: {}", bound(name));
    }
}

#[test]
fn defaults_are_those_of_the_specification() {
    let job = prepare(json!({"preset": "medium"}), json!({"batchPerGpu": 64})).unwrap();
    let of = job.optimization();
    let adamw = &of.optimizer.others;
    assert_eq!((of.learning_rate, adamw.weight_decay, adamw.decay_vectors), (2e-4, 0.05, true));
    assert_eq!((adamw.beta1, adamw.beta2, adamw.eps), (0.9, 0.999, 1e-8));
    assert_eq!((of.clip, of.average), (Some(1.0), None));
    assert_eq!((job.items_per_batch(), job.items_per_epoch()), (64, 4096));
    // k / 100, then half a cosine wave to the last update.
    let at = |step: u64| RatePosition { step, items: 64 * step, step_items: 64, total_items: 64 * 1100 };
    let factors = [0, 1, 50, 100, 600, 1100].map(|step| of.schedule.factor(at(step)));
    for (factor, wanted) in factors.into_iter().zip([0.0, 0.01, 0.5, 1.0, 0.5, 0.0]) {
        assert!((factor - wanted).abs() < 1e-12, "{factors:?}");
    }
    let fraction = json!({"preset": "medium", "schedule": {"warmupFraction": 0.1}});
    assert_eq!(prepare(fraction, json!({})).unwrap().optimization().schedule.warmup, Warmup::Fraction(0.1));
}

#[test]
fn regions_name_scopes_that_there_are() {
    let job = prepare(smoke(json!({})), json!({})).unwrap();
    let (program, regions) = (&job.programs().train[0], job.programs().regions);
    let matched = |patterns: &[&str]| {
        let scopes = program.graph.scopes();
        let of = |pattern: &str| {
            let pattern = Pattern::new(pattern);
            let found: std::collections::BTreeSet<_> =
                scopes.iter().filter_map(|scope| pattern.region(scope).map(str::to_owned)).collect();
            found.len()
        };
        patterns.iter().map(|pattern| of(pattern)).collect::<Vec<_>>()
    };
    assert_eq!(matched(regions.blocks), [2]);
    assert_eq!(matched(regions.sublayers), [2, 2]);
}

#[test]
fn mistakes_name_the_field_the_value_and_the_remedy() {
    let none = || json!({});
    let cases = [
        (json!({"preset": "tiny"}), none(), ["workload.config.preset", "tiny", "choose smoke"]),
        (json!({}), none(), ["config.data.directory", "null", "source: Generated"]),
        (smoke(json!({"levels": 2})), none(), ["workload.config.levels", "2", "is not a field: choose one of "]),
        (smoke(json!({"model": {"heads": 5}})), none(), ["config.model.heads", "5", "even number of neurons"]),
        (smoke(json!({"model": {"levels": 0}})), none(), ["config.model.levels", "0", "between 1 and 65536"]),
        (smoke(json!({"model": {"dropout": 1.0}})), none(), ["config.model.dropout", "1", "less than 1"]),
        (smoke(json!({"model": {"scores": "Linear"}})), none(), ["config.model.scores", "Linear", "Softmax"]),
        (smoke(json!({"data": {"training": 0}})), none(), ["config.data.training", "0", "between 1"]),
        (smoke(json!({"data": {"directory": "/d"}})), none(), ["config.data.directory", "/d", "source: Cifar10"]),
        (
            smoke(json!({"data": {"placement": "Device", "augmentOn": "Host"}})),
            none(),
            ["config.data.augmentOn", "Host", "placement: Device"],
        ),
        (smoke(json!({"schedule": {"floor": 2.0}})), none(), ["config.schedule.floor", "2", "between 0 and 1"]),
        (
            smoke(json!({"schedule": {"warmupSteps": 5, "warmupFraction": 0.1}})),
            none(),
            ["config.schedule.warmupFraction", "0.1", "only one of them"],
        ),
        (smoke(none()), json!({"learningRate": "11"}), ["settings.learningRate", "11", "less than 10"]),
        (smoke(none()), json!({"attention": "Flash"}), ["settings.attention", "Flash", "set Math"]),
        (
            smoke(none()),
            json!({"workload": {"model": {"dropout": -0.1}}}),
            ["config.model.dropout", "-0.1", "at least 0"],
        ),
    ];
    for (config, settings, parts) in cases {
        let Err(error) = prepare(config.clone(), settings) else { panic!("{config} was accepted") };
        for part in parts {
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
    }
}

/// The batch at `at`.
fn batch(data: &dyn Data, at: At) -> Batch {
    let mut batch = Batch::default();
    data.train(at, &mut batch).unwrap();
    batch
}

#[test]
fn batches_depend_on_seed_and_position_only() {
    let job = prepare(smoke(json!({})), json!({"batchPerGpu": 8})).unwrap();
    let data = open(job.as_ref());
    let all: Vec<Batch> = [0, 2]
        .iter()
        .map(|workers| {
            let mut loader = Loader::new(Arc::clone(&data), Schedule::new(0, 8, 1).skip(30).take(4), *workers, 2);
            let mut last = Batch::default();
            while let Some(batch) = loader.next_batch() {
                last = batch.unwrap();
            }
            last
        })
        .collect();
    assert_eq!(all[0], all[1], "the threads that load make no difference");
    assert_eq!(all[0], batch(data.as_ref(), At { items: 33 * 8, micro: 0 }));

    // Two ranks see what one rank sees in two micro-steps.
    let mut second = request(smoke(json!({})), json!({"batchPerGpu": 8}));
    (second.rank, second.world) = (1, 2);
    let second = workload("vision-bdh").unwrap().prepare(&second).unwrap();
    let of_rank = batch(open(second.as_ref()).as_ref(), At { items: 16, micro: 0 });
    assert_eq!(of_rank, batch(data.as_ref(), At { items: 16, micro: 1 }));

    let mut other = request(smoke(json!({})), json!({"batchPerGpu": 8}));
    other.seed = 43;
    let other = workload("vision-bdh").unwrap().prepare(&other).unwrap();
    assert_ne!(
        batch(open(other.as_ref()).as_ref(), At { items: 0, micro: 0 }),
        batch(data.as_ref(), At { items: 0, micro: 0 })
    );
}

#[test]
fn training_images_are_augmented_anew_each_epoch_and_others_never() {
    let with = |augmentation: &str| {
        let job = prepare(smoke(json!({"data": {"augmentation": augmentation}})), json!({"batchPerGpu": 256})).unwrap();
        open(job.as_ref())
    };
    let (plain, changed) = (with("None"), with("CropFlip"));
    let images = |data: &dyn Data, epoch: u64| {
        let batch = batch(data, At { items: 256 * epoch, micro: 0 });
        let order: Vec<u32> = match batch.inputs[1].data() {
            Elements::U32(labels) => labels.clone(),
            other => panic!("{other:?}"),
        };
        (batch.inputs[0].to_f64(), order)
    };
    let (original, labels) = images(plain.as_ref(), 0);
    let (augmented, same) = images(changed.as_ref(), 0);
    assert_eq!(labels, same);
    let differing = original.chunks(BYTES).zip(augmented.chunks(BYTES)).filter(|(a, b)| a != b).count();
    assert!(differing > 250, "{differing} of 256");
    assert!(augmented.iter().all(|value| value.abs() < 1.0 + 1e-6), "up to rounding between pixels");
    assert_ne!(images(changed.as_ref(), 1).0, augmented);
    for index in 0..plain.evaluations() {
        assert_eq!(plain.evaluation(index).unwrap(), changed.evaluation(index).unwrap());
    }
}

#[test]
fn evaluation_counts_each_image_of_its_split_once() {
    let config = smoke(json!({"data": {"validation": 50, "test": 30}}));
    let job = prepare(config, json!({"batchPerGpu": 8, "evalBatch": 16})).unwrap();
    let validation = open(job.as_ref());
    let test = validation.test_split().expect("there are test images");
    for (data, images) in [(&validation, 50), (&test, 30)] {
        assert_eq!(data.evaluations(), usize::div_ceil(images, 16));
        let mut sums = vec![0.0; data.sums()];
        for index in 0..data.evaluations() {
            // Class 3 is always the likeliest: p = e / (e + 9).
            let logits = (0..16 * 10).map(|i| if i % 10 == 3 { 1.0 } else { 0.0 }).collect();
            data.add(index, &[Array::new([16, 10], Elements::F32(logits)).unwrap()], &mut sums);
        }
        let metrics = data.metrics(&sums);
        assert_eq!((sums[2], metrics["accuracy"]), (images as f64, 0.1));
        let e = std::f64::consts::E;
        let loss = (e + 9.0).ln() - 0.1;
        assert!((metrics["loss"] - loss).abs() < 1e-12, "{}", metrics["loss"]);
    }
    assert_ne!(validation.evaluation(0).unwrap(), test.evaluation(0).unwrap());
    let job = prepare(smoke(json!({"data": {"test": 0}})), json!({})).unwrap();
    assert!(open(job.as_ref()).test_split().is_none());
}

/// Writes files in CIFAR-10's format, of `per_file` records each: record i of file f is all i, with label (f + i) mod
/// 10.
fn write_cifar(directory: &Path, per_file: usize) {
    let names = (1..=5).map(|n| format!("data_batch_{n}.bin")).chain(["test_batch.bin".to_owned()]);
    for (file, name) in names.enumerate() {
        let record = |i: usize| [vec![((file + i) % 10) as u8], vec![(i % 256) as u8; BYTES]].concat();
        std::fs::write(directory.join(name), (0..per_file).flat_map(record).collect::<Vec<u8>>()).unwrap();
    }
}

fn cifar(directory: &Path, training: usize) -> Result<Arc<dyn Data>, WorkloadError> {
    let data = json!({"source": "Cifar10", "directory": directory, "training": training, "validation": 10, "test": 10,
                      "augmentation": "None"});
    let job = prepare(smoke(json!({"data": data})), json!({"batchPerGpu": 8})).unwrap();
    job.open(Path::new("unused"), &|_, _, _| {})
}

#[test]
fn cifar_is_read_and_split_by_its_seed() {
    let directory = tempfile::tempdir().unwrap();
    write_cifar(directory.path(), 10);
    let data = cifar(directory.path(), 40).unwrap();
    // Every record is in one split, and the test split is its own file, in order.
    let value = |pixel: f64| ((pixel * 0.5 + 0.5) * 255.0).round() as usize;
    let mut seen = [0; 10];
    for step in 0..5 {
        let batch = batch(data.as_ref(), At { items: step * 8, micro: 0 });
        for image in batch.inputs[0].to_f64().chunks(BYTES) {
            assert!(image.iter().all(|pixel| *pixel == image[0]));
            seen[value(image[0])] += 1;
        }
    }
    let first = |data: &dyn Data, index: usize| -> Vec<usize> {
        let images = data.evaluation(index).unwrap().inputs[0].to_f64();
        images.chunks(BYTES).map(|image| value(image[0])).collect()
    };
    for number in [first(data.as_ref(), 0), first(data.as_ref(), 1)[..2].to_vec()].concat() {
        seen[number] += 1;
    }
    assert_eq!(seen, [5; 10]);
    let test = data.test_split().unwrap();
    assert_eq!(first(test.as_ref(), 0), (0..8).collect::<Vec<_>>());
}

#[test]
fn files_that_are_not_cifar_are_refused() {
    let message =
        |directory: &Path, training: usize| cifar(directory, training).err().expect("it is refused").to_string();
    let directory = tempfile::tempdir().unwrap();
    let missing = message(directory.path(), 40);
    assert!(missing.contains("data_batch_1.bin") && missing.contains("source: Generated"), "{missing}");

    write_cifar(directory.path(), 10);
    let few = message(directory.path(), 41);
    assert!(few.contains("have 50 images") && few.contains("uses 51"), "{few}");

    let file = directory.path().join("data_batch_3.bin");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let torn = message(directory.path(), 40);
    assert!(torn.contains("data_batch_3.bin: 30729 bytes are not a number of records"), "{torn}");

    let mut labelled = whole.clone();
    labelled[2 * (1 + BYTES)] = 10;
    std::fs::write(&file, &labelled).unwrap();
    let label = message(directory.path(), 40);
    assert!(label.contains("record 2 has label 10"), "{label}");

    std::fs::write(&file, vec![0; 10_001 * (1 + BYTES)]).unwrap();
    let long = message(directory.path(), 40);
    assert!(long.contains("more than 10000 records"), "{long}");
}

#[test]
fn the_smoke_size_learns_and_every_micro_step_drops_other_neurons() {
    let config = smoke(json!({"model": {"dropout": 0.5}}));
    let job = prepare(config, json!({"batchPerGpu": 8, "parameterLayout": "Linear", "ropeCache": "Cached"})).unwrap();
    let data = open(job.as_ref());
    let optimization = job.optimization();
    let recipe = Recipe { clip: optimization.clip, ..Recipe::new(optimization.optimizer.clone()) };
    let program = recipe.step(&job.programs().train[0]).unwrap();
    let loss = program.outputs.iter().position(|output| output.name == "loss").unwrap();
    let mut executable = GraphCpu::default()
        .compile(std::slice::from_ref(&program), &ExecOptions { seed: 42, ..Default::default() })
        .unwrap();
    let mut run = |batch: &Batch, rate: f32| {
        let rate = Array::scalar(rate);
        let views: Vec<View<'_>> = batch.inputs.iter().chain([&rate]).map(Array::view).collect();
        executable.run(0, &views).unwrap();
        executable.output(0, loss).unwrap().item()
    };
    // With learning rate 0, the weights stay: only the mask differs between counters.
    let mut first = batch(data.as_ref(), At { items: 0, micro: 0 });
    let once = run(&first, 0.0);
    assert_eq!(run(&first, 0.0), once);
    first.inputs[2] = batch(data.as_ref(), At { items: 8, micro: 0 }).inputs[2].clone();
    assert_ne!(run(&first, 0.0), once);

    let losses: Vec<f64> =
        (0..60).map(|step| run(&batch(data.as_ref(), At { items: 8 * step, micro: 0 }), 1e-3)).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[50..]) < 0.7 * mean(&losses[..10]), "{losses:?}");
}
