//! Gradient reduction: flat buckets, each summed over the ranks as soon as its last gradient is there.

use super::rewrite::rewrite;
use crate::graph::{GraphError, NodeId, Op, Program, Stage, Var, concat};

/// Prefix of the outputs that carry gradients between passes: `gradient/<parameter>`.
pub const GRADIENT: &str = "gradient/";

/// Replaces each output `gradient/..` by its sum over all ranks. Gradients are concatenated into flat float32 buckets of at most `bucket_bytes` bytes (at
/// least one gradient each), in the order in which the backward pass computes them; a bucket's [`Op::AllReduce`] directly follows
/// its last gradient, so that an executor with a second stream overlaps it with the rest of the backward pass.
///
/// Sums are elementwise, so results are bit-equal for every bucket size.
///
/// # Errors
/// When the program is ill-formed.
pub fn bucket_gradients(program: &Program, bucket_bytes: usize) -> Result<Program, GraphError> {
    let graph = &program.graph;
    let mut ready: Vec<(usize, NodeId)> = program
        .outputs
        .iter()
        .enumerate()
        .filter(|(_, o)| o.name.starts_with(GRADIENT))
        .map(|(i, o)| (i, o.node))
        .collect();
    ready.sort_by_key(|&(i, node)| (node, i));
    let mut buckets: Vec<Vec<(usize, NodeId)>> = Vec::new();
    let mut filled = usize::MAX;
    for gradient in ready {
        let bytes = graph.meta(gradient.1).bytes();
        match buckets.last_mut() {
            Some(bucket) if filled + bytes <= bucket_bytes => {
                bucket.push(gradient);
                filled += bytes;
            }
            _ => {
                buckets.push(vec![gradient]);
                filled = bytes;
            }
        }
    }
    let mut pending = buckets.into_iter().peekable();
    let mut placed: Vec<Option<NodeId>> = vec![None; graph.len()];
    let mut reduced: Vec<(usize, NodeId)> = Vec::new();
    let mut result = rewrite(program, |visit| {
        let value = visit.copy();
        placed[visit.id.index()] = value.id();
        // Nothing may come between an operator and its side results.
        let side_follows = graph.nodes().get(visit.id.index() + 1).is_some_and(|n| matches!(n.op, Op::Side(_)));
        while let Some(bucket) =
            pending.next_if(|bucket| !side_follows && bucket.last().is_some_and(|&(_, last)| last <= visit.id))
        {
            let gradients: Vec<Var<'_>> =
                bucket.iter().filter_map(|&(_, g)| placed[g.index()]).map(|id| visit.b.var(id)).collect();
            let sums = visit.b.within("reduce", || visit.b.stage(Stage::Update, || all_reduce(&gradients)));
            reduced.extend(bucket.iter().zip(sums).filter_map(|(&(output, _), sum)| Some((output, sum.id()?))));
        }
        value
    })?;
    for (output, node) in reduced {
        result.outputs[output].node = node;
    }
    result.verify()?;
    Ok(result)
}

fn all_reduce<'b>(gradients: &[Var<'b>]) -> Vec<Var<'b>> {
    let flat: Vec<Var<'b>> = gradients.iter().map(|g| g.reshape([g.shape().elements()])).collect();
    let sum = concat(&flat, 0).all_reduce();
    let mut start = 0;
    gradients
        .iter()
        .map(|g| {
            let len = g.shape().elements();
            start += len;
            sum.slice(0, start - len, len).reshape(g.shape())
        })
        .collect()
}
