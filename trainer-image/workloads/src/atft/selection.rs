//! Variable selection: each feature has a network of its own, whose results are added with weights between 0 and 1.

use super::config::ModelConfig;
use super::layers::{EPSILON, Net, uniform};
use pawl_graph::graph::{Init, Var};

/// Features whose networks are computed together, and again in the backward pass where that is asked for: a value has this many numbers
/// per row and channel.
const CHUNK: usize = 8;

/// Selected features (rows, hidden) of `x` (rows, features), and the mean weight of each row: (rows, 1).
pub fn select<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>) -> (Var<'b>, Var<'b>) {
    let features = x.dim(1);
    let weights = net.b.scope("weights", || {
        net.gated_residual("tft.vsn.weights", x, config.hidden, features, config.dropout).sigmoid()
    });
    let networks = Networks::new(net, config, features);
    let part = |(number, first): (usize, usize)| {
        let count = CHUNK.min(features - first);
        let columns = |of: Var<'b>| of.slice(1, first, count).permute([1, 0]).reshape([count, of.dim(0), 1]);
        net.b.scope(&format!("features.{number}"), || networks.selected(columns(x), columns(weights), first))
    };
    let parts: Vec<Var<'b>> = (0..features).step_by(CHUNK).enumerate().map(part).collect();
    let selected = parts.into_iter().reduce(|sum, part| sum + part).expect("there are features");
    (selected, weights.mean([1]))
}

/// The networks of all features: each of three layers, and a gate between it and the projected feature. Weights and biases are stacked by feature.
struct Networks<'b> {
    net: Net<'b>,
    dropout: f64,
    first: (Var<'b>, Var<'b>),
    second: (Var<'b>, Var<'b>),
    third: (Var<'b>, Var<'b>),
    /// The layers of the gate.
    gate: [(Var<'b>, Var<'b>); 2],
    skip: (Var<'b>, Var<'b>),
    /// Gain and bias of the normalization.
    norm: (Var<'b>, Var<'b>),
}

impl<'b> Networks<'b> {
    fn new(net: Net<'b>, config: &ModelConfig, features: usize) -> Self {
        let (hidden, width) = (config.hidden, config.selection_width);
        let parameter = |name: &str, inputs: usize, outputs: usize, init: Init| {
            net.b.parameter(&format!("tft.vsn.{name}"), [features, inputs, outputs], init)
        };
        let layer = |[weight, bias]: [&str; 2], inputs: usize, outputs: usize| {
            (parameter(weight, inputs, outputs, uniform(inputs)), parameter(bias, 1, outputs, uniform(inputs)))
        };
        Self {
            net,
            dropout: config.dropout,
            first: layer(["w1", "b1"], 1, width),
            second: layer(["w2", "b2"], width, width),
            third: layer(["w3", "b3"], width, hidden),
            gate: [layer(["v1", "c1"], 1, width), layer(["v2", "c2"], width, hidden)],
            skip: layer(["s", "s0"], 1, hidden),
            norm: (parameter("gamma", 1, hidden, Init::Fill(1.0)), parameter("beta", 1, hidden, Init::Fill(0.0))),
        }
    }

    /// The weighted sum (rows, hidden) of the results of the features `x` (features, rows, 1), which begin with feature `from`.
    fn selected(&self, x: Var<'b>, weights: Var<'b>, from: usize) -> Var<'b> {
        let (count, rows) = (x.dim(0), x.dim(1));
        let own = |(weight, bias): (Var<'b>, Var<'b>)| (weight.slice(0, from, count), bias.slice(0, from, count));
        // A layer whose input is one number is no product of matrices.
        let scaled = |x: Var<'b>, (weight, bias): (Var<'b>, Var<'b>)| x * weight + bias;
        let layer = |x: Var<'b>, (weight, bias): (Var<'b>, Var<'b>)| x.matmul(weight) + bias;
        let drop = |name: &str, x: Var<'b>| self.net.drop(&format!("tft.vsn.{from}.{name}"), x, self.dropout);
        let first = drop("drop1", scaled(x, own(self.first)).elu());
        let second = drop("drop2", layer(first, own(self.second)).elu());
        let value = layer(second, own(self.third));
        let gate = drop("drop3", scaled(x, own(self.gate[0])).relu());
        let gate = layer(gate, own(self.gate[1])).sigmoid();
        let mixed = gate * value + (-gate + 1.0) * scaled(x, own(self.skip));
        let (gain, shift) = own(self.norm);
        let weighted = (mixed.layer_norm(EPSILON) * gain + shift) * weights;
        weighted.sum([0]).reshape([rows, mixed.dim(2)])
    }
}
