//! Inference of dtypes and shapes: the result of an operator, or the rule that its operands violate.

use super::{DType, GraphError, Meta, Op, ReduceOp, Shape, UnaryOp};

/// Dtype and shape of the value of `op` over operands like `operands`.
///
/// `Input`, `State` and `Side` depend on the program, not on operands: [`Graph::push`](super::Graph::push) handles
/// them.
///
/// ```
/// use pawl_graph::graph::{DType, Meta, Op, infer};
/// let (a, b) = (Meta::new(DType::BF16, [4, 8, 16]), Meta::new(DType::BF16, [4, 32, 16]));
/// let product = |transpose_b| Op::MatMul { transpose_a: false, transpose_b, output: DType::F32 };
/// assert_eq!(infer(&product(true), &[&a, &b])?, Meta::new(DType::F32, [4, 8, 32]));
/// assert!(infer(&product(false), &[&a, &b]).is_err(), "inner extents are 16 and 32");
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
///
/// # Errors
/// [`GraphError::Operands`] with the rule that the operands violate.
pub fn infer(op: &Op, operands: &[&Meta]) -> Result<Meta, GraphError> {
    rule(op, operands).map_err(|reason| GraphError::Operands {
        op: op.to_string(),
        operands: operands.iter().map(|m| m.to_string()).collect::<Vec<_>>().join(", "),
        reason,
    })
}

/// Dtypes and shapes of the side results of `op`, first side result first.
pub fn infer_sides(op: &Op, operands: &[&Meta]) -> Vec<Meta> {
    match (op, operands) {
        (Op::Attention(_) | Op::NormedAttention(_), [q, ..]) => {
            vec![Meta::new(q.dtype.accumulator(), q.shape.with(3, 1))]
        }
        (Op::AttentionGrad(_), [_, k, v, ..]) => vec![(*k).clone(), (*v).clone()],
        (Op::NormedAttentionGrad(_), [q, k, v, ..]) => {
            let sums = |x: &Meta| Meta::new(x.dtype.accumulator(), [x.shape[0], x.shape[1], x.shape[3]]);
            vec![(*k).clone(), (*v).clone(), sums(q), sums(k), sums(v), sums(k)]
        }
        _ => Vec::new(),
    }
}

type Rule = Result<Meta, String>;

