//! Attention whose queries and keys are projected with a bias, cut into heads and normalised: one operator, so that an
//! executor may do all of it while a head is at hand, forward and backward.

use std::collections::HashMap;

use super::rewrite::{Visit, rewrite};
use crate::graph::{
    BinaryOp, Builder, DType, Graph, GraphError, Node, NodeId, NormedAttentionSpec, Op, Program, ReduceOp, Shape,
    UnaryOp, Var,
};

/// Replaces attention over heads of projections with a bias, whose queries and keys are RMS-normalised and multiplied
/// by a gain, by one [`Op::NormedAttention`]. To be run on a forward program, before differentiation and precision.
/// Values are equal up to rounding.
///
/// # Errors
/// When the program is ill-formed.
pub fn join_norms(program: &Program) -> Result<Program, GraphError> {
    let graph = &program.graph;
    let mut values: Vec<Option<NodeId>> = vec![None; graph.len()];
    let mut joined_last = None;
    rewrite(program, |visit| {
        let value = match (&visit.node.op, Joined::of(graph, visit.node)) {
            (Op::Attention(_), Some(joined)) => {
                joined_last = Some(visit.id);
                visit.here(|| joined.build(visit.b, &values))
            }
            // A forward program does not use the statistics.
            (Op::Side(_), _) if joined_last == Some(visit.node.operands[0]) => visit.operands[0],
            _ => visit.copy(),
        };
        values[visit.id.index()] = value.id();
        value
    })
}

/// What one attention is made of.
struct Joined {
    spec: NormedAttentionSpec,
    /// Of queries, keys and values.
    heads: [Heads; 3],
    /// Of queries and keys.
    gains: [NodeId; 2],
}

/// Heads of a product with a bias: `reshape [b,t,parts,h,d]`, `permute [2,0,3,1,4]`, part `part`, `[b,h,t,d]`.
struct Heads {
    product: NodeId,
    bias: NodeId,
    split: Shape,
    part: usize,
}

impl Joined {
    fn of(graph: &Graph, node: &Node) -> Option<Self> {
        let (Op::Attention(attention), &[q, k, v]) = (&node.op, node.operands.as_slice()) else { return None };
        let ([q, gain_q, epsilon], [k, gain_k, same]) = (normed(graph, q)?, normed(graph, k)?);
        let (epsilon, same) = (number(graph, epsilon)?, number(graph, same)?);
        (epsilon == same && graph.meta(node.operands[0]).dtype == DType::F32).then_some(())?;
        let heads = [Heads::of(graph, q)?, Heads::of(graph, k)?, Heads::of(graph, v)?];
        let spec = NormedAttentionSpec { attention: *attention, epsilon };
        Some(Self { spec, heads, gains: [gain_q, gain_k] })
    }

    fn build<'b>(&self, b: &'b Builder, values: &[Option<NodeId>]) -> Var<'b> {
        let var = |id: NodeId| b.var(values[id.index()].expect("operands come before their users"));
        // Parts of one split have one gradient, concatenated from those of the parts.
        let mut cut: HashMap<(NodeId, NodeId, &Shape), (Var<'b>, Var<'b>)> = HashMap::new();
        let [q, k, v] = self.heads.each_ref().map(|heads| {
            let key = (heads.product, heads.bias, &heads.split);
            let whole = *cut.entry(key).or_insert_with(|| heads.cut(var(heads.product), var(heads.bias)));
            heads.take(whole)
        });
        let gain = var(self.gains[0]) * var(self.gains[1]);
        q.0.normed_attention(k.0, v.0, [q.1, k.1, v.1, gain], self.spec)
    }
}

