//! Kernels in execution order, over buffers: the result of lowering.

use std::sync::Arc;

use super::{Access, Class};
use pawl_graph::{
    array::Array,
    graph::{AttentionSpec, BinaryOp, CompareOp, DType, InputId, ReduceOp, StateId, UnaryOp},
};

/// Storage of a buffer.
#[derive(Debug, Clone, PartialEq)]
pub enum Storage {
    /// Given by the caller for each run; read only.
    Input(InputId),
    /// A state of the program: persists between runs.
    State(StateId),
    /// Embedded in the program; read only.
    Constant(Arc<Array>),
    /// Output of the program: stays until its next run.
    Output(usize),
    /// In the arena, at a place given by the [`MemoryPlan`](super::MemoryPlan), for part of a run.
    Arena,
}

/// Contiguous elements of one dtype.
#[derive(Debug, Clone, PartialEq)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub elements: usize,
    /// Storage.
    pub storage: Storage,
    /// Indices of the first and the last kernel that access it.
    pub life: (usize, usize),
}

impl Buffer {
    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }
}

/// One kernel of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// The computation.
    pub body: Body,
    /// Scope path of the node that it computes (of the last one, if it is fused).
    pub scope: String,
}

/// The computation of a kernel.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there are hundreds of kernels, not millions")]
pub enum Body {
    /// Loops over elements.
    Fused(Fused),
    /// Products of matrices.
    MatMul(MatMul),
    /// Attention: output, and the log-sum-exp of each row.
    Attention(Attention),
    /// Gradient of attention.
    AttentionGrad(AttentionGrad),
    /// `to[outer, i, inner] = from[outer, indices[i], inner]`.
    Gather(Lookup),
    /// `to` zeroed, then `to[outer, indices[i], inner] += from[outer, i, inner]` in order of i.
    ScatterAdd(Lookup),
    /// Sums, copies or softmax over segments of rows.
    Segments(Segments),
    /// A sum or a concatenation over ranks.
    Collective(Collect),
}

/// Loops over `rows x cols` elements in row-major order, for each of which a program in single-assignment form is run.
///
/// Values are numbered: first the loads, then the instructions. A value's [`Class`] says how it varies. A
/// [`Instruction::Reduce`] needs all columns of a row, so that kernels with one do not split rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Fused {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns: elements of a row.
    pub cols: usize,
    /// Values `0 .. loads.len()`, read from buffers.
    pub loads: Vec<Load>,
    /// Values `loads.len() ..`, computed.
    pub code: Vec<Instruction>,
    /// Dtype and class of every value.
    pub values: Vec<(DType, Class)>,
    /// Values that are written elementwise.
    pub stores: Vec<Store>,
    /// Values that are reduced over rows; written after the last row.
    pub folds: Vec<Fold>,
    /// Number of equal parts of the rows, each of which is folded separately.
    pub segments: usize,
}

/// A value read from a buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The view that is read: seen as `rows * cols` elements (`rows` of them for a row value of a kernel that knows no
    /// other form).
    pub from: Access,
}

/// A value written to a buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// The value: [`Class::Row`] values are written once per row, others once per element.
    pub value: usize,
    /// Whether one element per row is written.
    pub per_row: bool,
    /// The view that is written.
    pub to: Access,
}

/// A reduction whose result the kernel itself does not read.
#[derive(Debug, Clone, PartialEq)]
pub struct Fold {
    /// The value reduced.
    pub value: usize,
    /// Sum or maximum.
    pub op: ReduceOp,
    /// Whether each column is reduced over the rows of its segment (else all elements of the segment give one).
    pub per_column: bool,
    /// `[segments, cols]` or `[segments]`, contiguous.
    pub to: Access,
}

/// One instruction over values of a [`Fused`] kernel.
#[derive(Debug, Clone, PartialEq)]
pub enum Instruction {
    /// A number (rounded to the dtype).
    Immediate(f64),
    /// Index of the element along an axis: `element / inner % extent`.
    Iota {
        /// Elements in a step of the axis.
        inner: usize,
        /// Extent of the axis.
        extent: usize,
    },
    /// Uniform draw of the stream `key` at a counter; the element's number is its index.
    Random {
        /// Stream.
        key: u64,
        /// The counter (a scalar value).
        counter: usize,
    },
    /// Function of one value.
    Unary(UnaryOp, usize),
    /// Function of two values.
    Binary(BinaryOp, usize, usize),
    /// Comparison of two values.
    Compare(CompareOp, usize, usize),
    /// First where the condition holds, else second.
    Select(usize, usize, usize),
    /// Rounded to the dtype of the result.
    Cast(usize),
    /// All columns of a row to one value, a [`Class::Row`] value.
    Reduce(ReduceOp, usize),
}

impl Instruction {
    /// The values that it reads.
    pub fn operands(&self) -> impl Iterator<Item = usize> {
        let (list, len) = match *self {
            Instruction::Immediate(_) | Instruction::Iota { .. } => ([0; 3], 0),
            Instruction::Random { counter: x, .. } | Instruction::Unary(_, x) => ([x, 0, 0], 1),
            Instruction::Cast(x) | Instruction::Reduce(_, x) => ([x, 0, 0], 1),
            Instruction::Binary(_, a, b) | Instruction::Compare(_, a, b) => ([a, b, 0], 2),
            Instruction::Select(c, a, b) => ([c, a, b], 3),
        };
        list.into_iter().take(len)
    }
}

