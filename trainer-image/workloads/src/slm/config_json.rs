//! `config.json` of Hugging Face: the architecture of the weights beside it.
//!
//! Every field is read, known to change nothing, or refused: a model that Transformers would compute otherwise is not
//! trained.

use super::architecture::{Architecture, LocalAttention, RopeScaling};
use super::family::Family;
use crate::workload::WorkloadError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The file's name.
pub const FILE: &str = "config.json";

/// Fields that don't change what a model computes in training, or only through others that are read.
const WITHOUT_EFFECT: [&str; 18] = [
    "_name_or_path",
    "_sliding_window_pattern",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "max_position_embeddings",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "unsloth_version",
    "use_cache",
];

/// Fields that are supported with this value only, for every family.
const OFF: [&str; 8] = [
    "attention_bias",
    "attention_dropout",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "mlp_bias",
    "use_bidirectional_attention",
    "use_mrope",
    "use_sliding_window",
];

/// What Transformers takes for fields that a file lacks.
const DEFAULT_EPSILON: f64 = 1e-6;
const DEFAULT_ROPE_BASE: f64 = 1e4;
const DEFAULT_GLOBAL_ROPE_BASE: f64 = 1e6;
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_PERIOD: usize = 6;

/// The file in `directory`, if there is one.
///
/// # Errors
/// When it cannot be read, or is not a JSON object.
pub fn read(directory: &Path) -> Result<Option<Map<String, Value>>, WorkloadError> {
    let path = directory.join(FILE);
    let wrong =
        |problem: String| WorkloadError::config("weights", &Value::String(path.display().to_string()), &problem);
    match std::fs::read(&path) {
        Ok(bytes) => {
            let read = serde_json::from_slice(&bytes);
            read.map(Some).map_err(|error| wrong(format!("is not a JSON object: {error}; copy it again")))
        }
        // As where there is no directory: the error of the weights says it.
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(WorkloadError::file("weights", &path, format!("cannot be read: {error}"))),
    }
}

/// The architecture that the fields of the file in `directory` describe.
///
/// # Errors
/// Names the file, the first field that is missing or not supported, its value, and what is supported.
pub fn architecture(directory: &Path, fields: Map<String, Value>) -> Result<Architecture, WorkloadError> {
    let mut fields = Fields { path: directory.join(FILE), within: "", rest: fields };
    let family = family(&mut fields)?;
    let form = family.form();
    for field in OFF {
        fields.only(field, &[json!(false), json!(0)])?;
    }
    // Files of Gemma 1 say "gelu" and mean its approximation.
    let activations = [form.activation.name(), if family == Family::Gemma { "gelu" } else { form.activation.name() }];
    fields.only("hidden_act", &activations.map(Value::from))?;
    fields.only("hidden_activation", &[json!(form.activation.name())])?;
    let (width, layers): (usize, usize) = (fields.required("hidden_size")?, fields.required("num_hidden_layers")?);
    let heads = fields.required("num_attention_heads")?;
    let default_head_size = match family {
        Family::Llama | Family::Qwen2 => width.checked_div(heads).unwrap_or_default(),
        Family::Qwen3 => 128,
        Family::Gemma | Family::Gemma3 => 256,
    };
    let layer_types = fields.optional("layer_types")?;
    let tied = matches!(family, Family::Gemma | Family::Gemma3);
    let (rope_base, rope_scaling, local, query_scalar) = match family {
        Family::Gemma3 => {
            let query_scalar = fields.optional("query_pre_attn_scalar")?.unwrap_or(256);
            let (base, scaling, local) = local_attention(&mut fields, layers, layer_types)?;
            (base, scaling, local, Some(query_scalar))
        }
        _ => {
            fields.all_global(layer_types)?;
            fields.take("sliding_window");
            let (base, scaling) = fields.rope(DEFAULT_ROPE_BASE)?;
            (base, scaling, None, None)
        }
    };
    let architecture = Architecture {
        family,
        vocabulary: fields.required("vocab_size")?,
        width,
        layers,
        heads,
        kv_heads: fields.optional("num_key_value_heads")?.unwrap_or(heads),
        head_size: fields.optional("head_dim")?.unwrap_or(default_head_size),
        feed_forward: fields.required("intermediate_size")?,
        tied: fields.optional("tie_word_embeddings")?.unwrap_or(tied),
        rope_base,
        rope_scaling,
        norm_epsilon: fields.optional("rms_norm_eps")?.unwrap_or(DEFAULT_EPSILON),
        query_scalar,
        local,
    };
    WITHOUT_EFFECT.iter().for_each(|field| drop(fields.take(field)));
    fields.end()?;
    Ok(architecture)
}

