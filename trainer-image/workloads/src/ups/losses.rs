//! The losses, each a mean, float32.

use super::encoder::{COORDINATES, Tiling};
use super::layers::Weights;
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, GraphError, Init, Var};
use std::f64::consts::TAU;

/// Mean of the squared difference.
pub fn mean_square<'b>(a: Var<'b>, b: Var<'b>) -> Var<'b> {
    (a - b).square().mean_all()
}

/// A float32 constant.
pub fn constant<'b>(b: &'b Builder, shape: &[usize], values: Vec<f32>) -> Result<Var<'b>, GraphError> {
    Ok(b.constant(Array::new(shape.to_vec(), Data::F32(values))?))
}

/// The unnormalised real Fourier transform over a row of `width` (even), as a (width, 2 (width / 2 + 1)) matrix:
/// cosines, then negated sines.
pub fn fourier_matrix(width: usize) -> Vec<f32> {
    let bins = width / 2 + 1;
    let mut matrix = Vec::with_capacity(width * 2 * bins);
    for n in 0..width {
        // Reduced modulo the period, so that sines of multiples of pi are exact zeros as far as f64 goes.
        let angle = |k: usize| TAU * ((n * k) % width) as f64 / width as f64;
        matrix.extend((0..bins).map(|k| libm::cos(angle(k)) as f32));
        matrix.extend((0..bins).map(|k| if (2 * n * k) % width == 0 { 0.0 } else { -libm::sin(angle(k)) as f32 }));
    }
    matrix
}

/// |rfft| of each row of `x` (.., width) with the matrix of [`fourier_matrix`]: (.., width / 2 + 1).
pub fn amplitudes<'b>(x: Var<'b>, matrix: Var<'b>) -> Var<'b> {
    let (last, bins) = (x.shape().rank() - 1, matrix.dim(1) / 2);
    let parts = x.matmul(matrix);
    (parts.slice(last, 0, bins).square() + parts.slice(last, bins, bins).square() + 1e-12).sqrt()
}

/// Mean over tokens of the distance of a token's norm from 1, and mean over ordered pairs of distinct tokens of one
/// state of the absolute cosine between them; `z` is (batch, tokens, width).
pub fn token_regularizers(z: Var<'_>) -> (Var<'_>, Var<'_>) {
    let (batch, tokens) = (z.dim(0), z.dim(1));
    let norms = z.square().sum([2]).sqrt();
    let unit = z / (norms + 1e-8);
    let cosines = unit.matmul_t(unit).abs().sum_all() - unit.square().sum_all();
    ((norms - 1.0).abs().mean_all(), cosines * (1.0 / (batch * tokens * (tokens - 1)) as f64))
}

/// Encodes `field` (batch, cells), normalised, with the frozen encoder `name`: (batch, tokens, width).
pub fn encode<'b>(
    w: Weights<'b>,
    name: &str,
    encoder: &super::encoder::Encoder,
    field: Var<'b>,
) -> Result<Var<'b>, GraphError> {
    let (b, tiling, batch) = (w.builder(), encoder.tiling(), field.dim(0));
    let Tiling { rows, columns, height, width } = tiling;
    let (patch, inputs, out) = (tiling.patch(), tiling.patch() + COORDINATES, encoder.bias().len());
    let given =
        |shape: &[usize], values: &[f32]| Ok(Init::Array(Array::new(shape.to_vec(), Data::F32(values.to_vec()))?));
    let weight = w.weight(format!("{name}.weight"), &[out, inputs], given(&[out, inputs], encoder.weight())?);
    let bias = w.weight(format!("{name}.bias"), &[out], given(&[out], encoder.bias())?);
    let coordinates = constant(b, &[tiling.tokens(), COORDINATES], tiling.coordinates())?;
    Ok(b.scope("encoder", || {
        let patches = field.reshape([batch, rows, height, columns, width]).permute([0, 1, 3, 2, 4]).reshape([
            batch,
            tiling.tokens(),
            patch,
        ]);
        let offset = coordinates.matmul_t(weight.slice(1, patch, COORDINATES)) + bias;
        patches.matmul_t(weight.slice(1, 0, patch)) + offset
    }))
}
