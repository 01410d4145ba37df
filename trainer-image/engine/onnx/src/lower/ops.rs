//! One case for each operator. What each means is documented at [`Op`].

use pawl_graph::graph::{BinaryOp, CompareOp, DType, Node, NodeId, Op, ReduceOp, UnaryOp};

use super::{Lowering, int, ints, string};
use crate::{
    OnnxError,
    extents::Extent,
    proto::DataType,
    tensor::{data_type, of_array},
};

/// An extent that ONNX infers.
pub(super) const INFERRED: Extent = Extent { fixed: -1, per_batch: 0 };
/// Unsigned integers are less than this; their arithmetic wraps.
const WORDS: i64 = 1 << 32;

impl Lowering<'_> {
    /// Appends what computes node `id`, and returns the name of its value.
    #[expect(clippy::too_many_lines, reason = "one case for each operator")]
    pub(super) fn node(&mut self, id: NodeId, node: &Node) -> Result<String, OnnxError> {
        let extents = self.extents[id.index()].clone();
        Ok(match &node.op {
            Op::Input(input) => self.program.inputs[input.0 as usize].name.clone(),
            Op::State(state) => self.program.state_decl(*state).name.clone(),
            Op::Constant(array) => {
                let tensor = of_array(self.fresh(), array).ok_or_else(|| self.unknown(node))?;
                self.constant(tensor)
            }
            Op::Fill { value, dtype, .. } => self.fill(*value, *dtype, &extents),
            Op::Iota { axis, .. } => self.iota(*axis, &extents),
            Op::Unary(op) => self.unary(*op, node.operands[0]),
            Op::Binary(op) => self.binary(*op, node),
            Op::Compare(op) => self.compare(*op, node),
            Op::Select => {
                let operands = self.elementwise(&node.operands);
                self.apply("Where", &names(&operands))
            }
            Op::Cast(dtype) => self.cast(node.operands[0], *dtype).ok_or_else(|| self.unknown(node))?,
            Op::MatMul { transpose_a, transpose_b, .. } => self.product(node, *transpose_a, *transpose_b),
            Op::MatMulAdd { transpose_a, transpose_b, factor } => {
                let product = self.product(node, *transpose_a, *transpose_b);
                let factor = self.scalar(*factor, node.meta.dtype);
                let scaled = self.apply("Mul", &[&product, &factor]);
                let added = self.narrow(node.operands[2]);
                self.apply("Add", &[&scaled, &added])
            }
            Op::Reduce { op, axes } => self.reduce(*op, axes, node),
            Op::Reshape(_) => {
                let (x, shape) = (self.value(node.operands[0]), self.shape(&extents));
                self.apply("Reshape", &[&x, &shape])
            }
            Op::Permute(order) => {
                let x = self.value(node.operands[0]);
                self.transposed(&x, order.clone())
            }
            Op::Slice { axis, start, .. } => {
                let x = self.value(node.operands[0]);
                self.sliced(&x, *axis, *start, extents[*axis])
            }
            Op::Concat { axis } => {
                let parts: Vec<String> = node.operands.iter().map(|&part| self.value(part)).collect();
                self.apply_with("Concat", &names(&parts), vec![int("axis", *axis as i64)])
            }
            Op::Pad { axis, before, after } => {
                let rank = extents.len();
                let mut pads = vec![0; 2 * rank];
                (pads[*axis], pads[rank + axis]) = (*before as i64, *after as i64);
                let (x, pads) = (self.value(node.operands[0]), self.vector(pads));
                self.apply("Pad", &[&x, &pads])
            }
            Op::Gather { axis } => {
                let (x, indices) = (self.value(node.operands[0]), self.value(node.operands[1]));
                self.gathered(&x, &indices, *axis)
            }
            Op::ScatterAdd { axis, .. } => self.scatter_add(*axis, node, &extents),
            Op::SegmentSum => self.segment_sum(node, &extents),
            Op::SegmentRepeat { .. } => self.segment_repeat(node, &extents),
            Op::SegmentSoftmax => self.segment_softmax(node, &extents),
            Op::Attention(spec) => self.attention(*spec, node)?,
            Op::After | Op::StopGradient | Op::GivenGradient => self.value(node.operands[0]),
            // Emitted where it is read: see `Lowering::value`.
            Op::Broadcast(_) => self.value(id),
            // ONNX's random numbers are other ones; 8-bit floats have no scaled product; gradients and fused forms are
            // of training; no model communicates.
            Op::Random { .. }
            | Op::ScaledMatMul { .. }
            | Op::AttentionGrad(_)
            | Op::NormedAttention(_)
            | Op::NormedAttentionGrad(_)
            | Op::Side(_)
            | Op::AllReduce
            | Op::ReduceScatter { .. }
            | Op::AllGather { .. } => return Err(self.unknown(node)),
        })
    }

    fn dtype(&self, id: NodeId) -> DType {
        self.program.graph.meta(id).dtype
    }

    fn iota(&mut self, axis: usize, extents: &[Extent]) -> String {
        let counting = self.range(extents[axis]);
        let mut line = vec![Extent::fixed(1); extents.len()];
        line[axis] = extents[axis];
        let (line, shape) = (self.shape(&line), self.shape(extents));
        let line = self.apply("Reshape", &[&counting, &line]);
        self.apply("Expand", &[&line, &shape])
    }

    fn unary(&mut self, op: UnaryOp, operand: NodeId) -> String {
        let x = self.value(operand);
        let name = match op {
            UnaryOp::Neg => "Neg",
            UnaryOp::Exp => "Exp",
            UnaryOp::Log => "Log",
            UnaryOp::Sqrt => "Sqrt",
            UnaryOp::Recip => "Reciprocal",
            UnaryOp::Erf => "Erf",
            UnaryOp::Tanh => "Tanh",
            UnaryOp::Sigmoid => "Sigmoid",
            UnaryOp::Sin => "Sin",
            UnaryOp::Cos => "Cos",
            UnaryOp::Abs => "Abs",
            UnaryOp::Sign => "Sign",
            UnaryOp::Floor => "Floor",
            UnaryOp::Square => return self.apply("Mul", &[&x, &x]),
            UnaryOp::Rsqrt => {
                let root = self.apply("Sqrt", &[&x]);
                return self.apply("Reciprocal", &[&root]);
            }
            UnaryOp::IsFinite => {
                let (infinite, nan) = (self.apply("IsInf", &[&x]), self.apply("IsNaN", &[&x]));
                let either = self.apply("Or", &[&infinite, &nan]);
                return self.apply("Not", &[&either]);
            }
        };
        self.apply(name, &[&x])
    }

    fn binary(&mut self, op: BinaryOp, node: &Node) -> String {
        let operands = self.elementwise(&node.operands);
        let (a, b) = (&operands[0], &operands[1]);
        let name = match op {
            BinaryOp::Add => "Add",
            BinaryOp::Sub => "Sub",
            BinaryOp::Mul => "Mul",
            BinaryOp::Div => "Div",
            BinaryOp::Max if node.meta.dtype == DType::U32 => return self.chosen("Greater", a, b),
            BinaryOp::Min if node.meta.dtype == DType::U32 => return self.chosen("Less", a, b),
            BinaryOp::Max => "Max",
            BinaryOp::Min => "Min",
        };
        let result = self.apply(name, &[a, b]);
        self.wrapped(result, node.meta.dtype)
    }

    /// a where it compares so to b, else b. ONNX Runtime 1.31 does not compare all bits of integers in `Min` and `Max`.
    fn chosen(&mut self, comparison: &str, a: &str, b: &str) -> String {
        let first = self.apply(comparison, &[a, b]);
        self.apply("Where", &[&first, a, b])
    }

    /// Arithmetic of integers, modulo 2^32.
    fn wrapped(&mut self, result: String, dtype: DType) -> String {
        if dtype != DType::U32 {
            return result;
        }
        let words = self.integer(WORDS);
        self.apply("Mod", &[&result, &words])
    }

    fn compare(&mut self, op: CompareOp, node: &Node) -> String {
        let operands = self.elementwise(&node.operands);
        let name = match op {
            CompareOp::Eq | CompareOp::Ne => "Equal",
            CompareOp::Lt => "Less",
            CompareOp::Le => "LessOrEqual",
            CompareOp::Gt => "Greater",
            CompareOp::Ge => "GreaterOrEqual",
        };
        let result = self.apply(name, &names(&operands));
        if op == CompareOp::Ne { self.apply("Not", &[&result]) } else { result }
    }

    /// `None` where models have no values of the type.
    fn cast(&mut self, operand: NodeId, to: DType) -> Option<String> {
        let (from, kind) = (self.dtype(operand), data_type(to)?);
        let x = self.value(operand);
        if from == to {
            return Some(x);
        }
        if !(to == DType::U32 && from.is_float()) {
            return Some(self.converted(&x, kind));
        }
        // Truncates and saturates: not at the last number itself, which is no 32-bit float.
        let (low, high) = (self.scalar(0.0, from), self.scalar(WORDS as f64, from));
        let clipped = self.apply("Clip", &[&x, &low, &high]);
        let (integers, last) = (self.converted(&clipped, kind), self.integer(WORDS - 1));
        Some(self.chosen("Less", &integers, &last))
    }

    fn converted(&mut self, x: &str, to: DataType) -> String {
        self.apply_with("Cast", &[x], vec![int("to", i32::from(to).into())])
    }

    /// The product of the first two operands.
    fn product(&mut self, node: &Node, transpose_a: bool, transpose_b: bool) -> String {
        let mut factor = |index: usize, transpose: bool| {
            let operand = node.operands[index];
            let x = self.value(operand);
            if !transpose {
                return x;
            }
            let rank = self.extents[operand.index()].len();
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(rank - 2, rank - 1);
            self.transposed(&x, order)
        };
        let (a, b) = (factor(0, transpose_a), factor(1, transpose_b));
        self.apply("MatMul", &[&a, &b])
    }

    fn reduce(&mut self, op: ReduceOp, axes: &[usize], node: &Node) -> String {
        let x = self.value(node.operands[0]);
        let axes = self.vector(axes.iter().map(|&axis| axis as i64).collect());
        let keep = vec![int("keepdims", 1)];
        match op {
            ReduceOp::Sum => {
                let sum = self.apply_with("ReduceSum", &[&x, &axes], keep);
                self.wrapped(sum, node.meta.dtype)
            }
            ReduceOp::Max => self.apply_with("ReduceMax", &[&x, &axes], keep),
        }
    }

    fn scatter_add(&mut self, axis: usize, node: &Node, extents: &[Extent]) -> String {
        let mut flat = extents.to_vec();
        flat[axis] = INFERRED;
        let mut line = vec![Extent::fixed(1); extents.len()];
        line[axis] = INFERRED;
        let (updates, indices) = (self.value(node.operands[0]), self.value(node.operands[1]));
        let (flat, line) = (self.shape(&flat), self.shape(&line));
        let updates = self.apply("Reshape", &[&updates, &flat]);
        let indices = self.apply("Reshape", &[&indices, &line]);
        let indices = self.expanded_like(&indices, &updates);
        let zeros = self.fill(0.0, node.meta.dtype, extents);
        self.scattered(&zeros, &indices, &updates, axis, "add")
    }

    pub(super) fn expanded_like(&mut self, x: &str, like: &str) -> String {
        let shape = self.apply("Shape", &[like]);
        self.apply("Expand", &[x, &shape])
    }

    /// `into`, with each update joined at its index along `axis`.
    pub(super) fn scattered(
        &mut self,
        into: &str,
        indices: &str,
        updates: &str,
        axis: usize,
        reduction: &str,
    ) -> String {
        let attributes = vec![int("axis", axis as i64), string("reduction", reduction)];
        self.apply_with("ScatterElements", &[into, indices, updates], attributes)
    }

    pub(super) fn gathered(&mut self, x: &str, indices: &str, axis: usize) -> String {
        self.apply_with("Gather", &[x, indices], vec![int("axis", axis as i64)])
    }

    pub(super) fn transposed(&mut self, x: &str, order: Vec<usize>) -> String {
        let order = order.into_iter().map(|axis| axis as i64).collect();
        self.apply_with("Transpose", &[x], vec![ints("perm", order)])
    }

    /// `len` elements along `axis` from `start` on.
    pub(super) fn sliced(&mut self, x: &str, axis: usize, start: usize, len: Extent) -> String {
        let end = self.shape(&[len.plus(start as i64)]);
        let (start, axis) = (self.vector(vec![start as i64]), self.vector(vec![axis as i64]));
        self.apply("Slice", &[x, &start, &end, &axis])
    }
}

fn names(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
