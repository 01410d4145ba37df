//! One case for each operator.

use std::{collections::HashMap, sync::Arc};

use candle_core::{DType as CandleType, Device, Tensor};

use super::{
    attention,
    convert::candle_type,
    error::OpError,
    memory::{self, Buffer, Meter},
    segments::segments,
};
use pawl_graph::{
    executor::{ExecError, ExecOptions},
    float8::{E4M3, E5M2},
    graph::{BinaryOp, CompareOp, DType, Node, NodeId, Op, Program, ReduceOp, Shape, UnaryOp},
    random,
};

/// A tensor and its buffer.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) tensor: Tensor,
    buffer: Arc<Buffer>,
}

impl Value {
    /// A tensor with a buffer of its own.
    pub(super) fn new(tensor: Tensor, meter: &Meter) -> Self {
        // A tensor that repeats one number (strides of 0) holds just that.
        let repeats = tensor.stride().iter().all(|&stride| stride == 0);
        let elements = if repeats { 1 } else { tensor.elem_count() };
        let buffer = meter.buffer(elements * tensor.dtype().size_in_bytes());
        Self { tensor, buffer }
    }

    /// Row-major: itself or a copy.
    pub(super) fn contiguous(self, meter: &Meter) -> Result<Self, OpError> {
        if self.tensor.is_contiguous() {
            return Ok(self);
        }
        Ok(Self::new(self.tensor.contiguous()?, meter))
    }
}

/// Runs nodes of one program, holding the values that are alive.
pub(super) struct Interpreter<'a> {
    program: &'a Program,
    needed: &'a [bool],
    constants: &'a [Option<Tensor>],
    options: &'a ExecOptions,
    device: &'a Device,
    meter: &'a Meter,
    values: Vec<Option<Value>>,
    sides: HashMap<(NodeId, u8), Value>,
}

impl<'a> Interpreter<'a> {
    pub(super) fn new(
        program: &'a Program,
        needed: &'a [bool],
        constants: &'a [Option<Tensor>],
        options: &'a ExecOptions,
        device: &'a Device,
        meter: &'a Meter,
    ) -> Self {
        let values = vec![None; program.graph.len()];
        Self { program, needed, constants, options, device, meter, values, sides: HashMap::new() }
    }

    pub(super) fn set(&mut self, id: NodeId, value: Value) {
        self.values[id.index()] = Some(value);
    }

    pub(super) fn get(&self, id: NodeId) -> &Value {
        self.values[id.index()].as_ref().expect("values live until their last use")
    }

    pub(super) fn free(&mut self, value: usize) {
        self.values[value] = None;
    }

    /// Computes node `id` from its operands.
    pub(super) fn compute(&mut self, id: NodeId) -> Result<(), OpError> {
        let node = self.program.graph.node(id);
        let _scratch = self.meter.buffer(memory::scratch(&self.program.graph, node));
        let value = match &node.op {
            Op::Side(index) => self.sides.remove(&(node.operands[0], *index)).expect("a side has one name"),
            _ if memory::is_view(node) => self.view(node)?,
            _ => Value::new(self.own(id, node)?, self.meter),
        };
        debug_assert_eq!(value.tensor.dims(), node.meta.shape.dims(), "{}", node.op);
        self.set(id, value);
        Ok(())
    }

    fn operand(&self, node: &Node, index: usize) -> &Tensor {
        &self.get(node.operands[index]).tensor
    }

    fn view(&self, node: &Node) -> Result<Value, OpError> {
        let of = self.get(node.operands[0]);
        let tensor = match &node.op {
            Op::Reshape(shape) if !of.tensor.is_contiguous() => {
                return Ok(Value::new(of.tensor.reshape(shape.dims())?, self.meter));
            }
            Op::Reshape(shape) => of.tensor.reshape(shape.dims())?,
            Op::Broadcast(shape) => of.tensor.broadcast_as(shape.dims())?,
            Op::Slice { axis, start, len } => of.tensor.narrow(*axis, *start, *len)?,
            _ => of.tensor.clone(),
        };
        Ok(Value { tensor, buffer: Arc::clone(&of.buffer) })
    }

