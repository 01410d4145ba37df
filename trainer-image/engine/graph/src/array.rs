//! Arrays in host memory: inputs and outputs of programs.

use half::{bf16, f16, vec::HalfBitsVecExt as _};

use crate::{
    dtype::DType,
    error::GraphError,
    fill::copy,
    float8::{E4M3, E5M2},
    shape::Shape,
};

/// Elements of one dtype, in row-major order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "one variant for each dtype, named like it")]
pub enum Data {
    F64(Vec<f64>),
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    E4M3(Vec<E4M3>),
    E5M2(Vec<E5M2>),
    U32(Vec<u32>),
    /// One byte an element: 0 or 1.
    Bool(Vec<u8>),
}

/// Borrowed elements of one dtype, in row-major order: how inputs are passed to
/// `Executable::run` without a copy.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "one variant for each dtype, named like it")]
pub enum View<'a> {
    F64(&'a [f64]),
    F32(&'a [f32]),
    BF16(&'a [bf16]),
    F16(&'a [f16]),
    E4M3(&'a [E4M3]),
    E5M2(&'a [E5M2]),
    U32(&'a [u32]),
    Bool(&'a [u8]),
}

/// Runs `$body` with `$v` bound to the slice or vector inside, whatever its dtype.
macro_rules! each_dtype {
    ($ty:ident, $value:expr, $v:ident => $body:expr) => {
        match $value {
            $ty::F64($v) => $body,
            $ty::F32($v) => $body,
            $ty::BF16($v) => $body,
            $ty::F16($v) => $body,
            $ty::E4M3($v) => $body,
            $ty::E5M2($v) => $body,
            $ty::U32($v) => $body,
            $ty::Bool($v) => $body,
        }
    };
}

impl<'a> View<'a> {
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            View::F64(_) => DType::F64,
            View::F32(_) => DType::F32,
            View::BF16(_) => DType::BF16,
            View::F16(_) => DType::F16,
            View::E4M3(_) => DType::E4M3,
            View::E5M2(_) => DType::E5M2,
            View::U32(_) => DType::U32,
            View::Bool(_) => DType::Bool,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each_dtype!(View, self, v => v.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements' bytes, in the machine's byte order: `len() * dtype().bytes()` of them.
    pub fn bytes(&self) -> &'a [u8] {
        each_dtype!(View, self, v => {
            // SAFETY: elements of all dtypes are plain numbers without padding.
            unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), size_of_val(*v)) }
        })
    }

    /// An owned copy.
    pub fn to_data(&self) -> Data {
        match self {
            View::F64(v) => Data::F64(v.to_vec()),
            View::F32(v) => Data::F32(v.to_vec()),
            View::BF16(v) => Data::BF16(v.to_vec()),
            View::F16(v) => Data::F16(v.to_vec()),
            View::E4M3(v) => Data::E4M3(v.to_vec()),
            View::E5M2(v) => Data::E5M2(v.to_vec()),
            View::U32(v) => Data::U32(v.to_vec()),
            View::Bool(v) => Data::Bool(v.to_vec()),
        }
    }
}

impl Data {
    /// The elements' bytes, in the machine's order.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        each_dtype!(Data, self, v => {
            // SAFETY: elements of all dtypes are plain numbers without padding, of which any bytes are one.
            unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), size_of_val(v.as_slice())) }
        })
    }

    /// `len` zeros of `dtype`.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F64 => Data::F64(vec![0.0; len]),
            DType::F32 => Data::F32(vec![0.0; len]),
            // Integers: only zeros of the language's own types are memory that is not written.
            DType::BF16 => Data::BF16(vec![0u16; len].reinterpret_into()),
            DType::F16 => Data::F16(vec![0u16; len].reinterpret_into()),
            DType::E4M3 => Data::E4M3(vec![E4M3(0); len]),
            DType::E5M2 => Data::E5M2(vec![E5M2(0); len]),
            DType::U32 => Data::U32(vec![0; len]),
            DType::Bool => Data::Bool(vec![0; len]),
        }
    }

    /// `values` rounded to `dtype` (to nearest, ties to even; integers and 8-bit floats saturate; Bool is `value !=
    /// 0`).
    pub fn from_f64(dtype: DType, values: impl IntoIterator<Item = f64>) -> Self {
        let values = values.into_iter();
        match dtype {
            DType::F64 => Data::F64(values.collect()),
            DType::F32 => Data::F32(values.map(|v| v as f32).collect()),
            DType::BF16 => Data::BF16(values.map(bf16::from_f64).collect()),
            DType::F16 => Data::F16(values.map(f16::from_f64).collect()),
            DType::E4M3 => Data::E4M3(values.map(E4M3::from_f64).collect()),
            DType::E5M2 => Data::E5M2(values.map(E5M2::from_f64).collect()),
            DType::U32 => Data::U32(values.map(|v| v as u32).collect()),
            DType::Bool => Data::Bool(values.map(|v| u8::from(v != 0.0)).collect()),
        }
    }

    /// The elements as float64.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Data::F64(v) => v.clone(),
            Data::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::BF16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::E4M3(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::E5M2(v) => v.iter().map(|x| x.to_f64()).collect(),
            Data::U32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Data::Bool(v) => v.iter().map(|&x| f64::from(x)).collect(),
        }
    }

    /// The elements as a borrowed view.
    pub fn view(&self) -> View<'_> {
        match self {
            Data::F64(v) => View::F64(v),
            Data::F32(v) => View::F32(v),
            Data::BF16(v) => View::BF16(v),
            Data::F16(v) => View::F16(v),
            Data::E4M3(v) => View::E4M3(v),
            Data::E5M2(v) => View::E5M2(v),
            Data::U32(v) => View::U32(v),
            Data::Bool(v) => View::Bool(v),
        }
    }
}

