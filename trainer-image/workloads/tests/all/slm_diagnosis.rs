//! The codes of dialogues: where they stand among all tokens, what the metrics make of that, and that they can be
//! learnt.

use crate::slm::{CompiledSlm, batches, job, small};
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data as Elements, View};
use pawl_graph::executor::{ExecOptions, Executor};
use pawl_graph::graph::{Builder, DType};
use pawl_workloads::random::Stream;
use pawl_workloads::slm::corpus::Dialogues;
use pawl_workloads::slm::loss::{Head, IGNORED};
use pawl_workloads::slm::ranking::Ranking;
use pawl_workloads::slm::split::Split;
use pawl_workloads::{Data, Job};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

#[test]
fn ranks_are_those_of_sorted_logits() {
    let (rows, width, vocabulary) = (9, 5, 23);
    let positions: Vec<u32> = vec![3, 0, 8, 3];
    let draws = Stream::new(1, 2);
    // Few different values, so that some logits are equal.
    let number = |at: u64| draws.below(at, 5) as f32 - 2.0;
    let hidden: Vec<f32> = (0..rows * width).map(|at| number(at as u64)).collect();
    let matrix: Vec<f32> = (0..vocabulary * width).map(|at| number(1000 + at as u64)).collect();
    let targets: Vec<u32> = (0..rows).map(|at| draws.below(2000 + at as u64, vocabulary as u64) as u32).collect();

    let b = Builder::new("ranking");
    let head = Head {
        hidden: b.input("hidden", DType::F32, [rows, width]),
        matrix: b.input("matrix", DType::F32, [vocabulary, width]),
        targets: b.input("targets", DType::U32, [rows, 1]),
        stream: DType::F32,
        learns: false,
    };
    let Ranking { rank, likeliest } = head.ranking(b.input("positions", DType::U32, [positions.len()]));
    b.output("rank", rank);
    b.output("likeliest", likeliest);
    let program = b.finish().unwrap();
    let inputs = [
        Array::new([rows, width], Elements::F32(hidden.clone())).unwrap(),
        Array::new([vocabulary, width], Elements::F32(matrix.clone())).unwrap(),
        Array::new([rows, 1], Elements::U32(targets.clone())).unwrap(),
        Array::new([positions.len()], Elements::U32(positions.clone())).unwrap(),
    ];
    let expected: Vec<(f64, f64)> = positions
        .iter()
        .map(|&row| {
            let row = row as usize;
            let product =
                |id: usize| (0..width).map(|at| hidden[row * width + at] * matrix[id * width + at]).sum::<f32>();
            let mut order: Vec<usize> = (0..vocabulary).collect();
            order.sort_by(|&a, &b| product(b).total_cmp(&product(a)));
            let target = product(targets[row] as usize);
            (order.iter().take_while(|&&id| product(id) > target).count() as f64, order[0] as f64)
        })
        .collect();
    for executor in [&Eager::cpu() as &dyn Executor, &GraphCpu::default()] {
        let mut executable = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
        executable.run(0, &views).unwrap();
        let [rank, likeliest] = [0, 1].map(|at| executable.output(0, at).unwrap().to_f64());
        assert_eq!(rank.into_iter().zip(likeliest).collect::<Vec<_>>(), expected, "{}", executor.name());
    }
}

/// Validation documents of the data of [`small`]: their codes, in order.
fn true_codes(data: &Dialogues) -> Vec<u32> {
    data.tokens(Split::Validation).into_iter().filter(|id| data.codes().contains(id)).collect()
}

