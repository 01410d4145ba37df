//! Documents in rows of their own, prompts that are not predicted, and what a step makes of unequal numbers of targets.

use crate::differentiated::differentiated;
use crate::slm::{batches, job, request, small};
use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_graph::array::{Array, Data as Elements, View};
use pawl_graph::executor::{ExecOptions, Executor};
use pawl_workloads::layered::overlay;
use pawl_workloads::slm::SlmJob;
use pawl_workloads::slm::corpus::Dialogues;
use pawl_workloads::slm::loss::IGNORED;
use pawl_workloads::slm::split::Split;
use pawl_workloads::{At, Batch, Data, Job, Request};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const SEQUENCE: usize = 16;

fn dialogues(changes: Value) -> Value {
    let mut config = small(json!({"data": {"source": "Dialogues"}}));
    overlay(&mut config, &changes);
    config
}

fn open(job: &SlmJob) -> Arc<dyn Data> {
    job.open(Path::new("/nowhere"), &|_, _, _| {}).unwrap()
}

fn batch_at(data: &Arc<dyn Data>, at: At) -> Batch {
    // Buffers that were used before, as loaders have them.
    let mut batch = Batch::default();
    data.train(At { items: 999, micro: 0 }, &mut batch).unwrap();
    data.train(at, &mut batch).unwrap();
    batch
}

fn ids(array: &Array) -> &[u32] {
    let Elements::U32(ids) = array.data() else { panic!("ids are integers") };
    ids
}

/// Rows of tokens and of targets.
fn rows(batch: &Batch) -> Vec<(&[u32], &[u32])> {
    ids(&batch.inputs[0]).chunks(SEQUENCE).zip(ids(&batch.inputs[1]).chunks(SEQUENCE)).collect()
}

fn counted(batch: &Batch) -> usize {
    ids(&batch.inputs[1]).iter().filter(|&&id| id != IGNORED).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// File `i` is the byte `i`, as often as `lengths` says; a row that begins with it must be that file, its end, and
    /// padding.
    #[test]
    fn padded_text_has_one_file_a_row(lengths in prop::collection::vec(1usize..40, 10..30), batch in 1u32..5) {
        let directory = tempfile::tempdir().unwrap();
        for (file, &length) in lengths.iter().enumerate() {
            std::fs::write(directory.path().join(format!("{file}.txt")), vec![file as u8; length]).unwrap();
        }
        let config = small(json!({
            "architecture": {"vocabulary": 257},
            "data": {"source": "Text", "directory": directory.path(), "layout": "Padded"},
        }));
        let data = open(&job(config, batches(batch)).unwrap());
        let check = |tokens: &[u32], targets: &[u32]| -> usize {
            let file = tokens[0];
            let mut document = vec![file; lengths[file as usize]];
            document.push(256);
            let count = (document.len() - 1).min(SEQUENCE);
            assert_eq!(tokens[..count], document[..count]);
            assert_eq!(targets[..count], document[1..=count]);
            assert!(tokens[count..].iter().all(|&id| id == 0) && targets[count..].iter().all(|&id| id == IGNORED));
            file as usize
        };
        let documents = (0.7 * lengths.len() as f64).ceil() as usize;
        let mut seen = BTreeSet::new();
        for item in 0..documents as u64 {
            seen.insert({
                let batch = batch_at(&data, At { items: item, micro: 0 });
                let (tokens, targets) = rows(&batch)[0];
                check(tokens, targets)
            });
        }
        prop_assert_eq!(seen.len(), documents, "every document once an epoch");
        let evaluated = (0.85 * lengths.len() as f64).ceil() as usize - documents;
        prop_assert_eq!(data.evaluations(), evaluated.div_ceil(batch as usize));
        for index in 0..data.evaluations() {
            let made = data.evaluation(index).unwrap();
            for (tokens, targets) in rows(&made).into_iter().take(evaluated - index * batch as usize) {
                prop_assert!(seen.insert(check(tokens, targets)), "documents of one split only");
            }
        }
    }

    /// Codes and ends are ids of their own, so a mask can be derived from the tokens.
    #[test]
    fn only_what_follows_a_prompt_is_predicted(items in 0u64..500, micro in 0u32..3, padded: bool) {
        let layout = if padded { "Padded" } else { "Packed" };
        let [masked, whole] = [true, false].map(|mask| {
            let config = dialogues(json!({"data": {"layout": layout, "maskPrompt": mask}}));
            batch_at(&open(&job(config, batches(4)).unwrap()), At { items, micro })
        });
        let codes = Dialogues::new(20_000, 64, 42).codes();
        prop_assert_eq!(&masked.inputs[0], &whole.inputs[0]);
        for (&id, &all) in ids(&masked.inputs[1]).iter().zip(ids(&whole.inputs[1])) {
            let answer = all == 0 || codes.contains(&all);
            prop_assert_eq!(id, if answer { all } else { IGNORED });
        }
        // Cut at the beginning of a prompt, a row ends in the code and the end of its document.
        for (tokens, targets) in rows(&masked).into_iter().filter(|_| padded) {
            let answer: Vec<u32> = targets.iter().copied().filter(|&id| id != IGNORED).collect();
            prop_assert!(answer.len() == 2 && codes.contains(&answer[0]) && answer[1] == 0);
            let code = targets.iter().position(|id| codes.contains(id)).unwrap();
            prop_assert!(tokens[code + 1] == answer[0] && tokens[code + 2..].iter().all(|&id| id == 0));
        }
    }

    #[test]
    fn every_rank_knows_how_many_targets_its_step_has(
        world in 1u32..4, accumulation in 1u32..4, batch in 1u32..4, step in 0u64..9, padded: bool, mask: bool,
    ) {
        let layout = if padded { "Padded" } else { "Packed" };
        let config = dialogues(json!({"data": {"layout": layout, "maskPrompt": mask}}));
        let settings = Settings { accumulation_steps: Some(accumulation), ..batches(batch) };
        let items = step * u64::from(world * accumulation * batch);
        let mut made = Vec::new();
        for rank in 0..world {
            let data = open(&SlmJob::new(&Request { rank, world, ..request(config.clone(), settings.clone()) }).unwrap());
            made.extend((0..accumulation).map(|micro| batch_at(&data, At { items, micro })));
        }
        let total: usize = made.iter().map(counted).sum();
        for batch in &made {
            let average = total.max(1) as f64 / f64::from(world * accumulation);
            prop_assert_eq!(batch.inputs[2].item(), f64::from(average as f32));
        }
        if !padded && !mask {
            prop_assert_eq!(total, made.len() * batch as usize * SEQUENCE);
        }
    }
}

