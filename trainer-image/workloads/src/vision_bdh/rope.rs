//! Rotary positions over the neurons of a head: neurons 2k and 2k + 1 are a pair, and token t turns it by `t *
//! BASE^(-2k / neurons)`. In memory the even neurons of a head come first, then the odd ones, so that both halves of
//! the pairs are contiguous.

use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, DType, GraphError, Var, concat};
use std::f32::consts::TAU;

/// Base of the frequencies.
const BASE: f64 = 65_536.0;

/// Angles of all tokens and pairs.
pub struct Rotation {
    tokens: usize,
    /// Radians per token, for each pair.
    frequencies: Vec<f32>,
    cached: bool,
}

/// Cosines and sines, each (tokens, pairs).
#[derive(Clone, Copy)]
pub struct Tables<'b> {
    cos: Var<'b>,
    sin: Var<'b>,
}

impl Rotation {
    /// The rotation of `tokens` positions in heads of `neurons` neurons (an even number); `cached`: tables are embedded
    /// in the program, otherwise every use computes them.
    pub fn new(tokens: usize, neurons: usize, cached: bool) -> Self {
        let frequencies = (0..neurons / 2).map(|k| BASE.powf(-2.0 * k as f64 / neurons as f64) as f32).collect();
        Self { tokens, frequencies, cached }
    }

    /// The tables, computed not before `token` unless they are cached. Angles are reduced to one turn before cosine and
    /// sine.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn tables<'b>(&self, b: &'b Builder, token: Var<'b>) -> Result<Tables<'b>, GraphError> {
        let pairs = self.frequencies.len();
        let constant =
            |shape: [usize; 2], values| Ok::<_, GraphError>(b.constant(Array::new(shape, Data::F32(values))?));
        if !self.cached {
            let position = b.iota(0, [self.tokens, pairs]).cast(DType::F32);
            let frequencies = constant([1, pairs], self.frequencies.clone())?.after(token);
            let turns = position * frequencies / f64::from(TAU);
            let angle = (turns - turns.floor()) * f64::from(TAU);
            return Ok(Tables { cos: angle.cos(), sin: angle.sin() });
        }
        let table = |f: fn(f64) -> f64| {
            let angle = |t: usize, w: f32| f64::from((t as f32 * w / TAU).fract() * TAU);
            let angles = (0..self.tokens).flat_map(|t| self.frequencies.iter().map(move |&w| angle(t, w)));
            constant([self.tokens, pairs], angles.map(|angle| f(angle) as f32).collect())
        };
        Ok(Tables { cos: table(libm::cos)?, sin: table(libm::sin)? })
    }
}

impl<'b> Tables<'b> {
    /// Turns the pairs of `relu(x)`, for `x` (batch, heads, tokens, neurons), even neurons first. The result is in
    /// `dtype`.
    #[track_caller]
    pub fn rotate_relu(&self, x: Var<'b>, dtype: DType) -> Var<'b> {
        let (batch, heads, tokens, neurons) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
        let pairs = neurons / 2;
        let halves = x.reshape([batch, heads, tokens, 2, pairs]);
        let [cos, sin] = [self.cos, self.sin].map(|table| table.reshape([1, 1, tokens, 1, pairs]));
        // Cut before anything is computed: the rectified neurons are not stored for both halves to read.
        let [even, odd] = [0, 1].map(|half| rounded_relu(halves.slice(3, half, 1), dtype));
        let turned = [even * cos - odd * sin, odd * cos + even * sin].map(|half| half.cast(dtype));
        concat(&turned, 3).reshape([batch, heads, tokens, neurons])
    }
}

/// `relu(x)` of float32 values that a product rounded to `dtype`, which changes nothing; its gradient is rounded to
/// `dtype` as well.
#[track_caller]
pub fn rounded_relu(x: Var<'_>, dtype: DType) -> Var<'_> {
    x.relu().cast(dtype).cast(DType::F32)
}
