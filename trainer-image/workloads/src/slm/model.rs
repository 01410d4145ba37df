//! The decoder: blocks of grouped-query attention and a gated MLP, with optional adapters. What differs between
//! families is [`Form`].

use super::architecture::{Architecture, Method, Projection};
use super::config::{Config, Source};
use super::family::Form;
use super::loss::{CrossEntropy, Head, chunk_rows};
use super::ranking::Ranking;
use super::rope::{Tables, frequencies};
use super::weights::Weights;
use crate::workload::Regions;
use pawl_graph::graph::{AttentionSpec, Builder, DType, GraphError, Program, Var, concat};

/// Regions of the programs that compiler passes use.
pub const REGIONS: Regions = Regions {
    float32: &[],
    // The projections; adapters, which are in scopes within, are too thin to gain.
    float8: &["blocks.*/*/*"],
    blocks: &["blocks.*"],
    sublayers: &["blocks.*/attn", "blocks.*/mlp"],
    // Dequantized weights, dropped-out inputs of adapters (recomputed from random numbers), and the gated product of
    // the MLP, whose factors the gradient needs anyway.
    rematerialized: &["blocks.*/*/*/dequantized", "blocks.*/*/*/dropped", "blocks.*/mlp/gated"],
};

/// Inputs of the model code.
pub struct Model<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Names and forms of the states.
    pub weights: Weights<'a>,
    /// Dtype of the residual stream between sublayers.
    pub stream: DType,
    /// Whether rotary tables are embedded in the program.
    pub rope_cached: bool,
}

/// The values of one pass through the blocks.
struct Pass<'m, 'b> {
    model: &'m Model<'m>,
    b: &'b Builder,
    form: Form,
    tables: Tables<'b>,
    /// Those of blocks with local attention, if there are any.
    local_tables: Option<Tables<'b>>,
    batch: usize,
    /// The counter of dropout; none in evaluation.
    counter: Option<Var<'b>>,
}

impl Model<'_> {
    /// One training micro-step of `batch` windows. Inputs: `tokens` and `targets` (batch, sequence), U32; `normalizer`,
    /// the divisor of the sum of losses: the average number of targets that count per micro-batch of the step;
    /// `counter` with dropout. Output: `loss`.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn training(&self, batch: usize) -> Result<Program, GraphError> {
        let b = Builder::new("training");
        let dropout = self.config.method == Method::Lora && self.config.lora.dropout > 0.0;
        let (tokens, targets) = self.window(&b, batch);
        let normalizer = b.input("normalizer", DType::F32, []);
        let counter = dropout.then(|| b.input("counter", DType::U32, []));
        let loss = self.loss(&b, self.head(&b, tokens, targets, counter)?);
        b.output("loss", loss.sum / normalizer);
        b.finish()
    }

    /// Evaluation of `batch` windows. Inputs: `tokens` and `targets`. Outputs: `loss_sum` (nats), `tokens` (how many
    /// counted).
    ///
    /// With `source: Dialogues` also the input `codes` (batch), U32: the position that predicts a row's code, counted
    /// over all rows; and the outputs `rank` and `likeliest` (batch, 1), float32: see [`Ranking`].
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn evaluation(&self, batch: usize) -> Result<Program, GraphError> {
        let b = Builder::new("evaluation");
        let (tokens, targets) = self.window(&b, batch);
        let codes = (self.config.data.source == Source::Dialogues).then(|| b.input("codes", DType::U32, [batch]));
        let head = self.head(&b, tokens, targets, None)?;
        let loss = self.loss(&b, head);
        b.output("loss_sum", loss.sum);
        b.output("tokens", loss.count);
        if let Some(codes) = codes {
            let Ranking { rank, likeliest } = b.scope("ranking", || head.ranking(codes));
            b.output("rank", rank);
            b.output("likeliest", likeliest);
        }
        b.finish()
    }

    /// The output `logits` (batch, sequence, vocabulary), float32, of `batch` windows, for other programs and for
    /// comparison with other implementations. Input: `tokens`.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn logits(&self, batch: usize) -> Result<Program, GraphError> {
        let b = Builder::new("logits");
        let (sequence, vocabulary) = (self.config.sequence, self.config.architecture.vocabulary);
        let tokens = b.input("tokens", DType::U32, [batch, sequence]);
        let head = self.head(&b, tokens, tokens, None)?;
        b.output("logits", b.scope("head", || head.logits().reshape([batch, sequence, vocabulary])));
        b.finish()
    }

    fn window<'b>(&self, b: &'b Builder, batch: usize) -> (Var<'b>, Var<'b>) {
        let shape = [batch, self.config.sequence];
        (b.input("tokens", DType::U32, shape), b.input("targets", DType::U32, shape))
    }

    /// The forward pass through the blocks, up to the inputs of the losses.
    fn head<'b>(
        &self,
        b: &'b Builder,
        tokens: Var<'b>,
        targets: Var<'b>,
        counter: Option<Var<'b>>,
    ) -> Result<Head<'b>, GraphError> {
        let (of, batch) = (&self.config.architecture, tokens.dim(0));
        let rows = batch * self.config.sequence;
        let tables = |local| Tables::new(b, &frequencies(of, local), self.config.sequence, self.rope_cached);
        let local_tables = of.local.is_some().then(|| b.scope("rope", || tables(true))).transpose()?;
        let tables = b.scope("rope", || tables(false))?;
        let pass = Pass { model: self, b, form: of.family.form(), tables, local_tables, batch, counter };
        let embedding = b.scope("embed", || self.weights.table(b, "model.embed_tokens.weight"));
        let mut x = b.scope("embed", || pass.embedded(embedding.gather(0, tokens.reshape([rows])).cast(DType::F32)));
        for layer in 0..of.layers {
            x = b.scope(&format!("blocks.{layer}"), || pass.block(layer, x));
        }
        Ok(b.scope("head", || {
            let hidden = pass.norm("model.norm.weight", x);
            let matrix = if of.tied { embedding } else { self.weights.table(b, "lm_head.weight") };
            let learns = self.config.method == Method::Full;
            Head { hidden, matrix, targets: targets.reshape([rows, 1]), stream: self.stream, learns }
        }))
    }

    fn loss<'b>(&self, b: &'b Builder, head: Head<'b>) -> CrossEntropy<'b> {
        let chunk = chunk_rows(self.config.loss.chunk, head.hidden.dim(0), self.config.architecture.vocabulary);
        b.scope("head", || head.cross_entropy(chunk))
    }
}

