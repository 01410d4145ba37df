//! Attention and its gradient from Candle's matmuls: the mathematics of the flash kernels, with the scores in memory.

use candle_core::{D, Result, Tensor};

use super::convert::candle_type;
use pawl_graph::graph::{AttentionSpec, DType};

/// Output like q, and the log-sum-exp of the scores, `[b,h,t,1]`.
pub(super) fn forward(spec: AttentionSpec, dtype: DType, [q, k, v]: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
    let [q, k, v] = widen(dtype, [q, k, v])?;
    let (k, v) = (repeat_heads(&k, q.dim(1)?)?, repeat_heads(&v, q.dim(1)?)?);
    let scores = scores(spec, &q, &k)?;
    let max = scores.max_keepdim(D::Minus1)?;
    let weights = scores.broadcast_sub(&max)?.exp()?;
    drop(scores);
    let sum = weights.sum_keepdim(D::Minus1)?;
    let out = weights.matmul(&v)?.broadcast_div(&sum)?.to_dtype(candle_type(dtype))?;
    Ok((out, (sum.log()? + max)?))
}

/// Gradients of q, k and v from that of the output.
pub(super) fn backward(
    spec: AttentionSpec,
    dtype: DType,
    [q, k, v, out, lse, grad]: [&Tensor; 6],
) -> Result<[Tensor; 3]> {
    let groups = k.dim(1)?;
    let [q, k, v] = widen(dtype, [q, k, v])?;
    let [out, lse, grad] = widen(dtype, [out, lse, grad])?;
    let (k, v) = (repeat_heads(&k, q.dim(1)?)?, repeat_heads(&v, q.dim(1)?)?);
    let weights = scores(spec, &q, &k)?.broadcast_sub(&lse)?.exp()?;
    let dv = weights.t()?.matmul(&grad)?;
    let inner = (&grad * &out)?.sum_keepdim(D::Minus1)?;
    let dscores = (weights * grad.matmul(&v.t()?)?.broadcast_sub(&inner)?)?;
    let dq = dscores.matmul(&k)?.affine(spec.scale, 0.0)?;
    let dk = dscores.t()?.matmul(&q)?.affine(spec.scale, 0.0)?;
    let narrow = candle_type(dtype);
    Ok([dq.to_dtype(narrow)?, sum_heads(&dk, groups)?.to_dtype(narrow)?, sum_heads(&dv, groups)?.to_dtype(narrow)?])
}

fn widen<const N: usize>(dtype: DType, tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let wide = candle_type(dtype.accumulator());
    let all = tensors.iter().map(|t| t.to_dtype(wide)?.contiguous()).collect::<Result<Vec<_>>>()?;
    Ok(all.try_into().expect("as many as given"))
}

fn scores(spec: AttentionSpec, q: &Tensor, k: &Tensor) -> Result<Tensor> {
    let scores = q.matmul(&k.t()?)?.affine(spec.scale, 0.0)?;
    if !spec.causal {
        return Ok(scores);
    }
    let (t, s) = (q.dim(2)?, k.dim(2)?);
    let hidden = |i: usize, j: usize| if j + t <= i + s { 0f32 } else { f32::NEG_INFINITY };
    let mask: Vec<f32> = (0..t).flat_map(|i| (0..s).map(move |j| hidden(i, j))).collect();
    let mask = Tensor::from_vec(mask, (t, s), q.device())?.to_dtype(q.dtype())?;
    scores.broadcast_add(&mask)
}

/// `[b,g,s,d]` to `[b,h,s,d]`: each head of the group gets a copy.
fn repeat_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (b, g, s, d) = x.dims4()?;
    if g == heads {
        return Ok(x.clone());
    }
    x.unsqueeze(2)?.broadcast_as((b, g, heads / g, s, d))?.reshape((b, heads, s, d))
}

/// `[b,h,s,d]` to `[b,g,s,d]`: the transpose of [`repeat_heads`].
fn sum_heads(x: &Tensor, groups: usize) -> Result<Tensor> {
    let (b, h, s, d) = x.dims4()?;
    if h == groups {
        return Ok(x.clone());
    }
    x.reshape((b, groups, h / groups, s, d))?.sum(2)
}