impl Heads {
    fn of(graph: &Graph, id: NodeId) -> Option<Self> {
        let one = operand(graph, id, |op| matches!(op, Op::Reshape(_)))?;
        let (permuted, part) = match graph.node(one).op {
            Op::Slice { axis: 0, start, len: 1 } => (graph.node(one).operands[0], start),
            Op::Permute(_) => (one, 0),
            _ => return None,
        };
        let split = operand(graph, permuted, |op| *op == Op::Permute(vec![2, 0, 3, 1, 4]))?;
        let sum = operand(graph, split, |op| matches!(op, Op::Reshape(_)))?;
        let shape = graph.meta(split).shape.clone();
        let [product, bias] = both(graph, sum, BinaryOp::Add)?;
        let bias = operand(graph, bias, |op| matches!(op, Op::Broadcast(_)))?;
        let vector = graph.meta(bias).shape.rank() == 1;
        let whole = *graph.meta(id).shape == [shape[0], shape[3], shape[1], shape[4]];
        (vector && whole).then_some(Self { product, bias, split: shape, part })
    }

    /// All parts of the product and of the bias, parts first.
    fn cut<'b>(&self, product: Var<'b>, bias: Var<'b>) -> (Var<'b>, Var<'b>) {
        let [_, _, parts, h, d] = self.extents();
        (product.reshape(&self.split).permute([2, 0, 3, 1, 4]), bias.reshape([parts, h, d]))
    }

    fn take<'b>(&self, (product, bias): (Var<'b>, Var<'b>)) -> (Var<'b>, Var<'b>) {
        let [b, t, _, h, d] = self.extents();
        let part = |of: Var<'b>| of.slice(0, self.part, 1);
        (part(product).reshape([b, h, t, d]), part(bias).reshape([h, d]))
    }

    fn extents(&self) -> [usize; 5] {
        std::array::from_fn(|axis| self.split[axis])
    }
}

/// What `x * rsqrt(mean(x^2) + epsilon) * gain` is made of: x, gain, epsilon.
fn normed(graph: &Graph, id: NodeId) -> Option<[NodeId; 3]> {
    let [scaled, gain] = both(graph, id, BinaryOp::Mul)?;
    let gain = operand(graph, gain, |op| matches!(op, Op::Broadcast(_)))?;
    let [x, factor] = both(graph, scaled, BinaryOp::Mul)?;
    let factor = operand(graph, factor, |op| matches!(op, Op::Broadcast(_)))?;
    let sum = operand(graph, factor, |op| *op == Op::Unary(UnaryOp::Rsqrt))?;
    let [mean, epsilon] = both(graph, sum, BinaryOp::Add)?;
    let [total, share] = both(graph, mean, BinaryOp::Mul)?;
    let square = operand(graph, total, |op| *op == Op::Reduce { op: ReduceOp::Sum, axes: vec![3] })?;
    let of = operand(graph, square, |op| *op == Op::Unary(UnaryOp::Square))?;
    let width = graph.meta(x).shape.last().copied().filter(|_| graph.meta(x).shape.rank() == 4)?;
    let mean = (number(graph, share)? * width as f64 - 1.0).abs() < 1e-6;
    (of == x && mean && *graph.meta(gain).shape == [width]).then_some([x, gain, epsilon])
}

fn both(graph: &Graph, id: NodeId, op: BinaryOp) -> Option<[NodeId; 2]> {
    let node = graph.node(id);
    (node.op == Op::Binary(op)).then(|| [node.operands[0], node.operands[1]])
}

fn operand(graph: &Graph, id: NodeId, kind: impl Fn(&Op) -> bool) -> Option<NodeId> {
    let node = graph.node(id);
    kind(&node.op).then(|| node.operands[0])
}

/// The number that a value is everywhere.
fn number(graph: &Graph, mut id: NodeId) -> Option<f64> {
    while let Op::Broadcast(_) | Op::Reshape(_) = graph.node(id).op {
        id = graph.node(id).operands[0];
    }
    match graph.node(id).op {
        Op::Fill { value, .. } => Some(value),
        _ => None,
    }
}