/// The family, by its `model_type` and class.
fn family(fields: &mut Fields) -> Result<Family, WorkloadError> {
    let model_type: String = fields.required("model_type")?;
    let known = Family::ALL.into_iter().find(|family| family.form().model_type == model_type);
    let family = known.ok_or_else(|| {
        fields.unsupported("model_type", &json!(model_type), &Family::ALL.map(|family| json!(family.form().model_type)))
    })?;
    fields.only("architectures", &[json!([family.form().class])])?;
    Ok(family)
}

/// Rotary base and scaling of global blocks, and the local ones of Gemma 3.
fn local_attention(
    fields: &mut Fields,
    layers: usize,
    layer_types: Option<Vec<String>>,
) -> Result<(f64, Option<RopeScaling>, Option<LocalAttention>), WorkloadError> {
    let window = fields.optional("sliding_window")?.unwrap_or(DEFAULT_WINDOW);
    let pattern = fields.optional("sliding_window_pattern")?.unwrap_or(DEFAULT_PERIOD);
    let period = match layer_types {
        Some(types) => fields.period(&types, layers)?,
        None => pattern.max(1),
    };
    let of_kind: Option<Map<String, Value>> = fields.optional("rope_parameters")?;
    let (base, scaling, rope_base) = match of_kind {
        Some(mut of_kind) => {
            let mut part = |name: &str| match of_kind.remove(name) {
                Some(Value::Object(rest)) => rest,
                _ => Map::new(),
            };
            let (global, local) = (part("full_attention"), part("sliding_attention"));
            Fields { path: fields.path.clone(), within: "rope_parameters.", rest: of_kind }.end()?;
            let (base, scaling) =
                fields.rope_of("rope_parameters.full_attention.", global, DEFAULT_GLOBAL_ROPE_BASE)?;
            let mut local =
                Fields { path: fields.path.clone(), within: "rope_parameters.sliding_attention.", rest: local };
            local.only("rope_type", &[json!("default")])?;
            let rope_base = local.optional("rope_theta")?;
            local.end()?;
            (base, scaling, rope_base)
        }
        None => {
            let (base, scaling) = fields.rope(DEFAULT_GLOBAL_ROPE_BASE)?;
            (base, scaling, fields.optional("rope_local_base_freq")?)
        }
    };
    let rope_base = rope_base.unwrap_or(DEFAULT_ROPE_BASE);
    Ok((base, scaling, (period > 1).then_some(LocalAttention { window, rope_base, period })))
}

/// The fields of the file, or of an object within it, that are not read yet.
struct Fields {
    path: PathBuf,
    within: &'static str,
    rest: Map<String, Value>,
}

impl Fields {
    /// The value of a field; null is as none.
    fn take(&mut self, field: &str) -> Option<Value> {
        self.rest.remove(field).filter(|value| !value.is_null())
    }

