//! The loss: quantiles, medians, correlations within a date, and a portfolio.

use super::config::{HORIZONS, LossConfig, MEDIAN, QUANTILES};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, GraphError, Var};

/// Added to a standard deviation that divides.
const LEAST: f64 = 1e-6;
/// Added to the product of two variances.
const LEAST_PRODUCT: f64 = 1e-12;

/// The targets of the stocks of some dates, each (dates, stocks, horizons).
#[derive(Clone, Copy)]
pub struct Targets<'b> {
    /// Log returns.
    pub returns: Var<'b>,
    /// Scores within the date.
    pub scores: Var<'b>,
    /// Ranks within the date.
    pub ranks: Var<'b>,
}

/// The dates over which the Sharpe ratio is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Portfolio {
    /// All of the batch.
    Batch,
    /// Each by itself.
    Date,
}

/// The loss of forecasts (dates, stocks, horizons, quantiles) without regularization: per date (dates), or of the batch
/// (1).
///
/// # Errors
/// Only on a bug in this code.
pub fn loss<'b>(
    config: &LossConfig,
    forecasts: Var<'b>,
    targets: Targets<'b>,
    portfolio: Portfolio,
) -> Result<Var<'b>, GraphError> {
    let b = forecasts.builder();
    let (dates, stocks, horizons) = (forecasts.dim(0), forecasts.dim(1), forecasts.dim(2));
    let median = medians(forecasts);
    let error = targets.scores.reshape([dates, stocks, horizons, 1]) - forecasts;
    let levels = row(b, QUANTILES.map(|level| level as f32).to_vec())?;
    let pinball = (levels * error).maximum((levels - 1.0) * error).mean([1, 3]).reshape([dates, 1, horizons]);
    let distance = median - targets.scores;
    let absolute = distance.abs();
    let near = absolute.minimum(1.0);
    let huber = (near * (absolute - near * 0.5)).mean([1]);
    let each = pinball * config.pinball
        + distance.square().mean([1]) * config.mse
        + huber * config.huber
        + (-correlation(median, targets.ranks) + 1.0) * config.rank_ic
        + (-correlation(median, targets.scores) + 1.0) * config.ic;
    let each = if portfolio == Portfolio::Batch { each.mean([0]) } else { each };
    let axes: &[usize] = if portfolio == Portfolio::Batch { &[0, 1] } else { &[1] };
    let each = each - sharpe(median, targets.returns, axes) * config.sharpe;
    let total: f64 = HORIZONS.iter().map(|horizon| horizon.weight).sum();
    let weights = row(b, HORIZONS.iter().map(|horizon| (horizon.weight / total) as f32).collect())?;
    let count = each.dim(0);
    Ok((each.reshape([count, horizons]) * weights).sum([1]).reshape([count]))
}

/// The medians (dates, stocks, horizons) of forecasts.
pub fn medians(forecasts: Var<'_>) -> Var<'_> {
    let shape = forecasts.shape();
    forecasts.slice(3, MEDIAN, 1).reshape(shape.dims()[..3].to_vec())
}

fn row(b: &Builder, values: Vec<f32>) -> Result<Var<'_>, GraphError> {
    Ok(b.constant(Array::new([values.len()], Data::F32(values))?))
}

/// Pearson's correlation over the stocks: (dates, 1, horizons).
fn correlation<'b>(a: Var<'b>, b: Var<'b>) -> Var<'b> {
    let (a, b) = (a - a.mean([1]), b - b.mean([1]));
    (a * b).mean([1]) * (a.square().mean([1]) * b.square().mean([1]) + LEAST_PRODUCT).rsqrt()
}

/// Standard deviation (of the sample) over `axes`, which keep extent 1.
fn deviation<'b>(x: Var<'b>, axes: &[usize]) -> Var<'b> {
    let count: usize = axes.iter().map(|&axis| x.dim(axis)).product();
    ((x - x.mean(axes)).square().sum(axes) * (1.0 / (count as f64 - 1.0))).sqrt()
}

/// Mean over standard deviation of the profits of positions in proportion to the median, limited by a hyperbolic
/// tangent.
fn sharpe<'b>(median: Var<'b>, returns: Var<'b>, axes: &[usize]) -> Var<'b> {
    let profits = (median / (deviation(median, &[1]) + LEAST)).tanh() * returns;
    profits.mean(axes) / (deviation(profits, axes) + LEAST)
}
