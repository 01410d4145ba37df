//! The heads: quantiles of the returns to each horizon.

use super::config::{HORIZONS, ModelConfig, QUANTILES};
use super::layers::Net;
use pawl_graph::graph::{Init, Var, concat};

/// Days up to which a horizon has the shallow head.
const NEAR: usize = 5;
/// Standard deviation of the initial weights of the last layer. Truncated at 2 as in PyTorch, which is 100 standard
/// deviations: it changes nothing.
const DEVIATION: f64 = 0.02;

/// Forecasts (rows, horizons, quantiles) from `x` (rows, hidden).
pub fn forecasts<'b>(net: Net<'b>, config: &ModelConfig, x: Var<'b>) -> Var<'b> {
    let (b, rows, dropout) = (net.b, x.dim(0), config.head_dropout);
    let (half, quantiles) = (config.hidden / 2, QUANTILES.len());
    let name = |part: &str| format!("prediction_head.{part}");
    let shared = net.linear(&name("shared.0"), x, half).relu();
    let shared = net.layer_norm(&name("shared.3"), net.drop(&name("shared.2"), shared, dropout));
    let head = |(number, horizon): (usize, &super::config::Horizon)| {
        let of = |layer: usize| name(&format!("heads.{number}.{layer}"));
        let (hidden, last) = if horizon.days <= NEAR {
            (net.drop(&of(2), net.linear(&of(0), shared, half).relu(), 0.5 * dropout), 3)
        } else {
            let narrow = net.drop(&of(2), net.linear(&of(0), shared, half / 2).relu(), 1.5 * dropout);
            (net.linear(&of(3), narrow, half).relu(), 5)
        };
        let weight =
            b.parameter(&format!("{}.weight", of(last)), [quantiles, half], Init::Normal { deviation: DEVIATION });
        let bias = b.parameter(&format!("{}.bias", of(last)), [quantiles], Init::Fill(0.0));
        (hidden.matmul_t(weight) + bias).reshape([rows, 1, quantiles])
    };
    let all: Vec<Var<'b>> = HORIZONS.iter().enumerate().map(head).collect();
    concat(&all, 1) * b.parameter(&name("scale"), [HORIZONS.len(), quantiles], Init::Fill(1.0))
}
