//! What columns hold, and what they can be read as.

use super::{Date, Timestamp};
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use parquet::schema::types::ColumnDescriptor;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    /// Signed integers of at most 32 bits, or unsigned ones of at most 16.
    I32,
    I64,
    F32,
    F64,
    Date,
    /// Time steps in a second.
    Timestamp(i64),
}

impl Kind {
    /// What a column holds; `None` when it cannot be read.
    pub fn of(column: &ColumnDescriptor) -> Option<Self> {
        if column.max_rep_level() > 0 || column.path().parts().len() != 1 {
            return None;
        }
        match (column.physical_type(), column.logical_type_ref()) {
            (Type::BOOLEAN, _) => Some(Self::Bool),
            (Type::FLOAT, _) => Some(Self::F32),
            (Type::DOUBLE, _) => Some(Self::F64),
            (Type::INT32, Some(LogicalType::Date)) => Some(Self::Date),
            (Type::INT32, Some(LogicalType::Integer(int))) => {
                (int.is_signed || int.bit_width < 32).then_some(Self::I32)
            }
            (Type::INT64, Some(LogicalType::Integer(int))) => int.is_signed.then_some(Self::I64),
            (Type::INT64, Some(LogicalType::Timestamp(time))) => Some(Self::Timestamp(match time.unit {
                TimeUnit::MILLIS => 1_000,
                TimeUnit::MICROS => 1_000_000,
                TimeUnit::NANOS => 1_000_000_000,
            })),
            (physical, None) => Self::older(physical, column.converted_type()),
            _ => None,
        }
    }

    /// What a column holds whose file has no logical types, as older programs write them.
    fn older(physical: Type, converted: ConvertedType) -> Option<Self> {
        match (physical, converted) {
            (Type::INT32, ConvertedType::DATE) => Some(Self::Date),
            (
                Type::INT32,
                ConvertedType::NONE
                | ConvertedType::INT_8
                | ConvertedType::INT_16
                | ConvertedType::INT_32
                | ConvertedType::UINT_8
                | ConvertedType::UINT_16,
            ) => Some(Self::I32),
            (Type::INT64, ConvertedType::NONE | ConvertedType::INT_64) => Some(Self::I64),
            (Type::INT64, ConvertedType::TIMESTAMP_MILLIS) => Some(Self::Timestamp(1_000)),
            (Type::INT64, ConvertedType::TIMESTAMP_MICROS) => Some(Self::Timestamp(1_000_000)),
            _ => None,
        }
    }
}

/// A function of a stored value; `None` when the value cannot be represented.
pub enum Convert<T> {
    Bool(fn(bool) -> Option<T>),
    I32(fn(i32) -> Option<T>),
    I64(fn(i64) -> Option<T>),
    F32(fn(f32) -> Option<T>),
    F64(fn(f64) -> Option<T>),
}

/// What a column can be read as: `bool`, `i32`, `i64`, `f32`, `f64`, [`Date`] or [`Timestamp`].
pub trait Value: Copy {
    /// The types of the columns that can be read as this, in words.
    const FROM: &'static str;
    /// What is read where a value is missing; `None` when every row must have one.
    const MISSING: Option<Self>;

    /// How it is made from what a column holds; `None` when it cannot be.
    #[doc(hidden)]
    fn convert(kind: Kind) -> Option<Convert<Self>>;
}

impl Value for bool {
    const FROM: &'static str = "bool";
    const MISSING: Option<Self> = None;

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        (kind == Kind::Bool).then_some(Convert::Bool(Some))
    }
}

impl Value for i32 {
    const FROM: &'static str = "int32 or a smaller integer";
    const MISSING: Option<Self> = None;

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        (kind == Kind::I32).then_some(Convert::I32(Some))
    }
}

impl Value for i64 {
    const FROM: &'static str = "int64 or a smaller integer";
    const MISSING: Option<Self> = None;

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        match kind {
            Kind::I32 => Some(Convert::I32(|value| Some(value.into()))),
            Kind::I64 => Some(Convert::I64(Some)),
            _ => None,
        }
    }
}

/// Missing values are NaN; double precision is rounded.
impl Value for f32 {
    const FROM: &'static str = "float32 or float64";
    const MISSING: Option<Self> = Some(Self::NAN);

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        match kind {
            Kind::F32 => Some(Convert::F32(Some)),
            Kind::F64 => Some(Convert::F64(|value| Some(value as Self))),
            _ => None,
        }
    }
}

/// Missing values are NaN; an integer that float64 cannot represent is an error.
impl Value for f64 {
    const FROM: &'static str = "float32, float64 or an integer";
    const MISSING: Option<Self> = Some(Self::NAN);

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        match kind {
            Kind::F32 => Some(Convert::F32(|value| Some(value.into()))),
            Kind::F64 => Some(Convert::F64(Some)),
            Kind::I32 => Some(Convert::I32(|value| Some(value.into()))),
            Kind::I64 => Some(Convert::I64(|value| (value.unsigned_abs() <= 1 << 53).then_some(value as Self))),
            _ => None,
        }
    }
}

impl Value for Date {
    const FROM: &'static str = "date32";
    const MISSING: Option<Self> = None;

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        (kind == Kind::Date).then_some(Convert::I32(|value| Some(Self(value))))
    }
}

/// A time that is not a whole number of milliseconds is an error.
impl Value for Timestamp {
    const FROM: &'static str = "timestamp";
    const MISSING: Option<Self> = None;

    fn convert(kind: Kind) -> Option<Convert<Self>> {
        match kind {
            Kind::Timestamp(1_000) => Some(Convert::I64(|value| Some(Self(value)))),
            Kind::Timestamp(1_000_000) => Some(Convert::I64(|value| whole(value, 1_000))),
            Kind::Timestamp(_) => Some(Convert::I64(|value| whole(value, 1_000_000))),
            _ => None,
        }
    }
}

fn whole(value: i64, steps: i64) -> Option<Timestamp> {
    (value % steps == 0).then_some(Timestamp(value / steps))
}
