//! The model: patches, recurrent levels that share one set of weights, and a linear head on the class token.

use super::config::{CHANNELS, CLASSES, ImageInput, ModelConfig, PATCH, SIDE, Scores, TOKENS};
use super::rope::{Rotation, rounded_relu};
use crate::workload::Regions;
use pawl_contract::settings::{MemoryFormat, ParameterLayout};
use pawl_graph::graph::{Builder, DType, GraphError, Init, Program, Var, concat};

/// Scope of the operations that make images of bytes, which are computed in float32 at any precision.
pub const DECODING: &str = "images";

/// Regions of the programs that compiler passes use.
pub const REGIONS: Regions = Regions {
    float32: &[DECODING],
    float8: &[],
    blocks: &["levels.*"],
    sublayers: &["levels.*/attention", "levels.*/gate"],
    rematerialized: &[],
};

/// Added to the variance in every normalisation.
const EPSILON: f64 = 1e-5;
/// Standard deviation of the initial position embeddings.
const DEVIATION: f64 = 0.02;

/// Inputs of the model code.
pub struct Model<'a> {
    /// Sizes.
    pub config: &'a ModelConfig,
    /// How training programs get their images.
    pub input: ImageInput,
    /// Whether training images are augmented.
    pub cropped: bool,
    /// Layout of the images.
    pub memory_format: MemoryFormat,
    /// Whether the weights of all heads are used as plain matrices.
    pub parameter_layout: ParameterLayout,
    /// Whether rotary tables are embedded in the program.
    pub rope_cached: bool,
    /// Dtype of matrix products, in which neurons and their gradients are stored.
    pub products: DType,
}

/// Xavier's bound of a uniform distribution.
fn xavier(inputs: usize, outputs: usize) -> Init {
    Init::Uniform { bound: (6.0 / (inputs + outputs) as f64).sqrt() }
}

/// The weights of the levels, as their products use them: the same numbers in any layout, with the neurons of a head in
/// the order of [`rope`](super::rope).
#[derive(Clone, Copy)]
struct LevelWeights<'b> {
    /// `Raw`: (heads, width, neurons); `Linear`: (width, heads x neurons).
    encoder: Var<'b>,
    /// (heads, width, neurons)
    values: Var<'b>,
    /// (heads x neurons, width)
    decoder: Var<'b>,
}

/// One pass through the levels.
struct Pass<'m, 'b> {
    model: &'m Model<'m>,
    b: &'b Builder,
    batch: usize,
    rotation: Rotation,
    weights: LevelWeights<'b>,
    /// The counter of dropout; none in evaluation.
    counter: Option<Var<'b>>,
}