    #[expect(clippy::too_many_lines, reason = "one case for each operator")]
    fn own(&mut self, id: NodeId, node: &Node) -> Result<Tensor, OpError> {
        let x = || self.operand(node, 0);
        Ok(match &node.op {
            Op::Constant(_) => self.constants[id.index()].clone().expect("constants are uploaded"),
            Op::Fill { value, shape, dtype } => fill(*value, *dtype, shape, self.device)?,
            Op::Iota { axis, shape } => iota(*axis, shape, self.device)?,
            Op::Random { key, shape } => {
                let stream = random::draw_stream(*key, x().to_scalar()?);
                let values: Vec<f32> = (0..shape.elements() as u64).map(|i| random::uniform_f32(stream, i)).collect();
                Tensor::from_vec(values, shape.dims(), self.device)?
            }
            Op::Unary(op) => unary(*op, x())?,
            Op::Binary(op) => self.binary(*op, node)?,
            Op::Compare(op) => compare(*op, x(), self.operand(node, 1))?,
            Op::Select => x().where_cond(self.operand(node, 1), self.operand(node, 2))?,
            Op::Cast(dtype) => {
                let from = self.program.graph.meta(node.operands[0]).dtype;
                cast(x(), from, *dtype)?
            }
            Op::MatMul { transpose_a, transpose_b, output } => {
                let (a, b) = (matrix(x(), *transpose_a)?, matrix(self.operand(node, 1), *transpose_b)?);
                let product = match a.dtype() {
                    CandleType::BF16 | CandleType::F16 if self.device.is_cpu() => {
                        a.to_dtype(CandleType::F32)?.matmul(&b.to_dtype(CandleType::F32)?)?
                    }
                    _ => a.matmul(&b)?,
                };
                product.to_dtype(candle_type(*output))?
            }
            Op::MatMulAdd { transpose_a, transpose_b, factor } => {
                let wide = candle_type(node.meta.dtype.accumulator());
                let part = |i: usize, transpose: bool| matrix(&self.operand(node, i).to_dtype(wide)?, transpose);
                let product = part(0, *transpose_a)?.matmul(&part(1, *transpose_b)?)?;
                let sum = ((product * *factor)? + self.operand(node, 2).to_dtype(wide)?)?;
                sum.to_dtype(candle_type(node.meta.dtype))?
            }
            Op::ScaledMatMul { transpose_a, transpose_b, output } => {
                self.scaled_product(node, [*transpose_a, *transpose_b], *output)?
            }
            Op::Reduce { op: ReduceOp::Sum, axes } => wide(x(), |x| x.sum_keepdim(axes.as_slice()))?,
            Op::Reduce { op: ReduceOp::Max, axes } => {
                axes.iter().try_fold(x().contiguous()?, |t, &axis| t.max_keepdim(axis))?
            }
            Op::Permute(order) => x().permute(order.as_slice())?.contiguous()?,
            Op::Concat { axis } => {
                let parts: Vec<&Tensor> = (0..node.operands.len()).map(|i| self.operand(node, i)).collect();
                Tensor::cat(&parts, *axis)?.contiguous()?
            }
            Op::Pad { axis, before, after } => x().pad_with_zeros(*axis, *before, *after)?.contiguous()?,
            Op::Gather { axis } => {
                let indices = self.operand(node, 1);
                check_indices(node, indices, x().dim(*axis)?)?;
                let rows = x().contiguous()?.index_select(&indices.flatten_all()?.contiguous()?, *axis)?;
                rows.reshape(node.meta.shape.dims())?
            }
            Op::ScatterAdd { axis, extent } => self.scatter_add(*axis, *extent, node)?,
            Op::Attention(spec) => {
                let qkv = [x(), self.operand(node, 1), self.operand(node, 2)];
                let (out, lse) = attention::forward(*spec, node.meta.dtype, qkv)?;
                self.keep_sides(id, [lse]);
                out
            }
            Op::AttentionGrad(spec) => {
                let operands = std::array::from_fn(|i| self.operand(node, i));
                let [dq, dk, dv] = attention::backward(*spec, node.meta.dtype, operands)?;
                self.keep_sides(id, [dk, dv]);
                dq
            }
            Op::SegmentSum | Op::SegmentRepeat { .. } | Op::SegmentSoftmax => {
                let order = (node.operands.len() > 2).then(|| self.operand(node, 2));
                segments(node, x(), self.operand(node, 1), order)?
            }
            Op::AllReduce => self.collective(node, |mine| {
                let mut sum = mine;
                self.options.collective.all_reduce(&mut sum)?;
                Ok(sum)
            })?,
            Op::ReduceScatter { .. } => self.collective(node, |mine| {
                let mut part = vec![0.0; node.meta.shape.elements()];
                self.options.collective.reduce_scatter(&mine, &mut part)?;
                Ok(part)
            })?,
            Op::AllGather { .. } => self.collective(node, |mine| {
                let mut all = vec![0.0; node.meta.shape.elements()];
                self.options.collective.all_gather(&mine, &mut all)?;
                Ok(all)
            })?,
            Op::Input(_) | Op::State(_) | Op::Side(_) | Op::NormedAttention(_) | Op::NormedAttentionGrad(_) => {
                unreachable!("{} is not computed here", node.op)
            }
            Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::After | Op::StopGradient | Op::GivenGradient => {
                unreachable!("{} is a view", node.op)
            }
        })
    }

