//! Layers with the parameter names and initial values of the reference program.

use pawl_graph::graph::{Builder, Init, Var};

/// Added to the variance in every normalisation.
const EPSILON: f64 = 1e-5;
/// Largest number of groups of a group normalisation.
const GROUPS: usize = 8;

/// Initial values of the weight and the bias of a linear layer or a convolution.
#[derive(Clone, Copy)]
pub enum Start {
    /// Kaiming's normal distribution with gain sqrt(2), zero bias.
    Kaiming,
    /// Both uniform in +-1/sqrt(fan-in), PyTorch's default.
    Uniform,
}

impl Start {
    fn weight(self, fan_in: usize) -> Init {
        match self {
            Self::Kaiming => Init::Normal { deviation: (2.0 / fan_in as f64).sqrt() },
            Self::Uniform => Init::Uniform { bound: 1.0 / (fan_in as f64).sqrt() },
        }
    }

    fn bias(self, fan_in: usize) -> Init {
        match self {
            Self::Kaiming => Init::Fill(0.0),
            Self::Uniform => self.weight(fan_in),
        }
    }
}

/// The channels of a normalisation group count when there are `channels`.
pub fn groups(channels: usize) -> usize {
    channels.min(GROUPS)
}

/// A program under construction, and its dropout.
#[derive(Clone, Copy)]
pub struct Net<'b> {
    /// The program.
    pub b: &'b Builder,
    /// Dropout probability.
    pub dropout: f64,
    /// Counter of the random draws of dropout; none in evaluation.
    pub counter: Option<Var<'b>>,
}

impl<'b> Net<'b> {
    /// Weight (outputs, inputs) and bias of the linear layer `name`.
    pub fn linear_weights(self, name: &str, outputs: usize, inputs: usize, start: Start) -> (Var<'b>, Var<'b>) {
        let weight = self.b.parameter(&format!("{name}.weight"), [outputs, inputs], start.weight(inputs));
        (weight, self.b.parameter(&format!("{name}.bias"), [outputs], start.bias(inputs)))
    }

    /// `x W^T + b`.
    pub fn linear(self, name: &str, x: Var<'b>, outputs: usize, start: Start) -> Var<'b> {
        let (weight, bias) = self.linear_weights(name, outputs, x.dim(x.shape().rank() - 1), start);
        x.matmul_t(weight) + bias
    }

    /// Convolution of (batch, length, channels) with 3 taps and 1 element of padding, which divides the length by
    /// `stride`.
    pub fn convolution(self, name: &str, x: Var<'b>, outputs: usize, stride: usize) -> Var<'b> {
        let inputs = x.dim(2);
        let init = Start::Kaiming.weight(3 * inputs);
        let weight = self.b.parameter(&format!("{name}.weight"), [outputs, inputs, 3], init);
        x.conv1d(weight, stride, 1) + self.b.parameter(&format!("{name}.bias"), [outputs], Init::Fill(0.0))
    }

    /// Transposed convolution of (batch, length, channels) with 4 taps, which doubles the length.
    pub fn upsampling(self, name: &str, x: Var<'b>, outputs: usize) -> Var<'b> {
        // PyTorch takes the second axis of a weight for the inputs, which are the outputs here.
        let init = Start::Kaiming.weight(4 * outputs);
        let weight = self.b.parameter(&format!("{name}.weight"), [x.dim(2), outputs, 4], init);
        x.conv_transpose1d(weight, 2, 1) + self.b.parameter(&format!("{name}.bias"), [outputs], Init::Fill(0.0))
    }

    /// Layer normalisation over the last axis.
    pub fn layer_norm(self, name: &str, x: Var<'b>) -> Var<'b> {
        self.affine(name, x.layer_norm(EPSILON))
    }

    /// Group normalisation of (batch, length, channels): over the length and the channels of a group.
    pub fn group_norm(self, name: &str, x: Var<'b>) -> Var<'b> {
        let (batch, length, channels) = (x.dim(0), x.dim(1), x.dim(2));
        let groups = groups(channels);
        let grouped = x.reshape([batch, length, groups, channels / groups]);
        let centred = grouped - grouped.mean([1, 3]);
        let normalized = centred * (centred.square().mean([1, 3]) + EPSILON).rsqrt();
        self.affine(name, normalized.reshape([batch, length, channels]))
    }

    fn affine(self, name: &str, x: Var<'b>) -> Var<'b> {
        let width = x.dim(x.shape().rank() - 1);
        let gain = self.b.parameter(&format!("{name}.weight"), [width], Init::Fill(1.0));
        x * gain + self.b.parameter(&format!("{name}.bias"), [width], Init::Fill(0.0))
    }

    /// Dropout in training, else `x` itself. `name` is unique in the program.
    pub fn drop(self, name: &str, x: Var<'b>) -> Var<'b> {
        match self.counter {
            Some(counter) => x.dropout(name, counter, self.dropout),
            None => x,
        }
    }

    /// Layer normalisation, GELU and dropout, which follow hidden linear layers. Their parameters are those of layer
    /// `norm`.
    pub fn activated(self, norm: &str, x: Var<'b>) -> Var<'b> {
        self.drop(norm, self.layer_norm(norm, x).gelu())
    }
}
