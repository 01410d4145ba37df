//! Batches: pure functions of position, balanced, and true to the fields they come from.

use pawl_contract::settings::Settings;
use pawl_graph::array::{Array, Data as Elements};
use pawl_workloads::ups::config::Task;
use pawl_workloads::ups::dataset::Dataset;
use pawl_workloads::ups::field::Field;
use pawl_workloads::ups::{Ups, UpsJob};
use pawl_workloads::{At, Batch, Data, Job, Loader, Request, Schedule, Workload};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Smaller than the smoke preset, with a sampled grid (Darcy 64 cells, 20 queries) and one that is not (advection 32
/// cells, 20 of them).
fn config() -> Map<String, Value> {
    let config = json!({
        "preset": "smoke",
        "advection": {"cells": 16, "frames": 7, "trajectories": 5},
        "darcy": {"grid": 8, "samples": 11},
        "operator": {"tokens": 4, "width": 6, "hidden": 8, "depth": 2, "heads": 2},
        "decoder": {"hidden": 8},
        "pairs": 3,
        "loss": {"inversePairs": 2},
        "evaluation": {"physicalPairs": 5},
    });
    config.as_object().unwrap().clone()
}

fn request(batch: u32, accumulation: u32, rank: u32, world: u32) -> Request {
    let settings = Settings {
        batch_per_gpu: Some(batch),
        accumulation_steps: Some(accumulation),
        query_samples: Some(20),
        ..Default::default()
    };
    Request { config: config(), settings, seed: 9, rank, world }
}

static ROOT: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

fn job(request: &Request) -> (UpsJob, Arc<dyn Data>) {
    let job = UpsJob::new(request).unwrap();
    let data = job.open(ROOT.path(), &|_, _, _| {}).unwrap();
    (job, data)
}

fn batch(data: &dyn Data, items: u64, micro: u32) -> Batch {
    let mut batch = Batch::default();
    data.train(At { items, micro }, &mut batch).unwrap();
    batch
}

fn input<'a>(job: &UpsJob, batch: &'a Batch, name: &str) -> &'a Array {
    let program = &job.programs().train[batch.program];
    &batch.inputs[program.input(name).unwrap().0 as usize]
}

