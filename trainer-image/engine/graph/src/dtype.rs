//! Element types.

use std::fmt;

use crate::float8::{E4M3, E5M2};

/// Element type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary64: the oracle's type, and that of a few exact scalars.
    F64,
    /// IEEE binary32.
    F32,
    /// bfloat16: 8 bits of exponent, 8 of significand.
    BF16,
    /// IEEE binary16.
    F16,
    /// 8-bit float with 3 bits of significand: see [`E4M3`]. Stored and converted, never computed with but by scaled
    /// products.
    E4M3,
    /// 8-bit float with 2 bits of significand: see [`E5M2`]. As E4M3.
    E5M2,
    /// Unsigned 32-bit integer: indices and counters. Arithmetic wraps.
    U32,
    /// Boolean, one byte, 0 or 1.
    Bool,
}

impl DType {
    /// Size of an element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::U32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::E4M3 | DType::E5M2 | DType::Bool => 1,
        }
    }

    /// Whether values are real numbers that operators compute with (and so can have a gradient): not 8-bit floats.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::BF16 | DType::F16)
    }

    /// Whether this is a 16-bit float.
    pub fn is_low_precision(self) -> bool {
        matches!(self, DType::BF16 | DType::F16)
    }

    /// Whether this is an 8-bit float.
    pub fn is_float8(self) -> bool {
        matches!(self, DType::E4M3 | DType::E5M2)
    }

    /// The largest number of an 8-bit float; infinite for all other types.
    pub fn largest(self) -> f32 {
        match self {
            DType::E4M3 => E4M3::MAX,
            DType::E5M2 => E5M2::MAX,
            _ => f32::INFINITY,
        }
    }

    /// Magnitudes above it are out of the range of an 8-bit float: half a step above its largest number. Infinite for
    /// all other types.
    pub fn overflow_threshold(self) -> f32 {
        match self {
            DType::E4M3 => 464.0,
            DType::E5M2 => 61_440.0,
            _ => f32::INFINITY,
        }
    }

    /// The type sums of products of this type are kept in: F32 for narrower floats, else the type itself.
    pub fn accumulator(self) -> DType {
        if self.is_low_precision() || self.is_float8() { DType::F32 } else { self }
    }

    /// Distance from 1 to the next larger value (0 for integers): the unit of rounding bounds in tests.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON,
            DType::F32 => f64::from(f32::EPSILON),
            DType::BF16 => 1.0 / 128.0,
            DType::F16 => 1.0 / 1024.0,
            DType::E4M3 => 1.0 / 8.0,
            DType::E5M2 => 1.0 / 4.0,
            DType::U32 | DType::Bool => 0.0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::E4M3 => "e4m3",
            DType::E5M2 => "e5m2",
            DType::U32 => "u32",
            DType::Bool => "bool",
        })
    }
}
