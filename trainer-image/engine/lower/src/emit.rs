//! Kernels from units.

use super::{
    Access, Attention, AttentionGrad, Body, Buffer, Collect, CollectOp, Fused, Kernel, Load, Lookup, MatMul, Norm,
    SegmentOp, Segments, Storage, Store,
    emit_fused::FusedBuilder,
    fuse::{Fusion, Unit},
    layout::Layout,
};
use pawl_graph::graph::{AttentionSpec, DType, Op, Shape};

/// Writes kernels, one unit after the other.
pub(super) struct Emit<'a> {
    pub layout: Layout<'a>,
    pub kernels: Vec<Kernel>,
    scopes: &'a [String],
    scope: String,
}

impl<'a> Emit<'a> {
    pub(super) fn run(layout: Layout<'a>, scopes: &'a [String]) -> (Vec<Kernel>, Vec<Buffer>) {
        let mut emit = Self { layout, kernels: Vec::new(), scopes, scope: String::new() };
        for index in 0..emit.layout.order.len() {
            let fusion: &'a Fusion<'a> = emit.layout.fusion;
            let unit = &fusion.units[emit.layout.order[index]];
            let last = *unit.members.last().expect("units in order have members");
            emit.scope = emit.scopes[fusion.work.items[last].node.scope.0 as usize].clone();
            emit.unit(emit.layout.order[index], unit);
        }
        emit.scope = String::new();
        emit.final_copies();
        emit.lives();
        (emit.kernels, emit.layout.buffers)
    }

    fn push(&mut self, body: Body) {
        self.kernels.push(Kernel { body, scope: self.scope.clone() });
    }

    fn unit(&mut self, index: usize, unit: &Unit) {
        if let [item] = unit.members[..]
            && self.layout.is_alias(item)
        {
            return;
        }
        if unit.fused {
            let (before, fused) = FusedBuilder::build(&mut self.layout, index);
            for (from, to, dtype) in before {
                self.copy_access(from, to, dtype);
            }
            if let Some(fused) = fused {
                self.push(Body::Fused(fused));
            }
            return;
        }
        self.single(unit);
    }

    /// The kernel of an operator that is not fused.
    fn single(&mut self, unit: &Unit) {
        let item = unit.members[0];
        let fusion = self.layout.fusion;
        let operands: Vec<usize> = fusion.work.operands(item).to_vec();
        let own = self.layout.physical[item].clone().expect("values of single kernels are stored");
        match fusion.work.op(item).clone() {
            Op::MatMul { transpose_a, transpose_b, .. } => {
                let a = transposed(self.operand(operands[0]), transpose_a);
                let b = transposed(self.operand(operands[1]), transpose_b);
                self.push(Body::MatMul(MatMul { a, b, c: own, add: None, scales: None }));
            }
            Op::MatMulAdd { transpose_a, transpose_b, factor } => {
                let a = transposed(self.operand(operands[0]), transpose_a);
                let b = transposed(self.operand(operands[1]), transpose_b);
                let add = Some((self.operand(operands[2]), factor));
                self.push(Body::MatMul(MatMul { a, b, c: own, add, scales: None }));
            }
            Op::ScaledMatMul { transpose_a, transpose_b, .. } => {
                let product = self.scaled_product(&operands, [transpose_a, transpose_b], own);
                self.push(Body::MatMul(product));
            }
            Op::Attention(spec) => {
                let forward = self.attention(unit, &operands[..3], own, (spec, None));
                self.push(Body::Attention(forward));
            }
            Op::NormedAttention(spec) => {
                let norm = self.norm(spec.epsilon, &operands[3..]);
                let forward = self.attention(unit, &operands[..3], own, (spec.attention, Some(norm)));
                self.push(Body::Attention(forward));
            }
            Op::AttentionGrad(spec) => self.attention_grad(unit, &operands, own, (spec, None)),
            Op::NormedAttentionGrad(spec) => {
                let norm = self.norm(spec.epsilon, &operands[3..7]);
                self.attention_grad(unit, &operands, own, (spec.attention, Some(norm)));
            }
            Op::Gather { axis } => {
                let dims = around(&fusion.work.meta(operands[0]).shape, axis);
                let lookup = self.lookup(&operands, own, |count| [dims, [dims[0], count, dims[2]]]);
                self.push(Body::Gather(lookup));
            }
            Op::ScatterAdd { axis, .. } => {
                let dims = around(&fusion.work.meta(item).shape, axis);
                let lookup = self.lookup(&operands, own, |count| [[dims[0], count, dims[2]], dims]);
                self.push(Body::ScatterAdd(lookup));
            }
            Op::SegmentSum => self.segments(SegmentOp::Sum, &operands, &own),
            Op::SegmentRepeat { .. } => self.segments(SegmentOp::Repeat, &operands, &own),
            Op::SegmentSoftmax => self.segments(SegmentOp::Softmax, &operands, &own),
            Op::AllReduce => self.collective(CollectOp::AllReduce, operands[0], own),
            Op::ReduceScatter { .. } => self.collective(CollectOp::ReduceScatter, operands[0], own),
            Op::AllGather { .. } => self.collective(CollectOp::AllGather, operands[0], own),
            Op::Concat { axis } => self.concat(item, axis, &operands, &own),
            other => unreachable!("{other} is a leaf, a layout operator or fused"),
        }
    }