fn floats(array: &Array) -> &[f32] {
    match array.data() {
        Elements::F32(values) => values,
        other => panic!("not float32: {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ranks_see_what_accumulation_sees(step in 0u64..40, world in 1u32..5) {
        let items = step * 2 * u64::from(world);
        let (_, alone) = job(&request(2, world, 0, 1));
        for rank in 0..world {
            let (_, data) = job(&request(2, 1, rank, world));
            prop_assert_eq!(batch(&*data, items, 0), batch(&*alone, items, rank));
        }
    }

    #[test]
    fn a_batch_does_not_depend_on_what_was_asked_before(steps in prop::collection::vec(0u64..60, 1..8)) {
        let (_, data) = job(&request(4, 1, 0, 1));
        let mut reused = Batch::default();
        for step in steps {
            data.train(At { items: step * 4, micro: 0 }, &mut reused).unwrap();
            let (_, fresh) = job(&request(4, 1, 0, 1));
            prop_assert_eq!(&reused, &batch(&*fresh, step * 4, 0));
        }
    }
}

#[test]
fn resuming_goes_on_exactly_and_workers_change_nothing() {
    let (_, data) = job(&request(2, 2, 0, 1));
    let run = |start: u64, count: usize, workers: u32| -> Vec<Batch> {
        let mut loader = Loader::new(Arc::clone(&data), Schedule::new(start * 4, 4, 2), workers, 2);
        (0..count).map(|_| loader.next_batch().unwrap().unwrap()).collect()
    };
    let whole = run(0, 24, 0);
    assert_eq!(run(5, 14, 3), whole[10..]);
    assert_ne!(whole[0], whole[1]);
}

#[test]
fn another_seed_draws_other_batches() {
    let (_, data) = job(&request(2, 1, 0, 1));
    let (_, other) = job(&Request { seed: 10, ..request(2, 1, 0, 1) });
    assert!((0..8).any(|step| batch(&*data, 2 * step, 0) != batch(&*other, 2 * step, 0)));
}

/// Which (sample, frame) of `field` has latent `state`.
fn find(dataset: &Dataset, field: Field, state: &[f32]) -> (usize, usize) {
    let rows = dataset.latents(field);
    let mut latent = vec![0.0; state.len()];
    for row in 0..rows.len() {
        for frame in 0..rows.row_len() / state.len() {
            rows.read(row, frame * state.len(), &mut latent);
            if latent == state {
                return (row, frame);
            }
        }
    }
    panic!("no {field:?} has this latent")
}

#[test]
fn batches_hold_pairs_of_consecutive_states_half_of_each_task() {
    let (job, data) = job(&request(4, 1, 0, 1));
    let dataset = Dataset::open(&ROOT.path().join("ups"), job.config(), &|_, _, _| {}).unwrap();
    let mut trajectories = Vec::new();
    for step in 0..10 {
        let batch = batch(&*data, 4 * step, 0);
        let states = |name| floats(input(&job, &batch, name)).chunks_exact(24).map(<[f32]>::to_vec).collect::<Vec<_>>();
        let (now, next) = (states("z0"), states("z1"));
        assert_eq!((now.len(), next.len()), (12, 12));
        for item in 0..2 {
            let rows = 3 * item..3 * item + 3;
            let found: Vec<_> = rows.clone().map(|row| find(&dataset, Field::Advection, &now[row])).collect();
            for (pair, row) in rows.enumerate() {
                assert_eq!(found[pair], (found[0].0, found[0].1 + pair), "the pairs of an item follow each other");
                let (sample, frame) = find(&dataset, Field::Advection, &next[row]);
                assert_eq!((sample, frame), (found[pair].0, found[pair].1 + 1), "z1 is the state after z0");
            }
            trajectories.push(found[0].0);
            let samples: Vec<usize> = (6 + 3 * item..9 + 3 * item)
                .map(|row| {
                    let (sample, _) = find(&dataset, Field::Coefficient, &now[row]);
                    assert_eq!(find(&dataset, Field::Pressure, &next[row]).0, sample, "z1 solves z0");
                    sample
                })
                .collect();
            assert!(samples.iter().all(|&s| s < 11) && samples[0] != samples[1] && samples[1] != samples[2]);
        }
    }
    for cycle in trajectories.chunks_exact(5) {
        let mut cycle = cycle.to_vec();
        cycle.sort_unstable();
        assert_eq!(cycle, [0, 1, 2, 3, 4], "every training trajectory once before any twice");
    }
}

#[test]
fn fields_are_those_that_the_latents_encode_at_the_query_points() {
    let (job, data) = job(&request(2, 1, 0, 1));
    let dataset = Dataset::open(&ROOT.path().join("ups"), job.config(), &|_, _, _| {}).unwrap();
    let mut seen = Vec::new();
    for step in 0..6 {
        let batch = batch(&*data, 2 * step, 0);
        let z0 = floats(input(&job, &batch, "z0"));
        let cases = [(Task::Advection1d, Field::Advection, 16, 0), (Task::Darcy2d, Field::Coefficient, 64, 3)];
        for (task, of, cells, first_row) in cases {
            let field = input(&job, &batch, &format!("{}.field", task.name()));
            let queries: Vec<u32> = match task {
                Task::Advection1d => (0..16).collect(),
                Task::Darcy2d => match input(&job, &batch, "darcy2d.queries").data() {
                    Elements::U32(queries) => queries.clone(),
                    other => panic!("{other:?}"),
                },
            };
            assert_eq!(field.shape().dims(), [2, queries.len()]);
            for (pair, got) in floats(field).chunks_exact(queries.len()).enumerate() {
                let state = &z0[(first_row + pair) * 24..(first_row + pair + 1) * 24];
                let (sample, frame) = find(&dataset, of, state);
                let mut raw = vec![0.0; cells];
                dataset.field(of).read(sample, frame * cells, &mut raw);
                let values: Vec<f32> = raw.iter().map(|&v| dataset.normalization(of).apply(v)).collect();
                let want: Vec<f32> = queries.iter().map(|&q| values[q as usize]).collect();
                assert_eq!(got, want);
                // The stored latent is the encoding of that field, to half precision.
                let mut encoded = vec![0.0; 24];
                dataset.encoder(task).encode(&values, &mut Vec::new(), &mut encoded);
                assert!(encoded.iter().zip(state).all(|(a, b)| (a - b).abs() <= 1e-3 * a.abs().max(1.0)));
            }
            if task == Task::Darcy2d {
                assert_eq!(queries.len(), 20);
                seen.push(queries);
            }
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "every micro-step draws its own points");
}

#[test]
fn normalized_training_fields_have_no_mean_and_unit_variance() {
    let (job, _) = job(&request(2, 1, 0, 1));
    let dataset = Dataset::open(&ROOT.path().join("ups"), job.config(), &|_, _, _| {}).unwrap();
    for (field, train) in [(Field::Advection, 5), (Field::Coefficient, 11), (Field::Pressure, 11)] {
        let rows = dataset.field(field);
        let (mut values, mut all) = (vec![0.0; rows.row_len()], Vec::new());
        for row in 0..train {
            rows.read(row, 0, &mut values);
            all.extend(values.iter().map(|&v| f64::from(dataset.normalization(field).apply(v))));
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (all.len() - 1) as f64;
        assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-5, "{field:?}: {mean} {variance}");
    }
}

#[test]
fn auxiliary_losses_come_every_so_many_micro_steps_of_an_epoch_and_ramp_up_by_epochs() {
    let mut request = request(2, 2, 0, 1);
    request.settings.loss_frequency = Some(3);
    let (job, data) = job(&request);
    assert_eq!(job.items_per_epoch(), 16);
    assert_eq!(job.programs().train.len(), 2);
    // Four items a step: four steps of two micro-steps an epoch.
    let kinds: Vec<usize> = Schedule::new(0, 4, 2).take(16).map(|at| job.variant(at)).collect();
    assert_eq!(kinds, [0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1]);
    let weight = |epoch: u64| {
        let batch = batch(&*data, epoch * 16, 0);
        input(&job, &batch, "inverse_weight").item()
    };
    let weights: Vec<f64> = [0, 4, 5, 6, 9, 10, 500].map(weight).to_vec();
    let expected = [0.0, 0.0, 0.0, 0.002, 0.008, 0.01, 0.01];
    assert!(weights.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-9), "{weights:?}");
}

#[test]
fn evaluation_covers_the_validation_split_once() {
    let (job, data) = job(&request(2, 1, 0, 1));
    let dataset = Dataset::open(&ROOT.path().join("ups"), job.config(), &|_, _, _| {}).unwrap();
    // Two held-out trajectories of six pairs, two held-out Darcy samples; six rows a batch. Then five and two physical
    // pairs.
    assert_eq!(data.evaluations(), 2 + 1 + 1 + 1);
    let mut seen = Vec::new();
    for index in 0..data.evaluations() {
        let batch = data.evaluation(index).unwrap();
        assert_eq!(batch.inputs.len(), job.programs().evaluation[batch.program].inputs.len());
        if batch.program > 0 {
            continue;
        }
        let field = if index < 2 { Field::Advection } else { Field::Coefficient };
        for state in floats(&batch.inputs[0]).chunks_exact(24) {
            seen.push((index < 2, find(&dataset, field, state)));
        }
    }
    let unique: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), 14, "{seen:?}");
    assert!(seen.iter().all(|&(advection, (sample, frame))| {
        (if advection { 5..7 } else { 11..13 }).contains(&sample) && frame < 6
    }));
}