/// Replaces [`Op::NormedAttention`] and its gradient by equivalent elementary operators, except at nodes for which
/// `kept` returns true because the executor has a kernel for them.
///
/// # Errors
/// When the program is ill-formed.
pub fn expand_norms(program: &Program, kept: impl Fn(&Graph, &Node) -> bool) -> Result<Program, GraphError> {
    let graph = &program.graph;
    let is_normed = |node: &Node| matches!(node.op, Op::NormedAttention(_) | Op::NormedAttentionGrad(_));
    if !graph.nodes().iter().any(is_normed) {
        return Ok(program.clone());
    }
    // Side results that are no operator's: by their node in the source.
    let mut sides: HashMap<(NodeId, u8), NodeId> = HashMap::new();
    rewrite(program, |visit| match visit.node.op {
        Op::NormedAttention(spec) if !kept(graph, visit.node) => visit.here(|| {
            let ([q, k], v) = prepared(&visit, spec);
            let out = q.value.attention(k.value, v, spec.attention);
            sides.extend(out.id().map(|id| ((visit.id, 1), NodeId(id.0 + 1))));
            out
        }),
        Op::NormedAttentionGrad(spec) if !kept(graph, visit.node) => visit.here(|| {
            let results = gradient(&visit, spec);
            for (index, side) in (1..).zip(&results[1..]) {
                sides.extend(side.id().map(|id| ((visit.id, index), id)));
            }
            results[0]
        }),
        Op::Side(index) => match sides.get(&(visit.node.operands[0], index)) {
            Some(&side) => visit.b.var(side),
            None => visit.copy(),
        },
        _ => visit.copy(),
    })
}

/// Queries or keys on their way into attention.
struct Prepared<'b> {
    /// What goes in.
    value: Var<'b>,
    /// Normalised, before gain and rounding.
    normal: Var<'b>,
    /// What the sum with the bias was multiplied by.
    factor: Var<'b>,
}

/// Queries and keys, and the values that go into attention.
fn prepared<'b>(visit: &Visit<'_, 'b>, spec: NormedAttentionSpec) -> ([Prepared<'b>; 2], Var<'b>) {
    let operand = |i: usize| visit.operands[i];
    let dtype = operand(0).dtype();
    let biased = |i: usize| {
        let bias = operand(3 + i);
        operand(i).cast(dtype.accumulator()) + bias.reshape([bias.dim(0), 1, bias.dim(1)])
    };
    let normed = |i: usize, gain: Option<Var<'b>>| {
        let sum = biased(i);
        let factor = (sum.square().mean([3]) + spec.epsilon).rsqrt();
        let normal = sum * factor;
        Prepared { value: gain.map_or(normal, |gain| normal * gain).cast(dtype), normal, factor }
    };
    ([normed(0, None), normed(1, Some(operand(6)))], biased(2).cast(dtype))
}

/// The main result and the six beside it.
fn gradient<'b>(visit: &Visit<'_, 'b>, spec: NormedAttentionSpec) -> [Var<'b>; 7] {
    let ([q, k], v) = prepared(visit, spec);
    let dtype = q.value.dtype();
    let wide = dtype.accumulator();
    let [gain, o, lse, grad] = [6, 7, 8, 9].map(|i| visit.operands[i]);
    let dq = visit.b.push(Op::AttentionGrad(spec.attention), &[q.value, k.value, v, o, lse, grad]);
    let [dk, dv] = [dq.side(1), dq.side(2)].map(|side| side.cast(wide));
    let through = |x: &Prepared<'b>, g: Var<'b>| x.factor * (g - x.normal * (g * x.normal).mean([3]));
    let rows = |x: Var<'b>| x.sum([2]).reshape([x.dim(0), x.dim(1), x.dim(3)]);
    let of_gain = rows(dk * k.normal);
    let (dq, dk) = (through(&q, dq.cast(wide)), through(&k, dk * gain));
    [dq.cast(dtype), dk.cast(dtype), dv.cast(dtype), rows(dq), rows(dk), rows(dv), of_gain]
}
