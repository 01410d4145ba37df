//! The language model as the trainer runs it: sizes, configuration, data, settings, export.

use pawl_contract::settings::{Precision, Settings, WeightQuantization};
use pawl_cpu::GraphCpu;
use pawl_graph::array::{Array, View};
use pawl_graph::collective::SingleRank;
use pawl_graph::executor::{ExecOptions, Executable, Executor, read_chosen};
use pawl_graph::graph::{DType, Op, Program, Role};
use pawl_graph::passes::Pattern;
use pawl_graph::recipe::{LossScale, Precision as Arithmetic, Recipe};
use pawl_workloads::model_file::{FloatFormat, ModelFile};
use pawl_workloads::slm::architecture::{Method, Projection, Size};
use pawl_workloads::slm::config::Config;
use pawl_workloads::slm::export::merged;
use pawl_workloads::slm::{SlmJob, learning_parameters};
use pawl_workloads::{At, Batch, Data, Job, Request, WorkloadError};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub fn request(config: Value, settings: Settings) -> Request {
    Request { config: config.as_object().unwrap().clone(), settings, seed: 42, rank: 0, world: 1 }
}

pub fn job(config: Value, settings: Settings) -> Result<SlmJob, WorkloadError> {
    SlmJob::new(&request(config, settings))
}

/// A model of a few thousand weights.
pub fn small(changes: Value) -> Value {
    let mut config = json!({
        "size": "tiny", "sequence": 16,
        "architecture": {"vocabulary": 64, "width": 32, "layers": 2, "heads": 4, "kvHeads": 2, "headSize": 8, "feedForward": 48},
        "lora": {"rank": 4, "alpha": 8.0},
        "data": {"tokens": 20_000},
        "evaluation": {"windows": 24},
    });
    pawl_workloads::layered::overlay(&mut config, &changes);
    config
}

pub fn batches(of: u32) -> Settings {
    Settings { batch_per_gpu: Some(of), ..Settings::default() }
}

#[test]
fn sizes_have_the_parameters_of_the_specification() {
    for (size, all, block, adapters) in [
        (Size::Tiny, 853_120, 196_864, 622_592),
        (Size::M125, 128_404_224, 8_652_288, 12_779_520),
        (Size::B1, 1_235_814_400, 60_821_504, 45_088_768),
        (Size::B3, 3_212_749_824, 100_669_440, 97_255_424),
        (Size::B8, 8_030_261_248, 218_112_000, 167_772_160),
    ] {
        let name = size.config()["size"].clone();
        for method in ["Full", "Lora"] {
            let job = job(json!({"size": name, "method": method}), batches(1)).unwrap();
            let of = &job.config().architecture;
            let (program, total): (_, u64) =
                (&job.programs().train[0], job.weights().all().iter().map(|d| d.meta.shape.elements() as u64).sum());
            assert_eq!((of.parameters(), total, of.block_parameters()), (all, all, block));
            assert_eq!(of.adapter_parameters(64, &Projection::ALL), adapters);
            assert_eq!(learning_parameters(program), if method == "Full" { all } else { adapters });
            let states: u64 = program.states.iter().map(|s| s.meta.shape.elements() as u64).sum();
            assert_eq!(states, if method == "Full" { all } else { all + adapters });
        }
    }
}

#[test]
fn floating_point_operations_are_those_of_the_specification() {
    let of = |size: &str, method: Method, sequence: usize| {
        let config = Config::parse(json!({"size": size}).as_object().unwrap(), &Map::new()).unwrap();
        let adapters = config.architecture.adapter_parameters(64, &Projection::ALL);
        config.architecture.flops_per_token(method, sequence, adapters) as f64 / 1e9
    };
    for (size, method, sequence, want) in [
        ("125m", Method::Full, 1024, 0.83),
        ("1b", Method::Full, 1024, 7.62),
        ("1b", Method::Lora, 1024, 5.42),
        ("3b", Method::Lora, 512, 13.7),
        ("8b", Method::Full, 256, 45.2),
        ("8b", Method::Lora, 256, 31.2),
        ("8b", Method::Lora, 2048, 32.6),
    ] {
        let got = of(size, method, sequence);
        assert!((got / want - 1.0).abs() < 0.01, "{size} {method:?} {sequence}: {got} is not {want}");
    }
}

