//! The family and sizes of a decoder, and derived quantities.

use super::family::Family;
pub use super::projection::Projection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Size of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Size {
    /// 853,120 parameters, for tests and CPUs.
    #[serde(rename = "tiny")]
    Tiny,
    /// 128,404,224 parameters.
    #[serde(rename = "125m")]
    M125,
    /// 1,235,814,400 parameters, as Llama 3.2 1B.
    #[serde(rename = "1b")]
    B1,
    /// 3,212,749,824 parameters, as Llama 3.2 3B.
    #[serde(rename = "3b")]
    B3,
    /// 8,030,261,248 parameters, as Llama 3.1 8B.
    #[serde(rename = "8b")]
    B8,
}

/// Trainable parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Method {
    /// Low-rank adapters beside frozen matrices.
    Lora,
    /// All parameters.
    Full,
}

/// RoPE scaling of Llama 3.1 and 3.2, which stretches low frequencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RopeScaling {
    /// Low frequencies are divided by this.
    pub factor: f64,
    /// Wavelengths above `originalLength / lowFrequency` are low.
    pub low_frequency: f64,
    /// Wavelengths below `originalLength / highFrequency` are left unchanged.
    pub high_frequency: f64,
    /// Context length of the original pre-training.
    pub original_length: usize,
}

/// Blocks that attend to a window: all but every `period`-th one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalAttention {
    /// Tokens that a query sees, itself included. Windows of training are at most as long, so that it excludes none.
    pub window: usize,
    /// Base of the rotary frequencies of these blocks; they have no scaling.
    pub rope_base: f64,
    /// Blocks `period - 1`, `2 * period - 1`, .. see all tokens.
    pub period: usize,
}

/// The decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Architecture {
    /// What differs from Llama beside sizes.
    pub family: Family,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kvHeads` neighbouring query heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Hidden width of the MLP.
    pub feed_forward: usize,
    /// Whether the output matrix is tied to the embedding.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// RoPE scaling, for weights that were trained with it.
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square in every norm.
    pub norm_epsilon: f64,
    /// Attention scores are divided by the square root of this. Default: `headSize`. Gemma3 only.
    pub query_scalar: Option<usize>,
    /// Blocks that attend to a window. Gemma3 only.
    pub local: Option<LocalAttention>,
}

impl Architecture {
    /// The sizes of a named model.
    pub fn of(size: Size) -> Self {
        let sizes = |vocabulary, width, layers, [heads, kv_heads, head_size]: [usize; 3], feed_forward| Self {
            family: Family::Llama,
            vocabulary,
            width,
            layers,
            heads,
            kv_heads,
            head_size,
            feed_forward,
            tied: true,
            rope_base: 500_000.0,
            rope_scaling: None,
            norm_epsilon: 1e-5,
            query_scalar: None,
            local: None,
        };
        match size {
            Size::Tiny => Self { rope_base: 1e4, ..sizes(512, 128, 4, [4, 2, 32], 384) },
            Size::M125 => Self { rope_base: 1e4, ..sizes(32_000, 768, 12, [12, 4, 64], 3072) },
            Size::B1 => sizes(128_256, 2048, 16, [32, 8, 64], 8192),
            Size::B3 => sizes(128_256, 3072, 28, [24, 8, 128], 8192),
            Size::B8 => Self { tied: false, ..sizes(128_256, 4096, 32, [32, 8, 128], 14_336) },
        }
    }

    /// The same with the sizes of `other`.
    pub fn with_sizes_of(&self, other: &Self) -> Self {
        let &Self { vocabulary, width, layers, heads, kv_heads, head_size, feed_forward, .. } = other;
        Self { vocabulary, width, layers, heads, kv_heads, head_size, feed_forward, ..self.clone() }
    }

    /// Factor of attention scores.
    pub fn score_scale(&self) -> f64 {
        1.0 / (self.query_scalar.unwrap_or(self.head_size) as f64).sqrt()
    }

    /// Whether block `layer` has [`LocalAttention`].
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.as_ref().is_some_and(|local| !(layer + 1).is_multiple_of(local.period))
    }

    /// Names and lengths of the vectors of block `layer`: biases and gains.
    pub fn vectors(&self, layer: usize) -> Vec<(String, usize)> {
        let form = self.family.form();
        let biases =
            form.biased.iter().map(|&projection| (Self::bias_name(layer, projection), self.matrix(projection).0));
        let heads = form.head_norms.iter().flatten().map(|&norm| (norm, self.head_size));
        let norms = form.norms.iter().chain(form.output_norms.iter().flatten()).map(|&norm| (norm, self.width));
        biases.chain(heads.chain(norms).map(|(norm, length)| (Self::norm_name(layer, norm), length))).collect()
    }

    /// The name of the bias of matrix `projection` of block `layer`.
    pub fn bias_name(layer: usize, projection: Projection) -> String {
        format!("model.layers.{layer}.{}.bias", projection.path())
    }

    /// The name of the gain of a norm of block `layer`.
    pub fn norm_name(layer: usize, norm: &str) -> String {
        format!("model.layers.{layer}.{norm}.weight")
    }

    /// `(outputs, inputs)` of a matrix of a block.
    pub fn matrix(&self, projection: Projection) -> (usize, usize) {
        let (queries, keys) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        match projection {
            Projection::Q => (queries, self.width),
            Projection::K | Projection::V => (keys, self.width),
            Projection::O => (self.width, queries),
            Projection::Gate | Projection::Up => (self.feed_forward, self.width),
            Projection::Down => (self.width, self.feed_forward),
        }
    }

    /// Parameters of one block.
    pub fn block_parameters(&self) -> u64 {
        let matrices: usize =
            Projection::ALL.iter().map(|&projection| self.matrix(projection)).map(|(m, n)| m * n).sum();
        let vectors: usize = self.vectors(0).iter().map(|&(_, length)| length).sum();
        (matrices + vectors) as u64
    }

    /// Parameters of the model without adapters.
    pub fn parameters(&self) -> u64 {
        let embedding = (self.vocabulary * self.width) as u64;
        let outputs = if self.tied { 0 } else { embedding };
        embedding + outputs + self.layers as u64 * self.block_parameters() + self.width as u64
    }

    /// Parameters of adapters of `rank` on `targets` of every block.
    pub fn adapter_parameters(&self, rank: usize, targets: &[Projection]) -> u64 {
        let of = |&projection: &Projection| {
            let (outputs, inputs) = self.matrix(projection);
            rank * (outputs + inputs)
        };
        self.layers as u64 * targets.iter().map(of).sum::<usize>() as u64
    }

    /// Floating point operations of forward and backward for one token in windows of `sequence`, with half of the
    /// attention because of the causal mask; `adapters` is the number of trainable parameters under [`Method::Lora`].
    pub fn flops_per_token(&self, method: Method, sequence: usize, adapters: u64) -> u64 {
        let embedding = if self.tied { 0 } else { (self.vocabulary * self.width) as u64 };
        let multiplied = self.parameters() - embedding;
        let attention = (6 * self.layers * self.heads * self.head_size * sequence) as u64;
        match method {
            Method::Full => 6 * multiplied + attention,
            Method::Lora => 4 * multiplied + 6 * adapters + attention,
        }
    }
}