#[expect(clippy::too_many_lines, reason = "one rule for each operator")]
fn rule(op: &Op, operands: &[&Meta]) -> Rule {
    match (op, operands) {
        (Op::Constant(array), []) => Ok(Meta::new(array.dtype(), array.shape())),
        (Op::Fill { shape, dtype, .. }, []) => Ok(Meta::new(*dtype, shape)),
        (Op::Iota { axis, shape }, []) => {
            within(*axis, shape)?;
            Ok(Meta::new(DType::U32, shape))
        }
        (Op::Random { shape, .. }, [counter]) => {
            ensure(**counter == Meta::new(DType::U32, []), || "the counter is a u32 scalar".into())?;
            Ok(Meta::new(DType::F32, shape))
        }
        (Op::Unary(op), [x]) => {
            floats(&[x])?;
            let dtype = if *op == UnaryOp::IsFinite { DType::Bool } else { x.dtype };
            Ok(Meta::new(dtype, &x.shape))
        }
        (Op::Binary(_), [a, b]) => {
            alike(a, b)?;
            ensure(a.dtype != DType::Bool, || "arithmetic takes numbers; cast the booleans first".into())?;
            Ok((*a).clone())
        }
        (Op::Compare(_), [a, b]) => {
            alike(a, b)?;
            Ok(Meta::new(DType::Bool, &a.shape))
        }
        (Op::Select, [condition, a, b]) => {
            alike(a, b)?;
            ensure(condition.dtype == DType::Bool, || "the condition is bool".into())?;
            ensure(condition.shape == a.shape, || "condition and branches have one shape".into())?;
            Ok((*a).clone())
        }
        (Op::Cast(dtype), [x]) => Ok(Meta::new(*dtype, &x.shape)),
        (Op::MatMul { transpose_a, transpose_b, output }, [a, b]) => matmul(a, b, *transpose_a, *transpose_b, *output),
        (Op::MatMulAdd { transpose_a, transpose_b, .. }, [a, b, c]) => {
            let product = matmul(a, b, *transpose_a, *transpose_b, a.dtype)?;
            alike(&product, c)?;
            ensure(c.shape.rank() == 2, || "operands are matrices".into())?;
            Ok(product)
        }
        (Op::ScaledMatMul { transpose_a, transpose_b, output }, [a, b, scale_a, scale_b]) => {
            scaled_matmul([a, b, scale_a, scale_b], [*transpose_a, *transpose_b], *output)
        }
        (Op::Reduce { op, axes }, [x]) => reduce(*op, axes, x),
        (Op::Reshape(shape), [x]) => {
            ensure(shape.elements() == x.shape.elements(), || {
                format!("{shape} has {} elements, not {}", shape.elements(), x.shape.elements())
            })?;
            Ok(Meta::new(x.dtype, shape))
        }
        (Op::Permute(order), [x]) => {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            ensure(sorted.iter().copied().eq(0..x.shape.rank()), || "the order names every axis once".into())?;
            Ok(Meta::new(x.dtype, order.iter().map(|&a| x.shape[a]).collect::<Vec<_>>()))
        }
        (Op::Broadcast(shape), [x]) => {
            ensure(x.shape.broadcasts_to(shape), || {
                format!("it does not broadcast to {shape}: aligned at the last axis, extents are equal or 1")
            })?;
            Ok(Meta::new(x.dtype, shape))
        }
        (Op::Slice { axis, start, len }, [x]) => {
            within(*axis, &x.shape)?;
            ensure(*len > 0 && start + len <= x.shape[*axis], || {
                format!("axis {axis} has extent {} and the slice may not be empty", x.shape[*axis])
            })?;
            Ok(Meta::new(x.dtype, x.shape.with(*axis, *len)))
        }
        (Op::Concat { axis }, [first, rest @ ..]) => {
            within(*axis, &first.shape)?;
            let mut extent = first.shape[*axis];
            for part in rest {
                ensure(part.shape.rank() == first.shape.rank(), || "all parts have one rank".into())?;
                ensure(part.dtype == first.dtype, || "all parts have one dtype".into())?;
                ensure(part.shape.with(*axis, 1) == first.shape.with(*axis, 1), || {
                    format!("all extents but that of axis {axis} are equal")
                })?;
                extent += part.shape[*axis];
            }
            Ok(Meta::new(first.dtype, first.shape.with(*axis, extent)))
        }
        (Op::Pad { axis, before, after }, [x]) => {
            within(*axis, &x.shape)?;
            Ok(Meta::new(x.dtype, x.shape.with(*axis, before + x.shape[*axis] + after)))
        }
        (Op::Gather { axis }, [x, indices]) => {
            within(*axis, &x.shape)?;
            ensure(indices.dtype == DType::U32, || "indices are u32".into())?;
            let dims = [&x.shape[..*axis], &indices.shape, &x.shape[axis + 1..]].concat();
            Ok(Meta::new(x.dtype, dims))
        }
        (Op::Gather { axis }, [x, indices, order, offsets]) => {
            let rows = *axis == 0 && indices.shape.rank() == 1;
            ensure(rows, || "with the index transposed, rows are looked up: axis 0, indices [e]".into())?;
            segments(offsets, Some(order))?;
            ensure(x.shape.rank() > 0 && offsets.shape[0] == x.shape[0] + 1, || segment_count(offsets, x))?;
            rule(op, &operands[..2])
        }
        (Op::SegmentSum, [x, offsets, order @ ..]) if order.len() <= 1 => {
            floats(&[x])?;
            within(0, &x.shape)?;
            let count = segments(offsets, order.first().copied())?;
            Ok(Meta::new(x.dtype, x.shape.with(0, count)))
        }
        (Op::SegmentRepeat { rows }, [x, offsets]) => {
            floats(&[x])?;
            within(0, &x.shape)?;
            ensure(segments(offsets, None)? == x.shape[0], || segment_count(offsets, x))?;
            Ok(Meta::new(x.dtype, x.shape.with(0, *rows)))
        }
        (Op::SegmentSoftmax, [scores, offsets]) => {
            floats(&[scores])?;
            within(0, &scores.shape)?;
            segments(offsets, None)?;
            Ok((*scores).clone())
        }
        (Op::ScatterAdd { axis, extent }, [updates, indices]) => scatter_add(*axis, *extent, updates, indices),
        (Op::Attention(_), [q, k, v]) => attention(q, k, v),
        (Op::AttentionGrad(_), [q, k, v, o, lse, grad]) => {
            attention(q, k, v)?;
            attention_grad(q, [o, lse, grad])
        }
        (Op::NormedAttention(_), [q, k, v, vectors @ ..]) if vectors.len() == 4 => normed_attention(q, k, v, vectors),
        (Op::NormedAttentionGrad(_), [q, k, v, vectors @ .., o, lse, grad]) if vectors.len() == 4 => {
            normed_attention(q, k, v, vectors)?;
            attention_grad(q, [o, lse, grad])
        }
        (Op::After, [x, _]) | (Op::StopGradient, [x]) => Ok((*x).clone()),
        (Op::GivenGradient, [y, given @ ..]) => {
            floats(operands)?;
            ensure(y.shape.rank() == 0, || "the value is a scalar".into())?;
            let (pairs, rest) = given.as_chunks::<2>();
            let fit = rest.is_empty() && pairs.iter().all(|[x, d]| x == d);
            ensure(fit, || "each gradient is like its value".into())?;
            Ok((*y).clone())
        }
        (Op::AllReduce, [x]) => {
            ensure(x.dtype == DType::F32, || "collectives sum f32".into())?;
            Ok((*x).clone())
        }
        (Op::ReduceScatter { world }, [x]) => {
            ensure(x.dtype == DType::F32, || "collectives sum f32".into())?;
            ensure(x.shape.rank() == 1 && *world > 0 && x.shape[0].is_multiple_of(*world), || {
                format!("the buffer is flat and {world} ranks divide it")
            })?;
            Ok(Meta::new(x.dtype, [x.shape[0] / world]))
        }
        (Op::AllGather { world }, [x]) => {
            ensure(x.dtype == DType::F32, || "collectives carry f32".into())?;
            ensure(x.shape.rank() == 1 && *world > 0, || "the buffer is flat".into())?;
            Ok(Meta::new(x.dtype, [x.shape[0] * world]))
        }
        _ => Err("wrong number of operands".into()),
    }
}

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}

