//! The gradient of each operator: vector-Jacobian products written as expressions.

use std::f64::consts::FRAC_2_SQRT_PI;

use crate::graph::{BinaryOp, Builder, GraphError, Node, NodeId, Op, ReduceOp, Shape, UnaryOp, Var};

/// Contributions `(operand index, gradient)` of node `id` whose value has the gradient `g`; only for operands that are
/// `wanted`.
#[expect(clippy::too_many_lines, reason = "one rule for each operator")]
pub(super) fn vjp<'b>(b: &'b Builder, id: NodeId, node: &Node, g: Var<'b>, wanted: &[bool]) -> Vec<(usize, Var<'b>)> {
    let operand = |i: usize| b.var(node.operands[i]);
    let y = b.var(id);
    // Computed only where wanted: each contribution is a closure.
    let pick = |parts: [(usize, &dyn Fn() -> Var<'b>); 2]| {
        parts.into_iter().filter(|&(i, _)| wanted[i]).map(|(i, part)| (i, part())).collect::<Vec<_>>()
    };
    match &node.op {
        Op::Unary(op) => unary(*op, operand(0), y, g).map(|dx| (0, dx)).into_iter().collect(),
        Op::Binary(op) => {
            let (a, c) = (operand(0), operand(1));
            match op {
                BinaryOp::Add => pick([(0, &|| g), (1, &|| g)]),
                BinaryOp::Sub => pick([(0, &|| g), (1, &|| -g)]),
                BinaryOp::Mul => pick([(0, &|| g * c), (1, &|| g * a)]),
                BinaryOp::Div => pick([(0, &|| g / c), (1, &|| -(g * y / c))]),
                BinaryOp::Max => pick([(0, &|| share(a, c, g)), (1, &|| share(c, a, g))]),
                BinaryOp::Min => pick([(0, &|| share(c, a, g)), (1, &|| share(a, c, g))]),
            }
        }
        Op::Select => {
            let (condition, zero) = (operand(0), b.fill(0.0, g.dtype(), g.shape()));
            [(1, [g, zero]), (2, [zero, g])]
                .into_iter()
                .filter(|&(i, _)| wanted[i])
                .map(|(i, [then, other])| (i, condition.select(then, other)))
                .collect()
        }
        Op::Cast(_) => vec![(0, g.cast(operand(0).dtype()))],
        Op::MatMul { transpose_a, transpose_b, .. } => {
            let (a, c) = (operand(0), operand(1));
            let g = g.cast(a.dtype());
            let product = |left, right, transpose_a, transpose_b| {
                b.push(Op::MatMul { transpose_a, transpose_b, output: a.dtype() }, &[left, right])
            };
            if node.operands[0] == node.operands[1] && transpose_a != transpose_b {
                // Y = A A^T:  dA = (G + G^T) A.  Y = A^T A:  dA = A (G + G^T).  One product instead of two.
                let both = g + g.transpose();
                return vec![(
                    0,
                    if *transpose_b { product(both, a, false, false) } else { product(a, both, false, false) },
                )];
            }
            // Y = A B with A = a or a^T, B = b or b^T:  dA = G B^T,  dB = A^T G.
            let da = || match transpose_a {
                false => product(g, c, false, !transpose_b),
                true => product(c, g, *transpose_b, true),
            };
            let dc = || match transpose_b {
                false => product(a, g, !transpose_a, false),
                true => product(g, a, true, *transpose_a),
            };
            pick([(0, &da), (1, &dc)])
        }
        Op::Reduce { op: ReduceOp::Sum, .. } => vec![(0, g.broadcast(operand(0).shape()))],
        Op::Reduce { op: ReduceOp::Max, axes } => {
            let x = operand(0);
            let tied = x.equal(y);
            let count = tied.cast(g.dtype()).sum(axes);
            vec![(0, tied.select(g / count, 0.0))]
        }
        Op::Reshape(_) => vec![(0, g.reshape(operand(0).shape()))],
        Op::Permute(order) => {
            let mut inverse = vec![0; order.len()];
            for (to, &from) in order.iter().enumerate() {
                inverse[from] = to;
            }
            vec![(0, g.permute(inverse))]
        }
        Op::Broadcast(_) => vec![(0, unbroadcast(g, &operand(0).shape()))],
        Op::Slice { axis, start, len } => {
            let extent = operand(0).dim(*axis);
            vec![(0, g.pad(*axis, *start, extent - start - len))]
        }
        Op::Pad { axis, before, .. } => vec![(0, g.slice(*axis, *before, operand(0).dim(*axis)))],
        Op::Concat { axis } => {
            let mut start = 0;
            let mut parts = Vec::new();
            for (i, &part) in node.operands.iter().enumerate() {
                let len = b.var(part).dim(*axis);
                if wanted[i] {
                    parts.push((i, g.slice(*axis, start, len)));
                }
                start += len;
            }
            parts
        }
        Op::Gather { .. } if node.operands.len() == 4 => vec![(0, g.segment_sum_of(operand(2), operand(3)))],
        Op::Gather { axis } => vec![(0, g.scatter_add(*axis, operand(0).dim(*axis), operand(1)))],
        Op::ScatterAdd { axis, .. } => vec![(0, g.gather(*axis, operand(1)))],
        Op::SegmentSum => {
            let repeated = |rows| g.segment_repeat(operand(1), rows);
            let dx = match node.operands.len() {
                2 => repeated(operand(0).dim(0)),
                _ => repeated(operand(2).dim(0)).scatter_add(0, operand(0).dim(0), operand(2)),
            };
            vec![(0, dx)]
        }
        Op::SegmentRepeat { .. } => vec![(0, g.segment_sum(operand(1)))],
        Op::SegmentSoftmax => {
            // y (g - sum of g y): a segment's rows only.
            let weighted = g * y;
            let sums = weighted.segment_sum(operand(1)).segment_repeat(operand(1), y.dim(0));
            vec![(0, weighted - y * sums)]
        }
        Op::Attention(spec) => {
            let lse = b.var(NodeId(id.0 + 1));
            let dq = b.push(Op::AttentionGrad(*spec), &[operand(0), operand(1), operand(2), y, lse, g]);
            vec![(0, dq), (1, dq.side(1)), (2, dq.side(2))]
        }
        Op::NormedAttention(spec) => {
            let lse = b.var(NodeId(id.0 + 1));
            let operands: Vec<Var<'b>> = (0..7).map(operand).chain([y, lse, g]).collect();
            let dq = b.push(Op::NormedAttentionGrad(*spec), &operands);
            let sides: Vec<Var<'b>> = (1..=6).map(|side| dq.side(side)).collect();
            let mut parts = vec![(0, dq), (1, sides[0]), (2, sides[1])];
            // Of each batch, and the gain's of each head, too.
            let over: [&[usize]; 4] = [&[0], &[0], &[0], &[0, 1]];
            for (side, axes) in over.into_iter().enumerate().filter(|(side, _)| wanted[3 + side]) {
                parts.push((3 + side, sides[2 + side].sum(axes).reshape(operand(3 + side).shape())));
            }
            parts
        }
        Op::GivenGradient => {
            let given = (1..node.operands.len()).step_by(2).filter(|&x| wanted[x]);
            given.map(|x| (x, operand(x + 1) * g.cast(operand(x + 1).dtype()))).collect()
        }
        Op::After => vec![(0, g)],
        Op::AllReduce => vec![(0, g.all_reduce())],
        Op::ReduceScatter { world } => vec![(0, b.push(Op::AllGather { world: *world }, &[g]))],
        Op::AllGather { world } => vec![(0, b.push(Op::ReduceScatter { world: *world }, &[g]))],
        Op::ScaledMatMul { .. } | Op::MatMulAdd { .. } => {
            b.poison(GraphError::Operands {
                op: node.op.to_string(),
                operands: node.meta.to_string(),
                reason: "it has no gradient: passes insert it after differentiation".into(),
            });
            Vec::new()
        }
        Op::AttentionGrad(_) | Op::NormedAttentionGrad(_) | Op::Side(_) => {
            b.poison(GraphError::Operands {
                op: node.op.to_string(),
                operands: node.meta.to_string(),
                reason: "it has no gradient: attention can be differentiated once, and not through its statistics"
                    .into(),
            });
            Vec::new()
        }
        Op::Input(_)
        | Op::State(_)
        | Op::Constant(_)
        | Op::Fill { .. }
        | Op::Iota { .. }
        | Op::Random { .. }
        | Op::Compare(_)
        | Op::StopGradient => Vec::new(),
    }
}

fn unary<'b>(op: UnaryOp, x: Var<'b>, y: Var<'b>, g: Var<'b>) -> Option<Var<'b>> {
    Some(match op {
        UnaryOp::Neg => -g,
        UnaryOp::Exp => g * y,
        UnaryOp::Log => g / x,
        UnaryOp::Sqrt => g * 0.5 / y,
        UnaryOp::Rsqrt => g * (y.square() * y) * -0.5,
        UnaryOp::Recip => -(g * y.square()),
        UnaryOp::Erf => g * (-x.square()).exp() * FRAC_2_SQRT_PI,
        UnaryOp::Tanh => g * (-y.square() + 1.0),
        UnaryOp::Sigmoid => g * (y * (-y + 1.0)),
        UnaryOp::Sin => g * x.cos(),
        UnaryOp::Cos => -(g * x.sin()),
        UnaryOp::Abs => g * x.sign(),
        UnaryOp::Square => g * x * 2.0,
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::IsFinite => return None,
    })
}

/// What the operand `mine` of `max(mine, other)` gets of `g`: all, half of a tie, or nothing.
fn share<'b>(mine: Var<'b>, other: Var<'b>, g: Var<'b>) -> Var<'b> {
    mine.equal(other).select(g * 0.5, mine.greater(other).select(g, 0.0))
}

/// The sum of `g` over everything that was repeated from `shape`.
fn unbroadcast<'b>(g: Var<'b>, shape: &Shape) -> Var<'b> {
    let from = g.shape();
    let missing = from.rank() - shape.rank();
    let repeated = (0..from.rank())
        .filter(|&axis| axis < missing || (shape[axis - missing] == 1 && from[axis] != 1))
        .collect::<Vec<_>>();
    g.sum(repeated).reshape(shape)
}
