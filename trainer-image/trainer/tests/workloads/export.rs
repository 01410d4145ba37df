//! `pawl-trainer export`: what evaluation used of each workload's checkpoint, in a file that others read.

use crate::one_rank;
use crate::results::tensors;
use pawl_contract::exit::Outcome;
use pawl_graph::array::Array;
use pawl_trainer::checkpoint::decode;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A short training of each workload at smoke size: its configuration, its settings and its items.
fn trainings() -> [(&'static str, Value, Value, u64); 5] {
    let forecasts = json!({"windows": 40, "samples": 8, "steps": 4});
    let forex = json!({"preset": "smoke", "data": {"bars": 2500}, "evaluation": forecasts});
    let slm = json!({"size": "tiny", "data": {"tokens": 100_000}, "evaluation": {"windows": 8}});
    [
        ("ups", json!({"preset": "smoke"}), json!({"batchPerGpu": 2}), 20),
        ("slm", slm, json!({"batchPerGpu": 4, "ema": "0.9"}), 20),
        ("vision-bdh", json!({"preset": "smoke"}), json!({"batchPerGpu": 8, "evalBatch": 32}), 32),
        ("forex", forex, json!({"batchPerGpu": 8, "evalBatch": 20, "ema": "0.9"}), 32),
        ("atft-gat-fan", json!({"preset": "smoke"}), json!({"batchPerGpu": 128, "evalBatch": 640}), 256),
    ]
}

/// Trains in `dir`.
fn train(dir: &Path, (workload, config, settings, items): (&str, Value, Value, u64)) {
    let own = json!({
        "workload": {"name": workload, "config": config}, "settings": settings,
        "budget": {"items": items}, "hangTimeoutSeconds": 120.0,
    });
    let plan = one_rank::plan(&own, &json!({"settings": {"compile": "Graph", "learningRate": "1e-3"}}));
    let report = one_rank::run(dir, &plan);
    assert_eq!(report.outcome, Outcome::Done, "{workload}: {}", report.message);
}

/// Exports what was trained in `dir` to `to` there.
fn export(dir: &Path, to: &str, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pawl-trainer"));
    command.args(["export", "--plan"]).arg(dir.join("plan.json")).arg("--checkpoints").arg(dir.join("checkpoints"));
    command.arg("--to").arg(dir.join(to)).args(options).output().unwrap()
}

/// As [`export`], which succeeds: the tensors of the file.
fn exported(dir: &Path, to: &str, options: &[&str]) -> BTreeMap<String, Array> {
    let output = export(dir, to, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = fs::read(dir.join(to).join("model.safetensors")).unwrap();
    decode(&bytes).unwrap().into_iter().collect()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_workload_is_exported_as_it_was_evaluated() {
    for training in trainings() {
        let (dir, workload) = (tempfile::tempdir().unwrap(), training.0);
        train(dir.path(), training);
        let saved: BTreeMap<String, Array> = tensors(dir.path()).into_iter().collect();
        let average = |name: &str| saved.get(&format!("average/{name}"));
        // States of the optimizer have its name before those of the weights.
        let masters: BTreeMap<&str, &Array> =
            saved.iter().filter(|(name, _)| !name.contains('/')).map(|(name, array)| (name.as_str(), array)).collect();
        let evaluated = exported(dir.path(), "model", &[]);
        assert_eq!(masters.keys().copied().collect::<Vec<_>>(), evaluated.keys().collect::<Vec<_>>(), "{workload}");
        for (name, array) in &evaluated {
            assert!(array == average(name).unwrap_or(masters[name.as_str()]), "{workload}: {name}");
        }
        let averaged = masters.keys().filter(|name| average(name).is_some()).count();
        assert_eq!(averaged > 0, ["ups", "slm", "forex"].contains(&workload), "{workload}: {averaged}");
        let itself = exported(dir.path(), "itself", &["--no-average", "--onnx"]);
        assert!(names(&dir.path().join("itself")).contains(&"model.onnx".to_owned()), "{workload}");
        let example = fs::read(dir.path().join("itself/onnx/example.safetensors")).unwrap();
        let example = decode(&example).unwrap();
        assert!(example.len() > 1 && example.iter().all(|(_, array)| array.to_f64().iter().all(|x| x.is_finite())));
        assert!(itself.iter().all(|(name, array)| array == masters[name.as_str()]), "{workload}: masters");

        let record = if workload == "slm" { "pawl.json" } else { "config.json" };
        let said: Value = serde_json::from_slice(&fs::read(dir.path().join("model").join(record)).unwrap()).unwrap();
        assert_eq!((&said["workload"], &said["averagedWeights"]), (&json!(workload), &json!(averaged)), "{said:#}");
        assert_eq!((&said["seed"], &said["trainedBy"][0]["launch"]), (&json!(42), &json!("one")), "{said:#}");
        assert!(said["settings"]["learningRate"].is_string() && said["checkpoint"]["items"].is_u64(), "{said:#}");
    }
}

#[test]
fn narrow_weights_are_the_nearest_ones() {
    let dir = tempfile::tempdir().unwrap();
    let [training, ..] = trainings();
    train(dir.path(), training);
    let wide = exported(dir.path(), "wide", &[]);
    assert!(export(dir.path(), "narrow", &["--dtype", "bf16"]).status.success());
    let bytes = fs::read(dir.path().join("narrow/model.safetensors")).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.len(), wide.len());
    for (name, tensor) in read.iter() {
        assert_eq!(tensor.dtype(), Dtype::BF16, "{name}");
        let value = |half: &[u8]| f64::from(f32::from_le_bytes([0, 0, half[0], half[1]]));
        for (narrow, wide) in tensor.data().chunks_exact(2).map(value).zip(wide[name].to_f64()) {
            assert!((narrow - wide).abs() <= wide.abs() / 256.0, "{name}: {narrow} {wide}");
        }
    }
}

#[test]
fn an_export_is_complete_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let [training, ..] = trainings();
    train(dir.path(), training);
    let refused = |to: &str, options: &[&str]| {
        let output = export(dir.path(), to, options);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/mine"), "x").unwrap();
    let said = refused("full", &[]);
    assert!(said.contains("exists already") && names(&dir.path().join("full")) == ["mine"], "{said}");
    let said = refused("model", &["--adapter"]);
    assert!(said.contains("for language models"), "{said}");
    for (option, value) in [("--adapter", None), ("--dtype", Some("bf16"))] {
        let said = refused("model", &[&["--onnx", option][..], value.as_slice()].concat());
        assert!(said.contains(&format!("--onnx: excludes {option}")), "{said}");
    }
    let said = refused("model", &["--checkpoint", "00000099-step-9-by-1.1"]);
    assert!(said.contains("00000099-step-9-by-1.1") && said.contains("incomplete"), "{said}");

    let newest = names(&dir.path().join("checkpoints")).into_iter().rfind(|name| name.contains("-step-")).unwrap();
    let shard: PathBuf = dir.path().join("checkpoints").join(&newest).join("model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let said = refused("model", &["--checkpoint", &newest]);
    assert!(said.contains("does not match its hash"), "{said}");
    assert!(!names(dir.path()).iter().any(|name| name.contains("model")), "nothing is left: {:?}", names(dir.path()));
}

/// A byte-level BPE of a few tokens in `directory`.
fn write_tokenizer(directory: &Path) {
    let end = json!({"id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [end], "normalizer": null, "truncation": null, "padding": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "\u{120}": 2, "ab": 3, "\u{120}ab": 4}, "merges": [["a", "b"], ["\u{120}", "ab"]],
        },
    });
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(directory.join("tokenizer_config.json"), json!({"eos_token": "<end>"}).to_string()).unwrap();
}

#[test]
fn a_tokenizer_that_is_elsewhere_now_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [text, tokenizer, moved] = ["text", "tokenizer", "moved"].map(|name| dir.path().join(name));
    write_tokenizer(&tokenizer);
    fs::create_dir(&text).unwrap();
    (0..200).for_each(|number| fs::write(text.join(format!("{number}.txt")), "ab ab ".repeat(40)).unwrap());
    let data = json!({"source": "Text", "directory": text, "tokenizer": tokenizer});
    let config = json!({"size": "tiny", "sequence": 16, "data": data, "evaluation": {"windows": 8}});
    train(dir.path(), ("slm", config, json!({"batchPerGpu": 4}), 8));
    fs::rename(&tokenizer, &moved).unwrap();
    let lost = export(dir.path(), "model", &[]);
    let said = String::from_utf8(lost.stderr).unwrap();
    assert!(!lost.status.success() && said.contains("data.tokenizer"), "{said}");
    exported(dir.path(), "model", &["--tokenizer", moved.to_str().unwrap()]);
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let read = |directory: &Path| fs::read(directory.join(name)).unwrap();
        assert!(read(&dir.path().join("model")) == read(&moved), "{name}");
    }
}
