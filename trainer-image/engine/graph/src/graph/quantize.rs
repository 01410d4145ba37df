//! Matrices as 8-bit integers with one scale a row: a quarter of float32, four integers in a U32 word.
//!
//! A matrix `[rows, columns]` becomes words `[rows / 4, columns]`: byte k of the word at (r, c) is `q + 128` of the
//! element at `(k * rows / 4 + r, c)`, so unpacking reads and writes whole rows. Element = q * scale of its row, q in
//! -127 .. 127.

use super::{DType, Var, concat};
use crate::{
    array::{Array, Data},
    fill::fill_with,
};

/// Integers in a word.
const LANES: usize = 4;
/// Makes integers from -127 on into bytes.
const BIAS: f64 = 128.0;

/// Scale of each row of a matrix `[rows, columns]`: its largest absolute value (at least 1e-8) over 127, float32.
pub fn scales(matrix: &Array) -> Vec<f32> {
    let (columns, value) = (columns(matrix), elements(matrix));
    let mut scales = vec![0f32; matrix.shape().elements() / columns];
    fill_with(&mut scales, columns, |row| {
        let row = row as usize * columns;
        let largest = (row..row + columns).fold(0f64, |max, at| max.max(value(at).abs()));
        (largest.max(1e-8) / 127.0) as f32
    });
    scales
}

/// The words of `matrix`, whose number of rows is a multiple of 4.
pub(super) fn pack(matrix: &Array) -> Vec<u32> {
    let (columns, scales, value) = (columns(matrix), scales(matrix), elements(matrix));
    let quarter = scales.len() / LANES;
    let byte = |row: usize, column: usize| {
        let q = (value(row * columns + column) / f64::from(scales[row])).round_ties_even();
        (q.clamp(-127.0, 127.0) + BIAS) as u32
    };
    let mut words = vec![0u32; quarter * columns];
    fill_with(&mut words, LANES, |at| {
        let (row, column) = (at as usize / columns, at as usize % columns);
        (0..LANES).fold(0, |word, k| word | byte(k * quarter + row, column) << (8 * k))
    });
    words
}

/// The integers of `words`, in the order of the matrix: its elements, each divided by the scale of its row.
pub fn unpack(words: &[u32]) -> Vec<f32> {
    let lanes = (0..LANES).flat_map(|k| words.iter().map(move |word| word >> (8 * k) & 0xff));
    lanes.map(|byte| (f64::from(byte) - BIAS) as f32).collect()
}

/// The elements of an array, by index. Matrices of large models are not copied.
fn elements(matrix: &Array) -> Box<dyn Fn(usize) -> f64 + Sync + '_> {
    match matrix.data() {
        Data::F32(values) => Box::new(|at| f64::from(values[at])),
        Data::BF16(values) => Box::new(|at| values[at].to_f64()),
        other => {
            let values = other.to_f64();
            Box::new(move |at| values[at])
        }
    }
}

fn columns(matrix: &Array) -> usize {
    matrix.shape().last().copied().unwrap_or(1).max(1)
}

/// The matrix `[rows, columns]` in `dtype` whose quantized form is `words` (`[rows / 4, columns]`, U32) with `scales`
/// (`[rows, 1]`, float32).
#[track_caller]
pub fn dequantize<'b>(words: Var<'b>, scales: Var<'b>, dtype: DType) -> Var<'b> {
    let b = words.builder();
    let quarter = words.dim(0);
    let number = |value: u32| b.scalar(f64::from(value), DType::U32);
    let parts: Vec<Var<'b>> = (0..LANES)
        .map(|k| {
            // Integer division shifts; what lies above the byte is taken away.
            let low = if k == 0 { words } else { words / number(1 << (8 * k)) };
            let byte = if k + 1 == LANES { low } else { low - words / number(1 << (8 * (k + 1))) * number(256) };
            ((byte.cast(DType::F32) - BIAS) * scales.slice(0, k * quarter, quarter)).cast(dtype)
        })
        .collect();
    concat(&parts, 0)
}
