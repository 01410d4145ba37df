//! Weights, tokenizers and configurations of language models.

use crate::parts::parts;
use crate::scratch;
use pawl_graph::graph::{Init, Role, StateDecl, initial_value};
use pawl_workloads::model_file::FloatFormat;
use pawl_workloads::slm::hugging_face::WeightFiles;
use pawl_workloads::slm::tokenizer::Tokenizer;
use pawl_workloads::{atft, forex, slm, ups, vision_bdh};
use serde_json::{Map, Value, json};

/// A safetensors file, and the index of shards if the first part is not empty: the weights that it declares can be
/// read.
pub fn weights(input: &[u8]) {
    let [index, shard] = parts(input);
    let directory = scratch::directory();
    scratch::write(&directory.path().join("model.safetensors"), shard);
    if !index.is_empty() {
        // A name that is a path would leave the directory, as a user's own directory may.
        let names = |index: &Value| -> Vec<String> {
            let map = index["weight_map"].as_object().into_iter().flatten();
            map.filter_map(|(_, file)| file.as_str().map(str::to_owned)).collect()
        };
        let index_value = serde_json::from_slice(index).unwrap_or_default();
        if names(&index_value).iter().any(|name| name.contains("..") || name.starts_with('/')) {
            return;
        }
        scratch::write(&directory.path().join("model.safetensors.index.json"), index);
    }
    let Ok(files) = WeightFiles::open(directory.path()) else { return };
    let _ = files.fingerprint();
    for (name, length) in [("model.norm.weight", 4), ("lm_head.weight", 1 << 20)] {
        let Some(slice) = files.slice(name) else { continue };
        let decl = StateDecl::f32(name, [length], Role::Frozen, Init::File(slice));
        let fits = files.has(&decl);
        let read = initial_value(&[&decl], &decl, 1);
        assert!(fits.is_err() || read.is_ok(), "{name} was accepted, but cannot be read: {read:?}");
    }
}

/// `config.json`: what is accepted is a complete architecture, or refused by the rules of configurations.
pub fn config_json(input: &[u8]) {
    let directory = scratch::directory();
    scratch::write(&directory.path().join(slm::config_json::FILE), input);
    let asked = json!({"weights": directory.path(), "sequence": 16});
    let Ok(config) = slm::config::Config::parse(asked.as_object().unwrap_or(&Map::new()), &Map::new()) else { return };
    let of = &config.architecture;
    assert!(of.heads.is_multiple_of(of.kv_heads) && of.local.as_ref().is_none_or(|local| local.window >= 16), "{of:?}");
    assert!(slm::export::description(&config, FloatFormat::Bf16).is_ok());
}

/// `tokenizer.json` and `tokenizer_config.json`: ids of any text are below the size of the vocabulary.
pub fn tokenizer(input: &[u8]) {
    const VOCABULARY: usize = 32_000;
    let [tokenizer, config, text] = parts(input);
    let directory = scratch::directory();
    let path = directory.path().join("tokenizer.json");
    scratch::write(&path, tokenizer);
    scratch::write(&path.with_file_name("tokenizer_config.json"), config);
    let Ok(tokenizer) = Tokenizer::open(&path, VOCABULARY) else { return };
    assert!((tokenizer.end_of_document() as usize) < VOCABULARY);
    let text = String::from_utf8_lossy(text);
    for text in ["the first, and the second\n", text.as_ref()] {
        if let Ok(ids) = tokenizer.encode(text) {
            assert!(ids.iter().all(|&id| (id as usize) < VOCABULARY), "{ids:?}");
        }
    }
}

/// Whether a workload accepts a configuration with the patch of a phase.
type Accepts = fn(config: &Map<String, Value>, patch: &Map<String, Value>) -> bool;

/// The workloads by name. A test names one that is missing.
pub const CONFIGURATIONS: [(&str, Accepts); 5] = [
    ("ups", |config, patch| ups::config::Config::parse(config, patch).is_ok()),
    ("slm", |config, patch| slm::config::Config::parse(config, patch).map(|config| config.tokenizer()).is_ok()),
    ("vision-bdh", |config, patch| vision_bdh::config::Config::parse(config, patch).is_ok()),
    ("forex", |config, patch| forex::config::Config::parse(config, patch).is_ok()),
    ("atft-gat-fan", |config, patch| atft::config::Config::parse(config, patch).is_ok()),
];

/// `workload.config` and the patch of a phase, for each workload.
pub fn workload_config(input: &[u8]) {
    let [config, patch] = parts(input);
    let read = |part: &[u8]| serde_json::from_slice::<Map<String, Value>>(part);
    let (Ok(config), patch) = (read(config), read(patch).unwrap_or_default()) else { return };
    for (_, accepts) in CONFIGURATIONS {
        accepts(&config, &patch);
    }
}
