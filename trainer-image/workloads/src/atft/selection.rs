//! Variable selection: each feature has a network of its own, whose results are added with weights between 0 and 1.

use super::config::ModelConfig;
use super::layers::{EPSILON, Net, uniform};
use pawl_graph::graph::{FeatureDropout, FeatureNetworks, Init, Var};

/// Features whose networks are computed together, and again in the backward pass: a value has this many numbers per row
/// and channel.
const CHUNK: usize = 4;

/// Selected features (rows, hidden) of `x` (rows, features), and the mean weight of each row: (rows, 1).
pub fn select<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>) -> (Var<'b>, Var<'b>) {
    let features = x.dim(1);
    let weights = net.b.scope("weights", || {
        net.gated_residual("tft.vsn.weights", x, config.hidden, features, config.dropout).sigmoid()
    });
    let networks = networks(net, config, features);
    let dropout = net.counter.filter(|_| config.dropout > 0.0);
    let dropout = dropout.map(|counter| FeatureDropout { name: "tft.vsn.drop", counter, probability: config.dropout });
    let selected = net.b.scope("features", || networks.weighted_sum(x, weights, CHUNK, dropout));
    (selected, weights.mean([1]))
}

/// The networks of all features, with the parameter names of the reference program.
fn networks<'b>(net: Net<'b>, config: &ModelConfig, features: usize) -> FeatureNetworks<'b> {
    let (hidden, width) = (config.hidden, config.selection_width);
    let parameter = |name: &str, inputs: usize, outputs: usize, init: Init| {
        net.b.parameter(&format!("tft.vsn.{name}"), [features, inputs, outputs], init)
    };
    let layer = |[weight, bias]: [&str; 2], inputs: usize, outputs: usize| {
        [parameter(weight, inputs, outputs, uniform(inputs)), parameter(bias, 1, outputs, uniform(inputs))]
    };
    FeatureNetworks {
        first: layer(["w1", "b1"], 1, width),
        second: layer(["w2", "b2"], width, width),
        third: layer(["w3", "b3"], width, hidden),
        gate_first: layer(["v1", "c1"], 1, width),
        gate_second: layer(["v2", "c2"], width, hidden),
        skip: layer(["s", "s0"], 1, hidden),
        norm: [parameter("gamma", 1, hidden, Init::Fill(1.0)), parameter("beta", 1, hidden, Init::Fill(0.0))],
        epsilon: EPSILON,
    }
}
