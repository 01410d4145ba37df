//! Values as 8-bit floats with float32 scales: the operands of scaled products.
//!
//! An element is code x scale. The scale is taken from the current largest magnitude, so that this becomes the format's
//! largest number: nothing overflows, and what is below the scale times half of the smallest number becomes zero.

use super::{DType, Var};
use crate::{
    array::{Array, Data},
    fill::{fill, fill_with},
    float8::{E4M3, E5M2},
};

/// Smallest magnitude that a scale is computed from: rows of zeros have a scale too.
pub(crate) const SMALLEST: f32 = 1e-12;

/// A value as 8-bit floats.
#[derive(Debug, Clone, Copy)]
pub struct Scaled<'b> {
    /// Shape of the value, in an 8-bit float.
    pub codes: Var<'b>,
    /// Factor of the codes, float32: extent 1 along the axes that share a scale.
    pub scale: Var<'b>,
}

impl<'b> Scaled<'b> {
    /// `x` (a float) in `dtype`, an 8-bit float, with one scale for all indices along `axes`: `[1]` for one a row of a
    /// matrix. Not differentiable.
    #[track_caller]
    pub fn new(x: Var<'b>, axes: &[usize], dtype: DType) -> Self {
        let x = x.cast(DType::F32);
        let largest = x.abs().max(axes);
        let scale = largest.maximum(f64::from(SMALLEST)) * f64::from(1.0 / dtype.largest());
        Self { codes: (x * scale.recip()).cast(dtype), scale }
    }

    /// The value in float32.
    #[track_caller]
    pub fn value(self) -> Var<'b> {
        self.codes.cast(DType::F32) * self.scale
    }
}

/// Scale of each row of a float32 matrix `[rows, columns]`, as [`Scaled::new`] along axis 1 computes it.
pub(super) fn scales(matrix: &Array, dtype: DType) -> Vec<f32> {
    let values = float32(matrix);
    let columns = matrix.shape().last().copied().unwrap_or(1).max(1);
    let mut scales = vec![0.0; values.len() / columns];
    fill_with(&mut scales, columns, |row| {
        let row = &values[row as usize * columns..(row as usize + 1) * columns];
        row.iter().fold(SMALLEST, |max, x| max.max(x.abs())) * (1.0 / dtype.largest())
    });
    scales
}

/// The codes of a float32 matrix with one scale a row.
pub(super) fn codes(matrix: &Array, dtype: DType) -> Data {
    let values = float32(matrix);
    let columns = matrix.shape().last().copied().unwrap_or(1).max(1);
    let factors: Vec<f32> = scales(matrix, dtype).into_iter().map(f32::recip).collect();
    let scaled = |i: u64| values[i as usize] * factors[i as usize / columns];
    let mut data = Data::zeros(dtype, values.len());
    match &mut data {
        Data::E4M3(out) => fill(out, |i| E4M3::from_f32(scaled(i))),
        Data::E5M2(out) => fill(out, |i| E5M2::from_f32(scaled(i))),
        // No other state has such an initial value.
        other => *other = Data::from_f64(dtype, values.iter().map(|&x| f64::from(x))),
    }
    data
}

fn float32(matrix: &Array) -> std::borrow::Cow<'_, [f32]> {
    match matrix.data() {
        Data::F32(values) => values.into(),
        other => other.to_f64().into_iter().map(|x| x as f32).collect(),
    }
}
