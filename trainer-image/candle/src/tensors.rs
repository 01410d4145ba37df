//! Variables of Candle and arrays of checkpoints.

use crate::error::{Error, Result};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use pawl_graph::array::{Array, Data};
use pawl_launch::ending::Ending;

/// The variables of `vars`, by name, in the order of their names: equal on all ranks.
pub(crate) fn named(vars: &VarMap) -> Vec<(String, Var)> {
    let guard = vars.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut named: Vec<_> = guard.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named
}

/// A tensor as checkpoints hold it: floats as float32, to which float64 is rounded, integers as
/// unsigned 32-bit words.
pub(crate) fn to_array(name: &str, tensor: &Tensor) -> Result<Array> {
    let flat = tensor.flatten_all()?;
    let data = match tensor.dtype() {
        DType::U32 => Data::U32(flat.to_vec1()?),
        DType::F32 | DType::F64 | DType::BF16 | DType::F16 => Data::F32(flat.to_dtype(DType::F32)?.to_vec1()?),
        other => {
            let remedy = "keep it as f32 or u32, or outside of the VarMap";
            return Err(Error::invalid(format!("{name}: {other:?}: a checkpoint cannot hold this type: {remedy}")));
        }
    };
    Ok(Array::new(tensor.dims(), data)?)
}

/// A tensor of a checkpoint, with its shape, on `device`.
pub(crate) fn to_tensor(name: &str, array: &Array, device: &Device) -> Result<Tensor> {
    let dims = array.shape().dims();
    match array.data() {
        Data::F32(values) => Ok(Tensor::from_slice(values, dims, device)?),
        Data::U32(values) => Ok(Tensor::from_slice(values, dims, device)?),
        _ => {
            Err(Ending::Failed(format!("{name}: a checkpoint contains float32 and integers only, which is a bug"))
                .into())
        }
    }
}

/// Sets a variable to a tensor of a checkpoint, whose type may differ.
///
/// # Errors
/// [`Ending::InvalidPlan`] when the shapes differ: the checkpoint is of another model.
pub(crate) fn set(name: &str, var: &Var, array: &Array) -> Result<()> {
    if var.dims() != array.shape().dims() {
        return Err(Error::invalid(format!(
            "the checkpoint does not fit the model: {name} has shape {:?} there and {:?} here; use an empty checkpoint storage",
            array.shape().dims(),
            var.dims()
        )));
    }
    let tensor = to_tensor(name, array, var.device())?.to_dtype(var.dtype())?;
    Ok(var.set(&tensor)?)
}