impl Model<'_> {
    /// Shape of `batch` images in the memory format.
    pub fn images(&self, batch: usize) -> [usize; 4] {
        match self.memory_format {
            MemoryFormat::ChannelsFirst => [batch, CHANNELS, SIDE, SIDE],
            MemoryFormat::ChannelsLast => [batch, SIDE, SIDE, CHANNELS],
        }
    }

    /// One training micro-step of `batch` images. Inputs: the images (see [`ImageInput`]), with `crops` if the program
    /// augments them; `labels` (batch), U32; `counter` with dropout. Output: `loss`, the mean cross-entropy in nats.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn training(&self, batch: usize) -> Result<Program, GraphError> {
        let b = Builder::new("training");
        let images = self.input_images(&b, batch, self.input, self.cropped);
        let labels = b.input("labels", DType::U32, [batch]);
        let counter = (self.config.dropout > 0.0).then(|| b.input("counter", DType::U32, []));
        let logits = self.logits(&b, images, counter)?;
        let loss = b.scope("loss", || {
            let shifted = logits - logits.max([1]).stop_gradient();
            let hit = b.iota(1, [batch, CLASSES]).equal(labels.reshape([batch, 1]));
            (shifted.exp().sum([1]).log() - hit.select(shifted, 0.0).sum([1])).mean_all()
        });
        b.output("loss", loss);
        b.finish()
    }

    /// Evaluation of `batch` images. Input: `images`, or `items` when the images are on the device. Output: `logits`
    /// (batch, classes), float32.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn evaluation(&self, batch: usize) -> Result<Program, GraphError> {
        let b = Builder::new("evaluation");
        let input = match self.input {
            ImageInput::Bytes => ImageInput::Prepared,
            other => other,
        };
        let images = self.input_images(&b, batch, input, false);
        let logits = self.logits(&b, images, None)?;
        b.output("logits", logits);
        b.finish()
    }

    fn logits<'b>(&self, b: &'b Builder, images: Var<'b>, counter: Option<Var<'b>>) -> Result<Var<'b>, GraphError> {
        let (batch, width) = (images.dim(0), self.config.width);
        let mut x = b.scope("patches", || self.tokens(b, images));
        let rotation = Rotation::new(TOKENS, self.config.neurons(), self.rope_cached);
        let weights = b.scope("weights", || self.level_weights(b));
        let pass = Pass { model: self, b, batch, rotation, weights, counter };
        for level in 0..self.config.levels {
            x = b.scope(&format!("levels.{level}"), || pass.level(level, x))?;
        }
        Ok(b.scope("head", || {
            let weight = b.parameter("head.weight", [CLASSES, width], xavier(width, CLASSES));
            let bias = b.parameter("head.bias", [CLASSES], Init::Fill(0.0));
            x.slice(1, 0, 1).reshape([batch, width]).layer_norm(EPSILON).matmul_t(weight) + bias
        }))
    }

    /// The class token and the embedded patches, with positions: (batch, tokens, width).
    fn tokens<'b>(&self, b: &'b Builder, images: Var<'b>) -> Var<'b> {
        let (batch, width, across) = (images.dim(0), self.config.width, SIDE / PATCH);
        let inputs = CHANNELS * PATCH * PATCH;
        // Fans of a convolution: its weights per output and per input channel.
        let init = xavier(inputs, width * PATCH * PATCH);
        let weight = b.parameter("patch.weight", [width, CHANNELS, PATCH, PATCH], init);
        let bias = b.parameter("patch.bias", [width], Init::Fill(0.0));
        let (patches, weight) = match self.memory_format {
            MemoryFormat::ChannelsFirst => {
                (images.reshape([batch, CHANNELS, across, PATCH, across, PATCH]).permute([0, 2, 4, 1, 3, 5]), weight)
            }
            // Rows of a patch are contiguous with all their channels.
            MemoryFormat::ChannelsLast => (
                images.reshape([batch, across, PATCH, across, PATCH, CHANNELS]).permute([0, 1, 3, 2, 4, 5]),
                weight.permute([0, 2, 3, 1]),
            ),
        };
        let patches = patches.reshape([batch * across * across, inputs]);
        let embedded = patches.matmul_t(weight.reshape([width, inputs])) + bias;
        let class = b.parameter("cls", [1, 1, width], Init::Fill(0.0)).broadcast([batch, 1, width]);
        let positions = b.parameter("pos", [1, TOKENS, width], Init::Normal { deviation: DEVIATION });
        concat(&[class, embedded.reshape([batch, TOKENS - 1, width])], 1) + positions
    }

    fn level_weights<'b>(&self, b: &'b Builder) -> LevelWeights<'b> {
        let ModelConfig { width, heads, .. } = *self.config;
        let neurons = self.config.neurons();
        let of_heads = |name: &str| b.parameter(name, [heads, width, neurons], xavier(width, neurons));
        let (encoder, values) = (of_heads("enc"), of_heads("enc_v"));
        let decoder = b.parameter("dec", [heads * neurons, width], xavier(heads * neurons, width));
        // Even neurons first, see `rope`: any order will do as long as all three matrices agree.
        let paired = |x: Var<'b>| x.reshape([heads, width, neurons / 2, 2]);
        let by_head = |x: Var<'b>| paired(x).permute([0, 1, 3, 2]).reshape([heads, width, neurons]);
        LevelWeights {
            encoder: match self.parameter_layout {
                ParameterLayout::Raw => by_head(encoder),
                ParameterLayout::Linear => paired(encoder).permute([1, 0, 3, 2]).reshape([width, heads * neurons]),
            },
            values: by_head(values),
            decoder: decoder
                .reshape([heads, neurons / 2, 2, width])
                .permute([0, 2, 1, 3])
                .reshape([heads * neurons, width]),
        }
    }
}

