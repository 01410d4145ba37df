//! Arrays as ONNX has them: the constants of programs, and their states.

use pawl_graph::{
    array::{Array, Data},
    graph::{DType, FileSlice, GraphError, Init, Shape, StateDecl, initial_value},
};

use crate::proto::{DataLocation, DataType, StringStringEntryProto, TensorProto};

/// ONNX's type of values of `dtype`; `None` where a model has no such values. Unsigned integers are signed ones of 64
/// bits: of these, runtimes have all operators.
pub(crate) fn data_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::F64 => Some(DataType::Double),
        DType::F32 => Some(DataType::Float),
        DType::U32 => Some(DataType::Int64),
        DType::Bool => Some(DataType::Bool),
        DType::BF16 | DType::F16 | DType::E4M3 | DType::E5M2 => None,
    }
}

/// The tensor called `name`; `None` where a model has no values of its type.
pub(crate) fn of_array(name: String, array: &Array) -> Option<TensorProto> {
    let raw_data = match array.data() {
        Data::U32(values) => values.iter().flat_map(|&value| i64::from(value).to_le_bytes()).collect(),
        // The machine's byte order is little-endian: `pawl_graph` asserts it.
        other => other.view().bytes().to_vec(),
    };
    Some(TensorProto { raw_data, ..header(name, data_type(array.dtype())?, array.shape()) })
}

/// Integers of `dims`.
pub(crate) fn of_integers(name: String, dims: Vec<i64>, values: &[i64]) -> TensorProto {
    let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto { dims, raw_data, ..header(name, DataType::Int64, &Shape::scalar()) }
}

/// The initial value of a state: its bytes if `inside`, or if they are in no file in which a model could refer to them;
/// else their place in the file of its declaration.
///
/// # Errors
/// As [`initial_value`].
pub(crate) fn of_state(decl: &StateDecl, inside: bool) -> Result<Option<TensorProto>, GraphError> {
    match &decl.init {
        Init::File(slice) if !inside && slice.dtype == DType::F32 && decl.meta.dtype == DType::F32 => {
            Ok(Some(external(decl, slice)))
        }
        _ => Ok(of_array(decl.name.clone(), &initial_value(&[decl], decl, 0)?)),
    }
}

/// A state whose bytes are in a file beside the model.
fn external(decl: &StateDecl, slice: &FileSlice) -> TensorProto {
    let file = slice.path.file_name().unwrap_or_default().to_string_lossy();
    let entry = |(key, value): (&str, String)| StringStringEntryProto { key: key.to_owned(), value };
    let place = [
        ("location", file.into_owned()),
        ("offset", slice.offset.to_string()),
        ("length", decl.meta.bytes().to_string()),
    ];
    TensorProto {
        external_data: place.map(entry).to_vec(),
        data_location: DataLocation::External.into(),
        ..header(decl.name.clone(), DataType::Float, &decl.meta.shape)
    }
}

fn header(name: String, data_type: DataType, shape: &Shape) -> TensorProto {
    let dims = shape.dims().iter().map(|&extent| extent as i64).collect();
    TensorProto { name, dims, data_type: data_type.into(), ..TensorProto::default() }
}