#[test]
fn metrics_weigh_rows_and_ignore_padding() {
    let (_, data) = job(&request(2, 1, 0, 1));
    let mut sums = vec![0.0; data.sums()];
    // Six rows per batch. The Darcy batch (index 2 of the latent ones) holds two true rows; the rest would spoil
    // everything.
    let rows = |good: f32, bad: f32, true_rows: usize| {
        let values = (0..6).map(|row| if row < true_rows { good } else { bad }).collect();
        Array::new(vec![6], Elements::F32(values)).unwrap()
    };
    let mut latent = Vec::new();
    for index in 0..data.evaluations() {
        let batch = data.evaluation(index).unwrap();
        if batch.program == 0 {
            latent.push(index);
        }
    }
    for (number, &index) in latent.iter().enumerate() {
        let (error, count) = if number < 2 { (4.0, 6) } else { (9.0, 2) };
        let outputs = [rows(error, 1e9, count), rows(16.0, 1e9, count), rows(2.0, 1e9, count), rows(1.0, 1e9, count)];
        data.add(index, &outputs, &mut sums);
    }
    let metrics = data.metrics(&sums);
    let expect = [
        ("nrmse_advection1d", 0.5),
        ("nrmse_darcy2d", 0.75),
        ("nrmse", ((12.0 * 4.0 + 2.0 * 9.0) / (14.0f64 * 16.0)).sqrt()),
        ("mse", (12.0 * 4.0 + 2.0 * 9.0) / 14.0),
        ("mae", 2.0),
        ("loss", (4.0 + 0.05 + 9.0 + 0.05) / 2.0),
    ];
    for (name, want) in expect {
        assert!((metrics[name] - want).abs() < 1e-9, "{name}: {} is not {want}", metrics[name]);
    }
    assert!(!metrics.contains_key("physical_nrmse_darcy2d"), "nothing physical was added");
}

#[test]
fn one_task_alone_fills_the_batch() {
    let mut request = request(3, 1, 0, 1);
    request.config.insert("tasks".to_owned(), json!(["darcy2d"]));
    let prepared = Ups.prepare(&request).unwrap();
    let data = prepared.open(ROOT.path() as &Path, &|_, _, _| {}).unwrap();
    let batch = batch(&*data, 0, 0);
    assert_eq!(batch.inputs[0].shape().dims(), [9, 4, 6]);
    assert_eq!(prepared.items_per_epoch(), 11);
}
