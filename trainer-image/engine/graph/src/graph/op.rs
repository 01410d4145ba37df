//! The operators.

use std::{fmt, sync::Arc};

use super::{DType, Shape, StateId};
use crate::array::Array;

/// An input: index into [`Program::inputs`](super::Program::inputs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InputId(pub u32);

/// Elementwise functions of one float operand. Shape and dtype are those of the operand, except for
/// [`UnaryOp::IsFinite`], whose dtype is Bool. In 16-bit floats each is computed in float32 and rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// `sqrt(x)`
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    /// `1 / x`
    Recip,
    /// Gauss error function.
    Erf,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// Sine, radians.
    Sin,
    /// Cosine, radians.
    Cos,
    /// `|x|`; the gradient at 0 is 0.
    Abs,
    /// `x * x`
    Square,
    /// -1, 0 or 1 (unspecified for NaN); the gradient is 0.
    Sign,
    /// Largest integer not above x; the gradient is 0.
    Floor,
    /// Whether x is neither infinite nor NaN; gives Bool.
    IsFinite,
}

/// Elementwise functions of two operands of one shape and one dtype (float or U32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b` (integers: rounded towards zero)
    Div,
    /// The larger (with a NaN: either operand); where `a == b` each gets half of the gradient.
    Max,
    /// The smaller (with a NaN: either operand); where `a == b` each gets half of the gradient.
    Min,
}

/// Elementwise comparisons of two operands of one shape and dtype; the result is Bool. IEEE: all but `Ne` are false for
/// NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// `a == b`
    Eq,
    /// `a != b`
    Ne,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a > b`
    Gt,
    /// `a >= b`
    Ge,
}

/// Reductions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum, kept in [`DType::accumulator`] and rounded once.
    Sum,
    /// Largest (with a NaN: unspecified); the gradient is shared equally among ties.
    Max,
}

/// Scaled dot-product attention: `softmax(scale * q k^T) v`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Factor of the scores, usually `1/sqrt(d)`.
    pub scale: f64,
    /// Whether query i sees only keys `j <= i + (s - t)`: the last query sees all keys.
    pub causal: bool,
}

/// Attention whose queries and keys are normalised first: see [`Op::NormedAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormedAttentionSpec {
    /// Scale and mask.
    pub attention: AttentionSpec,
    /// Added to the mean square.
    pub epsilon: f64,
}