impl<'b> Pass<'_, 'b> {
    /// One recurrent level: (batch, tokens, width) to the same.
    fn level(&self, level: usize, x: Var<'b>) -> Result<Var<'b>, GraphError> {
        let (b, &Model { config, products, .. }) = (self.b, self.model);
        let x = x.layer_norm(EPSILON);
        let (encoded, read) = b.scope("attention", || {
            let encoded = self.encode(x);
            let keys = b.scope("neurons", || {
                let tables = self.rotation.tables(b, x)?;
                Ok::<_, GraphError>(tables.rotate_relu(encoded.permute([0, 2, 1, 3]), products))
            })?;
            let read = self.attend(keys.cast(DType::F32), x).layer_norm(EPSILON);
            // Rounded here, as the next product would, so that it is stored once and in 16 bits.
            Ok::<_, GraphError>((encoded, read.cast(products).cast(DType::F32)))
        })?;
        let out = b.scope("gate", || {
            let values = self.values(read);
            let gated = b.scope("neurons", || {
                self.drop(level, rounded_relu(encoded, products) * rounded_relu(values, products))
            });
            let rows = gated.reshape([self.batch * TOKENS, config.heads * config.neurons()]);
            rows.matmul(self.weights.decoder).reshape(x.shape()).layer_norm(EPSILON)
        });
        Ok((x + out).layer_norm(EPSILON))
    }

    /// Inputs of the neurons of all heads: (batch, tokens, heads, neurons).
    fn encode(&self, x: Var<'b>) -> Var<'b> {
        let ModelConfig { width, heads, .. } = *self.model.config;
        let neurons = self.model.config.neurons();
        match self.model.parameter_layout {
            ParameterLayout::Raw => {
                let x = x.reshape([self.batch, 1, TOKENS, width]).broadcast([self.batch, heads, TOKENS, width]);
                let weights = self.weights.encoder.broadcast([self.batch, heads, width, neurons]);
                x.matmul(weights).permute([0, 2, 1, 3])
            }
            ParameterLayout::Linear => x.matmul(self.weights.encoder).reshape([self.batch, TOKENS, heads, neurons]),
        }
    }

    /// Attention of `keys` (batch, heads, tokens, neurons) over themselves, with the values `x` (batch, tokens, width)
    /// for all heads: (batch, heads, tokens, width).
    fn attend(&self, keys: Var<'b>, x: Var<'b>) -> Var<'b> {
        let ModelConfig { width, heads, .. } = *self.model.config;
        let scores = keys.matmul_t(keys);
        let weights = match self.model.config.scores {
            Scores::Softmax => (scores * (1.0 / (keys.dim(3) as f64).sqrt())).softmax(),
            Scores::Raw => scores,
        };
        // All heads are rows of one product: the values are not repeated.
        let rows = weights.reshape([self.batch, heads * TOKENS, TOKENS]);
        rows.matmul(x).reshape([self.batch, heads, TOKENS, width])
    }

    /// Inputs of the gates, from what attention read (batch, heads, tokens, width): (batch, tokens, heads, neurons).
    fn values(&self, read: Var<'b>) -> Var<'b> {
        let ModelConfig { width, heads, .. } = *self.model.config;
        let neurons = self.model.config.neurons();
        match self.model.parameter_layout {
            ParameterLayout::Raw => {
                let weights = self.weights.values.broadcast([self.batch, heads, width, neurons]);
                read.matmul(weights).permute([0, 2, 1, 3])
            }
            ParameterLayout::Linear => {
                let rows = read.permute([1, 0, 2, 3]).reshape([heads, self.batch * TOKENS, width]);
                let all = rows.matmul(self.weights.values);
                all.reshape([heads, self.batch, TOKENS, neurons]).permute([1, 2, 0, 3])
            }
        }
    }

    fn drop(&self, level: usize, x: Var<'b>) -> Var<'b> {
        match self.counter {
            Some(counter) => x.dropout(&format!("levels.{level}.gate"), counter, self.model.config.dropout),
            None => x,
        }
    }
}
