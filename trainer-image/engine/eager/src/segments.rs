//! Segments of rows, one number after the other, in float64: the definition rather than a fast form.

use candle_core::{DType as CandleType, Tensor};

use super::{convert::candle_type, error::OpError};
use pawl_graph::{
    executor::{ExecError, check_offsets},
    graph::{Meta, Node, Op},
};

/// The value of a segment operator; operands as in its documentation.
pub(super) fn segments(node: &Node, x: &Tensor, offsets: &Tensor, order: Option<&Tensor>) -> Result<Tensor, OpError> {
    let Meta { dtype, shape } = &node.meta;
    let rows = x.dim(0)?;
    let inner = x.elem_count().checked_div(rows).unwrap_or(0);
    let offsets = offsets.to_vec1::<u32>()?;
    let order = order.map(|order| order.to_vec1::<u32>()).transpose()?;
    let extent = match &node.op {
        Op::SegmentRepeat { rows } => *rows,
        _ => order.as_ref().map_or(rows, Vec::len),
    };
    check_offsets(&node.op.to_string(), &offsets, extent)?;
    if let Some(&index) = order.iter().flatten().find(|&&row| row as usize >= rows) {
        return Err(ExecError::Index { op: node.op.to_string(), index, extent: rows }.into());
    }
    let from = x.to_dtype(CandleType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let mut to = vec![0.0; shape.elements()];
    for (segment, ends) in offsets.windows(2).enumerate() {
        let range = ends[0] as usize..ends[1] as usize;
        for column in 0..inner {
            match &node.op {
                Op::SegmentRepeat { .. } => {
                    range.clone().for_each(|row| to[row * inner + column] = from[segment * inner + column]);
                }
                Op::SegmentSum => {
                    let row = |at: usize| order.as_ref().map_or(at, |order| order[at] as usize);
                    to[segment * inner + column] = range.clone().map(|at| from[row(at) * inner + column]).sum();
                }
                _ => softmax(range.clone().map(|row| row * inner + column), &from, &mut to),
            }
        }
    }
    Ok(Tensor::from_vec(to, shape.dims(), x.device())?.to_dtype(candle_type(*dtype))?)
}

/// Softmax of the elements at `places`; zero where the maximum is minus infinity.
fn softmax(places: impl Iterator<Item = usize> + Clone, from: &[f64], to: &mut [f64]) {
    let max = places.clone().map(|at| from[at]).fold(f64::NEG_INFINITY, f64::max);
    let weight = |at: usize| if max == f64::NEG_INFINITY && !from[at].is_nan() { 0.0 } else { (from[at] - max).exp() };
    let sum: f64 = places.clone().map(weight).sum();
    for at in places {
        to[at] = if sum == 0.0 { 0.0 } else { weight(at) / sum };
    }
}