/// An operator. The doc comment of each gives its operands in order, and the shape and dtype of its value.
///
/// The set is closed and small; each has one meaning on every executor, one gradient in
/// `autodiff`, and one case in the op-by-op executor, which is the oracle.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `() -> ` the declared shape. An input of the program.
    Input(InputId),
    /// `() -> ` the declared shape. A state's value **as it was when the run began**: updates are not seen by reads of
    /// the same run.
    State(StateId),
    /// `() -> ` the array's shape. An embedded array.
    Constant(Arc<Array>),
    /// `() -> shape`. One value (rounded to the dtype) everywhere.
    Fill {
        /// The value.
        value: f64,
        /// Extents.
        shape: Shape,
        /// Element type.
        dtype: DType,
    },
    /// `() -> shape`, U32. Each element is its own index along `axis`.
    Iota {
        /// Axis counted along.
        axis: usize,
        /// Extents.
        shape: Shape,
    },
    /// `(counter: U32 scalar) -> shape`, F32. Uniform in [0, 1): element i is a pure function of (key, counter, i), see
    /// [`random`](crate::random). Distinct draws of one program have distinct keys; the caller gives each micro-step of
    /// each rank its own counter.
    Random {
        /// Stream of this draw.
        key: u64,
        /// Extents.
        shape: Shape,
    },

    /// `(x) -> ` shape of x. See [`UnaryOp`].
    Unary(UnaryOp),
    /// `(a, b) -> ` their shape, which is equal: broadcasting is explicit. See [`BinaryOp`].
    Binary(BinaryOp),
    /// `(a, b) -> ` their shape, Bool. See [`CompareOp`].
    Compare(CompareOp),
    /// `(condition: Bool, a, b) -> ` their shape: a where the condition holds, else b.
    Select,
    /// `(x) -> ` shape of x, in the given dtype: round to nearest, ties to even; overflow to infinity, in 8-bit floats
    /// to the largest number; float to U32 truncates and saturates; to Bool is `x != 0`. The gradient is cast back.
    Cast(DType),

    /// `(a, b) -> [batch.., m, n]` for a `[batch.., m, k]` and b `[batch.., k, n]`: equal rank of at least 2, equal
    /// batch axes, one float dtype. Products are summed in [`DType::accumulator`] and rounded once.
    MatMul {
        /// a is given as `[batch.., k, m]`.
        transpose_a: bool,
        /// b is given as `[batch.., n, k]`.
        transpose_b: bool,
        /// Dtype of the result: that of the operands or its accumulator.
        output: DType,
    },
    /// `(a, b, c) -> [m, n]`: `factor * (a b) + c` for matrices `[m, k]`, `[k, n]` and `[m, n]` of one float dtype,
    /// computed in its accumulator and rounded once. It has no gradient: [`join_sums`](crate::passes::join_sums)
    /// inserts it last.
    MatMulAdd {
        /// a is given as `[k, m]`.
        transpose_a: bool,
        /// b is given as `[n, k]`.
        transpose_b: bool,
        /// Factor of the product.
        factor: f64,
    },
    /// `(a, b, scale_a, scale_b) -> [m, n]` for an `[m, k]` and a `[k, n]` of 8-bit floats, not necessarily the same,
    /// and scales `[m, 1]` and `[1, n]`, or `[1, 1]` for one of the whole matrix, both float32 (float64 in the oracle).
    /// Each product is summed in the dtype of the scales, multiplied by its row's and its column's scale, and rounded
    /// once; executors whose library does not scale round the sum first too. It has no gradient: passes insert it after
    /// differentiation.
    ScaledMatMul {
        /// a is given as `[k, m]`.
        transpose_a: bool,
        /// b is given as `[n, k]`.
        transpose_b: bool,
        /// Dtype of the result: that of the scales or a 16-bit float.
        output: DType,
    },
    /// `(x) -> ` shape of x with extent 1 at each of `axes` (kept, so that the result broadcasts back).
    Reduce {
        /// What is computed.
        op: ReduceOp,
        /// Axes reduced, ascending, without repetition, at least one.
        axes: Vec<usize>,
    },

    /// `(x) -> shape`. The same elements in row-major order.
    Reshape(Shape),
    /// `(x) -> ` axis i of the result is axis `order[i]` of x.
    Permute(Vec<usize>),
    /// `(x) -> shape`. Repeats x: aligned at the last axis, every extent of x is equal or 1; missing leading axes are
    /// 1.
    Broadcast(Shape),
    /// `(x) -> ` elements `start .. start + len` along `axis`.
    Slice {
        /// Axis cut.
        axis: usize,
        /// First index.
        start: usize,
        /// Number of indices, at least 1.
        len: usize,
    },
    /// `(x1, .., xn) -> ` joined along `axis`; all other extents and the dtype are equal.
    Concat {
        /// Axis joined along.
        axis: usize,
    },
    /// `(x) -> ` with zeros added along `axis`.
    Pad {
        /// Axis grown.
        axis: usize,
        /// Zeros before.
        before: usize,
        /// Zeros after.
        after: usize,
    },
    /// `(x, indices: U32) -> ` x with `axis` replaced by all axes of `indices` (`take`). An index not below the axis's
    /// extent is an error on CPU executors and undefined on others.
    ///
    /// `(x [n, ..], indices [e], order: U32 [m], offsets: U32 [n + 1])`, along axis 0: with the index transposed, which
    /// only the gradient reads. Row `order[k]` of the result is row i of x for `offsets[i] <= k < offsets[i + 1]`; rows
    /// that `order` does not name have no gradient. The gradient is a [`Op::SegmentSum`], whose cost is that of reading
    /// the updates; without them it is an [`Op::ScatterAdd`], which on GPUs scans all indices for every part of x.
    Gather {
        /// Axis looked up in.
        axis: usize,
    },
    /// `(updates, indices: U32) -> ` zeros with extent `extent` at `axis`, plus the updates added at their indices: the
    /// transpose of [`Op::Gather`]. Added in row-major order of the updates, so the result is deterministic.
    ScatterAdd {
        /// Axis written along.
        axis: usize,
        /// Extent of that axis in the result.
        extent: usize,
    },

    /// `(x [e, ..], offsets: U32 [n + 1]) -> [n, ..]`. Row i is the sum of rows `offsets[i] .. offsets[i + 1]` of x, in
    /// that order, kept in [`DType::accumulator`] and rounded once; of an empty segment it is zero. Offsets ascend and
    /// end at e at most: what does not is an error on CPU executors and undefined on others. Rows that no segment holds
    /// (padding after the last offset) are not read.
    ///
    /// `(x [e, ..], offsets, order: U32 [m])`: row i is the sum of `x[order[k]]` over `offsets[i] <= k < offsets[i +
    /// 1]`; offsets end at m at most.
    SegmentSum,
    /// `(x [n, ..], offsets: U32 [n + 1]) -> [rows, ..]`. Rows `offsets[i] .. offsets[i + 1]` are row i of x; rows that
    /// no segment holds are zero. The transpose of [`Op::SegmentSum`], with the same conditions.
    SegmentRepeat {
        /// Number of rows of the result.
        rows: usize,
    },
    /// `(scores [e, ..], offsets: U32 [n + 1]) -> ` shape of scores: `exp(s - max) / sum`, maximum and sum over the
    /// rows of the same segment, separately in each column, in [`DType::accumulator`]. A score of minus infinity gives
    /// 0, also where all of a segment are. Rows that no segment holds are zero.
    SegmentSoftmax,

    /// `(q [b,h,t,d], k [b,g,s,d], v [b,g,s,d]) -> [b,h,t,d]`, g divides h (grouped queries); one float dtype;
    /// statistics in float32 (float64 for float64). Side result 1: the log-sum-exp of the scaled scores, `[b,h,t,1]` in
    /// the accumulator dtype.
    Attention(AttentionSpec),
    /// `(q, k, v, o, lse, do) -> dq`. Side results: 1 is dk, 2 is dv.
    AttentionGrad(AttentionSpec),
    /// `(q [b,h,t,d], k [b,g,s,d], v [b,g,s,d], bias_q [h,d], bias_k [g,d], bias_v [g,d], gain [d]) -> [b,h,t,d]`:
    /// attention of `n(q + bias_q)` over `n(k + bias_k) * gain` and `v + bias_v`, where `n(x) = x * rsqrt(mean(x^2) +
    /// epsilon)` along d. Biases and gain are of the accumulator dtype of q, and so are the sums; what goes into
    /// attention is rounded to the dtype of q. A gain of the queries goes into that of the keys. Side result 1 as for
    /// [`Op::Attention`].
    NormedAttention(NormedAttentionSpec),
    /// `(q, k, v, bias_q, bias_k, bias_v, gain, o, lse, do) -> dq`. Side results: 1 is dk, 2 is dv; then, summed over
    /// rows and in the accumulator dtype, 3, 4, 5 are the gradients of the biases, `[b,h,d]`, `[b,g,d]`, `[b,g,d]`, and
    /// 6 that of the gain, `[b,g,d]`.
    NormedAttentionGrad(NormedAttentionSpec),
    /// `(node) -> ` side result `index` (from 1) of the operand's operator: a name for a further result beside its main
    /// one. Directly follows that node (and its other side results) in the arena.
    Side(u8),

    /// `(x, token) -> ` x. Identity that must not run before `token` is computed, and that no pass removes: it delays
    /// recomputed forward nodes until their gradient is computed.
    After,

    /// `(x) -> ` x. Identity through which no gradient flows.
    StopGradient,
    /// `(y: scalar, x1, d1, .., xn, dn) -> ` y. Identity whose gradient is given: differentiation takes `d` (like `x`)
    /// for the derivative of y with respect to `x`, whatever y was computed from. A loss can so compute its gradient
    /// together with its value.
    GivenGradient,

    /// `(x: F32) -> ` shape of x: the sum over all ranks, in rank order. Every rank gets bit-equal results.
    AllReduce,
    /// `(x [n]: F32) -> [n / world]`: the sum over all ranks, of which this rank keeps its own part.
    ReduceScatter {
        /// Number of ranks; divides n.
        world: usize,
    },
    /// `(x [n]: F32) -> [n * world]`: the parts of all ranks, joined in rank order.
    AllGather {
        /// Number of ranks.
        world: usize,
    },
}

