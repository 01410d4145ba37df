//! What Hugging Face libraries need of a trained model: its weights with adapters merged, in their naming, and
//! `config.json`; or the adapters alone, as PEFT has them.

use super::SlmJob;
use super::architecture::{LocalAttention, Method, Projection};
use super::config::Config;
use super::config_json;
use super::family::{Activation, Family};
use super::weights::Weights;
use crate::layered::overlay;
use crate::model_file::FloatFormat;
use crate::workload::WorkloadError;
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{GraphError, Init, InitialValues, Meta, StateDecl, quantize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Error of merging an adapter.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The checkpoint lacks an adapter.
    #[error("the checkpoint has no {0}: it belongs to another model, or to another workload.config.method")]
    Missing(String),
    /// A base weight cannot be read.
    #[error(transparent)]
    Weight(#[from] GraphError),
}

/// Declarations of the adapters of a model; none where all weights are trained.
pub fn adapters(job: &SlmJob) -> Vec<StateDecl> {
    let (weights, config) = (job.weights(), job.config());
    if config.method == Method::Full {
        return Vec::new();
    }
    let mut all = Vec::new();
    for layer in 0..config.architecture.layers {
        all.extend(config.lora.targets.iter().flat_map(|&projection| weights.adapter_decls(layer, projection)));
    }
    all
}

/// The initial value of the base weight `decl` in a launch of `job` with `seed`, plus that of its adapter in
/// `trained`: float32.
///
/// # Errors
/// When an adapter is missing or the base weight cannot be read.
pub fn merged(
    job: &SlmJob,
    decl: &StateDecl,
    seed: u64,
    trained: &BTreeMap<String, Array>,
) -> Result<Array, ExportError> {
    let (config, weights) = (job.config(), job.weights());
    let mut pairs =
        (0..config.architecture.layers).flat_map(|layer| Projection::ALL.map(|projection| (layer, projection)));
    let matrix = pairs.find(|&(layer, projection)| Weights::matrix_name(layer, projection) == decl.name);
    let mut values = frozen(&weights, decl, matrix.is_some(), seed)?;
    if let Some((layer, projection)) = matrix.filter(|(_, projection)| config.lora.targets.contains(projection)) {
        let [down, up] = weights.adapter_decls(layer, projection);
        let (rank, inputs) = (down.meta.shape[0], down.meta.shape[1]);
        let learnt = |decl: &StateDecl| {
            let array = trained.get(&decl.name).filter(|array| array.shape() == &decl.meta.shape);
            array.map(wide).ok_or_else(|| ExportError::Missing(format!("{} of shape {}", decl.name, decl.meta.shape)))
        };
        let (down, up) = (learnt(&down)?, learnt(&up)?);
        let scale = (config.lora.alpha / config.lora.rank as f64) as f32;
        for (row, up) in values.chunks_exact_mut(inputs).zip(up.chunks_exact(rank)) {
            for (&factor, down) in up.iter().zip(down.chunks_exact(inputs)) {
                row.iter_mut().zip(down).for_each(|(value, &a)| *value += scale * factor * a);
            }
        }
    }
    Ok(Array::new(&decl.meta.shape, Data::F32(values))?)
}

/// The initial value of the base weight `decl` as the launch computed with it, which is what the adapters were trained
/// with: rounded or, if it is a matrix of a block, in 8 bits, where the launch stored it so.
fn frozen(weights: &Weights<'_>, decl: &StateDecl, of_block: bool, seed: u64) -> Result<Vec<f32>, GraphError> {
    let shape = &decl.meta.shape;
    let rounded = |init: Init| StateDecl { meta: Meta::new(weights.storage.frozen, shape), init, ..decl.clone() };
    let mut initial = InitialValues::new(&[], seed);
    let Some([codes, scales]) = of_block.then(|| weights.eight_bits(decl)).flatten() else {
        let stored = if shape.rank() == 1 { decl.clone() } else { rounded(decl.init.clone()) };
        return Ok(wide(&initial.of(&stored)?));
    };
    let (codes, scales) = (initial.of(&codes)?, wide(&initial.of(&scales)?));
    let scaled = |mut values: Vec<f32>| {
        let rows = values.chunks_exact_mut(shape[1]).zip(scales);
        rows.for_each(|(row, scale)| row.iter_mut().for_each(|value| *value *= scale));
        values
    };
    match codes.data() {
        Data::U32(words) => {
            let values = Array::new(shape, Data::F32(scaled(quantize::unpack(words))))?;
            Ok(wide(&initial.of(&rounded(Init::Array(values)))?))
        }
        _ => Ok(scaled(wide(&codes))),
    }
}

fn wide(array: &Array) -> Vec<f32> {
    match array.data() {
        Data::F32(values) => values.clone(),
        _ => array.to_f64().iter().map(|&value| value as f32).collect(),
    }
}

/// The `adapter_config.json` of PEFT for adapters beside the weights in the directory `base`.
pub fn adapter_description(config: &Config, base: &str) -> Value {
    let module = |projection: &Projection| projection.path().rsplit('.').next().unwrap_or_default().to_owned();
    let modules: Vec<String> = config.lora.targets.iter().map(module).collect();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.lora.rank,
        "lora_alpha": config.lora.alpha,
        "lora_dropout": config.lora.dropout,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
    })
}

