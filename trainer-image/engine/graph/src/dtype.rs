//! Element types.

use std::fmt;

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
            DType::Bool => 1,
        }
    }

    /// Whether values are real numbers (and so can have a gradient).
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::BF16 | DType::F16)
    }

    /// Whether this is a 16-bit float.
    pub fn is_low_precision(self) -> bool {
        matches!(self, DType::BF16 | DType::F16)
    }

    /// The type sums of products of this type are kept in: F32 for the 16-bit floats, else the type itself.
    pub fn accumulator(self) -> DType {
        if self.is_low_precision() { DType::F32 } else { self }
    }

    /// Distance from 1 to the next larger value (0 for integers): the unit of rounding bounds in tests.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON,
            DType::F32 => f64::from(f32::EPSILON),
            DType::BF16 => 1.0 / 128.0,
            DType::F16 => 1.0 / 1024.0,
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
            DType::U32 => "u32",
            DType::Bool => "bool",
        })
    }
}