impl Op {
    /// Number of side results beside the main value.
    pub fn side_results(&self) -> u8 {
        match self {
            Op::Attention(_) => 1,
            Op::AttentionGrad(_) => 2,
            Op::NormedAttention(_) => 1,
            Op::NormedAttentionGrad(_) => 6,
            _ => 0,
        }
    }

    /// Whether each element of the value depends only on the elements of the operands at the same index.
    pub fn is_elementwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_))
    }

    /// Whether all ranks must run this operator in the same order.
    pub fn is_collective(&self) -> bool {
        matches!(self, Op::AllReduce | Op::ReduceScatter { .. } | Op::AllGather { .. })
    }

    /// Whether the value is that of the first operand, element for element in row-major order: an executor may give it
    /// the same bytes.
    pub fn is_alias(&self) -> bool {
        matches!(self, Op::Reshape(_) | Op::After | Op::StopGradient | Op::GivenGradient)
    }

    /// Whether the value needs no operand.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input(_) | Op::State(_) | Op::Constant(_) | Op::Fill { .. } | Op::Iota { .. })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Input(id) => write!(f, "input #{}", id.0),
            Op::State(id) => write!(f, "state #{}", id.0),
            Op::Constant(array) => write!(f, "constant {}{}", array.dtype(), array.shape()),
            Op::Fill { value, .. } => write!(f, "fill {value}"),
            Op::Iota { axis, .. } => write!(f, "iota axis={axis}"),
            Op::Random { key, .. } => write!(f, "random key={key:#x}"),
            Op::Unary(op) => write!(f, "{}", format!("{op:?}").to_lowercase()),
            Op::Binary(op) => write!(f, "{}", format!("{op:?}").to_lowercase()),
            Op::Compare(op) => write!(f, "{}", format!("{op:?}").to_lowercase()),
            Op::Select => write!(f, "select"),
            Op::Cast(_) => write!(f, "cast"),
            Op::MatMul { transpose_a, transpose_b, .. } => {
                let flag = |t: &bool| if *t { 't' } else { 'n' };
                write!(f, "matmul.{}{}", flag(transpose_a), flag(transpose_b))
            }
            Op::MatMulAdd { transpose_a, transpose_b, factor } => {
                let flag = |t: &bool| if *t { 't' } else { 'n' };
                write!(f, "matmul_add.{}{} factor={factor}", flag(transpose_a), flag(transpose_b))
            }
            Op::ScaledMatMul { transpose_a, transpose_b, .. } => {
                let flag = |t: &bool| if *t { 't' } else { 'n' };
                write!(f, "scaled_matmul.{}{}", flag(transpose_a), flag(transpose_b))
            }
            Op::Reduce { op, axes } => write!(f, "{} axes={axes:?}", format!("{op:?}").to_lowercase()),
            Op::Reshape(_) => write!(f, "reshape"),
            Op::Permute(order) => write!(f, "permute {order:?}"),
            Op::Broadcast(_) => write!(f, "broadcast"),
            Op::Slice { axis, start, len } => write!(f, "slice axis={axis} {start}..{}", start + len),
            Op::Concat { axis } => write!(f, "concat axis={axis}"),
            Op::Pad { axis, before, after } => write!(f, "pad axis={axis} {before}+{after}"),
            Op::Gather { axis } => write!(f, "gather axis={axis}"),
            Op::ScatterAdd { axis, extent } => write!(f, "scatter_add axis={axis} extent={extent}"),
            Op::SegmentSum => write!(f, "segment_sum"),
            Op::SegmentRepeat { rows } => write!(f, "segment_repeat rows={rows}"),
            Op::SegmentSoftmax => write!(f, "segment_softmax"),
            Op::Attention(spec) => write!(f, "attention {spec}"),
            Op::AttentionGrad(spec) => write!(f, "attention_grad {spec}"),
            Op::NormedAttention(spec) => write!(f, "normed_attention {}", spec.attention),
            Op::NormedAttentionGrad(spec) => write!(f, "normed_attention_grad {}", spec.attention),
            Op::Side(index) => write!(f, "side {index}"),
            Op::After => write!(f, "after"),
            Op::StopGradient => write!(f, "stop_gradient"),
            Op::GivenGradient => write!(f, "given_gradient"),
            Op::AllReduce => write!(f, "all_reduce"),
            Op::ReduceScatter { world } => write!(f, "reduce_scatter world={world}"),
            Op::AllGather { world } => write!(f, "all_gather world={world}"),
        }
    }
}

impl fmt::Display for AttentionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scale={:.6}{}", self.scale, if self.causal { " causal" } else { "" })
    }
}
