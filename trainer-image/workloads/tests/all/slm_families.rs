//! Models of all families equal those of Transformers, which made `fixtures/hugging_face` through `make.py`, and are
//! exported as they came.

use crate::slm::{CompiledSlm, batches, job};
use pawl_contract::settings::{Precision, RopeCache, Settings};
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data};
use pawl_graph::collective::SingleRank;
use pawl_graph::executor::{ExecOptions, Executable, Executor, read_chosen};
use pawl_graph::graph::Role;
use pawl_graph::recipe::{AttentionKernel, Precision as Arithmetic, Recipe};
use pawl_workloads::Job;
use pawl_workloads::layered::overlay;
use pawl_workloads::model_file::{FloatFormat, ModelFile};
use pawl_workloads::slm::SlmJob;
use pawl_workloads::slm::architecture::Architecture;
use pawl_workloads::slm::config_json::architecture;
use pawl_workloads::slm::export::{adapter_description, adapters, description, merged};
use pawl_workloads::slm::family::Family;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FAMILIES: [(&str, Family); 5] = [
    ("llama3", Family::Llama),
    ("qwen2.5", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("gemma", Family::Gemma),
    ("gemma3", Family::Gemma3),
];

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hugging_face").join(name)
}

fn config_json(of: &Path) -> Map<String, Value> {
    serde_json::from_slice(&std::fs::read(of.join("config.json")).unwrap()).unwrap()
}

/// The tensors of a safetensors file, with dtype, shape and bytes.
fn tensors(file: &Path) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    read.tensors().into_iter().map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()))).collect()
}

/// What Transformers computed: float32 arrays, and the tokens.
fn reference(name: &str) -> BTreeMap<String, Array> {
    let read = tensors(&directory(name).join("reference.safetensors"));
    let array = |(dtype, shape, bytes): (Dtype, Vec<usize>, Vec<u8>)| {
        let words = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word));
        let data = match dtype {
            Dtype::I32 => Data::U32(words.collect()),
            _ => Data::F32(words.map(f32::from_bits).collect()),
        };
        Array::new(shape, data).unwrap()
    };
    read.into_iter().map(|(name, tensor)| (name, array(tensor))).collect()
}

fn config(weights: &Path, changes: &Value) -> Value {
    let mut config = json!({"weights": weights, "sequence": 12, "method": "Full", "data": {"tokens": 4000}, "evaluation": {"windows": 8}});
    overlay(&mut config, changes);
    config
}

fn adapted() -> Value {
    json!({"method": "Lora", "lora": {"rank": 2, "alpha": 3.0, "dropout": 0.0}})
}

/// The logits of `job`, whose adapters are those of `trained`.
fn logits(
    executor: &dyn Executor,
    job: &SlmJob,
    change: impl Fn(&mut Recipe),
    tokens: &Array,
    trained: &BTreeMap<String, Array>,
) -> (Vec<f64>, Box<dyn Executable>) {
    let mut recipe = Recipe::new(job.optimization().optimizer.clone());
    change(&mut recipe);
    let program = recipe.evaluate(&job.model().logits(2).unwrap(), false).unwrap();
    let mut executable = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
    let adapters = program.states.iter().filter(|state| state.name.contains("lora_"));
    adapters.for_each(|state| executable.write_state(&state.name, &trained[&state.name]).unwrap());
    executable.run(0, &[tokens.view()]).unwrap();
    (executable.output(0, 0).unwrap().to_f64(), executable)
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
}

#[test]
fn logits_are_those_of_transformers() {
    for (name, family) in FAMILIES {
        let reference = reference(name);
        let of = |what: &str| reference[&format!("logits.{what}")].to_f64();
        let logits = |executor: &dyn Executor, changes: &Value, settings: Settings, change: &dyn Fn(&mut Recipe)| {
            let job = job(config(&directory(name), changes), Settings { batch_per_gpu: Some(2), ..settings }).unwrap();
            assert_eq!(job.config().architecture.family, family);
            logits(executor, &job, change, &reference["tokens"], &reference).0
        };
        let flash = |recipe: &mut Recipe| recipe.attention = AttentionKernel::Flash;
        let narrow = |recipe: &mut Recipe| recipe.precision = Arithmetic::BF16;
        let cached = Settings { rope_cache: Some(RopeCache::Cached), ..Settings::default() };
        for (what, changes) in [("f32", json!({})), ("lora", adapted())] {
            let wide = of(what);
            let eager = logits(&Eager::cpu(), &changes, Settings::default(), &|_| {});
            let compiled = logits(&GraphCpu::default(), &changes, cached.clone(), &flash);
            for got in [eager, compiled] {
                let error = distance(&got, &wide);
                assert!(error < 5e-6, "{name} {what}: {error}");
            }
        }
        let bf16 = Settings { precision: Some(Precision::Bf16), ..Settings::default() };
        let got = logits(&GraphCpu::default(), &json!({}), bf16, &narrow);
        let (ours, theirs) = (distance(&got, &of("f32")), distance(&of("bf16"), &of("f32")));
        assert!(ours > 1e-4 && ours < 1.25 * theirs, "{name}: {ours} from float32, Transformers {theirs}");
    }
}