    /// A product over 8-bit floats. Tensor cores take their operands with the summed axis last; one that is stored
    /// otherwise is copied.
    fn scaled_product(&mut self, operands: &[usize], transpose: [bool; 2], c: Access) -> MatMul {
        // Both operands as `[.., k]`.
        let mut by_sums = |operand: usize, transpose: bool| {
            let access = transposed(self.operand(operands[operand]), transpose);
            if access.strides[1] == 1 { access } else { self.copied_as(&access) }
        };
        let (a, b) = (by_sums(0, transpose[0]), by_sums(1, !transpose[1]));
        let mut scale = |operand: usize, extent: usize| {
            let access = self.contiguous_operand(operands[operand]);
            let flat = access.reshape(&[access.elements()]).expect("it is contiguous");
            flat.broadcast(&[extent])
        };
        let scales = [scale(2, c.dims[0]), scale(3, c.dims[1])];
        MatMul { a, b: transposed(b, true), c, add: None, scales: Some(scales) }
    }

    /// `operands`: what is read, and the indices. `dims` gives the dimensions of what is read and of `to` for a number
    /// of indices.
    fn lookup(&mut self, operands: &[usize], to: Access, dims: impl FnOnce(usize) -> [[usize; 3]; 2]) -> Lookup {
        let [from, indices] = [0, 1].map(|i| self.contiguous_operand(operands[i]));
        let count = indices.elements();
        let [from_dims, to_dims] = dims(count);
        let flat = |access: Access, dims: &[usize]| access.reshape(dims).expect("it is contiguous");
        Lookup { from: flat(from, &from_dims), indices: flat(indices, &[count]), to: flat(to, &to_dims) }
    }

    /// `operands`: what is read, the offsets and, for some sums, the order.
    fn segments(&mut self, op: SegmentOp, operands: &[usize], to: &Access) {
        let mut operand = |&item: &usize| self.contiguous_operand(item);
        let (from, offsets) = (operand(&operands[0]), operand(&operands[1]));
        let order = operands.get(2).map(operand);
        let flat = |access: &Access| {
            let [_, rows, inner] = around(&access.dims[..].into(), 0);
            access.reshape(&[rows, inner]).expect("it is contiguous")
        };
        let (from, to) = (flat(&from), flat(to));
        self.push(Body::Segments(Segments { op, from, offsets, order, to }));
    }

    fn attention(
        &mut self,
        unit: &Unit,
        operands: &[usize],
        o: Access,
        (spec, norm): (AttentionSpec, Option<Norm>),
    ) -> Attention {
        let [q, k, v] = [0, 1, 2].map(|i| self.rows_operand(operands[i]));
        Attention { spec, norm, q, k, v, o, lse: self.side(unit, 1) }
    }

    /// `operands`: the three biases and the gain.
    fn norm(&mut self, epsilon: f64, operands: &[usize]) -> Norm {
        let [q, k, v, gain] = [0, 1, 2, 3].map(|i| self.contiguous_operand(operands[i]));
        Norm { epsilon, biases: [q, k, v], gain }
    }