#[test]
fn metrics_are_those_of_a_plain_count() {
    let config = small(json!({"data": {"source": "Dialogues"}, "evaluation": {"windows": 50}}));
    let data: Arc<dyn Data> = job(config, batches(8)).unwrap().open(Path::new("/nowhere"), &|_, _, _| {}).unwrap();
    let all = Dialogues::new(20_000, 64, 42);
    let truth: Vec<u32> = true_codes(&all).into_iter().take(50).collect();
    assert_eq!((truth.len(), data.evaluations()), (50, 7));
    // Told: the code, the next one, a word.
    let draws = Stream::new(4, 4);
    let told: Vec<u32> = truth
        .iter()
        .enumerate()
        .map(|(at, &code)| match draws.below(at as u64, 4) {
            0 | 1 => code,
            2 => all.codes().start + (code + 1 - all.codes().start) % all.codes().len() as u32,
            _ => 60,
        })
        .collect();
    let rank = |at: usize| if told[at] == truth[at] { 0.0 } else { 1.0 + draws.below(1000 + at as u64, 6) as f64 };

    let mut ranks_sums = [vec![0.0; data.sums()], vec![0.0; data.sums()]];
    for index in 0..data.evaluations() {
        // Rows that hold no document may say anything.
        let of = |value: &dyn Fn(usize) -> f64| {
            let values = (0..8).map(|row| index * 8 + row).map(|at| if at < 50 { value(at) as f32 } else { 0.0 });
            Array::new([8, 1], Elements::F32(values.collect())).unwrap()
        };
        let outputs = [Array::scalar(6.0), Array::scalar(3.0), of(&rank), of(&|at| f64::from(told[at]))];
        data.add(index, &outputs, &mut ranks_sums[index % 2]);
    }
    let sums: Vec<f64> = ranks_sums[0].iter().zip(&ranks_sums[1]).map(|(a, b)| a + b).collect();

    let codes: BTreeSet<u32> = truth.iter().chain(&told).copied().filter(|id| all.codes().contains(id)).collect();
    let f1 = |code: u32| {
        let count = |is: &dyn Fn(usize) -> bool| (0..50).filter(|&at| is(at)).count() as f64;
        let right = count(&|at| truth[at] == code && told[at] == code);
        let (precision, recall) = (right / count(&|at| told[at] == code), right / count(&|at| truth[at] == code));
        if right == 0.0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) }
    };
    let share = |k: f64| (0..50).filter(|&at| rank(at) < k).count() as f64 / 50.0;
    let expected = BTreeMap::from([
        ("loss", 2.0),
        ("perplexity", 2f64.exp()),
        ("top1", share(1.0)),
        ("top3", share(3.0)),
        ("top5", share(5.0)),
        ("macroF1", codes.iter().map(|&code| f1(code)).sum::<f64>() / codes.len() as f64),
    ]);
    let metrics = data.metrics(&sums);
    assert_eq!(metrics.len(), expected.len());
    for (name, value) in expected {
        assert!((metrics[name] - value).abs() < 1e-12, "{name}: {} is not {value}", metrics[name]);
    }
}

#[test]
fn documents_are_evaluated_one_a_row_in_any_layout() {
    let all = Dialogues::new(20_000, 64, 42);
    let truth = true_codes(&all);
    for layout in ["Packed", "Padded"] {
        let config = small(json!({"data": {"source": "Dialogues", "layout": layout}, "evaluation": {"windows": 1000}}));
        let compiled = CompiledSlm::new(config, batches(8), |_| {});
        let names: Vec<_> = compiled.programs[1].inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!(names, ["tokens", "targets", "codes"]);
        assert_eq!(compiled.data.evaluations(), truth.len().div_ceil(8));
        let mut found = Vec::new();
        for index in 0..compiled.data.evaluations() {
            let batch = compiled.data.evaluation(index).unwrap();
            let [Elements::U32(targets), Elements::U32(places)] = [1, 2].map(|at| batch.inputs[at].data()) else {
                panic!("ids are integers")
            };
            found.extend(places.iter().map(|&place| targets[place as usize]));
        }
        let (documents, rest) = found.split_at(truth.len());
        assert!(documents == truth && rest.iter().all(|&target| target == IGNORED));
    }
    // Nothing else pays for it.
    let plain = CompiledSlm::new(small(json!({})), batches(8), |_| {});
    assert_eq!((plain.programs[1].inputs.len(), plain.programs[1].outputs.len(), plain.data.sums()), (2, 2, 2));
}

#[test]
fn codes_are_learnt_from_dialogues() {
    let config = small(json!({
        "sequence": 64,
        "architecture": {"width": 64},
        "data": {"source": "Dialogues", "layout": "Padded", "maskPrompt": true, "tokens": 300_000},
        "evaluation": {"windows": 128},
    }));
    let mut compiled = CompiledSlm::new(config, batches(16), |_| {});
    let codes = Dialogues::new(300_000, 64, 42).codes().len() as f64;
    let before = compiled.evaluate();
    compiled.train(320, 2e-3);
    let after = compiled.evaluate();
    let enough = after["top5"] > 5.0 / codes + 0.3 && after["top1"] > 2.0 / codes;
    assert!(enough, "not far above chance with {codes} codes: {before:?} -> {after:?}");
    assert!(after["top1"] <= after["top3"] && after["top3"] <= after["top5"]);
    assert!(after["macroF1"] > before["macroF1"] && after["loss"] < before["loss"]);
}