#[test]
fn an_export_is_the_model_that_was_loaded() {
    for (name, _) in FAMILIES {
        let reference = reference(name);
        let to = tempfile::tempdir().unwrap();
        let file = to.path().join("model.safetensors");
        let full = job(config(&directory(name), &json!({})), batches(2)).unwrap();
        let (_, mut executable) = logits(&Eager::cpu(), &full, |_| {}, &reference["tokens"], &reference);
        let learnt: BTreeMap<_, _> = read_chosen(executable.as_mut(), &SingleRank, |decl| decl.role == Role::Parameter)
            .unwrap()
            .into_iter()
            .collect();
        let mut written = ModelFile::create(&file, &full.weights().all(), FloatFormat::Bf16).unwrap();
        learnt.iter().for_each(|(name, array)| written.write(name, array).unwrap());
        written.finish().unwrap();
        assert!(tensors(&file) == tensors(&directory(name).join("model.safetensors")), "{name}: equal bytes");
        let mut original = config_json(&directory(name));
        original.remove("dtype");
        original.insert("torch_dtype".into(), json!("bfloat16"));
        assert_eq!(description(full.config(), FloatFormat::Bf16).unwrap(), Value::Object(original));

        // Adapters are merged, and the directory is one to start from.
        let lora = job(config(&directory(name), &adapted()), batches(2)).unwrap();
        std::fs::remove_file(&file).unwrap();
        let mut written = ModelFile::create(&file, &lora.weights().all(), FloatFormat::F32).unwrap();
        for decl in lora.weights().all() {
            written.write(&decl.name, &merged(&lora, &decl, 1, &reference).unwrap()).unwrap();
        }
        written.finish().unwrap();
        let text = description(lora.config(), FloatFormat::F32).unwrap().to_string();
        std::fs::write(to.path().join("config.json"), text).unwrap();
        let again = job(config(to.path(), &json!({})), batches(2)).unwrap();
        let (got, _) = logits(&Eager::cpu(), &again, |_| {}, &reference["tokens"], &reference);
        let error = distance(&got, &reference["logits.lora"].to_f64());
        assert!(error < 5e-6, "{name}: {error}");
    }
}

