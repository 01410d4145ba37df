//! Host arrays to Candle tensors and back.

use candle_core::{DType as CandleType, Device, Tensor};

use super::error::OpError;
use pawl_graph::{
    array::{Array, Data, View},
    executor::ExecError,
    float8::{E4M3, E5M2},
    graph::{DType, Meta, Shape},
};

/// Candle's name for a dtype; booleans are bytes, and so are the codes of 8-bit floats.
pub(super) fn candle_type(dtype: DType) -> CandleType {
    match dtype {
        DType::F64 => CandleType::F64,
        DType::F32 => CandleType::F32,
        DType::BF16 => CandleType::BF16,
        DType::F16 => CandleType::F16,
        DType::U32 => CandleType::U32,
        DType::E4M3 | DType::E5M2 | DType::Bool => CandleType::U8,
    }
}

pub(super) fn to_tensor(view: View<'_>, shape: &Shape, device: &Device) -> Result<Tensor, OpError> {
    let dims = shape.dims();
    Ok(match view {
        View::F64(v) => Tensor::from_slice(v, dims, device)?,
        View::F32(v) => Tensor::from_slice(v, dims, device)?,
        View::BF16(v) => Tensor::from_slice(v, dims, device)?,
        View::F16(v) => Tensor::from_slice(v, dims, device)?,
        View::E4M3(v) => Tensor::from_vec(v.iter().map(|x| x.0).collect::<Vec<u8>>(), dims, device)?,
        View::E5M2(v) => Tensor::from_vec(v.iter().map(|x| x.0).collect::<Vec<u8>>(), dims, device)?,
        View::U32(v) => Tensor::from_slice(v, dims, device)?,
        View::Bool(v) => Tensor::from_slice(v, dims, device)?,
    })
}

pub(super) fn to_array(tensor: &Tensor, meta: &Meta) -> Result<Array, OpError> {
    let flat = tensor.flatten_all()?;
    let data = match meta.dtype {
        DType::F64 => Data::F64(flat.to_vec1()?),
        DType::F32 => Data::F32(flat.to_vec1()?),
        DType::BF16 => Data::BF16(flat.to_vec1()?),
        DType::F16 => Data::F16(flat.to_vec1()?),
        DType::E4M3 => Data::E4M3(flat.to_vec1()?.into_iter().map(E4M3).collect()),
        DType::E5M2 => Data::E5M2(flat.to_vec1()?.into_iter().map(E5M2).collect()),
        DType::U32 => Data::U32(flat.to_vec1()?),
        DType::Bool => Data::Bool(flat.to_vec1()?),
    };
    Ok(Array::new(&meta.shape, data).map_err(ExecError::from)?)
}