#[test]
fn mistakes_are_named_with_their_remedy() {
    let int8 = Settings { weight_quantization: Some(WeightQuantization::Int8), ..batches(1) };
    for (config, settings, expected) in [
        (json!({"size": "7b"}), batches(1), "workload.config.size: 7b"),
        (json!({"size": "tiny", "sequense": 3}), batches(1), "workload.config.sequense"),
        (json!({"size": "tiny", "architecture": {"kvHeads": 3}}), batches(1), "architecture.kvHeads: 3 must divide"),
        (json!({"size": "tiny", "lora": {"dropout": 1.0}}), batches(1), "lora.dropout: 1"),
        (json!({"size": "tiny", "lora": {"targets": ["q", "q"]}}), batches(1), "lora.targets"),
        (json!({"size": "tiny", "data": {"tokens": 5}}), batches(1), "data.tokens: 5 must be between"),
        (json!({"size": "tiny", "data": {"source": "Tokens"}}), batches(1), "data.directory"),
        (json!({"size": "tiny", "data": {"layout": "Folded"}}), batches(1), "workload.config.data.layout: Folded"),
        (json!({"size": "tiny", "data": {"layout": "Padded"}}), batches(1), "data.layout: Padded puts a document"),
        (
            json!({"size": "tiny", "data": {"source": "Tokens", "directory": "/", "layout": "Padded"}}),
            batches(1),
            "`source: Tokens` has no documents",
        ),
        (json!({"size": "tiny", "data": {"maskPrompt": true}}), batches(1), "data.maskPrompt: true masks prompts"),
        (
            json!({"size": "tiny", "data": {"source": "Text", "directory": "/", "maskPrompt": true}}),
            batches(1),
            "`source: Text` have none: choose Dialogues",
        ),
        (
            json!({"size": "tiny", "data": {"source": "Dialogues", "directory": "/"}}),
            batches(1),
            "data.directory: / is not used with `source: Dialogues`",
        ),
        (
            json!({"size": "tiny", "data": {"source": "Dialogues", "tokenizer": "/"}}),
            batches(1),
            "data.tokenizer: / is only used",
        ),
        (
            json!({"size": "tiny", "architecture": {"vocabulary": 31}, "data": {"source": "Dialogues"}}),
            batches(1),
            "architecture.vocabulary: 31 must be at least 32",
        ),
        (
            json!({"size": "tiny", "sequence": 1, "data": {"source": "Dialogues"}}),
            batches(1),
            "workload.config.sequence: 1 must be at least 2",
        ),
        (json!({"size": "tiny", "weights": "/nowhere"}), batches(1), "/nowhere/model.safetensors cannot be read"),
        (json!({"size": "tiny"}), int8.clone(), "settings.weightQuantization: Int8 quantizes frozen weights"),
        (
            json!({"size": "tiny", "method": "Lora"}),
            Settings { precision: Some(Precision::Fp8), ..int8 },
            "settings.weightQuantization: Int8 stores frozen weights as 8-bit integers",
        ),
        (json!({"size": "tiny"}), Settings { global_batch: Some(5), ..batches(2) }, "globalBatch"),
    ] {
        let message = job(config, settings).err().unwrap().to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

/// A job with its data and its compiled programs: 0 a step, 1 the evaluation.
pub struct CompiledSlm {
    pub job: SlmJob,
    pub data: Arc<dyn Data>,
    pub programs: Vec<Program>,
    executable: Box<dyn Executable>,
}

impl CompiledSlm {
    pub fn new(config: Value, settings: Settings, change: impl Fn(&mut Recipe)) -> Self {
        let job = job(config, settings).unwrap();
        let data = job.open(Path::new("/nowhere"), &|_, _, _| {}).unwrap();
        let optimization = job.optimization();
        let regions = job.programs().regions;
        let mut recipe = Recipe {
            clip: optimization.clip,
            float8_scopes: regions.float8.iter().map(|p| Pattern::new(p)).collect(),
            rematerialize: regions.rematerialized.iter().map(|p| Pattern::new(p)).collect(),
            ..Recipe::new(optimization.optimizer.clone())
        };
        change(&mut recipe);
        let programs = vec![
            recipe.step(&job.programs().train[0]).unwrap(),
            recipe.evaluate(&job.programs().evaluation[0], false).unwrap(),
        ];
        let options = ExecOptions { seed: 42, ..ExecOptions::default() };
        let executable = GraphCpu::default().compile(&programs, &options).unwrap();
        Self { job, data, programs, executable }
    }

    pub fn run(&mut self, program: usize, inputs: &[Array]) -> Vec<Array> {
        let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
        self.executable.run(program, &views).unwrap();
        (0..self.programs[program].outputs.len()).map(|at| self.executable.output(program, at).unwrap()).collect()
    }

    pub fn train(&mut self, steps: u64, rate: f32) -> Vec<f64> {
        let items = u64::from(self.job.items_per_batch());
        (0..steps)
            .map(|step| {
                let mut batch = Batch::default();
                self.data.train(At { items: step * items, micro: 0 }, &mut batch).unwrap();
                batch.inputs.push(Array::scalar(rate));
                self.run(0, &batch.inputs)[0].item()
            })
            .collect()
    }

    pub fn evaluate(&mut self) -> BTreeMap<String, f64> {
        let mut sums = vec![0.0; self.data.sums()];
        for index in 0..self.data.evaluations() {
            let batch = self.data.evaluation(index).unwrap();
            let outputs = self.run(1, &batch.inputs);
            self.data.add(index, &outputs, &mut sums);
        }
        self.data.metrics(&sums)
    }

    fn states(&mut self, role: Role) -> BTreeMap<String, Array> {
        read_chosen(self.executable.as_mut(), &SingleRank, |decl| decl.role == role).unwrap().into_iter().collect()
    }
}

#[test]
fn training_learns_the_stream() {
    let mut compiled = CompiledSlm::new(small(json!({})), batches(8), |_| {});
    let before = compiled.evaluate();
    assert!((before["loss"] - 64f64.ln()).abs() < 0.05, "random weights know nothing: {before:?}");
    compiled.train(150, 1e-2);
    let after = compiled.evaluate();
    assert!(after["loss"] < 0.85 * before["loss"], "{before:?} -> {after:?}");
    assert!((after["perplexity"] - after["loss"].exp()).abs() < 1e-9);
}

#[test]
fn adapters_learn_beside_a_base_that_stays() {
    let mut compiled = CompiledSlm::new(small(json!({"method": "Lora"})), batches(8), |_| {});
    let (base, start) = (compiled.states(Role::Frozen), compiled.evaluate()["loss"]);
    compiled.train(60, 1e-2);
    assert!(compiled.states(Role::Frozen) == base);
    assert!(compiled.evaluate()["loss"] < start - 0.01);
    // Dropout acts in training only.
    assert!(compiled.programs[1].inputs.iter().all(|input| input.name != "counter"));
    assert_eq!(compiled.evaluate(), compiled.evaluate());
}

#[test]
fn eight_bit_weights_are_near_and_cost_a_quarter() {
    let settings = Settings { weight_quantization: Some(WeightQuantization::Int8), ..batches(4) };
    let mut plain = CompiledSlm::new(small(json!({"method": "Lora"})), batches(4), |_| {});
    let mut packed = CompiledSlm::new(small(json!({"method": "Lora"})), settings, |_| {});
    let (a, b) = (plain.train(10, 1e-3), packed.train(10, 1e-3));
    assert!(a.iter().zip(&b).all(|(a, b)| (a / b - 1.0).abs() < 1e-2) && a != b, "{a:?} {b:?}");
    let bytes = |compiled: &CompiledSlm| -> usize {
        let matrices = compiled.programs[0].states.iter().filter(|s| s.role == Role::Frozen && s.name.contains("proj"));
        matrices.map(|s| s.meta.bytes()).sum()
    };
    let ratio = bytes(&packed) as f64 / bytes(&plain) as f64;
    assert!((0.25..0.30).contains(&ratio), "{ratio}");
}

#[test]
fn sixteen_bits_store_the_base_and_train_alike() {
    let of = |precision, arithmetic, scale| {
        let settings = Settings { precision: Some(precision), ..batches(4) };
        CompiledSlm::new(small(json!({"method": "Lora"})), settings, |recipe| {
            (recipe.precision, recipe.loss_scale) = (arithmetic, scale);
        })
    };
    let mut wide = of(Precision::Fp32, Arithmetic::F32, LossScale::None);
    let losses = wide.train(12, 1e-2);
    for (precision, arithmetic, scale, dtype) in [
        (Precision::Bf16, Arithmetic::BF16, LossScale::None, DType::BF16),
        (Precision::Fp16, Arithmetic::F16, LossScale::Dynamic, DType::F16),
    ] {
        let mut narrow = of(precision, arithmetic, scale);
        let base = narrow.programs[0].states.iter().filter(|s| s.role == Role::Frozen && s.meta.shape.rank() == 2);
        assert!(base.clone().count() > 0 && base.clone().all(|s| s.meta.dtype == dtype));
        let other = narrow.train(12, 1e-2);
        assert!(losses.iter().zip(&other).all(|(a, b)| (a / b - 1.0).abs() < 2e-2), "{losses:?} {other:?}");
        let last = narrow.programs[0].outputs.iter().position(|o| o.name == "skipped");
        assert_eq!(last.is_some(), scale == LossScale::Dynamic);
    }
}

/// Full training and adapters, beside bfloat16: losses differ by less than two hundredths, and the base takes half the
/// bytes.
#[test]
fn eight_bit_floats_train_beside_bfloat16() {
    for (method, rate) in [("Full", 3e-3), ("Lora", 1e-2)] {
        let of = |precision, arithmetic| {
            let settings = Settings { precision: Some(precision), ..batches(4) };
            CompiledSlm::new(small(json!({"method": method})), settings, |recipe| recipe.precision = arithmetic)
        };
        let mut bfloat = of(Precision::Bf16, Arithmetic::BF16);
        let mut eight = of(Precision::Fp8, Arithmetic::FP8);
        let scaled = |compiled: &CompiledSlm| {
            let nodes = compiled.programs[0].graph.nodes().iter();
            nodes.filter(|node| matches!(node.op, Op::ScaledMatMul { .. })).count()
        };
        // Of each of two blocks: q, k and v are one product if they are trained, and gate and up another; forward, and
        // the gradient of the input, which in the first block with adapters nothing needs from q, k and v.
        let expected = if method == "Full" { 2 * 2 * 4 } else { 2 * 2 * 7 - 3 };
        assert_eq!((scaled(&eight), scaled(&bfloat)), (expected, 0), "{method}");
        let (a, b) = (eight.train(40, rate), bfloat.train(40, rate));
        assert!(b[39] < 0.985 * b[0] && a != b, "{method}: {b:?}");
        let worst = a.iter().zip(&b).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max);
        // A product of 8-bit floats has a relative error of about 2^-4 / sqrt(width); 40 steps make it larger.
        assert!(worst < 0.02 && a[39] < 0.985 * a[0], "{method}: {worst} of {a:?} {b:?}");
        let bytes = |compiled: &CompiledSlm| -> usize {
            let states = compiled.programs[0].states.iter();
            states.filter(|s| s.role == Role::Frozen && s.name.contains("proj")).map(|s| s.meta.bytes()).sum()
        };
        if method == "Lora" {
            let ratio = bytes(&eight) as f64 / bytes(&bfloat) as f64;
            assert!((0.5..0.6).contains(&ratio), "{ratio}");
        }
    }
}

#[test]
fn ranks_share_the_items_of_one_that_accumulates() {
    let of = |rank: u32, world: u32| {
        let request = Request { rank, world, ..request(small(json!({})), batches(2)) };
        let job = SlmJob::new(&request).unwrap();
        job.open(Path::new("/nowhere"), &|_, _, _| {}).unwrap()
    };
    let made = |data: &Arc<dyn Data>, micro: u32| {
        let mut batch = Batch::default();
        data.train(At { items: 40, micro }, &mut batch).unwrap();
        batch
    };
    let alone = of(0, 1);
    for rank in 0..2 {
        assert_eq!(made(&of(rank, 2), 0), made(&alone, rank));
    }
    assert_ne!(made(&alone, 0), made(&alone, 1));
}

#[test]
fn given_tokens_are_read_in_the_order_that_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, words: Vec<u8>| std::fs::write(directory.path().join(name), words).unwrap();
    let ids = |count: u32| (0..count).flat_map(|i| (i % 60).to_le_bytes()).collect::<Vec<u8>>();
    write("train.bin", ids(200));
    write("validation.bin", ids(70));
    write("order.bin", [7u64, 3].iter().flat_map(|start| start.to_le_bytes()).collect());
    let path = directory.path().to_str().unwrap();
    let given = small(json!({"data": {"source": "Tokens", "directory": path}}));
    let data = job(given.clone(), batches(2)).unwrap().open(Path::new("/nowhere"), &|_, _, _| {}).unwrap();
    let mut batch = Batch::default();
    data.train(At { items: 2, micro: 0 }, &mut batch).unwrap();
    let expected = |start: u32| (start..start + 16).map(|i| f64::from(i % 60));
    assert_eq!(batch.inputs[0].to_f64(), expected(7).chain(expected(3)).collect::<Vec<_>>());
    assert_eq!(batch.inputs[1].to_f64(), expected(8).chain(expected(4)).collect::<Vec<_>>());
    assert_eq!(data.evaluations(), 2);

    write("train.bin", 64u32.to_le_bytes().repeat(200));
    let data = job(given, batches(2)).unwrap().open(Path::new("/nowhere"), &|_, _, _| {}).unwrap();
    let message = data.train(At { items: 0, micro: 0 }, &mut batch).unwrap_err().to_string();
    assert!(message.contains("token 64") && message.contains("vocabulary (64)"), "{message}");
}

