//! Values under construction, and the expressions over them.

use std::ops;

use super::Builder;
use crate::graph::{
    AttentionSpec, BinaryOp, CompareOp, DType, GraphError, Meta, NodeId, NormedAttentionSpec, Op, ReduceOp, Shape,
    UnaryOp,
};

/// A value of a program under construction. Binary operators broadcast both sides (inserting [`Op::Broadcast`]); a
/// number on the right is a constant of the left side's dtype.
#[derive(Clone, Copy)]
pub struct Var<'b> {
    pub(super) builder: &'b Builder,
    pub(super) id: Option<NodeId>,
}

impl std::fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.id {
            Some(id) => write!(f, "%{}", id.0),
            None => write!(f, "poisoned"),
        }
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Self {
            self.apply(Op::Unary(UnaryOp::$op))
        }
    )*};
}

macro_rules! compare {
    ($($(#[$doc:meta])* $name:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, other: impl Operand<'b>) -> Self {
            self.both(other, Op::Compare(CompareOp::$op))
        }
    )*};
}

/// The right operand of an expression: a value or a number.
pub trait Operand<'b> {
    /// The operand as a value; a number becomes a scalar of the dtype of `left`.
    fn beside(self, left: Var<'b>) -> Var<'b>;
}

impl<'b> Operand<'b> for Var<'b> {
    fn beside(self, _left: Var<'b>) -> Var<'b> {
        self
    }
}

impl<'b> Operand<'b> for f64 {
    fn beside(self, left: Var<'b>) -> Var<'b> {
        left.builder.scalar(self, left.dtype())
    }
}

impl<'b> Var<'b> {
    /// The builder of the program that the value belongs to.
    pub fn builder(self) -> &'b Builder {
        self.builder
    }

    /// The node; `None` when the value is poisoned by a mistake.
    pub fn id(self) -> Option<NodeId> {
        self.id
    }

    /// Dtype and shape (of a poisoned value: an f32 scalar).
    pub fn meta(self) -> Meta {
        let of = |id| self.builder.peek(|p| p.graph.meta(id).clone());
        self.id.map_or_else(|| Meta::new(DType::F32, []), of)
    }

    /// Extents.
    pub fn shape(self) -> Shape {
        self.meta().shape
    }

    /// Element type.
    pub fn dtype(self) -> DType {
        self.meta().dtype
    }

    /// Extent of an axis; 1 when there is no such axis.
    pub fn dim(self, axis: usize) -> usize {
        self.shape().get(axis).copied().unwrap_or(1)
    }

    unary! {
        /// `e^x`
        exp Exp;
        /// Natural logarithm.
        log Log;
        /// Square root.
        sqrt Sqrt;
        /// `1 / sqrt(x)`
        rsqrt Rsqrt;
        /// `1 / x`
        recip Recip;
        /// Gauss error function.
        erf Erf;
        /// Hyperbolic tangent.
        tanh Tanh;
        /// Logistic function.
        sigmoid Sigmoid;
        /// Sine.
        sin Sin;
        /// Cosine.
        cos Cos;
        /// Absolute value.
        abs Abs;
        /// `x * x`
        square Square;
        /// -1, 0 or 1.
        sign Sign;
        /// Largest integer not above.
        floor Floor;
        /// Whether finite; Bool.
        is_finite IsFinite;
    }

    compare! {
        /// Where equal; Bool.
        equal Eq;
        /// Where not equal; Bool.
        not_equal Ne;
        /// Where less; Bool.
        less Lt;
        /// Where less or equal; Bool.
        less_equal Le;
        /// Where greater; Bool.
        greater Gt;
        /// Where greater or equal; Bool.
        greater_equal Ge;
    }

    /// The larger of two numbers, elementwise.
    #[track_caller]
    pub fn maximum(self, other: impl Operand<'b>) -> Self {
        self.both(other, Op::Binary(BinaryOp::Max))
    }

    /// The smaller of two numbers, elementwise.
    #[track_caller]
    pub fn minimum(self, other: impl Operand<'b>) -> Self {
        self.both(other, Op::Binary(BinaryOp::Min))
    }

    /// `a` where this (Bool) is true, else `b`, elementwise. All three broadcast to one shape; `a` and `b` have one
    /// dtype.
    #[track_caller]
    pub fn select(self, a: Var<'b>, b: impl Operand<'b>) -> Self {
        let b = b.beside(a);
        let joint = a.shape().broadcast_with(&b.shape()).and_then(|s| s.broadcast_with(&self.shape()));
        match joint {
            Some(s) => self.builder.push(Op::Select, &[self.broadcast(&s), a.broadcast(&s), b.broadcast(&s)]),
            None => self.builder.push(Op::Select, &[self, a, b]),
        }
    }