fn within(axis: usize, shape: &Shape) -> Result<(), String> {
    ensure(axis < shape.rank(), || format!("axis {axis} is not below the rank of {shape}"))
}

fn floats(operands: &[&Meta]) -> Result<(), String> {
    ensure(operands.iter().all(|m| m.dtype.is_float()), || "operands are floats".into())
}

fn alike(a: &Meta, b: &Meta) -> Result<(), String> {
    ensure(a.dtype == b.dtype, || "operands have one dtype; cast one of them".into())?;
    ensure(a.shape == b.shape, || "operands have one shape; broadcast one of them".into())
}

fn matmul(a: &Meta, b: &Meta, transpose_a: bool, transpose_b: bool, output: DType) -> Rule {
    floats(&[a, b])?;
    ensure(a.dtype == b.dtype, || "operands have one dtype; cast one of them".into())?;
    ensure(output == a.dtype || output == a.dtype.accumulator(), || {
        format!("the result is {} or {}", a.dtype, a.dtype.accumulator())
    })?;
    let rank = a.shape.rank();
    ensure(rank >= 2 && b.shape.rank() == rank, || "operands have one rank of at least 2".into())?;
    let (batch, [a1, a2]) = (&a.shape[..rank - 2], [a.shape[rank - 2], a.shape[rank - 1]]);
    let [b1, b2] = [b.shape[rank - 2], b.shape[rank - 1]];
    ensure(*batch == b.shape[..rank - 2], || "batch axes are equal".into())?;
    let (m, k) = if transpose_a { (a2, a1) } else { (a1, a2) };
    let (k_b, n) = if transpose_b { (b2, b1) } else { (b1, b2) };
    ensure(k == k_b, || format!("inner extents are equal, not {k} and {k_b}"))?;
    Ok(Meta::new(output, [batch, &[m, n]].concat()))
}

fn scaled_matmul([a, b, scale_a, scale_b]: [&Meta; 4], transpose: [bool; 2], output: DType) -> Rule {
    ensure(a.dtype.is_float8() && b.dtype.is_float8(), || "operands are 8-bit floats".into())?;
    ensure(a.shape.rank() == 2 && b.shape.rank() == 2, || "operands are matrices".into())?;
    let turned =
        |x: &Meta, transpose: bool| if transpose { [x.shape[1], x.shape[0]] } else { [x.shape[0], x.shape[1]] };
    let ([m, k], [k_b, n]) = (turned(a, transpose[0]), turned(b, transpose[1]));
    ensure(k == k_b, || format!("inner extents are equal, not {k} and {k_b}"))?;
    let wide = matches!(scale_a.dtype, DType::F32 | DType::F64) && scale_a.dtype == scale_b.dtype;
    ensure(wide, || "scales are both float32, or both float64".into())?;
    let one_of = |scale: &Meta, all: [usize; 2]| *scale.shape == all || *scale.shape == [1, 1];
    ensure(one_of(scale_a, [m, 1]) && one_of(scale_b, [1, n]), || format!("scales are [{m},1] and [1,{n}], or [1,1]"))?;
    let narrow = output == scale_a.dtype || output.is_low_precision();
    ensure(narrow, || format!("the result is {} or a 16-bit float", scale_a.dtype))?;
    Ok(Meta::new(output, [m, n]))
}

