//! The setting `attention`: one operator, or equivalent products and softmax.

use super::rewrite::rewrite;
use crate::graph::{AttentionSpec, Builder, DType, GraphError, Op, Program, Var};

/// Replaces every [`Op::Attention`] by matmul, softmax and matmul, with the scores `[b,h,t,s]` in memory (setting
/// `attention: Math`). To be run on a forward program, before differentiation and precision. Softmax is in float32 for
/// 16-bit operands.
///
/// # Errors
/// When the program is ill-formed, or already differentiated.
pub fn expand_attention(program: &Program) -> Result<Program, GraphError> {
    let mut expanded = None;
    rewrite(program, |visit| match (&visit.node.op, visit.operands) {
        (Op::Attention(spec), &[q, k, v]) => {
            let out = visit.here(|| composite(visit.b, *spec, q, k, v));
            expanded = Some(visit.id);
            out
        }
        // Only the gradient reads the statistics: their replacement is not used either.
        (Op::Side(_), &[of]) if expanded == Some(visit.node.operands[0]) => of,
        _ => visit.copy(),
    })
}

fn composite<'b>(b: &'b Builder, spec: AttentionSpec, q: Var<'b>, k: Var<'b>, v: Var<'b>) -> Var<'b> {
    let (heads, groups) = (q.dim(1), k.dim(1));
    let repeat = |x: Var<'b>| {
        let (batch, len, width) = (x.dim(0), x.dim(2), x.dim(3));
        x.reshape([batch, groups, 1, len, width])
            .broadcast([batch, groups, heads / groups.max(1), len, width])
            .reshape([batch, heads, len, width])
    };
    let (k, v) = if heads == groups { (k, v) } else { (repeat(k), repeat(v)) };
    let (dtype, wide) = (q.dtype(), q.dtype().accumulator());
    let mut scores = q.matmul_t(k).cast(wide) * spec.scale;
    if spec.causal {
        let (t, s) = (q.dim(2), k.dim(2));
        // j <= i + s - t, without going below zero.
        let query = b.iota(0, [t, s]).cast(DType::F32) + s as f64;
        let key = b.iota(1, [t, s]).cast(DType::F32) + t as f64;
        let visible = key.less_equal(query).broadcast(scores.shape());
        scores = visible.select(scores, f64::NEG_INFINITY);
    }
    scores.softmax().cast(dtype).matmul(v)
}