    /// The value in `dtype`, rounded: see [`Op::Cast`].
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Self {
        if self.dtype() == dtype { self } else { self.apply(Op::Cast(dtype)) }
    }

    /// Matrix product `self @ other` over the last two axes: `[.., m, k]` by `[.., k, n]` is `[.., m, n]`, of one float
    /// dtype. A rank-2 `other` multiplies every row of a `self` of higher rank.
    #[track_caller]
    pub fn matmul(self, other: Var<'b>) -> Self {
        self.product(other, false, false)
    }

    /// `self @ other^T`: `[.., m, k]` by `[.., n, k]`, the product with a weight stored as `[out, in]`.
    #[track_caller]
    pub fn matmul_t(self, other: Var<'b>) -> Self {
        self.product(other, false, true)
    }

    /// `self^T @ other`: `[.., k, m]` by `[.., k, n]`.
    #[track_caller]
    pub fn t_matmul(self, other: Var<'b>) -> Self {
        self.product(other, true, false)
    }

    #[track_caller]
    fn product(self, other: Var<'b>, transpose_a: bool, transpose_b: bool) -> Self {
        let op = Op::MatMul { transpose_a, transpose_b, output: self.dtype() };
        let (shape, rank) = (self.shape(), self.shape().rank());
        if rank > 2 && other.shape().rank() == 2 && !transpose_a {
            let rows: usize = shape[..rank - 1].iter().product();
            let flat = self.builder.push(op, &[self.reshape([rows, shape[rank - 1]]), other]);
            return flat.reshape(shape.with(rank - 1, flat.dim(1)));
        }
        self.builder.push(op, &[self, other])
    }

