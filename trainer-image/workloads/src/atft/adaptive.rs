//! Adaptive normalization over time: a mixture of trailing windows (FAN), then of overlapping slices (SAN).

use super::config::ModelConfig;
use super::layers::{EPSILON, Net};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{GraphError, Init, Var};

/// Added to the variance of a trailing window.
const WINDOW_EPSILON: f64 = 1e-3;

/// The last day of the states `z` (rows, days, hidden), normalized: (rows, hidden).
///
/// # Errors
/// Only on a bug in this code.
pub fn normalized<'b>(net: Net<'b>, config: &ModelConfig, z: Var<'b>) -> Result<Var<'b>, GraphError> {
    let windowed = net.b.scope("fan", || windows(net, &config.windows, z.permute([0, 2, 1])))?;
    Ok(net.b.scope("san", || last_of_slices(net, config.slices, windowed)))
}

/// `x` (rows, channels, days), normalized over each of the trailing windows, mixed with learned weights.
fn windows<'b>(net: Net<'b>, lengths: &[usize], x: Var<'b>) -> Result<Var<'b>, GraphError> {
    let (b, channels, days, count) = (net.b, x.dim(1), x.dim(2), lengths.len());
    let mixture = b.parameter("fan.logit", [count], Init::Fill(0.0)).softmax();
    let gain = b.parameter("fan.gamma", [count, channels], Init::Fill(1.0));
    let shift = b.parameter("fan.beta", [count, channels], Init::Fill(0.0));
    let of = |all: Var<'b>, number: usize| all.slice(0, number, 1).reshape([channels, 1]);
    let parts = lengths.iter().enumerate().map(|(number, &length)| {
        let average = b.constant(trailing(days, length)?);
        let mean = x.matmul_t(average);
        let variance = (x.square().matmul_t(average) - mean.square()).maximum(0.0);
        let normalized = (x - mean) * (variance + WINDOW_EPSILON).rsqrt();
        Ok((normalized * of(gain, number) + of(shift, number)) * mixture.slice(0, number, 1))
    });
    let parts: Vec<Var<'b>> = parts.collect::<Result<_, GraphError>>()?;
    Ok(parts.into_iter().reduce(|sum, part| sum + part).expect("the configuration lists windows"))
}

/// The matrix (days, days) that takes the mean of the last `length` days, fewer at the beginning.
fn trailing(days: usize, length: usize) -> Result<Array, GraphError> {
    let value = |i: usize| {
        let (day, other) = (i / days, i % days);
        let count = (day + 1).min(length);
        if (day + 1 - count..=day).contains(&other) { 1.0 / count as f32 } else { 0.0 }
    };
    Array::new([days, days], Data::F32((0..days * days).map(value).collect()))
}

/// The slices that contain the last day of `x` (rows, channels, days), normalized over time and weighted, at that day:
/// (rows, channels).
fn last_of_slices<'b>(net: Net<'b>, slices: usize, x: Var<'b>) -> Var<'b> {
    let (b, rows, channels, days) = (net.b, x.dim(0), x.dim(1), x.dim(2));
    let gain = b.parameter("san.gamma", [slices, channels], Init::Fill(1.0));
    let shift = b.parameter("san.beta", [slices, channels], Init::Fill(0.0));
    let weights = net.linear("san.mix", x.mean([2]).reshape([rows, channels]), slices).softmax();
    let length = (2 * days).div_ceil(slices + 1);
    let start = |slice: usize| {
        let share = slice as f64 / slices.saturating_sub(1).max(1) as f64;
        (share * (days - length) as f64).round_ties_even() as usize
    };
    let part = |slice: usize| {
        let part = x.slice(2, start(slice), length);
        let centred = part - part.mean([2]);
        let last = centred.slice(2, length - 1, 1) * (centred.square().mean([2]) + EPSILON).rsqrt();
        let of = |all: Var<'b>| all.slice(0, slice, 1);
        (last.reshape([rows, channels]) * of(gain) + of(shift)) * weights.slice(1, slice, 1)
    };
    let reaching = (0..slices).filter(|&slice| start(slice) + length == days).map(part);
    reaching.reduce(|sum, part| sum + part).expect("the last slice ends with the last day")
}