    fn optional<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>, WorkloadError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let read = T::deserialize(&value);
        read.map(Some)
            .map_err(|error| self.wrong(&format!("has {}{field} {value}: {error}; copy it again", self.within)))
    }

    fn required<T: DeserializeOwned>(&mut self, field: &str) -> Result<T, WorkloadError> {
        let missing = self.wrong(&format!("has no {}{field}: copy the file of the model again", self.within));
        self.optional(field)?.ok_or(missing)
    }

    /// Requires that `field` is absent or one of `supported`.
    fn only(&mut self, field: &str, supported: &[Value]) -> Result<(), WorkloadError> {
        let Some(value) = self.take(field) else { return Ok(()) };
        let equal =
            |other: &Value| *other == value || other.as_f64().is_some_and(|number| value.as_f64() == Some(number));
        if supported.iter().any(equal) { Ok(()) } else { Err(self.unsupported(field, &value, supported)) }
    }

    /// Rotary base and scaling, as Transformers 5 writes them (`rope_parameters`) or as earlier versions did.
    fn rope(&mut self, default_base: f64) -> Result<(f64, Option<RopeScaling>), WorkloadError> {
        if let Some(parameters) = self.optional("rope_parameters")? {
            return self.rope_of("rope_parameters.", parameters, default_base);
        }
        let base = self.optional("rope_theta")?.unwrap_or(default_base);
        let scaling = self.optional("rope_scaling")?.unwrap_or_default();
        self.rope_of("rope_scaling.", scaling, base)
    }

    fn rope_of(
        &self,
        within: &'static str,
        rest: Map<String, Value>,
        default_base: f64,
    ) -> Result<(f64, Option<RopeScaling>), WorkloadError> {
        let mut of = Fields { path: self.path.clone(), within, rest };
        let base = of.optional("rope_theta")?.unwrap_or(default_base);
        let field = if of.rest.contains_key("rope_type") { "rope_type" } else { "type" };
        let kind: Option<String> = of.optional(field)?;
        let scaling = match kind.as_deref() {
            None | Some("default") => None,
            Some("llama3") => Some(RopeScaling {
                factor: of.required("factor")?,
                low_frequency: of.required("low_freq_factor")?,
                high_frequency: of.required("high_freq_factor")?,
                original_length: of.required("original_max_position_embeddings")?,
            }),
            Some(other) => return Err(of.unsupported(field, &json!(other), &[json!("default"), json!("llama3")])),
        };
        of.end()?;
        Ok((base, scaling))
    }

    fn all_global(&self, layer_types: Option<Vec<String>>) -> Result<(), WorkloadError> {
        match layer_types.into_iter().flatten().find(|kind| kind != GLOBAL) {
            Some(kind) => Err(self.unsupported("layer_types", &json!(kind), &[json!(GLOBAL)])),
            None => Ok(()),
        }
    }

    /// The period of global blocks among `types`.
    fn period(&self, types: &[String], layers: usize) -> Result<usize, WorkloadError> {
        let period = types.iter().position(|kind| kind == GLOBAL).unwrap_or(types.len()).saturating_add(1);
        if types.len() != layers || types != layer_types(layers, period) {
            let problem = format!(
                "has layer_types {types:?}: supported are {layers} (num_hidden_layers), each n-th one {GLOBAL} and the others {LOCAL}"
            );
            return Err(self.wrong(&problem));
        }
        Ok(period)
    }

    /// Refuses what was not read.
    fn end(mut self) -> Result<(), WorkloadError> {
        self.rest.retain(|_, value| !value.is_null());
        match self.rest.iter().next() {
            Some((field, value)) => Err(self.wrong(&format!(
                "has {}{field} {value}: this field is not supported; remove it if the model does not depend on it",
                self.within
            ))),
            None => Ok(()),
        }
    }

    fn unsupported(&self, field: &str, value: &Value, supported: &[Value]) -> WorkloadError {
        let mut supported: Vec<String> = supported.iter().map(Value::to_string).collect();
        supported.dedup();
        self.wrong(&format!("has {}{field} {value}: supported: {}", self.within, supported.join(", ")))
    }

    fn wrong(&self, problem: &str) -> WorkloadError {
        WorkloadError::config("weights", &Value::String(self.path.display().to_string()), problem)
    }
}

const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

pub(super) fn layer_types(layers: usize, period: usize) -> Vec<&'static str> {
    (1..=layers).map(|number| if number.is_multiple_of(period) { GLOBAL } else { LOCAL }).collect()
}