/// A shaped array in host memory, row-major.
///
/// ```
/// use pawl_graph::{array::{Array, Data}, graph::DType};
/// let array = Array::new([2, 2], Data::from_f64(DType::BF16, [1.0, 2.5, -3.0, 0.1]))?;
/// assert_eq!(array.view().bytes().len(), 8);
/// assert_eq!(array.to_f64()[..3], [1.0, 2.5, -3.0]);
/// assert!(Array::new([3], Data::F32(vec![0.0; 2])).is_err(), "two elements do not fill the shape");
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    shape: Shape,
    data: Data,
}

impl Array {
    /// An array of `shape` over `data`.
    ///
    /// # Errors
    /// [`GraphError::ElementCount`] when the number of elements is not that of the shape.
    pub fn new(shape: impl Into<Shape>, data: Data) -> Result<Self, GraphError> {
        let shape = shape.into();
        let len = data.view().len();
        if len != shape.elements() {
            return Err(GraphError::ElementCount { shape, len });
        }
        Ok(Self { shape, data })
    }

    /// A rank-0 float32 array.
    pub fn scalar(value: f32) -> Self {
        Self { shape: Shape::scalar(), data: Data::F32(vec![value]) }
    }

    /// Extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.data.view().dtype()
    }

    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements, without a copy.
    pub(crate) fn into_data(self) -> Data {
        self.data
    }

    /// The elements, to be written in place.
    pub fn data_mut(&mut self) -> &mut Data {
        &mut self.data
    }

    /// The elements as a borrowed view.
    pub fn view(&self) -> View<'_> {
        self.data.view()
    }

    /// The elements as float64.
    pub fn to_f64(&self) -> Vec<f64> {
        self.data.to_f64()
    }

    /// The first element as float64: the value of a rank-0 array; NaN when there are no elements.
    pub fn item(&self) -> f64 {
        match &self.data {
            Data::F64(v) => v.first().copied().unwrap_or(f64::NAN),
            Data::F32(v) => v.first().map_or(f64::NAN, |&x| f64::from(x)),
            Data::BF16(v) => v.first().map_or(f64::NAN, |x| x.to_f64()),
            Data::F16(v) => v.first().map_or(f64::NAN, |x| x.to_f64()),
            Data::E4M3(v) => v.first().map_or(f64::NAN, |x| x.to_f64()),
            Data::E5M2(v) => v.first().map_or(f64::NAN, |x| x.to_f64()),
            Data::U32(v) => v.first().map_or(f64::NAN, |&x| f64::from(x)),
            Data::Bool(v) => v.first().map_or(f64::NAN, |&x| f64::from(x)),
        }
    }

    /// `shape.elements()` elements from `start` on, as an array of `shape`.
    ///
    /// # Errors
    /// [`GraphError::ElementCount`] when fewer elements follow.
    pub fn part(&self, start: usize, shape: &Shape) -> Result<Self, GraphError> {
        let end = start + shape.elements();
        let short = || GraphError::ElementCount { shape: shape.clone(), len: self.view().len().saturating_sub(start) };
        macro_rules! cut {
            ($($variant:ident)*) => {
                match &self.data {
                    $(Data::$variant(v) => Data::$variant(v.get(start..end).ok_or_else(short)?.to_vec()),)*
                }
            };
        }
        Self::new(shape, cut!(F64 F32 BF16 F16 E4M3 E5M2 U32 Bool))
    }

    /// Overwrites the elements from `start` on with those of `part`, which has this dtype and fits.
    pub(crate) fn write_part(&mut self, start: usize, part: &Array) {
        macro_rules! paste {
            ($($variant:ident)*) => {
                match (&mut self.data, &part.data) {
                    $((Data::$variant(to), Data::$variant(from)) => copy(&mut to[start..start + from.len()], from),)*
                    _ => debug_assert!(false, "parts have the dtype of their arena"),
                }
            };
        }
        paste!(F64 F32 BF16 F16 E4M3 E5M2 U32 Bool);
    }
}
