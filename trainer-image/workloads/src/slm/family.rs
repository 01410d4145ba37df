//! Families of decoders: what differs from Llama beside sizes.

use super::projection::Projection;
use pawl_graph::graph::Var;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A family of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Family {
    /// Llama 2 and 3.
    Llama,
    /// Qwen 2 and 2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen 3: queries and keys of each head are normalised.
    Qwen3,
    /// Gemma 1: gains are stored minus 1, embeddings are scaled by the square root of the width, and the MLP has a
    /// GELU.
    Gemma,
    /// Gemma 3 for text: as Gemma 1, and queries and keys of each head and the outputs of attention and MLP are
    /// normalised.
    Gemma3,
}

/// The activation of the MLP's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// The tanh approximation of the Gauss error linear unit.
    GeluTanh,
}

/// What a family is made of.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// `model_type` of Hugging Face's configuration.
    pub model_type: &'static str,
    /// Hugging Face's class.
    pub class: &'static str,
    /// Matrices with a bias.
    pub biased: &'static [Projection],
    /// Norms of the queries and of the keys of each head.
    pub head_norms: Option<[&'static str; 2]>,
    /// Norms of the inputs of attention and MLP.
    pub norms: [&'static str; 2],
    /// Norms of their outputs.
    pub output_norms: Option<[&'static str; 2]>,
    /// Whether gains are stored minus 1.
    pub centred_gains: bool,
    /// Activation of the MLP's gate.
    pub activation: Activation,
    /// Whether embeddings are multiplied by the square root of the width.
    pub scaled_embeddings: bool,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma, Self::Gemma3];

    /// What the family is made of.
    pub fn form(self) -> Form {
        let llama = Form {
            model_type: "llama",
            class: "LlamaForCausalLM",
            biased: &[],
            head_norms: None,
            norms: ["input_layernorm", "post_attention_layernorm"],
            output_norms: None,
            centred_gains: false,
            activation: Activation::Silu,
            scaled_embeddings: false,
        };
        let head_norms = Some(["self_attn.q_norm", "self_attn.k_norm"]);
        let gemma = Form {
            model_type: "gemma",
            class: "GemmaForCausalLM",
            centred_gains: true,
            activation: Activation::GeluTanh,
            scaled_embeddings: true,
            ..llama
        };
        match self {
            Self::Llama => llama,
            Self::Qwen2 => {
                let biased = &[Projection::Q, Projection::K, Projection::V];
                Form { model_type: "qwen2", class: "Qwen2ForCausalLM", biased, ..llama }
            }
            Self::Qwen3 => Form { model_type: "qwen3", class: "Qwen3ForCausalLM", head_norms, ..llama },
            Self::Gemma => gemma,
            Self::Gemma3 => Form {
                model_type: "gemma3_text",
                class: "Gemma3ForCausalLM",
                head_norms,
                norms: ["input_layernorm", "pre_feedforward_layernorm"],
                output_norms: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
                ..gemma
            },
        }
    }
}

impl Activation {
    /// Its name in Hugging Face's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_pytorch_tanh",
        }
    }

    /// Its value.
    #[track_caller]
    pub fn of(self, x: Var<'_>) -> Var<'_> {
        match self {
            Self::Silu => x.silu(),
            Self::GeluTanh => x.gelu_tanh(),
        }
    }
}