/// The `config.json` of a trained model with weights in `format`: that of the weights that training started from, if
/// there is one, else a new one.
///
/// # Errors
/// When the file of the initial weights cannot be read.
pub fn description(config: &Config, format: FloatFormat) -> Result<Value, WorkloadError> {
    let original =
        config.weights.as_ref().map(|directory| config_json::read(Path::new(directory))).transpose()?.flatten();
    let mut fields = original.unwrap_or_else(|| new_description(config));
    fields.remove("dtype");
    fields.insert("torch_dtype".to_owned(), json!(format.torch_name()));
    Ok(Value::Object(fields))
}

fn new_description(config: &Config) -> Map<String, Value> {
    let of = &config.architecture;
    let form = of.family.form();
    let scaling = of.rope_scaling.as_ref().map(|scaling| {
        json!({
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
            "original_max_position_embeddings": scaling.original_length,
        })
    });
    let mut fields = json!({
        "architectures": [form.class],
        "model_type": form.model_type,
        "vocab_size": of.vocabulary,
        "hidden_size": of.width,
        "num_hidden_layers": of.layers,
        "num_attention_heads": of.heads,
        "num_key_value_heads": of.kv_heads,
        "head_dim": of.head_size,
        "intermediate_size": of.feed_forward,
        "hidden_act": form.activation.name(),
        "rms_norm_eps": of.norm_epsilon,
        "rope_theta": of.rope_base,
        "rope_scaling": scaling,
        "max_position_embeddings": of.rope_scaling.as_ref().map_or(config.sequence, |s| s.original_length * s.factor as usize),
        "tie_word_embeddings": of.tied,
    });
    let more = match of.family {
        Family::Llama => json!({"attention_bias": false, "mlp_bias": false}),
        Family::Qwen2 | Family::Qwen3 => json!({"use_sliding_window": false}),
        Family::Gemma => json!({"hidden_activation": Activation::GeluTanh.name()}),
        Family::Gemma3 => json!({
            "hidden_activation": Activation::GeluTanh.name(),
            "query_pre_attn_scalar": of.query_scalar.unwrap_or(of.head_size),
            "layer_types": config_json::layer_types(of.layers, of.local.as_ref().map_or(1, |local| local.period)),
        }),
    };
    overlay(&mut fields, &more);
    if let Some(LocalAttention { window, rope_base, period }) = of.local {
        let local =
            json!({"sliding_window": window, "sliding_window_pattern": period, "rope_local_base_freq": rope_base});
        overlay(&mut fields, &local);
    }
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
