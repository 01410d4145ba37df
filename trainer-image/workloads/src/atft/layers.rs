//! Layers with the parameter names and initial values of the reference program.

use pawl_graph::graph::{Builder, Init, Var};

/// Added to the variance in every normalization over channels, stocks or time.
pub const EPSILON: f64 = 1e-5;

/// PyTorch's default for linear layers and recurrent networks: uniform in +-1/sqrt(fan-in).
pub fn uniform(fan_in: usize) -> Init {
    Init::Uniform { bound: 1.0 / (fan_in as f64).sqrt() }
}

/// Xavier's uniform distribution for a matrix (outputs, inputs).
pub fn xavier([outputs, inputs]: [usize; 2]) -> Init {
    Init::Uniform { bound: (6.0 / (outputs + inputs) as f64).sqrt() }
}

/// A program under construction, and its dropout.
#[derive(Clone, Copy)]
pub struct Net<'b> {
    /// The program.
    pub b: &'b Builder,
    /// Counter of the random draws of dropout; none in evaluation.
    pub counter: Option<Var<'b>>,
}

impl<'b> Net<'b> {
    /// `x W^T + b`.
    pub fn linear(self, name: &str, x: Var<'b>, outputs: usize) -> Var<'b> {
        let inputs = x.dim(x.shape().rank() - 1);
        let weight = self.b.parameter(&format!("{name}.weight"), [outputs, inputs], uniform(inputs));
        x.matmul_t(weight) + self.b.parameter(&format!("{name}.bias"), [outputs], uniform(inputs))
    }

    /// Layer normalization over the last axis.
    pub fn layer_norm(self, name: &str, x: Var<'b>) -> Var<'b> {
        let width = x.dim(x.shape().rank() - 1);
        let gain = self.b.parameter(&format!("{name}.weight"), [width], Init::Fill(1.0));
        x.layer_norm(EPSILON) * gain + self.b.parameter(&format!("{name}.bias"), [width], Init::Fill(0.0))
    }

    /// Dropout in training, else `x` itself. `name` is unique in the program.
    pub fn drop(self, name: &str, x: Var<'b>, probability: f64) -> Var<'b> {
        match self.counter.filter(|_| probability > 0.0) {
            Some(counter) => x.dropout(name, counter, probability),
            None => x,
        }
    }

    /// Gated residual network: a network of three layers and `x` (projected, if its width is another), mixed by a gate.
    pub fn gated_residual(self, name: &str, x: Var<'b>, hidden: usize, outputs: usize, dropout: f64) -> Var<'b> {
        let of = |part: &str| format!("{name}.{part}");
        let first = self.drop(&of("drop1"), self.linear(&of("fc1"), x, hidden).elu(), dropout);
        let second = self.drop(&of("drop2"), self.linear(&of("fc2"), first, hidden).elu(), dropout);
        let value = self.linear(&of("fc3"), second, outputs);
        let gate = self.drop(&of("drop3"), self.linear(&of("g1"), x, hidden).relu(), dropout);
        let gate = self.linear(&of("g2"), gate, outputs).sigmoid();
        let same = x.dim(x.shape().rank() - 1) == outputs;
        let skip = if same { x } else { self.linear(&of("skip"), x, outputs) };
        self.layer_norm(&of("norm"), gate * value + (-gate + 1.0) * skip)
    }
}

/// Recurrent network (LSTM) over axis 1 of `x` (rows, steps, inputs), from a state of zeros: (rows, steps, hidden).
pub fn lstm<'b>(net: Net<'b>, name: &str, x: Var<'b>, hidden: usize) -> Var<'b> {
    let parameter = |part: &str, shape: &[usize]| net.b.parameter(&format!("{name}.{part}_l0"), shape, uniform(hidden));
    let [of_input, of_state] =
        [("weight_ih", x.dim(2)), ("weight_hh", hidden)].map(|(part, width)| parameter(part, &[4 * hidden, width]));
    let bias = parameter("bias_ih", &[4 * hidden]) + parameter("bias_hh", &[4 * hidden]);
    (x.matmul_t(of_input) + bias).lstm(of_state)
}