    fn attention_grad(
        &mut self,
        unit: &Unit,
        operands: &[usize],
        dq: Access,
        (spec, norm): (AttentionSpec, Option<Norm>),
    ) {
        let last = operands.len() - 3;
        let [q, k, v, o] = [0, 1, 2, last].map(|i| self.rows_operand(operands[i]));
        let lse = Some(self.contiguous_operand(operands[last + 1]));
        let grad = self.rows_operand(operands[last + 2]);
        let metas = [1, 2].map(|i| self.layout.fusion.work.meta(operands[i]));
        let [dk, dv] = [(1, &metas[0].shape), (2, &metas[1].shape)]
            .map(|(side, shape)| self.side(unit, side).unwrap_or_else(|| self.layout.temporary(metas[0].dtype, shape)));
        let sums = norm.is_some().then(|| {
            [(3, &q), (4, &k), (5, &v), (6, &k)].map(|(side, of)| {
                let shape = [of.dims[0], of.dims[1], of.dims[3]];
                self.side(unit, side).unwrap_or_else(|| self.layout.temporary(metas[0].dtype.accumulator(), &shape))
            })
        });
        let forward = Attention { spec, norm, q, k, v, o, lse };
        self.push(Body::AttentionGrad(AttentionGrad { forward, grad, dq, dk, dv, sums }));
    }

    fn concat(&mut self, item: usize, axis: usize, operands: &[usize], whole: &Access) {
        let mut start = 0;
        for (index, &part) in operands.iter().enumerate() {
            let extent = self.layout.fusion.work.meta(part).shape[axis];
            let region = whole.slice(axis, start, extent);
            start += extent;
            if self.layout.part_copies.contains(&(item, index)) {
                self.copy(part, region);
            }
        }
    }

    fn collective(&mut self, op: CollectOp, operand: usize, to: Access) {
        let from = self.contiguous_operand(operand);
        self.push(Body::Collective(Collect { op, from, to }));
    }

    /// Where an operand lies; a number gets a buffer of its own.
    fn operand(&mut self, item: usize) -> Access {
        match self.layout.access(item) {
            Some(access) => access,
            None => {
                let meta = self.layout.fusion.work.meta(item);
                let to = self.layout.temporary(meta.dtype, &meta.shape);
                self.copy(item, to.clone());
                to
            }
        }
    }

    fn contiguous_operand(&mut self, item: usize) -> Access {
        let access = self.operand(item);
        if access.is_contiguous() { access } else { self.copied(item, &access) }
    }

    /// An operand whose last axis is contiguous.
    fn rows_operand(&mut self, item: usize) -> Access {
        let access = self.operand(item);
        let rows = access.dims.last() == Some(&1) || access.strides.last() == Some(&1);
        if rows { access } else { self.copied(item, &access) }
    }

    fn copied(&mut self, item: usize, access: &Access) -> Access {
        debug_assert_eq!(access.dims, *self.layout.fusion.work.meta(item).shape, "the access is the item's");
        self.copied_as(access)
    }

    /// A row-major copy.
    fn copied_as(&mut self, access: &Access) -> Access {
        let dtype = self.layout.buffers[access.buffer].dtype;
        let to = self.layout.temporary(dtype, &access.dims);
        self.copy_access(access.clone(), to.clone(), dtype);
        to
    }

    fn side(&self, unit: &Unit, index: u8) -> Option<Access> {
        let of = |item: &&usize| *self.layout.fusion.work.op(**item) == Op::Side(index);
        unit.members.iter().find(of).and_then(|&item| self.layout.physical[item].clone())
    }

    fn copy(&mut self, item: usize, to: Access) {
        let dtype = self.layout.fusion.work.meta(item).dtype;
        match self.layout.access(item) {
            Some(from) => self.copy_access(from, to, dtype),
            None => {
                let value = self.layout.fusion.immediate(item).expect("what is not stored is a number");
                self.push(Body::Fused(Fused::fill(value, dtype, to)));
            }
        }
    }

    fn copy_access(&mut self, from: Access, to: Access, dtype: DType) {
        self.push(Body::Fused(Fused::copy(from, to, dtype)));
    }