#[test]
fn adapters_are_those_that_peft_reads() {
    let full = job(config(&directory("llama3"), &json!({})), batches(2)).unwrap();
    assert!(adapters(&full).is_empty());
    let changes = json!({"method": "Lora", "lora": {"rank": 2, "alpha": 3.0, "targets": ["q", "down"]}});
    let lora = job(config(&directory("llama3"), &changes), batches(2)).unwrap();
    let names: Vec<String> = adapters(&lora).into_iter().map(|decl| decl.name).collect();
    assert_eq!(names.len(), lora.config().architecture.layers * 4);
    assert_eq!(names[1], "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
    let said = adapter_description(lora.config(), "/base");
    assert_eq!((&said["target_modules"], &said["r"]), (&json!(["q_proj", "down_proj"]), &json!(2)));
}

#[test]
fn every_family_learns() {
    for (name, _) in FAMILIES {
        for changes in [json!({}), adapted()] {
            let mut compiled = CompiledSlm::new(config(&directory(name), &changes), batches(8), |recipe| {
                recipe.attention = AttentionKernel::Flash;
            });
            let losses = compiled.train(40, 1e-2);
            let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
            assert!(mean(&losses[35..]) < 0.95 * mean(&losses[..5]), "{name} {changes}: {losses:?}");
        }
    }
}

#[test]
fn new_models_are_described_as_they_are_read() {
    let local = json!({"window": 12, "ropeBase": 1000.0, "period": 2});
    for (family, changes) in [
        (
            "Llama",
            json!({"ropeScaling": {"factor": 8.0, "lowFrequency": 1.0, "highFrequency": 4.0, "originalLength": 16}}),
        ),
        ("Qwen2", json!({"tied": false})),
        ("Qwen3", json!({"normEpsilon": 1e-6})),
        ("Gemma", json!({"ropeBase": 1e4})),
        ("Gemma3", json!({"queryScalar": 20, "local": local})),
        ("Gemma3", json!({"queryScalar": 32})),
    ] {
        let mut asked = json!({"size": "tiny", "sequence": 12, "architecture": {"family": family}});
        overlay(&mut asked["architecture"], &changes);
        let job = job(asked, batches(1)).unwrap();
        let Value::Object(fields) = description(job.config(), FloatFormat::Bf16).unwrap() else { panic!("an object") };
        let of = &job.config().architecture;
        assert_eq!(&architecture(Path::new("/m"), fields).unwrap(), of);
        let parameters: usize = job.weights().all().iter().map(|decl| decl.meta.shape.elements()).sum();
        assert_eq!(
            (of.parameters(), job.programs().train[0].states.len()),
            (parameters as u64, job.weights().all().len())
        );
    }
}

/// `config.json` of a published model, as Transformers 4 wrote it, and its number of parameters.
fn published(name: &str) -> (Map<String, Value>, u64) {
    let mut all: Value = serde_json::from_str(include_str!("../fixtures/hugging_face/published.json")).unwrap();
    let model = all[name].take();
    (model["config"].as_object().unwrap().clone(), model["parameters"].as_u64().unwrap())
}

#[test]
fn published_models_have_their_number_of_parameters() {
    for name in ["Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen3-0.6B", "gemma-2b", "gemma-3-1b"] {
        let (fields, parameters) = published(name);
        let of: Architecture = architecture(Path::new("/m"), fields).unwrap();
        assert_eq!((of.parameters(), of.tied), (parameters, true), "{name}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (name, changes, words) in [
        (
            "gemma-2b",
            json!({"model_type": "gemma2"}),
            vec!["/m/config.json has model_type \"gemma2\"", "\"gemma3_text\""],
        ),
        (
            "Qwen3-0.6B",
            json!({"architectures": ["Qwen3ForSequenceClassification"]}),
            vec!["architectures", "[\"Qwen3ForCausalLM\"]"],
        ),
        (
            "Llama-3.2-1B",
            json!({"rope_scaling": {"rope_type": "yarn"}}),
            vec!["rope_scaling.rope_type \"yarn\"", "\"llama3\""],
        ),
        (
            "Qwen3-0.6B",
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            vec!["rope_scaling.type \"linear\"", "\"default\""],
        ),
        ("Llama-3.2-1B", json!({"rope_scaling": {"factor": null}}), vec!["has no rope_scaling.factor"]),
        ("Llama-3.2-1B", json!({"attention_bias": true}), vec!["attention_bias true: supported: false"]),
        ("Llama-3.2-1B", json!({"hidden_act": "gelu"}), vec!["hidden_act \"gelu\": supported: \"silu\""]),
        ("Qwen2.5-0.5B", json!({"use_sliding_window": true}), vec!["use_sliding_window true: supported: false"]),
        (
            "Qwen3-0.6B",
            json!({"layer_types": ["sliding_attention"]}),
            vec!["layer_types \"sliding_attention\"", "\"full_attention\""],
        ),
        (
            "gemma-3-1b",
            json!({"final_logit_softcapping": 30.0}),
            vec!["final_logit_softcapping 30.0: supported: false"],
        ),
        (
            "gemma-3-1b",
            json!({"layer_types": ["full_attention"]}),
            vec!["layer_types [\"full_attention\"]", "26 (num_hidden_layers)"],
        ),
        (
            "gemma-3-1b",
            json!({"rope_parameters": {"chunked_attention": {}}}),
            vec!["rope_parameters.chunked_attention"],
        ),
        (
            "gemma-2b",
            json!({"quantization_config": {"bits": 4}}),
            vec!["quantization_config {\"bits\":4}: this field is not supported"],
        ),
        ("gemma-2b", json!({"hidden_size": null}), vec!["has no hidden_size"]),
        ("gemma-2b", json!({"hidden_size": "2048"}), vec!["has hidden_size \"2048\": invalid type"]),
    ] {
        let mut fields = Value::Object(published(name).0);
        overlay(&mut fields, &changes);
        let Value::Object(fields) = fields else { panic!("an object") };
        let message = architecture(Path::new("/m"), fields).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{words:?}: {message}");
    }
}

#[test]
fn a_configuration_that_differs_from_the_weights_is_refused() {
    for (name, changes, expected) in [
        (
            "gemma3",
            json!({"sequence": 13}),
            "workload.config.sequence: 13 must be at most 12, the window of local attention",
        ),
        ("qwen3", json!({"size": "tiny"}), " differs from "),
        (
            "qwen3",
            json!({"architecture": {"ropeBase": 1e4}}),
            "architecture.ropeBase: 10000.0 differs from 1000000.0 in",
        ),
        ("qwen3", json!({"architecture": {"queryScalar": 4}}), "architecture.queryScalar: Qwen3 is the family"),
    ] {
        let message = job(config(&directory(name), &changes), batches(1)).err().unwrap().to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    // Weights of another family, whose config.json was lost.
    let to = tempfile::tempdir().unwrap();
    std::fs::copy(directory("qwen2.5").join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let sizes = json!({"vocabulary": 40, "width": 24, "layers": 2, "heads": 4, "kvHeads": 2, "headSize": 6, "feedForward": 32, "tied": true});
    let message = job(config(to.path(), &json!({"architecture": sizes})), batches(1)).err().unwrap().to_string();
    assert!(message.contains("has model.layers.0.self_attn.k_proj.bias, for which this model has no use"), "{message}");
}
