//! Sums of two products in one value, for executors whose library adds a product to what is in memory.

use super::rewrite::rewrite;
use crate::graph::{BinaryOp, DType, Graph, GraphError, NodeId, Op, Program};

/// Replaces `round(wide(p) + wide(a b) * factor)` by [`Op::MatMulAdd`], where p and `a b` are products of 16-bit
/// matrices that nothing else reads: the sum of a layer and its adapter is written once, instead of two products that
/// each reader of the sum adds up. Where either could be the one that is added (`a b`), it is the one with fewer
/// multiplications. It is no longer rounded before it is added, so that results change in their last bits.
///
/// In scopes that `excluded` names, nothing is replaced. To be run last: the result has no gradient.
///
/// # Errors
/// When the program is ill-formed.
pub fn join_sums(program: &Program, excluded: impl Fn(&str) -> bool) -> Result<Program, GraphError> {
    let mut readers = vec![0usize; program.graph.len()];
    let operands = program.graph.nodes().iter().flat_map(|node| &node.operands).copied();
    operands.chain(program.roots()).for_each(|id| readers[id.index()] += 1);
    let needed = program.needed();
    // By the node that rounds a sum: what is added to, and the product that is added.
    let sums: Vec<Option<(NodeId, Product)>> = program
        .graph
        .iter()
        .map(|(id, _)| needed[id.index()].then(|| sum(&program.graph, &readers, id)).flatten())
        .collect();
    // New values of nodes of the source program: operands of a joined product are not those of the node that it
    // replaces.
    let mut values = vec![None; program.graph.len()];
    rewrite(program, |visit| {
        let made = match sums[visit.id.index()].filter(|_| !excluded(visit.scope)) {
            Some((addend, Product { node, factor })) => visit.here(|| {
                let product = program.graph.node(node);
                let Op::MatMul { transpose_a, transpose_b, .. } = product.op else { return visit.copy() };
                let [a, b, c] = [product.operands[0], product.operands[1], addend].map(|id| values[id.index()]);
                let (Some(a), Some(b), Some(c)) = (a, b, c) else { return visit.copy() };
                let op = Op::MatMulAdd { transpose_a, transpose_b, factor };
                visit.b.push(op, &[a, b, c].map(|id| visit.b.var(id)))
            }),
            None => visit.copy(),
        };
        values[visit.id.index()] = made.id();
        made
    })
}

/// A product that is multiplied by a number and widened.
#[derive(Debug, Clone, Copy)]
struct Product {
    node: NodeId,
    factor: f64,
}

/// The addend and the product of the sum that node `id` rounds.
fn sum(graph: &Graph, readers: &[usize], id: NodeId) -> Option<(NodeId, Product)> {
    let alone = |id: NodeId| (readers[id.index()] == 1).then(|| graph.node(id));
    let narrow = graph.meta(id).dtype;
    let (Op::Cast(_), true) = (&graph.node(id).op, narrow.is_low_precision()) else { return None };
    let sum = alone(graph.node(id).operands[0])?;
    let (Op::Binary(BinaryOp::Add), 2) = (&sum.op, sum.meta.shape.rank()) else { return None };
    let addend = |side: NodeId| {
        let of = widened(graph, alone(side)?.operands.first().copied(), side, narrow)?;
        let product = matches!(alone(of)?.op, Op::MatMul { .. } | Op::ScaledMatMul { .. });
        product.then_some(of)
    };
    let product = |side: NodeId| {
        let (side, factor) = match alone(side)?.op {
            Op::Binary(BinaryOp::Mul) => {
                let [x, y] = [0, 1].map(|i| graph.node(side).operands[i]);
                number(graph, y).map(|factor| (x, factor)).or_else(|| Some((y, number(graph, x)?)))?
            }
            _ => (side, 1.0),
        };
        let node = widened(graph, alone(side)?.operands.first().copied(), side, narrow)?;
        let of = alone(node)?;
        (matches!(of.op, Op::MatMul { .. }) && graph.meta(of.operands[0]).dtype == narrow)
            .then_some(Product { node, factor })
    };
    let depth = |of: &Product| graph.meta(graph.node(of.node).operands[0]).shape.elements();
    let [left, right] = [0, 1].map(|i| sum.operands[i]);
    let choices = [(left, right), (right, left)].into_iter();
    let choices = choices.filter_map(|(other, of)| Some((addend(other)?, product(of)?)));
    choices.min_by_key(|(_, product)| depth(product))
}

/// `of`, when `cast` widens it from `narrow`.
fn widened(graph: &Graph, of: Option<NodeId>, cast: NodeId, narrow: DType) -> Option<NodeId> {
    let widens = graph.node(cast).op == Op::Cast(DType::F32);
    of.filter(|&of| widens && graph.meta(of).dtype == narrow)
}

/// The number that a value has everywhere.
fn number(graph: &Graph, id: NodeId) -> Option<f64> {
    let node = graph.node(id);
    match node.op {
        Op::Fill { value, .. } => Some(value),
        Op::Broadcast(_) | Op::Reshape(_) => number(graph, node.operands[0]),
        _ => None,
    }
}
