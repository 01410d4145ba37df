//! Gradient reduction: flat buckets, each summed over the ranks as soon as its last gradient is there.

use super::{arena::Arena, rewrite::rewrite};
use crate::graph::{Builder, DType, GraphError, NodeId, Op, Output, Program, Stage, Var, concat};

/// Prefix of the outputs that carry gradients between passes: `gradient/<parameter>`.
pub const GRADIENT: &str = "gradient/";

/// Replaces each output `gradient/..` by its sum over all ranks. Gradients are concatenated into flat float32 buckets
/// of at most `bucket_bytes` bytes (at least one gradient each), in the order in which the backward pass computes them;
/// a bucket's [`Op::AllReduce`] directly follows its last gradient, so that an executor with a second stream overlaps
/// it with the rest of the backward pass.
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
    let nodes: Vec<Vec<NodeId>> = buckets.iter().map(|bucket| bucket.iter().map(|&(_, node)| node).collect()).collect();
    let mut reduced: Vec<(usize, NodeId)> = Vec::new();
    let mut result = when_ready(program, &nodes, |_, index, gradients| {
        let sums = all_reduce(gradients);
        reduced.extend(buckets[index].iter().zip(sums).filter_map(|(&(output, _), sum)| Some((output, sum.id()?))));
    })?;
    for (output, node) in reduced {
        result.outputs[output].node = node;
    }
    result.verify()?;
    Ok(result)
}

/// Replaces the outputs `gradient/<parameter>` of each arena by one, `gradient/<arena>`: this rank's shard of their sum
/// over `world` ranks. The gradients are concatenated in the order of the arena's parts, with zeros for parameters
/// without one; the [`Op::ReduceScatter`] directly follows the last of them. Arenas without any gradient are left out.
///
/// # Errors
/// When the program is ill-formed.
pub fn scatter_gradients(program: &Program, arenas: &[Arena], world: usize) -> Result<Program, GraphError> {
    let gradient = |name: &str| {
        let wanted = |output: &&Output| output.name.strip_prefix(GRADIENT) == Some(name);
        program.outputs.iter().find(wanted).map(|output| output.node)
    };
    let of_parts = |arena: &Arena| arena.parts.iter().map(|part| gradient(&part.name)).collect::<Vec<_>>();
    let mut ready: Vec<(&Arena, Vec<Option<NodeId>>)> = arenas.iter().map(|arena| (arena, of_parts(arena))).collect();
    ready.retain(|(_, parts)| parts.iter().any(Option::is_some));
    ready.sort_by_key(|(_, parts)| parts.iter().flatten().max().copied());
    let nodes: Vec<Vec<NodeId>> = ready.iter().map(|(_, parts)| parts.iter().flatten().copied().collect()).collect();
    let mut scattered: Vec<Output> = Vec::new();
    let mut result = when_ready(program, &nodes, |b, index, gradients| {
        let (arena, parts) = &ready[index];
        let mut gradients = gradients.iter();
        let zeros = |len: usize| b.fill(0.0, DType::F32, [len]);
        let mut flat: Vec<Var<'_>> = Vec::new();
        for (part, has) in arena.parts.iter().zip(parts) {
            let len = part.meta.shape.elements();
            flat.push(match has.and_then(|_| gradients.next()) {
                Some(gradient) => gradient.reshape([len]),
                None => zeros(len),
            });
        }
        let len: usize = arena.parts.iter().map(|part| part.meta.shape.elements()).sum();
        flat.extend(Some(arena.shape.elements() - len).filter(|padding| *padding > 0).map(zeros));
        let own = b.push(Op::ReduceScatter { world }, &[concat(&flat, 0)]);
        let name = format!("{GRADIENT}{}", arena.name);
        scattered.extend(own.id().map(|node| Output { name, node }));
    })?;
    let held = |name: &str| ready.iter().any(|(arena, _)| arena.parts.iter().any(|part| part.name == name));
    result.outputs.retain(|output| !output.name.strip_prefix(GRADIENT).is_some_and(held));
    result.outputs.extend(scattered);
    result.verify()?;
    Ok(result)
}

/// Rebuilds the program with what `append` adds for each of the `groups` of nodes, directly after the last node of the
/// group, in the order of the groups. A group's last node is that of the largest id, and groups are sorted by it.
fn when_ready(
    program: &Program,
    groups: &[Vec<NodeId>],
    mut append: impl for<'b> FnMut(&'b Builder, usize, &[Var<'b>]),
) -> Result<Program, GraphError> {
    let graph = &program.graph;
    let mut pending = groups.iter().enumerate().peekable();
    let mut placed: Vec<Option<NodeId>> = vec![None; graph.len()];
    rewrite(program, |visit| {
        let value = visit.copy();
        placed[visit.id.index()] = value.id();
        // Nothing may come between an operator and its side results.
        let side_follows = graph.nodes().get(visit.id.index() + 1).is_some_and(|n| matches!(n.op, Op::Side(_)));
        let is_ready = |group: &[NodeId]| group.iter().all(|node| *node <= visit.id);
        while let Some((index, group)) = pending.next_if(|(_, group)| !side_follows && is_ready(group)) {
            let b = visit.b;
            let values: Vec<Var<'_>> = group.iter().filter_map(|g| placed[g.index()]).map(|id| b.var(id)).collect();
            b.within("reduce", || b.stage(Stage::Update, || append(b, index, &values)));
        }
        value
    })
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