    /// The product `self @ other^T` of 8-bit floats with scales, in `output`: see [`Op::ScaledMatMul`].
    #[track_caller]
    pub fn scaled_matmul_t(self, other: Var<'b>, [scale, scale_other]: [Var<'b>; 2], output: DType) -> Self {
        let op = Op::ScaledMatMul { transpose_a: false, transpose_b: true, output };
        self.builder.push(op, &[self, other, scale, scale_other])
    }

    /// Sum over `axes`, which keep extent 1. Without axes: the value itself.
    #[track_caller]
    pub fn sum(self, axes: impl AsRef<[usize]>) -> Self {
        self.reduce(ReduceOp::Sum, axes.as_ref())
    }

    /// Maximum over `axes`, which keep extent 1. Without axes: the value itself.
    #[track_caller]
    pub fn max(self, axes: impl AsRef<[usize]>) -> Self {
        self.reduce(ReduceOp::Max, axes.as_ref())
    }

    /// Arithmetic mean over `axes`, which keep extent 1.
    #[track_caller]
    pub fn mean(self, axes: impl AsRef<[usize]>) -> Self {
        let count: usize = axes.as_ref().iter().map(|&axis| self.dim(axis)).product();
        self.sum(axes) * (1.0 / count as f64)
    }

    /// Sum of all elements, rank 0.
    #[track_caller]
    pub fn sum_all(self) -> Self {
        self.sum((0..self.shape().rank()).collect::<Vec<_>>()).reshape(Shape::scalar())
    }

    /// Mean of all elements, rank 0.
    #[track_caller]
    pub fn mean_all(self) -> Self {
        self.mean((0..self.shape().rank()).collect::<Vec<_>>()).reshape(Shape::scalar())
    }

    #[track_caller]
    fn reduce(self, op: ReduceOp, axes: &[usize]) -> Self {
        if axes.is_empty() {
            return self;
        }
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        self.apply(Op::Reduce { op, axes })
    }

    /// The same elements, in row-major order, in another shape of as many elements.
    #[track_caller]
    pub fn reshape(self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        if self.shape() == shape { self } else { self.apply(Op::Reshape(shape)) }
    }

    /// Permutes axes: axis i of the result is axis `order[i]`.
    #[track_caller]
    pub fn permute(self, order: impl Into<Vec<usize>>) -> Self {
        let order = order.into();
        let same = order.len() == self.shape().rank() && order.iter().copied().eq(0..order.len());
        if same { self } else { self.apply(Op::Permute(order)) }
    }

    /// The last two axes exchanged.
    #[track_caller]
    pub fn transpose(self) -> Self {
        let rank = self.shape().rank();
        let mut order: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            order.swap(rank - 2, rank - 1);
        }
        self.permute(order)
    }

    /// Repeats the value to `shape`: aligned at the last axis, every extent is equal or 1.
    #[track_caller]
    pub fn broadcast(self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        if self.shape() == shape { self } else { self.apply(Op::Broadcast(shape)) }
    }

    /// Elements `start .. start + len` along `axis`.
    #[track_caller]
    pub fn slice(self, axis: usize, start: usize, len: usize) -> Self {
        if start == 0 && axis < self.shape().rank() && len == self.dim(axis) {
            return self;
        }
        self.apply(Op::Slice { axis, start, len })
    }

    /// Pads `axis` with `before` and `after` zeros.
    #[track_caller]
    pub fn pad(self, axis: usize, before: usize, after: usize) -> Self {
        if before + after == 0 { self } else { self.apply(Op::Pad { axis, before, after }) }
    }

    /// Looks `indices` (U32, any shape) up along `axis`, which is replaced by the axes of `indices`.
    #[track_caller]
    pub fn gather(self, axis: usize, indices: Var<'b>) -> Self {
        self.builder.push(Op::Gather { axis }, &[self, indices])
    }

    /// Adds these updates at `indices` (U32) along `axis` of an array of zeros whose extent there is `extent`: the
    /// transpose of [`Var::gather`].
    #[track_caller]
    pub fn scatter_add(self, axis: usize, extent: usize, indices: Var<'b>) -> Self {
        self.builder.push(Op::ScatterAdd { axis, extent }, &[self, indices])
    }

    /// Attention with this as queries `[b,h,t,d]`, and keys and values `[b,g,s,d]`, of one float dtype; `g` divides
    /// `h`. The result is `[b,h,t,d]`.
    #[track_caller]
    pub fn attention(self, keys: Var<'b>, values: Var<'b>, spec: AttentionSpec) -> Self {
        let out = self.builder.push(Op::Attention(spec), &[self, keys, values]);
        // Side results directly follow their operator, where the gradient finds them; simplification removes this one
        // when it is not used.
        out.side(1);
        out
    }

    /// Attention of normalised queries (this) and keys: see [`Op::NormedAttention`]. `vectors` are the biases of
    /// queries, keys and values, and the gain.
    #[track_caller]
    pub fn normed_attention(
        self,
        keys: Var<'b>,
        values: Var<'b>,
        vectors: [Var<'b>; 4],
        spec: NormedAttentionSpec,
    ) -> Self {
        let [bias_q, bias_k, bias_v, gain] = vectors;
        let operands = [self, keys, values, bias_q, bias_k, bias_v, gain];
        let out = self.builder.push(Op::NormedAttention(spec), &operands);
        out.side(1);
        out
    }

    /// The value, through which no gradient flows.
    #[track_caller]
    pub fn stop_gradient(self) -> Self {
        self.apply(Op::StopGradient)
    }

    /// The value (a scalar) with given derivatives: the second of each pair in `given` is the derivative with respect
    /// to the first. See [`Op::GivenGradient`].
    #[track_caller]
    pub fn with_gradients(self, given: &[(Var<'b>, Var<'b>)]) -> Self {
        let operands: Vec<Var<'b>> = std::iter::once(self).chain(given.iter().flat_map(|&(x, d)| [x, d])).collect();
        self.builder.push(Op::GivenGradient, &operands)
    }

    /// The value, computed not before `token`; no pass merges it with equal values. See [`Op::After`].
    #[track_caller]
    pub fn after(self, token: Var<'b>) -> Self {
        self.builder.push(Op::After, &[self, token])
    }

    /// Elementwise sum over all ranks, float32.
    #[track_caller]
    pub fn all_reduce(self) -> Self {
        self.apply(Op::AllReduce)
    }

    /// Side result `index` of this value's operator.
    #[track_caller]
    pub fn side(self, index: u8) -> Self {
        self.apply(Op::Side(index))
    }

    /// `softmax` along the last axis: `exp(x - max) / sum`. (The maximum only shifts: no gradient flows through it.)
    #[track_caller]
    pub fn softmax(self) -> Self {
        let last = [self.shape().rank().saturating_sub(1)];
        let e = (self - self.max(last).stop_gradient()).exp();
        e / e.sum(last)
    }

    /// Layer normalisation along the last axis: `(x - mean) * rsqrt(var + eps)`, without gain and bias.
    #[track_caller]
    pub fn layer_norm(self, eps: f64) -> Self {
        let last = [self.shape().rank().saturating_sub(1)];
        let centred = self - self.mean(last);
        centred * (centred.square().mean(last) + eps).rsqrt()
    }

    /// Root-mean-square normalisation along the last axis: `x * rsqrt(mean(x^2) + eps)`, without gain.
    #[track_caller]
    pub fn rms_norm(self, eps: f64) -> Self {
        let last = [self.shape().rank().saturating_sub(1)];
        self * (self.square().mean(last) + eps).rsqrt()
    }

    /// `x * sigmoid(x)`
    #[track_caller]
    pub fn silu(self) -> Self {
        self * self.sigmoid()
    }

    /// The exact Gauss error linear unit: `x * (1 + erf(x / sqrt 2)) / 2`.
    #[track_caller]
    pub fn gelu(self) -> Self {
        self * ((self * std::f64::consts::FRAC_1_SQRT_2).erf() * 0.5 + 0.5)
    }

    /// The approximation of [`Var::gelu`] by `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`.
    #[track_caller]
    pub fn gelu_tanh(self) -> Self {
        let inner = (self.square() * 0.044_715 + 1.0) * self * (2.0 / std::f64::consts::PI).sqrt();
        self * (inner.tanh() * 0.5 + 0.5)
    }

    /// `max(x, 0)`; NaN stays NaN, and the gradient at 0 is 0.
    #[track_caller]
    pub fn relu(self) -> Self {
        self.less_equal(0.0).select(self.builder.scalar(0.0, self.dtype()), self)
    }

    /// `max(x, slope * x)` for a slope below 1; the gradient at 0 is the slope.
    #[track_caller]
    pub fn leaky_relu(self, slope: f64) -> Self {
        self.greater(0.0).select(self, self * slope)
    }

    /// Exponential linear unit: x above 0, else `e^x - 1`.
    #[track_caller]
    pub fn elu(self) -> Self {
        let positive = self.greater(0.0);
        // The exponential of a large x would be infinite, and its gradient NaN though nothing reads it.
        let below = positive.select(self.builder.scalar(0.0, self.dtype()), self);
        positive.select(self, below.exp() - 1.0)
    }

    /// Dropout: each element is zeroed with this probability, else divided by `1 - probability`. The random numbers are
    /// a pure function of `name`, the U32 scalar `counter` and the element's index: recomputation for the backward pass
    /// draws the same mask. Each dropout of a program has its own name, and each micro-step of each rank its own
    /// counter.
    #[track_caller]
    pub fn dropout(self, name: &str, counter: Var<'b>, probability: f64) -> Self {
        let kept = self.builder.random(name, counter, self.shape()).greater_equal(probability);
        kept.select(self * (1.0 / (1.0 - probability)), 0.0)
    }

    #[track_caller]
    pub(crate) fn apply(self, op: Op) -> Self {
        self.builder.push(op, &[self])
    }

    #[track_caller]
    fn both(self, other: impl Operand<'b>, op: Op) -> Self {
        let other = other.beside(self);
        if self.id.is_none() || other.id.is_none() {
            return Self { builder: self.builder, id: None };
        }
        match self.shape().broadcast_with(&other.shape()) {
            Some(shape) => self.builder.push(op, &[self.broadcast(&shape), other.broadcast(&shape)]),
            None => self.builder.poison(GraphError::Operands {
                op: op.to_string(),
                operands: format!("{}, {}", self.meta(), other.meta()),
                reason: "shapes do not broadcast: aligned at the last axis, extents are equal or 1".into(),
            }),
        }
    }
}

/// Concatenates `parts` along `axis`; their dtypes and all other extents are equal.
///
/// # Panics
/// When there are no parts.
#[track_caller]
pub fn concat<'b>(parts: &[Var<'b>], axis: usize) -> Var<'b> {
    let first = *parts.first().expect("something to concatenate");
    if parts.len() == 1 { first } else { first.builder.push(Op::Concat { axis }, parts) }
}

macro_rules! operator {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'b, R: Operand<'b>> ops::$trait<R> for Var<'b> {
            type Output = Var<'b>;
            #[track_caller]
            fn $method(self, other: R) -> Var<'b> {
                self.both(other, Op::Binary(BinaryOp::$op))
            }
        }
    )*};
}

operator! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl ops::Neg for Var<'_> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        self.apply(Op::Unary(UnaryOp::Neg))
    }
}