    /// With a constant on the right (or left, where it commutes), Candle's `affine`; else its binary operator.
    fn binary(&self, op: BinaryOp, node: &Node) -> Result<Tensor, OpError> {
        let [a, b] = [self.operand(node, 0), self.operand(node, 1)];
        if node.meta.dtype.is_float() {
            match (op, self.constant(node.operands[0]), self.constant(node.operands[1])) {
                (BinaryOp::Mul, _, Some(c)) => return Ok(a.affine(c, 0.0)?),
                (BinaryOp::Mul, Some(c), _) => return Ok(b.affine(c, 0.0)?),
                (BinaryOp::Add, _, Some(c)) => return Ok(a.affine(1.0, c)?),
                (BinaryOp::Add, Some(c), _) => return Ok(b.affine(1.0, c)?),
                (BinaryOp::Sub, _, Some(c)) => return Ok(a.affine(1.0, -c)?),
                (BinaryOp::Sub, Some(c), _) => return Ok(b.affine(-1.0, c)?),
                _ => {}
            }
        }
        Ok(match op {
            BinaryOp::Add => a.add(b)?,
            BinaryOp::Sub => a.sub(b)?,
            BinaryOp::Mul => a.mul(b)?,
            BinaryOp::Div => a.div(b)?,
            BinaryOp::Max => a.maximum(b)?,
            BinaryOp::Min => a.minimum(b)?,
        })
    }

    /// The number that all elements of a node are, if it is a constant.
    fn constant(&self, id: NodeId) -> Option<f64> {
        let node = self.program.graph.node(id);
        match &node.op {
            Op::Fill { value, .. } => Some(*value),
            Op::Broadcast(_) | Op::Reshape(_) => self.constant(node.operands[0]),
            _ => None,
        }
    }

    /// Products of 8-bit floats are exact in float32: only their sums round.
    fn scaled_product(&self, node: &Node, transpose: [bool; 2], output: DType) -> candle_core::Result<Tensor> {
        let graph = &self.program.graph;
        let scales = [2, 3].map(|i| self.operand(node, i));
        let wide = graph.meta(node.operands[2]).dtype;
        let part =
            |i: usize| matrix(&cast(self.operand(node, i), graph.meta(node.operands[i]).dtype, wide)?, transpose[i]);
        let product = part(0)?.matmul(&part(1)?)?;
        product.broadcast_mul(scales[0])?.broadcast_mul(scales[1])?.to_dtype(candle_type(output))
    }

    fn scatter_add(&self, axis: usize, extent: usize, node: &Node) -> Result<Tensor, OpError> {
        let (updates, indices) = (self.operand(node, 0), self.operand(node, 1));
        check_indices(node, indices, extent)?;
        let dims = updates.dims();
        let flat = [&dims[..axis], &[indices.elem_count()], &dims[axis + indices.rank()..]].concat();
        let updates = updates.reshape(flat)?.contiguous()?;
        let zeros = Tensor::zeros(node.meta.shape.dims(), updates.dtype(), self.device)?;
        Ok(zeros.index_add(&indices.flatten_all()?.contiguous()?, &updates, axis)?)
    }

    fn collective(
        &self,
        node: &Node,
        call: impl FnOnce(Vec<f32>) -> Result<Vec<f32>, ExecError>,
    ) -> Result<Tensor, OpError> {
        let mine = self.operand(node, 0).flatten_all()?.to_vec1::<f32>()?;
        Ok(Tensor::from_vec(call(mine)?, node.meta.shape.dims(), self.device)?)
    }

    fn keep_sides<const N: usize>(&mut self, id: NodeId, sides: [Tensor; N]) {
        for (index, tensor) in (1..).zip(sides) {
            let named = |n: &Node| n.op == Op::Side(index) && n.operands == [id];
            let following = self.program.graph.nodes().iter().enumerate().skip(id.index() + 1).take(N);
            let reader = following.into_iter().find(|(_, n)| named(n)).map(|(at, _)| at);
            if reader.is_some_and(|at| self.needed[at]) {
                self.sides.insert((id, index), Value::new(tensor, self.meter));
            }
        }
    }
}