/// `c = factor (a b) + add`, or just `a b`, for each of a batch; products summed in the accumulator dtype and rounded
/// once.
#[derive(Debug, Clone, PartialEq)]
pub struct MatMul {
    /// `[batch.., m, k]`
    pub a: Access,
    /// `[batch.., k, n]`
    pub b: Access,
    /// `[batch.., m, n]`
    pub c: Access,
    /// What the product is added to, `[m, n]` of the dtype of c, and the factor of the product before: of
    /// [`Op::MatMulAdd`](pawl_graph::graph::Op::MatMulAdd).
    pub add: Option<(Access, f64)>,
    /// With 8-bit operands: scales `[m]` and `[n]`, by which sums are multiplied before they are rounded. A stride of 0
    /// repeats one for all.
    pub scales: Option<[Access; 2]>,
}

impl MatMul {
    /// `(batch, m, n, k)`
    pub fn extents(&self) -> (usize, usize, usize, usize) {
        let rank = self.c.dims.len();
        let batch = self.c.dims[..rank - 2].iter().product();
        (batch, self.c.dims[rank - 2], self.c.dims[rank - 1], self.a.dims[rank - 1])
    }
}

/// See [`Op::Attention`](pawl_graph::graph::Op::Attention).
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Scale and mask.
    pub spec: AttentionSpec,
    /// Normalisation of queries and keys, of [`Op::NormedAttention`](pawl_graph::graph::Op::NormedAttention).
    pub norm: Option<Norm>,
    /// `[b, h, t, d]`
    pub q: Access,
    /// `[b, g, s, d]`
    pub k: Access,
    /// `[b, g, s, d]`
    pub v: Access,
    /// `[b, h, t, d]`, written
    pub o: Access,
    /// `[b, h, t, 1]`, written if any kernel reads it
    pub lse: Option<Access>,
}

/// Operands of the normalisation of [`Op::NormedAttention`](pawl_graph::graph::Op::NormedAttention). All contiguous.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Added to the mean square.
    pub epsilon: f64,
    /// Biases of queries `[h, d]`, keys `[g, d]` and values `[g, d]`.
    pub biases: [Access; 3],
    /// Gain of queries and keys together, `[d]`.
    pub gain: Access,
}

/// See [`Op::AttentionGrad`](pawl_graph::graph::Op::AttentionGrad).
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionGrad {
    /// The forward pass; its `lse` is read.
    pub forward: Attention,
    /// Gradient of the output, `[b, h, t, d]`, read.
    pub grad: Access,
    /// Gradient of the queries, `[b, h, t, d]`, written.
    pub dq: Access,
    /// Gradient of the keys, `[b, g, s, d]`, written.
    pub dk: Access,
    /// Gradient of the values, `[b, g, s, d]`, written.
    pub dv: Access,
    /// With [`Attention::norm`]: gradients of the three biases and of the gain, of each batch and head, written;
    /// contiguous.
    pub sums: Option<[Access; 4]>,
}

impl Attention {
    fn reads(&self) -> impl Iterator<Item = &Access> {
        let vectors = self.norm.iter().flat_map(|norm| norm.biases.iter().chain([&norm.gain]));
        [&self.q, &self.k, &self.v].into_iter().chain(vectors)
    }
}

/// A gather or a scatter.
#[derive(Debug, Clone, PartialEq)]
pub struct Lookup {
    /// `[outer, extent, inner]` for a gather, `[outer, indices, inner]` for a scatter; contiguous.
    pub from: Access,
    /// `[indices]`, U32; contiguous.
    pub indices: Access,
    /// `[outer, indices, inner]` for a gather, `[outer, extent, inner]` for a scatter; contiguous.
    pub to: Access,
}

/// What is computed of segments of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentOp {
    /// `to[i]` is the sum of the rows of segment i.
    Sum,
    /// Rows of segment i are `from[i]`, all others zero.
    Repeat,
    /// Softmax over the rows of each segment, of each column for itself; rows of no segment are zero.
    Softmax,
}

/// See [`Op::SegmentSum`](pawl_graph::graph::Op::SegmentSum),
/// [`Op::SegmentRepeat`](pawl_graph::graph::Op::SegmentRepeat) and
/// [`Op::SegmentSoftmax`](pawl_graph::graph::Op::SegmentSoftmax).
#[derive(Debug, Clone, PartialEq)]
pub struct Segments {
    /// What is computed.
    pub op: SegmentOp,
    /// `[rows, inner]`, contiguous: rows of segments, for [`SegmentOp::Repeat`] one row for each segment.
    pub from: Access,
    /// `[segments + 1]`, U32; contiguous.
    pub offsets: Access,
    /// `[m]`, U32; contiguous: the rows of segments by number, for [`SegmentOp::Sum`] only. Without it, rows follow
    /// each other.
    pub order: Option<Access>,
    /// `[rows, inner]`, contiguous: rows of segments, for [`SegmentOp::Sum`] one row for each segment.
    pub to: Access,
}

