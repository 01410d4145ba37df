//! The states of the decoder: trainable and frozen ones, their storage format and initial values.

use super::architecture::{Method, Projection};
use super::config::Config;
use super::hugging_face::WeightFiles;
use pawl_graph::graph::{Builder, DType, Init, Meta, Role, StateDecl, Var, float8::Scaled, quantize};

/// Standard deviation of random matrices: Hugging Face's default.
const DEVIATION: f64 = 0.02;

/// How a launch stores weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Dtype of frozen matrices; trainable ones are float32.
    pub frozen: DType,
    /// Whether frozen matrices of blocks are 8-bit integers.
    pub quantized: bool,
    /// Whether they are 8-bit floats.
    pub float8: bool,
}

/// Names, shapes and initial values of all states.
pub struct Weights<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// How they are stored.
    pub storage: Storage,
    /// Source of the weights, if not random.
    pub files: Option<&'a WeightFiles>,
}

impl Weights<'_> {
    fn learns(&self) -> bool {
        self.config.method == Method::Full
    }

    /// The float32 declaration of a base weight: the key of checkpoints is Hugging Face's name.
    pub fn base(&self, name: &str, shape: &[usize]) -> StateDecl {
        let random = match shape {
            [_] if name.ends_with(".bias") || self.config.architecture.family.form().centred_gains => Init::Fill(0.0),
            [_] => Init::Fill(1.0),
            _ => Init::Normal { deviation: DEVIATION },
        };
        let init = self.files.and_then(|files| files.slice(name)).map_or(random, Init::File);
        let role = if self.learns() { Role::Parameter } else { Role::Frozen };
        StateDecl::f32(name, shape.to_vec(), role, init)
    }

    /// A gain or a bias, float32.
    #[track_caller]
    pub fn vector<'b>(&self, b: &'b Builder, name: &str, length: usize) -> Var<'b> {
        b.state(self.base(name, &[length]))
    }

    /// The embedding, or the output matrix: (vocabulary, width), as it is stored.
    #[track_caller]
    pub fn table<'b>(&self, b: &'b Builder, name: &str) -> Var<'b> {
        let of = &self.config.architecture;
        b.state(self.stored(self.base(name, &[of.vocabulary, of.width])))
    }

    /// The name of matrix `projection` of block `layer`.
    pub fn matrix_name(layer: usize, projection: Projection) -> String {
        format!("model.layers.{layer}.{}.weight", projection.path())
    }

    /// Matrix `projection` of block `layer`, float32 (outputs, inputs).
    #[track_caller]
    pub fn matrix<'b>(&self, b: &'b Builder, layer: usize, projection: Projection) -> Var<'b> {
        let (outputs, inputs) = self.config.architecture.matrix(projection);
        let base = self.base(&Self::matrix_name(layer, projection), &[outputs, inputs]);
        let Some(parts) = self.eight_bits(&base) else { return b.state(self.stored(base)).cast(DType::F32) };
        let [codes, scale] = parts.map(|part| b.state(part));
        if self.storage.float8 {
            return b.scope("dequantized", || Scaled { codes, scale }.value());
        }
        b.scope("dequantized", || quantize::dequantize(codes, scale, self.storage.frozen).cast(DType::F32))
    }

    /// Declarations of the two states that stand for `base`, a matrix of a block: 8-bit numbers, and the scale of each
    /// row. `None` if it is stored as it is.
    pub fn eight_bits(&self, base: &StateDecl) -> Option<[StateDecl; 2]> {
        if self.learns() || !(self.storage.quantized || self.storage.float8) {
            return None;
        }
        let (outputs, inputs) = (base.meta.shape[0], base.meta.shape[1]);
        let frozen = |suffix: &str, dtype: DType, shape: [usize; 2], init: Init| {
            let name = format!("{}.{suffix}", base.name);
            StateDecl { name, meta: Meta::new(dtype, shape), role: Role::Frozen, init }
        };
        let of = || Box::new(base.clone());
        Some(if self.storage.float8 {
            let scales = Init::Float8Scales(of(), DType::E4M3);
            [
                frozen("e4m3", DType::E4M3, [outputs, inputs], Init::Float8(of())),
                frozen("scale", DType::F32, [outputs, 1], scales),
            ]
        } else {
            [
                frozen("int8", DType::U32, [outputs / 4, inputs], Init::Quantized(of())),
                frozen("scale", DType::F32, [outputs, 1], Init::QuantizationScales(of())),
            ]
        })
    }

    /// The two matrices of an adapter: A (rank, inputs) and B (outputs, rank), under the names of Hugging Face's PEFT.
    #[track_caller]
    pub fn adapter<'b>(&self, b: &'b Builder, layer: usize, projection: Projection) -> (Var<'b>, Var<'b>) {
        let [down, up] = self.adapter_decls(layer, projection);
        (b.state(down), b.state(up))
    }

    /// Declarations of an adapter's A and B.
    pub fn adapter_decls(&self, layer: usize, projection: Projection) -> [StateDecl; 2] {
        let (outputs, inputs) = self.config.architecture.matrix(projection);
        let rank = self.config.lora.rank;
        let name = |part: &str| format!("base_model.model.model.layers.{layer}.{}.{part}.weight", projection.path());
        let bound = 1.0 / (inputs as f64).sqrt();
        [
            StateDecl::f32(name("lora_A"), [rank, inputs], Role::Parameter, Init::Uniform { bound }),
            StateDecl::f32(name("lora_B"), [outputs, rank], Role::Parameter, Init::Fill(0.0)),
        ]
    }

    /// Float32 declarations of all base weights, in the order of the model.
    pub fn all(&self) -> Vec<StateDecl> {
        let of = &self.config.architecture;
        let table = [of.vocabulary, of.width];
        let mut all = vec![self.base("model.embed_tokens.weight", &table)];
        for layer in 0..of.layers {
            for projection in Projection::ALL {
                let (outputs, inputs) = of.matrix(projection);
                all.push(self.base(&Self::matrix_name(layer, projection), &[outputs, inputs]));
            }
            all.extend(of.vectors(layer).iter().map(|(name, length)| self.base(name, &[*length])));
        }
        all.push(self.base("model.norm.weight", &[of.width]));
        if !of.tied {
            all.push(self.base("lm_head.weight", &table));
        }
        all
    }

    /// In the format of frozen matrices, unless it is trainable.
    fn stored(&self, decl: StateDecl) -> StateDecl {
        match decl.role {
            Role::Frozen => StateDecl { meta: Meta::new(self.storage.frozen, decl.meta.shape.clone()), ..decl },
            _ => decl,
        }
    }
}
