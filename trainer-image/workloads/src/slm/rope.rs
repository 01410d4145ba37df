//! Rotary positions: half-split rotation, as in Hugging Face's checkpoints.

use super::architecture::{Architecture, RopeScaling};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::{Builder, DType, GraphError, Var, concat};
use std::f64::consts::TAU;

/// Cosines and sines, each (positions, head size / 2).
#[derive(Clone, Copy)]
pub struct Tables<'b> {
    cos: Var<'b>,
    sin: Var<'b>,
}

/// Angle per position of each pair in a block: `base^(-2i/d)`; low frequencies stretched, unless the block is `local`.
pub fn frequencies(of: &Architecture, local: bool) -> Vec<f64> {
    let (base, scaling) = match &of.local {
        Some(attention) if local => (attention.rope_base, None),
        _ => (of.rope_base, of.rope_scaling.as_ref()),
    };
    let plain = (0..of.head_size / 2).map(|i| base.powf(-2.0 * i as f64 / of.head_size as f64));
    plain.map(|w| scaling.map_or(w, |scaling| stretched(w, scaling))).collect()
}

/// Llama 3.1's rule: high frequencies are unchanged, low ones are divided by the factor, those in between are
/// interpolated.
fn stretched(w: f64, scaling: &RopeScaling) -> f64 {
    let RopeScaling { factor, low_frequency, high_frequency, original_length } = *scaling;
    let turns = original_length as f64 * w / TAU;
    let t = ((turns - low_frequency) / (high_frequency - low_frequency)).clamp(0.0, 1.0);
    w * ((1.0 - t) / factor + t)
}

impl<'b> Tables<'b> {
    /// Tables of the first `positions` positions for frequencies `w`: embedded in the program when `cached`, else
    /// computed in every step.
    ///
    /// # Errors
    /// Only on a bug in this code.
    pub fn new(b: &'b Builder, w: &[f64], positions: usize, cached: bool) -> Result<Self, GraphError> {
        let pairs = w.len();
        let constant = |shape: [usize; 2], values: Vec<f32>| {
            Ok::<_, GraphError>(b.constant(Array::new(shape, Data::F32(values))?))
        };
        if !cached {
            let position = b.iota(0, [positions, pairs]).cast(DType::F32);
            let angle = position * constant([1, pairs], w.iter().map(|&w| w as f32).collect())?;
            return Ok(Self { cos: angle.cos(), sin: angle.sin() });
        }
        let table = |f: fn(f64) -> f64| {
            let angles = (0..positions).flat_map(|p| w.iter().map(move |w| p as f64 * w));
            constant([positions, pairs], angles.map(|angle| f(angle) as f32).collect())
        };
        Ok(Self { cos: table(libm::cos)?, sin: table(libm::sin)? })
    }

    /// Rotates `x` (batch, positions, heads, head size), whose first half of a head is turned with the second. The
    /// result is in `dtype`.
    #[track_caller]
    pub fn rotate(&self, x: Var<'b>, dtype: DType) -> Var<'b> {
        let (batch, positions, heads, size) = (x.dim(0), x.dim(1), x.dim(2), x.dim(3));
        let halves = x.reshape([batch, positions, heads, 2, size / 2]);
        let (first, second) = (halves.slice(3, 0, 1), halves.slice(3, 1, 1));
        let spread = |table: Var<'b>| table.reshape([1, positions, 1, 1, size / 2]);
        let (cos, sin) = (spread(self.cos), spread(self.sin));
        let turned = [first * cos - second * sin, second * cos + first * sin].map(|half| half.cast(dtype));
        concat(&turned, 3).reshape([batch, positions, heads, size])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slm::architecture::Size;

    #[test]
    fn stretching_touches_long_waves_only() {
        let plain = Architecture::of(Size::B1);
        let scaling = RopeScaling { factor: 32.0, low_frequency: 1.0, high_frequency: 4.0, original_length: 8192 };
        let scaled = Architecture { rope_scaling: Some(scaling), ..plain.clone() };
        for (w, s) in frequencies(&plain, false).into_iter().zip(frequencies(&scaled, false)) {
            let wavelength = TAU / w;
            if wavelength < 2048.0 {
                assert_eq!(w, s);
            } else if wavelength > 8192.0 {
                assert!((s * 32.0 / w - 1.0).abs() < 1e-12);
            } else {
                assert!(w / 32.0 < s && s < w);
            }
        }
    }
}