/// A byte-level BPE of a few tokens, as `tokenizer.json` has it, with the configuration beside it.
fn write_tokenizer(directory: &Path, end: Value) {
    let special = json!({
        "id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
    });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [special], "normalizer": null,
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 3}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
                    "pad_token": "a"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "\u{120}": 2, "ab": 3, "\u{120}ab": 4}, "merges": [["a", "b"], ["\u{120}", "ab"]],
        },
    });
    std::fs::write(directory.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(directory.join("tokenizer_config.json"), json!({"eos_token": end}).to_string()).unwrap();
}

#[test]
fn a_tokenizer_at_which_the_library_panics_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    write_tokenizer(directory.path(), json!("<end>"));
    let file = directory.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    // The merge ends in "b", which is shorter than the prefix that is cut off it.
    tokenizer["model"]["continuing_subword_prefix"] = "##".into();
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let given =
        small(json!({"data": {"source": "Text", "directory": directory.path(), "tokenizer": directory.path()}}));
    let error = job(given, batches(4)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("continuing_subword_prefix") && error.contains("data.tokenizer"), "{error}");
}

#[test]
fn text_is_cut_by_the_tokenizer_of_the_weights() {
    let [text, files, root] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let write = |number: usize, words: &str| std::fs::write(text.path().join(format!("{number}.txt")), words).unwrap();
    (0..40).for_each(|number| write(number, &"ab ab".repeat(number % 4 + 1)));
    write_tokenizer(files.path(), json!({"content": "<end>"}));
    let config = |changes: Value| {
        let mut config =
            small(json!({"data": {"source": "Text", "directory": text.path(), "tokenizer": files.path()}}));
        pawl_workloads::layered::overlay(&mut config, &changes);
        config
    };
    let first = |root: &Path| {
        let data = job(config(json!({})), batches(4)).unwrap().open(root, &|_, _, _| {}).unwrap();
        let mut batch = Batch::default();
        data.train(At { items: 0, micro: 0 }, &mut batch).unwrap();
        batch.inputs[0].to_f64()
    };
    let tokens = first(root.path());
    // "ab ab" repeated is ab, then _ab and ab in turn, and ends in the end of the document.
    let pairs: Vec<_> = tokens.as_chunks::<16>().0.iter().flat_map(|window| window.windows(2)).collect();
    let ends = pairs.iter().filter(|pair| pair[1] == 5.0).count();
    assert!(pairs.iter().any(|pair| **pair == [4.0, 3.0]), "documents are neither truncated nor padded: {tokens:?}");
    assert!(ends > 0 && tokens.iter().all(|token| [3.0, 4.0, 5.0].contains(token)), "{tokens:?}");
    for pair in pairs {
        assert!([[3.0, 3.0], [3.0, 4.0], [4.0, 3.0], [4.0, 5.0], [5.0, 3.0]].contains(&[pair[0], pair[1]]), "{pair:?}");
    }
    // What was cut before is not cut again, until the text is another.
    let kept = || std::fs::read_dir(root.path().join("slm")).unwrap().count();
    assert_eq!((first(root.path()), kept()), (tokens, 1));
    write(0, "ab ab ab ab");
    first(root.path());
    assert_eq!(kept(), 2);

    let refused = |changes: Value| job(config(changes), batches(4)).err().expect("refused").to_string();
    for (changes, words) in [
        (json!({"architecture": {"vocabulary": 5}}), ["token 5", "architecture.vocabulary (5)"]),
        (json!({"data": {"tokenizer": "/nowhere/tokenizer.json"}}), ["/nowhere/tokenizer.json", "cannot be read"]),
        (json!({"data": {"tokenizer": text.path().join("1.txt")}}), ["1.txt", "Hugging Face tokenizer"]),
        (json!({"data": {"source": "Markov", "directory": null}}), ["data.tokenizer", "source: Text"]),
    ] {
        let message = refused(changes);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    write_tokenizer(files.path(), Value::Null);
    let message = refused(json!({}));
    assert!(message.contains("eos_token") && message.contains("tokenizer_config.json"), "{message}");
}

/// Writes the weights of `compiled` to `directory`, with adapters merged.
fn export(compiled: &mut CompiledSlm, directory: &Path) {
    let (trained, all) = (compiled.states(Role::Parameter), compiled.job.weights().all());
    let mut file = ModelFile::create(&directory.join("model.safetensors"), &all, FloatFormat::F32).unwrap();
    for decl in &all {
        file.write(&decl.name, &merged(&compiled.job, decl, 42, &trained).unwrap()).unwrap();
    }
    file.finish().unwrap();
}

#[test]
fn an_export_merges_what_was_learnt_and_can_be_started_from() {
    let directory = tempfile::tempdir().unwrap();
    let mut compiled = CompiledSlm::new(small(json!({"method": "Lora", "lora": {"dropout": 0.0}})), batches(8), |_| {});
    compiled.train(30, 1e-2);
    export(&mut compiled, directory.path());
    let weights = directory.path().to_str().unwrap();
    for method in ["Full", "Lora"] {
        let mut again = CompiledSlm::new(small(json!({"method": method, "weights": weights})), batches(8), |_| {});
        let (a, b) = (compiled.evaluate()["loss"], again.evaluate()["loss"]);
        assert!((a / b - 1.0).abs() < 1e-5, "{method}: {a} is not {b}");
    }
    let (all, untrained) = (compiled.job.weights().all(), BTreeMap::new());
    let refused = all.iter().find_map(|decl| merged(&compiled.job, decl, 42, &untrained).err());
    let message = refused.unwrap().to_string();
    assert!(message.contains("lora_A"), "{message}");
    let wider = job(small(json!({"weights": weights, "architecture": {"feedForward": 64}})), batches(1));
    let message = wider.err().unwrap().to_string();
    assert!(message.contains("gate_proj") && message.contains("[48, 32]"), "{message}");
}

#[test]
fn an_export_has_the_eight_bits_that_adapters_were_trained_beside() {
    let lora = || small(json!({"method": "Lora", "lora": {"dropout": 0.0}}));
    let directory = tempfile::tempdir().unwrap();
    let int8 = Settings { weight_quantization: Some(WeightQuantization::Int8), ..batches(8) };
    let mut compiled = CompiledSlm::new(lora(), int8, |_| {});
    compiled.train(10, 1e-2);
    export(&mut compiled, directory.path());
    let weights = directory.path().to_str().unwrap();
    let mut again = CompiledSlm::new(small(json!({"method": "Full", "weights": weights})), batches(8), |_| {});
    let (a, b) = (compiled.evaluate()["loss"], again.evaluate()["loss"]);
    assert!((a / b - 1.0).abs() < 1e-5, "{a} is not {b}");

    let float8 = Settings { precision: Some(Precision::Fp8), ..batches(8) };
    let mut compiled = CompiledSlm::new(lora(), float8, |recipe| recipe.precision = Arithmetic::FP8);
    // The adapters have no effect yet.
    let (adapters, stored) = (compiled.states(Role::Parameter), compiled.states(Role::Frozen));
    let name = "model.layers.1.mlp.down_proj.weight";
    let decl = compiled.job.weights().all().into_iter().find(|decl| decl.name == name).unwrap();
    let found = merged(&compiled.job, &decl, 42, &adapters).unwrap().to_f64();
    let part = |suffix: &str| stored[&format!("{name}.{suffix}")].to_f64();
    let (codes, scales) = (part("e4m3"), part("scale"));
    let inputs = decl.meta.shape[1];
    let expected: Vec<f64> =
        codes.iter().enumerate().map(|(at, code)| f64::from((code * scales[at / inputs]) as f32)).collect();
    assert_eq!(found, expected);
}