/// What the step at 48 items makes of eight items: loss and gradients, means over `world` ranks and their
/// micro-batches. And the loss as the evaluation program has it: the sum over all targets, by their number.
fn step(config: &Value, world: u32, accumulation: u32) -> (Vec<Vec<f64>>, f64) {
    let settings = Settings { accumulation_steps: Some(accumulation), ..batches(8 / world / accumulation) };
    let (mut means, mut evaluated) = (Vec::<Vec<f64>>::new(), [0.0; 2]);
    let share = 1.0 / f64::from(world * accumulation);
    // In the order in which the micro-batches lie: ranks of a micro-step beside each other.
    for (micro, rank) in (0..accumulation).flat_map(|micro| (0..world).map(move |rank| (micro, rank))) {
        let job = SlmJob::new(&Request { rank, world, ..request(config.clone(), settings.clone()) }).unwrap();
        let programs = [differentiated(job.programs().train[0].clone()), job.programs().evaluation[0].clone()];
        let options = ExecOptions { seed: 42, ..ExecOptions::default() };
        let mut executable = GraphCpu::default().compile(&programs, &options).unwrap();
        let mut batch = batch_at(&open(&job), At { items: 48, micro });
        let views: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
        executable.run(0, &views).unwrap();
        means.resize(programs[0].outputs.len(), Vec::new());
        for (at, mean) in means.iter_mut().enumerate() {
            let values = executable.output(0, at).unwrap().to_f64();
            mean.resize(values.len(), 0.0);
            mean.iter_mut().zip(values).for_each(|(mean, value)| *mean += share * value);
        }
        batch.inputs.truncate(2);
        batch.inputs.extend((programs[1].inputs.len() > 2).then(|| {
            Array::new([job.items_per_batch() as usize], Elements::U32(vec![0; job.items_per_batch() as usize]))
                .unwrap()
        }));
        let views: Vec<View<'_>> = batch.inputs.iter().map(Array::view).collect();
        executable.run(1, &views).unwrap();
        for (at, sum) in evaluated.iter_mut().enumerate() {
            *sum += executable.output(1, at).unwrap().item();
        }
    }
    (means, evaluated[0] / evaluated[1])
}

#[test]
fn a_step_is_the_mean_over_its_targets_however_they_are_shared_out() {
    let long = json!({"sequence": 64, "data": {"layout": "Padded", "tokens": 100_000}});
    for (config, unequal) in [
        (small(json!({})), false),
        (dialogues(json!({"data": {"layout": "Padded", "maskPrompt": true}})), false),
        (dialogues(long), true),
        (dialogues(json!({"data": {"maskPrompt": true}})), true),
    ] {
        let (whole, plain) = step(&config, 1, 1);
        assert!((whole[0][0] / plain - 1.0).abs() < 1e-6, "{} is not {plain}: {config}", whole[0][0]);
        for (world, accumulation) in [(1, 4), (2, 2), (4, 1), (1, 8)] {
            let (shared, _) = step(&config, world, accumulation);
            for (a, b) in whole.iter().zip(&shared) {
                let norm = a.iter().map(|a| a * a).sum::<f64>().sqrt();
                let error = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                assert!(error <= 2e-6 * norm, "{world} ranks x {accumulation}: {error} of {norm}: {config}");
            }
            // Ranks and micro-batches are the same batches: bit for bit.
            assert_eq!(shared[0], step(&config, world * accumulation, 1).0[0]);
        }
        let data = open(&job(config.clone(), batches(2)).unwrap());
        let counts: BTreeSet<usize> = (0..4).map(|micro| counted(&batch_at(&data, At { items: 48, micro }))).collect();
        assert_eq!(counts.len() > 1, unequal, "{counts:?}: {config}");
    }
}

#[test]
fn an_epoch_is_the_training_documents() {
    let of = |changes: Value| job(dialogues(changes), batches(1)).unwrap().items_per_epoch();
    let all = Dialogues::new(20_000, 64, 42);
    assert_eq!(of(json!({"data": {"layout": "Padded"}})), all.lengths(Split::Train).count() as u64);
    assert_eq!(of(json!({})), (all.lengths(Split::Train).sum::<usize>() / SEQUENCE) as u64);
}
