//! Exports trained weights as files that Hugging Face libraries can load: a safetensors file with adapters merged, in
//! their naming, and `config.json`.

use super::SlmJob;
use super::architecture::{LocalAttention, Method, Projection};
use super::config::Config;
use super::config_json;
use super::family::{Activation, Family};
use super::weights::Weights;
use crate::layered::overlay;
use crate::workload::WorkloadError;
use pawl_durable::Replacement;
use pawl_graph::array::Array;
use pawl_graph::graph::{DType, GraphError, StateDecl, initial_value};
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Error of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The checkpoint lacks a trainable weight.
    #[error("the checkpoint has no {0}: it belongs to another model, or to another workload.config.method")]
    Missing(String),
    /// A base weight cannot be read, or one of the checkpoint has another shape.
    #[error(transparent)]
    Weight(#[from] GraphError),
    /// The file cannot be written.
    #[error("{path}: cannot be written: {source}; choose another directory")]
    Io {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Writes the trained model to the file `to`: the initial weights of a launch of `job` with `seed`, updated by
/// `trained` (states of a checkpoint by name); bfloat16 matrices if `narrow`, else float32. One weight at a time is in
/// memory.
///
/// # Errors
/// When a weight is missing or writing fails; `to` is then not created.
pub fn export(
    job: &SlmJob,
    seed: u64,
    trained: &dyn Fn(&str) -> Option<Array>,
    narrow: bool,
    to: &Path,
) -> Result<(), ExportError> {
    let weights = job.weights();
    let all = weights.all();
    let failed = |source| ExportError::Io { path: to.display().to_string(), source };
    let mut out = BufWriter::new(Replacement::of(to).map_err(failed)?);
    out.write_all(&header(&all, narrow)).map_err(failed)?;
    for decl in &all {
        let values = merged(job, &weights, decl, seed, trained)?;
        let bytes: Vec<u8> = match narrow {
            true => values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect(),
            false => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        out.write_all(&bytes).map_err(failed)?;
    }
    out.into_inner().map_err(|error| error.into_error()).and_then(Replacement::commit).map_err(failed)
}

/// Length and header of a safetensors file with `all` in order.
fn header(all: &[StateDecl], narrow: bool) -> Vec<u8> {
    let (name, size) = if narrow { ("BF16", 2) } else { ("F32", 4) };
    let mut tensors = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut start = 0;
    for decl in all {
        let end = start + decl.meta.shape.elements() * size;
        let entry = json!({"dtype": name, "shape": decl.meta.shape.dims(), "data_offsets": [start, end]});
        tensors.insert(decl.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(tensors).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes(), text.as_slice()].concat()
}

/// The trained value of a base weight: from the checkpoint, or its initial value plus that of its adapter.
fn merged(
    job: &SlmJob,
    weights: &Weights<'_>,
    decl: &StateDecl,
    seed: u64,
    trained: &dyn Fn(&str) -> Option<Array>,
) -> Result<Vec<f32>, ExportError> {
    let config = job.config();
    let learnt = |decl: &StateDecl| {
        let array = trained(&decl.name).ok_or_else(|| ExportError::Missing(decl.name.clone()))?;
        if array.shape() != &decl.meta.shape {
            return Err(ExportError::Missing(format!("{} of shape {}", decl.name, decl.meta.shape)));
        }
        Ok(narrowed(&array))
    };
    if config.method == Method::Full {
        return learnt(decl);
    }
    // Rounded as the launch stored it: the adapters were trained with the rounded weight.
    let stored = match decl.meta.shape.rank() {
        1 => decl.clone(),
        _ => StateDecl { meta: pawl_graph::graph::Meta::new(weights.storage.frozen, &decl.meta.shape), ..decl.clone() },
    };
    let mut values = narrowed(&initial_value(&[&stored], &stored, seed)?);
    let pairs = (0..config.architecture.layers).flat_map(|layer| Projection::ALL.map(|projection| (layer, projection)));
    let adapted = pairs.into_iter().find(|&(layer, projection)| Weights::matrix_name(layer, projection) == decl.name);
    if let Some((layer, projection)) = adapted.filter(|(_, projection)| config.lora.targets.contains(projection)) {
        let [down, up] = weights.adapter_decls(layer, projection);
        let (rank, inputs) = (down.meta.shape[0], down.meta.shape[1]);
        let (down, up) = (learnt(&down)?, learnt(&up)?);
        let scale = (config.lora.alpha / config.lora.rank as f64) as f32;
        for (row, up) in values.chunks_exact_mut(inputs).zip(up.chunks_exact(rank)) {
            for (&factor, down) in up.iter().zip(down.chunks_exact(inputs)) {
                row.iter_mut().zip(down).for_each(|(value, &a)| *value += scale * factor * a);
            }
        }
    }
    Ok(values)
}

fn narrowed(array: &Array) -> Vec<f32> {
    match array.data() {
        pawl_graph::array::Data::F32(values) if array.dtype() == DType::F32 => values.clone(),
        _ => array.to_f64().iter().map(|&value| value as f32).collect(),
    }
}

/// The `config.json` of a trained model, with weights in bfloat16 if `narrow`, else in float32: that of the weights
/// that training started from, if there is one, else a new one.
///
/// # Errors
/// When the file of the initial weights cannot be read.
pub fn description(config: &Config, narrow: bool) -> Result<Value, WorkloadError> {
    let original =
        config.weights.as_ref().map(|directory| config_json::read(Path::new(directory))).transpose()?.flatten();
    let mut fields = original.unwrap_or_else(|| new_description(config));
    fields.remove("dtype");
    fields.insert("torch_dtype".to_owned(), json!(if narrow { "bfloat16" } else { "float32" }));
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