fn fill(value: f64, dtype: DType, shape: &Shape, device: &Device) -> candle_core::Result<Tensor> {
    let one = Tensor::full(value, (), device)?.to_dtype(candle_type(dtype))?;
    one.broadcast_as(shape.dims())
}

fn cast(x: &Tensor, from: DType, to: DType) -> candle_core::Result<Tensor> {
    let decoded = |decode: fn(u8) -> f32| {
        let values: Vec<f32> = x.flatten_all()?.to_vec1()?.into_iter().map(decode).collect();
        Tensor::from_vec(values, x.dims(), x.device())
    };
    let encoded = |encode: fn(f64) -> u8| {
        let values: Vec<f64> = x.to_dtype(CandleType::F64)?.flatten_all()?.to_vec1()?;
        let codes: Vec<u8> = values.into_iter().map(encode).collect();
        Tensor::from_vec(codes, x.dims(), x.device())
    };
    match (from, to) {
        _ if from == to => Ok(x.clone()),
        (DType::E4M3, _) => cast(&decoded(|code| E4M3(code).to_f32())?, DType::F32, to),
        (DType::E5M2, _) => cast(&decoded(|code| E5M2(code).to_f32())?, DType::F32, to),
        (_, DType::E4M3) => encoded(|x| E4M3::from_f64(x).0),
        (_, DType::E5M2) => encoded(|x| E5M2::from_f64(x).0),
        (_, DType::Bool) => x.ne(&x.zeros_like()?),
        _ => x.to_dtype(candle_type(to)),
    }
}

fn iota(axis: usize, shape: &Shape, device: &Device) -> candle_core::Result<Tensor> {
    let mut line = vec![1; shape.rank()];
    line[axis] = shape[axis];
    let counting = Tensor::arange(0u32, shape[axis] as u32, device)?;
    counting.reshape(line)?.broadcast_as(shape.dims())?.contiguous()
}

fn unary(op: UnaryOp, x: &Tensor) -> candle_core::Result<Tensor> {
    Ok(match op {
        UnaryOp::Neg => x.neg()?,
        UnaryOp::Exp => x.exp()?,
        UnaryOp::Log => x.log()?,
        UnaryOp::Sqrt => x.sqrt()?,
        UnaryOp::Rsqrt => wide(x, |x| x.sqrt()?.recip())?,
        UnaryOp::Recip => x.recip()?,
        UnaryOp::Erf => x.erf()?,
        UnaryOp::Tanh => x.tanh()?,
        UnaryOp::Sigmoid => wide(x, |x| x.neg()?.exp()?.affine(1.0, 1.0)?.recip())?,
        UnaryOp::Sin => x.sin()?,
        UnaryOp::Cos => x.cos()?,
        UnaryOp::Abs => x.abs()?,
        UnaryOp::Square => x.sqr()?,
        UnaryOp::Sign => x.sign()?,
        UnaryOp::Floor => x.floor()?,
        // Infinity minus itself is NaN, and NaN equals nothing.
        UnaryOp::IsFinite => {
            let difference = x.sub(x)?;
            difference.eq(&difference.zeros_like()?)?
        }
    })
}

fn compare(op: CompareOp, a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    Ok(match op {
        CompareOp::Eq => a.eq(b)?,
        CompareOp::Ne => a.ne(b)?,
        CompareOp::Lt => a.lt(b)?,
        CompareOp::Le => a.le(b)?,
        CompareOp::Gt => a.gt(b)?,
        CompareOp::Ge => a.ge(b)?,
    })
}

/// Computes 16-bit floats in float32 and rounds once.
fn wide(x: &Tensor, f: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Tensor> {
    Ok(match x.dtype() {
        CandleType::BF16 | CandleType::F16 => f(&x.to_dtype(CandleType::F32)?)?.to_dtype(x.dtype())?,
        _ => f(x)?,
    })
}

/// A matmul operand: row-major matrices, transposed as a view when asked.
fn matrix(x: &Tensor, transpose: bool) -> candle_core::Result<Tensor> {
    let x = x.contiguous()?;
    Ok(if transpose { x.t()? } else { x })
}

/// Candle checks indices on the CPU only, and its message lacks the operator.
fn check_indices(node: &Node, indices: &Tensor, extent: usize) -> Result<(), OpError> {
    if !indices.device().is_cpu() {
        return Ok(());
    }
    let indices = indices.flatten_all()?.to_vec1::<u32>()?;
    match indices.into_iter().find(|&i| i as usize >= extent) {
        Some(index) => Err(ExecError::Index { op: node.op.to_string(), index, extent }.into()),
        None => Ok(()),
    }
}