impl Segments {
    /// Number of segments.
    pub fn count(&self) -> usize {
        self.offsets.elements() - 1
    }

    /// Number of columns.
    pub fn inner(&self) -> usize {
        self.to.dims[1]
    }

    /// Number of rows that offsets may count.
    pub fn rows(&self) -> usize {
        match (&self.order, self.op) {
            (Some(order), _) => order.elements(),
            (None, SegmentOp::Repeat) => self.to.dims[0],
            (None, _) => self.from.dims[0],
        }
    }
}

/// Kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectOp {
    /// Sum; every rank gets all of it.
    AllReduce,
    /// Sum; each rank gets its own part.
    ReduceScatter,
    /// Concatenation; every rank gets all of it.
    AllGather,
}

/// A collective over contiguous views. For an all-reduce, `from` and `to` may be one buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Collect {
    /// Kind.
    pub op: CollectOp,
    /// This rank's contribution.
    pub from: Access,
    /// The result.
    pub to: Access,
}

impl Body {
    /// The views that are read.
    pub fn reads(&self) -> Vec<&Access> {
        match self {
            Body::Fused(f) => f.loads.iter().map(|l| &l.from).collect(),
            Body::MatMul(m) => {
                let added = m.add.iter().map(|(access, _)| access);
                [&m.a, &m.b].into_iter().chain(added).chain(m.scales.iter().flatten()).collect()
            }
            Body::Attention(a) => a.reads().collect(),
            Body::AttentionGrad(g) => {
                let f = &g.forward;
                f.reads().chain([&f.o, &g.grad]).chain(&f.lse).collect()
            }
            Body::Gather(l) | Body::ScatterAdd(l) => vec![&l.from, &l.indices],
            Body::Segments(s) => [&s.from, &s.offsets].into_iter().chain(&s.order).collect(),
            Body::Collective(c) => vec![&c.from],
        }
    }

    /// The views that are written.
    pub fn writes(&self) -> Vec<&Access> {
        match self {
            Body::Fused(f) => f.stores.iter().map(|s| &s.to).chain(f.folds.iter().map(|f| &f.to)).collect(),
            Body::MatMul(m) => vec![&m.c],
            Body::Attention(a) => std::iter::once(&a.o).chain(&a.lse).collect(),
            Body::AttentionGrad(g) => [&g.dq, &g.dk, &g.dv].into_iter().chain(g.sums.iter().flatten()).collect(),
            Body::Gather(l) | Body::ScatterAdd(l) => vec![&l.to],
            Body::Segments(s) => vec![&s.to],
            Body::Collective(c) => vec![&c.to],
        }
    }

    /// Number of floating point operations: a multiply-add counts as 2, an elementwise function as 1.
    pub fn flops(&self) -> u64 {
        let per_head = |a: &Attention| (a.q.elements() * a.k.dims[2]) as u64;
        match self {
            Body::Fused(f) => {
                let cost = |value: usize| match f.values[value].1 {
                    Class::Full => (f.rows * f.cols) as u64,
                    Class::Row => f.rows as u64,
                    Class::Col => f.cols as u64,
                    Class::Scalar => 1,
                };
                let code = f.code.iter().enumerate().map(|(i, instruction)| match instruction {
                    Instruction::Immediate(_) => 0,
                    Instruction::Reduce(_, x) => cost(*x),
                    _ => cost(f.loads.len() + i),
                });
                code.chain(f.folds.iter().map(|fold| cost(fold.value))).sum()
            }
            Body::MatMul(m) => {
                let (batch, rows, cols, depth) = m.extents();
                2 * (batch * rows * cols * depth) as u64
            }
            Body::Attention(a) => 4 * per_head(a),
            Body::AttentionGrad(g) => 10 * per_head(&g.forward),
            Body::ScatterAdd(l) => l.from.elements() as u64,
            Body::Segments(s) => match s.op {
                SegmentOp::Sum => (s.rows() * s.inner()) as u64,
                SegmentOp::Repeat => 0,
                // Maximum, difference, exponential, sum, quotient.
                SegmentOp::Softmax => 5 * s.to.elements() as u64,
            },
            Body::Gather(_) | Body::Collective(_) => 0,
        }
    }

    /// Short name of the kind: `fused`, `matmul`, ..
    pub fn name(&self) -> &'static str {
        match self {
            Body::Fused(f) if f.code.is_empty() => "copy",
            Body::Fused(_) => "fused",
            Body::MatMul(_) => "matmul",
            Body::Attention(_) => "attention",
            Body::AttentionGrad(_) => "attention_grad",
            Body::Gather(_) => "gather",
            Body::ScatterAdd(_) => "scatter_add",
            Body::Segments(s) => match s.op {
                SegmentOp::Sum => "segment_sum",
                SegmentOp::Repeat => "segment_repeat",
                SegmentOp::Softmax => "segment_softmax",
            },
            Body::Collective(_) => "collective",
        }
    }
}
