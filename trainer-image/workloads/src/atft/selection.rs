//! Variable selection: each feature has a network of its own, whose results are added with weights between 0 and 1.

use super::config::ModelConfig;
use super::layers::{EPSILON, Net, elu, uniform};
use pawl_graph::graph::{Init, Var};

/// Parameters of the networks of all features, stacked by feature.
struct Stacked<'b> {
    net: Net<'b>,
    features: usize,
}

impl<'b> Stacked<'b> {
    fn parameter(&self, name: &str, shape: [usize; 2], init: Init) -> Var<'b> {
        self.net.b.parameter(&format!("tft.vsn.{name}"), [self.features, shape[0], shape[1]], init)
    }

    /// Weight and bias of a layer from `inputs` to `outputs`.
    fn layer(&self, [weight, bias]: [&str; 2], inputs: usize, outputs: usize) -> (Var<'b>, Var<'b>) {
        let init = uniform(inputs);
        (self.parameter(weight, [inputs, outputs], init.clone()), self.parameter(bias, [1, outputs], init))
    }
}

/// Selected features (rows, hidden) of `x` (rows, features), and the mean weight of each row: (rows, 1).
pub fn select<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>) -> (Var<'b>, Var<'b>) {
    let (rows, features) = (x.dim(0), x.dim(1));
    let (hidden, width, dropout) = (config.hidden, config.selection_width, config.dropout);
    let weights =
        net.b.scope("weights", || net.gated_residual("tft.vsn.weights", x, hidden, features, dropout).sigmoid());
    let selected = net.b.scope("features", || {
        let stacked = Stacked { net, features };
        let columns = |of: Var<'b>| of.permute([1, 0]).reshape([features, rows, 1]);
        let drop = |name: &str, x: Var<'b>| net.drop(&format!("tft.vsn.{name}"), x, dropout);
        let x = columns(x);
        let (w1, b1) = stacked.layer(["w1", "b1"], 1, width);
        let (w2, b2) = stacked.layer(["w2", "b2"], width, width);
        let (w3, b3) = stacked.layer(["w3", "b3"], width, hidden);
        let (v1, c1) = stacked.layer(["v1", "c1"], 1, width);
        let (v2, c2) = stacked.layer(["v2", "c2"], width, hidden);
        let (skip, offset) = stacked.layer(["s", "s0"], 1, hidden);
        let first = drop("drop1", elu(x * w1 + b1));
        let second = drop("drop2", elu(first.matmul(w2) + b2));
        let value = second.matmul(w3) + b3;
        let gate = (drop("drop3", (x * v1 + c1).relu()).matmul(v2) + c2).sigmoid();
        let normalized = (gate * value + (-gate + 1.0) * (x * skip + offset)).layer_norm(EPSILON);
        let gain = stacked.parameter("gamma", [1, hidden], Init::Fill(1.0));
        let shift = stacked.parameter("beta", [1, hidden], Init::Fill(0.0));
        let weighted = (normalized * gain + shift) * columns(weights);
        weighted.sum([0]).reshape([rows, hidden])
    });
    (selected, weights.mean([1]))
}
