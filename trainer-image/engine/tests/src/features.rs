//! A program with a network for each feature.

use pawl_graph::graph::{Builder, DType, FeatureDropout, FeatureNetworks, Init, Program};

/// A forward program with [`FeatureNetworks`] of `chunk` features at a time, in the scope `features`: inputs `x`
/// `[rows, features]` and `counter`, parameters of all networks and of the features' weights, output `loss`.
///
/// # Panics
/// Never: the shapes fit.
pub fn feature_networks([rows, features, width, hidden]: [usize; 4], chunk: usize, dropout: f64) -> Program {
    let b = Builder::new("features");
    let x = b.input("x", DType::F32, [rows, features]);
    let counter = b.input("counter", DType::U32, []);
    let uniform = |fan_in: usize| Init::Uniform { bound: 1.0 / (fan_in as f64).sqrt() };
    let layer = |name: &str, inputs: usize, outputs: usize| {
        let parameter =
            |part: &str, inputs| b.parameter(&format!("{name}.{part}"), [features, inputs, outputs], uniform(inputs));
        [parameter("weight", inputs), parameter("bias", 1)]
    };
    let networks = FeatureNetworks {
        first: layer("first", 1, width),
        second: layer("second", width, width),
        third: layer("third", width, hidden),
        gate_first: layer("gate_first", 1, width),
        gate_second: layer("gate_second", width, hidden),
        skip: layer("skip", 1, hidden),
        norm: layer("norm", 1, hidden),
        epsilon: 1e-5,
    };
    let weights = x.matmul_t(b.parameter("select", [features, features], uniform(features))).sigmoid();
    let dropout = FeatureDropout { name: "drop", counter, probability: dropout };
    let dropout = Some(dropout).filter(|dropout| dropout.probability > 0.0);
    let sum = b.scope("features", || networks.weighted_sum(x, weights, chunk, dropout));
    b.output("loss", sum.square().mean_all() + sum.tanh().mean_all());
    b.finish().expect("the shapes fit")
}