    /// Outputs that are views or leaves, and updates that could not be written over their states. What is read from a
    /// state that is itself updated is read before any state is written.
    fn final_copies(&mut self) {
        let copies = std::mem::take(&mut self.layout.copies);
        let into_state =
            |layout: &Layout<'_>, to: &Access| matches!(layout.buffers[to.buffer].storage, Storage::State(_));
        let (updates, outputs): (Vec<_>, Vec<_>) = copies.into_iter().partition(|(_, to)| into_state(&self.layout, to));
        for (item, to) in outputs {
            self.copy(item, to);
        }
        let mut held = Vec::new();
        for (item, to) in updates {
            match self.layout.access(item) {
                Some(from) if into_state(&self.layout, &from) && from.buffer != to.buffer => {
                    let temporary = self.copied(item, &from);
                    held.push((temporary, to, self.layout.fusion.work.meta(item).dtype));
                }
                Some(from) if from == to => {}
                Some(from) if into_state(&self.layout, &from) => {
                    let temporary = self.copied(item, &from);
                    held.push((temporary, to, self.layout.fusion.work.meta(item).dtype));
                }
                Some(from) => held.push((from, to, self.layout.fusion.work.meta(item).dtype)),
                None => self.copy(item, to),
            }
        }
        for (from, to, dtype) in held {
            self.copy_access(from, to, dtype);
        }
    }

    /// First and last kernel of each buffer. What a collective reads must last until its result is read: it may run
    /// beside the kernels in between.
    fn lives(&mut self) {
        for buffer in &mut self.layout.buffers {
            buffer.life = (usize::MAX, 0);
        }
        for (at, kernel) in self.kernels.iter().enumerate() {
            for access in kernel.body.reads().into_iter().chain(kernel.body.writes()) {
                let life = &mut self.layout.buffers[access.buffer].life;
                *life = (life.0.min(at), life.1.max(at));
            }
        }
        for at in 0..self.kernels.len() {
            if let Body::Collective(collect) = &self.kernels[at].body {
                let reader = |kernel: &Kernel| {
                    (kernel.body.reads().into_iter().chain(kernel.body.writes())).any(|a| a.buffer == collect.to.buffer)
                };
                let first = (at + 1..self.kernels.len()).find(|&k| reader(&self.kernels[k]));
                let until = first.unwrap_or(self.kernels.len() - 1);
                for buffer in [collect.from.buffer, collect.to.buffer] {
                    let life = &mut self.layout.buffers[buffer].life;
                    life.1 = life.1.max(until);
                }
            }
        }
    }
}

/// A matrix, or its transpose.
fn transposed(access: Access, transpose: bool) -> Access {
    let rank = access.dims.len();
    let mut order: Vec<usize> = (0..rank).collect();
    if transpose {
        order.swap(rank - 2, rank - 1);
    }
    access.permute(&order)
}

/// The extents before `axis` (their product), of it, and after it (their product).
fn around(shape: &Shape, axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

impl Fused {
    /// A kernel that copies.
    pub(super) fn copy(from: Access, to: Access, dtype: DType) -> Self {
        let elements = from.elements();
        let cols = super::emit_fused::columns(elements, elements, [&from, &to]);
        let class = from.class(cols).expect("columns divide every view's innermost loop");
        Self {
            rows: elements / cols,
            cols,
            loads: vec![Load { from }],
            code: Vec::new(),
            values: vec![(dtype, class)],
            stores: vec![Store { value: 0, per_row: false, to }],
            folds: Vec::new(),
            segments: 1,
        }
    }

    /// A kernel that writes one number everywhere.
    pub(super) fn fill(value: f64, dtype: DType, to: Access) -> Self {
        let elements = to.elements();
        let cols = super::emit_fused::columns(elements, elements, [&to]);
        Self {
            rows: elements / cols,
            cols,
            loads: Vec::new(),
            code: vec![super::Instruction::Immediate(value)],
            values: vec![(dtype, super::Class::Scalar)],
            stores: vec![Store { value: 0, per_row: false, to }],
            folds: Vec::new(),
            segments: 1,
        }
    }
}