fn reduce(op: ReduceOp, axes: &[usize], x: &Meta) -> Rule {
    let numbers = x.dtype.is_float() || x.dtype == DType::U32;
    ensure(numbers, || "a reduction takes numbers".into())?;
    ensure(!axes.is_empty() && axes.windows(2).all(|w| w[0] < w[1]), || {
        "axes are ascending, without repetition, at least one".into()
    })?;
    let mut dims = x.shape.to_vec();
    for &axis in axes {
        within(axis, &x.shape)?;
        ensure(op == ReduceOp::Sum || dims[axis] > 0, || "nothing to take the maximum of".into())?;
        dims[axis] = 1;
    }
    Ok(Meta::new(x.dtype, dims))
}

fn scatter_add(axis: usize, extent: usize, updates: &Meta, indices: &Meta) -> Rule {
    floats(&[updates])?;
    ensure(indices.dtype == DType::U32, || "indices are u32".into())?;
    let end = axis + indices.shape.rank();
    ensure(end <= updates.shape.rank() && updates.shape[axis..end] == *indices.shape, || {
        format!("the updates have the axes of the indices at axis {axis}")
    })?;
    let dims = [&updates.shape[..axis], &[extent], &updates.shape[end..]].concat();
    Ok(Meta::new(updates.dtype, dims))
}

/// Number of segments.
fn segments(offsets: &Meta, order: Option<&Meta>) -> Result<usize, String> {
    let vector = |m: &Meta| m.dtype == DType::U32 && m.shape.rank() == 1;
    ensure(vector(offsets) && offsets.shape[0] > 0, || "offsets are u32[n + 1]".into())?;
    ensure(order.is_none_or(vector), || "the order is u32[m]".into())?;
    Ok(offsets.shape[0] - 1)
}

fn segment_count(offsets: &Meta, x: &Meta) -> String {
    format!("offsets are one more than the rows of x: {offsets} for {x}")
}

fn attention(q: &Meta, k: &Meta, v: &Meta) -> Rule {
    floats(&[q, k, v])?;
    ensure(q.dtype == k.dtype && k == v, || "q, k and v have one dtype; k and v one shape".into())?;
    let four = q.shape.rank() == 4 && k.shape.rank() == 4;
    ensure(four, || "q is [b,h,t,d], k and v are [b,g,s,d]".into())?;
    let same = q.shape[0] == k.shape[0] && q.shape[3] == k.shape[3];
    ensure(same && k.shape[1] > 0 && q.shape[1].is_multiple_of(k.shape[1]), || {
        "q [b,h,t,d] and k [b,g,s,d] agree in b and d, and g divides h".into()
    })?;
    Ok(q.clone())
}

fn attention_grad(q: &Meta, [o, lse, grad]: [&Meta; 3]) -> Rule {
    ensure(o == q && grad == q, || "output and its gradient are like q".into())?;
    let statistics = Meta::new(q.dtype.accumulator(), q.shape.with(3, 1));
    ensure(*lse == statistics, || format!("statistics are {statistics}"))?;
    Ok(q.clone())
}

fn normed_attention(q: &Meta, k: &Meta, v: &Meta, vectors: &[&Meta]) -> Rule {
    let result = attention(q, k, v)?;
    let of = |x: &Meta| Meta::new(q.dtype.accumulator(), [x.shape[1], x.shape[3]]);
    let wanted = [of(q), of(k), of(v), Meta::new(q.dtype.accumulator(), [q.shape[3]])];
    ensure(vectors.iter().zip(&wanted).all(|(got, wanted)| *got == wanted), || {
        let wanted = wanted.iter().map(Meta::to_string).collect::<Vec<_>>().join(", ");
        format!("biases and gain are {wanted}")
    })?;
    Ok(result)
}
