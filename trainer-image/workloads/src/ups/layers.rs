//! Layers that the operator and the decoder share, initialised like PyTorch's.

use pawl_graph::graph::{Builder, Init, Role, StateDecl, Var};

/// Declares the weights of a model under a prefix.
#[derive(Clone, Copy)]
pub struct Weights<'b> {
    builder: &'b Builder,
    role: Role,
}

impl<'b> Weights<'b> {
    /// Trainable weights.
    pub fn learning(builder: &'b Builder) -> Self {
        Self { builder, role: Role::Parameter }
    }

    /// Frozen weights.
    pub fn frozen(builder: &'b Builder) -> Self {
        Self { builder, role: Role::Frozen }
    }

    /// The program they belong to.
    pub fn builder(self) -> &'b Builder {
        self.builder
    }

    /// The weight `name`.
    #[track_caller]
    pub fn weight(self, name: String, shape: &[usize], init: Init) -> Var<'b> {
        self.builder.state(StateDecl::f32(name, shape.to_vec(), self.role, init))
    }

    /// `x W^T + b` with W (outputs, inputs) and b uniform in +-1/sqrt(inputs).
    #[track_caller]
    pub fn linear(self, name: &str, x: Var<'b>, outputs: usize) -> Var<'b> {
        let inputs = x.dim(x.shape().rank() - 1);
        let init = Init::Uniform { bound: 1.0 / (inputs as f64).sqrt() };
        self.affine(name, x, outputs, init.clone(), init)
    }

    /// `x W^T + b` with W (outputs, inputs).
    #[track_caller]
    pub fn affine(self, name: &str, x: Var<'b>, outputs: usize, weight: Init, bias: Init) -> Var<'b> {
        let inputs = x.dim(x.shape().rank() - 1);
        let weight = self.weight(format!("{name}.weight"), &[outputs, inputs], weight);
        x.matmul_t(weight) + self.weight(format!("{name}.bias"), &[outputs], bias)
    }

    /// Layer normalisation over the last axis, eps 1e-5, with gain 1 and bias 0.
    #[track_caller]
    pub fn layer_norm(self, name: &str, x: Var<'b>) -> Var<'b> {
        let width = x.dim(x.shape().rank() - 1);
        let gain = self.weight(format!("{name}.weight"), &[width], Init::Fill(1.0));
        x.layer_norm(1e-5) * gain + self.weight(format!("{name}.bias"), &[width], Init::Fill(0.0))
    }

    /// Root-mean-square normalisation over the last axis, eps 1e-6, with gain 1.
    #[track_caller]
    pub fn rms_norm(self, name: &str, x: Var<'b>) -> Var<'b> {
        let width = x.dim(x.shape().rank() - 1);
        x.rms_norm(1e-6) * self.weight(format!("{name}.weight"), &[width], Init::Fill(1.0))
    }
}

/// `x` (batch, rows, parts x heads x width) cut into `parts` values of (batch, heads, rows, width).
#[track_caller]
pub fn split_heads<'b>(x: Var<'b>, parts: usize, heads: usize) -> Vec<Var<'b>> {
    let (batch, rows, width) = (x.dim(0), x.dim(1), x.dim(2) / (parts * heads));
    let apart = x.reshape([batch, rows, parts, heads, width]).permute([2, 0, 3, 1, 4]);
    (0..parts).map(|part| apart.slice(0, part, 1).reshape([batch, heads, rows, width])).collect()
}

/// (batch, heads, rows, width) to (batch, rows, heads x width).
#[track_caller]
pub fn join_heads(x: Var<'_>) -> Var<'_> {
    let (batch, heads, rows, width) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
    x.permute([0, 2, 1, 3]).reshape([batch, rows, heads * width])
}