impl<'b> Pass<'_, 'b> {
    /// The value as the residual stream and what is kept for the backward pass have it.
    fn settle(&self, x: Var<'b>) -> Var<'b> {
        x.cast(self.model.stream).cast(DType::F32)
    }

    fn embedded(&self, rows: Var<'b>) -> Var<'b> {
        if !self.form.scaled_embeddings {
            return self.settle(rows);
        }
        let scale = (rows.dim(1) as f64).sqrt();
        // As Hugging Face has it: the factor is of the dtype of the weights.
        let narrow = self.model.stream == DType::BF16;
        self.settle(rows * if narrow { half::bf16::from_f64(scale).to_f64() } else { scale })
    }

    fn norm(&self, name: &str, x: Var<'b>) -> Var<'b> {
        let normed = x.rms_norm(self.model.config.architecture.norm_epsilon);
        let gain = self.model.weights.vector(self.b, name, x.dim(x.shape().rank() - 1));
        normed * if self.form.centred_gains { gain + 1.0 } else { gain }
    }

    /// The norm of block `layer` that `name` is the name of, if the family has it.
    fn optional_norm(&self, layer: usize, name: Option<&str>, x: Var<'b>) -> Var<'b> {
        name.map_or(x, |name| self.norm(&Architecture::norm_name(layer, name), x))
    }

    fn block(&self, layer: usize, x: Var<'b>) -> Var<'b> {
        let b = self.b;
        let attended = b.scope("attn", || self.attention(layer, x));
        let x = b.scope("attn", || self.settle(x + attended));
        let fed = b.scope("mlp", || self.feed_forward(layer, x));
        b.scope("mlp", || self.settle(x + fed))
    }

    fn attention(&self, layer: usize, x: Var<'b>) -> Var<'b> {
        let of = &self.model.config.architecture;
        let n = self.norm(&Architecture::norm_name(layer, self.form.norms[0]), x);
        let sequence = self.model.config.sequence;
        let [q, k, v] = self.linears(layer, [Projection::Q, Projection::K, Projection::V], n);
        let heads = |x: Var<'b>, heads: usize| x.reshape([self.batch, sequence, heads, of.head_size]);
        let tables = self.local_tables.filter(|_| of.is_local(layer)).unwrap_or(self.tables);
        let turned = |x: Var<'b>| tables.rotate(x, self.model.stream).permute([0, 2, 1, 3]).cast(DType::F32);
        let normed =
            |x: Var<'b>, which: usize| self.optional_norm(layer, self.form.head_norms.map(|names| names[which]), x);
        let (q, k) = (turned(normed(heads(q, of.heads), 0)), turned(normed(heads(k, of.kv_heads), 1)));
        let v = heads(v, of.kv_heads).permute([0, 2, 1, 3]);
        let spec = AttentionSpec { scale: of.score_scale(), causal: true };
        let o = q.attention(k, v, spec).permute([0, 2, 1, 3]);
        let o = self.linear(layer, Projection::O, o.reshape([self.batch * sequence, of.heads * of.head_size]));
        self.optional_norm(layer, self.form.output_norms.map(|names| names[0]), o)
    }

    fn feed_forward(&self, layer: usize, x: Var<'b>) -> Var<'b> {
        let n = self.norm(&Architecture::norm_name(layer, self.form.norms[1]), x);
        let [gate, up] = self.linears(layer, [Projection::Gate, Projection::Up], n);
        let product = || self.form.activation.of(gate) * up;
        let gated = match self.model.config.method {
            Method::Full => self.b.scope("gated", || self.settle(product())),
            // With adapters, less is stored: the product has no trainable weight.
            Method::Lora => product(),
        };
        let fed = self.linear(layer, Projection::Down, gated);
        self.optional_norm(layer, self.form.output_norms.map(|names| names[1]), fed)
    }

    /// [`Pass::linear`] of several matrices. If all are trainable, their weights are adjacent and one matrix product
    /// replaces several; frozen weights are not adjacent, and adapters differ in dropout.
    fn linears<const N: usize>(&self, layer: usize, targets: [Projection; N], x: Var<'b>) -> [Var<'b>; N] {
        let (b, Model { config, weights, .. }) = (self.b, self.model);
        if config.method == Method::Lora {
            return targets.map(|projection| self.linear(layer, projection, x));
        }
        let x = self.settle(x);
        b.scope(targets[0].scope(), || {
            let matrices = targets.map(|projection| weights.matrix(b, layer, projection));
            let all = x.matmul_t(concat(&matrices, 0));
            let mut start = 0;
            targets.map(|projection| {
                let (outputs, _) = config.architecture.matrix(projection);
                start += outputs;
                self.biased(layer, projection, all.slice(1, start - outputs, outputs))
            })
        })
    }

    /// `x W^T` plus the bias and the adapter's output.
    fn linear(&self, layer: usize, projection: Projection, x: Var<'b>) -> Var<'b> {
        let (b, Model { config, weights, .. }) = (self.b, self.model);
        // The products' input is what is stored for the backward pass.
        let x = self.settle(x);
        b.scope(projection.scope(), || {
            let y = self.biased(layer, projection, x.matmul_t(weights.matrix(b, layer, projection)));
            if config.method == Method::Full || !config.lora.targets.contains(&projection) {
                return y;
            }
            let (down, up) = weights.adapter(b, layer, projection);
            let kept = b.scope("dropped", || self.drop(&format!("blocks.{layer}.{}", projection.path()), x));
            let scale = config.lora.alpha / config.lora.rank as f64;
            b.scope("adapter", || self.settle(y + kept.matmul_t(down).matmul_t(up) * scale))
        })
    }

    /// `y` plus the bias of the matrix that it is a product with, if it has one.
    fn biased(&self, layer: usize, projection: Projection, y: Var<'b>) -> Var<'b> {
        if !self.form.biased.contains(&projection) {
            return y;
        }
        y + self.model.weights.vector(self.b, &Architecture::bias_name(layer, projection), y.dim(1))
    }

    /// Dropout of `x`: zeroes a fraction of the elements and scales up the others.
    fn drop(&self, name: &str, x: Var<'b>) -> Var<'b> {
        let Some(counter) = self.counter else { return x };
        let dropped = x.dropout(name, counter, self.model.config.lora.dropout);
        // Rounded here, as the product would, so that recomputation for the backward pass covers it too.
        dropped.cast(self.model.weights.storage.frozen).cast(DType::F32)
    }
}
