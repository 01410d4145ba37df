//! From a fused kernel to steps over registers: which chunk, which registers, which tasks.

use super::{ALONE, CHUNK, CpuFold, CpuFused, PARTIALS, Slot, TASK};
use crate::{
    lanes::{Act, Lane, Operand, Round, Step},
    transfer::{Walk, lane, lane_bytes},
};
use pawl_graph::graph::DType;
use pawl_lower::{Buffer, Class, Fused, Instruction, aligned};

/// Makes a [`CpuFused`].
pub(super) struct Planner<'k> {
    kernel: &'k Fused,
    buffers: &'k [Buffer],
    chunk: (usize, usize),
    /// Slot of each value; then slots of expanded values.
    slots: Vec<Option<Slot>>,
    lanes: Vec<(Lane, Class)>,
    code: Vec<Step>,
    expanded: Vec<Option<usize>>,
}

impl<'k> Planner<'k> {
    pub(super) fn new(kernel: &'k Fused, buffers: &'k [Buffer]) -> Self {
        let cols = if kernel.needs_whole_rows() || kernel.cols <= 2 * CHUNK { kernel.cols } else { CHUNK };
        let rows = (CHUNK / cols).clamp(1, (kernel.rows / kernel.segments).max(1));
        let values = kernel.values.len();
        Self {
            kernel,
            buffers,
            chunk: (rows, cols),
            slots: (0..values).map(|_| None).collect(),
            lanes: kernel.values.iter().map(|&(dtype, class)| (lane(dtype), class)).collect(),
            code: Vec::new(),
            expanded: vec![None; values],
        }
    }

    pub(super) fn plan(mut self) -> CpuFused {
        let kernel = self.kernel;
        let written: Vec<usize> = kernel.stores.iter().map(|s| s.to.buffer).collect();
        let mut loads = Vec::new();
        for (value, load) in kernel.loads.iter().enumerate() {
            let walk = Walk::new(&load.from, self.buffers[load.from.buffer].dtype, kernel.cols);
            // What is overwritten in place is read first.
            if walk.is_direct(kernel.cols) && !written.contains(&walk.buffer) {
                self.slots[value] = Some(Slot::Direct(walk, false));
            } else {
                loads.push((value, walk));
            }
        }
        let mut numbers = Vec::new();
        for (index, instruction) in kernel.code.iter().enumerate() {
            self.instruction(kernel.loads.len() + index, instruction, &mut numbers);
        }
        let folds: Vec<(usize, usize)> = kernel.folds.iter().map(|f| self.full(f.value)).zip(0..).collect();
        let mut stores = Vec::new();
        let read: Vec<usize> = kernel.loads.iter().map(|l| l.from.buffer).collect();
        for store in &kernel.stores {
            let dtype = self.buffers[store.to.buffer].dtype;
            let computed = store.value >= kernel.loads.len()
                && !matches!(kernel.code[store.value - kernel.loads.len()], Instruction::Immediate(_));
            let (slot, cols) = if store.per_row {
                (self.in_class(store.value, Class::Row), 1)
            } else {
                (self.full(store.value), kernel.cols)
            };
            let walk = Walk::new(&store.to, dtype, cols);
            let fits = computed
                && self.slots[slot].is_none()
                && walk.contiguous
                && walk.is_direct(cols)
                && !read.contains(&walk.buffer)
                && (kernel.stores.iter().filter(|other| other.to.buffer == walk.buffer).count() == 1);
            if fits {
                self.slots[slot] = Some(Slot::Direct(walk, store.per_row));
            } else {
                stores.push((slot, walk, store.per_row));
            }
        }
        let registers = self.registers(&numbers, &stores, &folds);
        self.finish(loads, numbers, stores, &folds, registers)
    }

    fn operand(&self, slot: usize) -> Operand {
        Operand { slot, class: self.lanes[slot].1 }
    }

    fn instruction(&mut self, value: usize, instruction: &Instruction, numbers: &mut Vec<(usize, DType, f64)>) {
        let (dtype, class) = self.kernel.values[value];
        let to = Operand { slot: value, class };
        let of = |this: &Self, x: usize| this.lanes[x].0;
        let none = Operand { slot: value, class: Class::Scalar };
        let (act, lane, from) = match *instruction {
            Instruction::Immediate(number) => {
                numbers.push((value, dtype, number));
                return;
            }
            Instruction::Iota { inner, extent } => (Act::Iota { inner, extent }, Lane::U32, [none; 3]),
            Instruction::Random { key, counter } => {
                (Act::Random { key }, Lane::F32, [self.operand(counter), none, none])
            }
            Instruction::Unary(op, x) => (Act::Unary(op), of(self, x), [self.operand(x), none, none]),
            Instruction::Cast(x) => {
                let round = match dtype {
                    DType::BF16 => Round::Bf16,
                    DType::F16 => Round::F16,
                    DType::E4M3 => Round::E4m3,
                    DType::E5M2 => Round::E5m2,
                    DType::Bool => Round::Bool,
                    _ => Round::None,
                };
                (Act::Cast(self.lanes[value].0, round), of(self, x), [self.operand(x), none, none])
            }
            Instruction::Binary(op, a, b) => (Act::Binary(op), of(self, a), [self.operand(a), self.operand(b), none]),
            Instruction::Compare(op, a, b) => (Act::Compare(op), of(self, a), [self.operand(a), self.operand(b), none]),
            Instruction::Select(c, a, b) => {
                let parts = [c, a, b].map(|x| self.in_class(x, class));
                (Act::Select, of(self, a), parts.map(|x| self.operand(x)))
            }
            Instruction::Reduce(op, x) => {
                let x = self.full(x);
                (Act::Reduce(op), of(self, x), [self.operand(x), none, none])
            }
        };
        self.code.push(Step { act, lane, to, from });
    }

    fn full(&mut self, value: usize) -> usize {
        self.in_class(value, Class::Full)
    }

    /// A slot with `value` in `class`, which varies as much or more.
    fn in_class(&mut self, value: usize, class: Class) -> usize {
        if self.lanes[value].1 == class {
            return value;
        }
        if let (Class::Full, Some(slot)) = (class, self.expanded[value]) {
            return slot;
        }
        let slot = self.slots.len();
        self.slots.push(None);
        let lane = self.lanes[value].0;
        self.lanes.push((lane, class));
        let (to, from) = (self.operand(slot), self.operand(value));
        if class == Class::Full {
            self.expanded[value] = Some(slot);
            self.code.push(Step { act: Act::Expand, lane, to, from: [from; 3] });
        } else {
            // One value for all rows (or columns).
            self.code.push(Step { act: Act::Expand, lane, to, from: [from; 3] });
        }
        slot
    }

    /// Gives a register to every slot that needs one; a register is free again after its last use. Returns the bytes of
    /// all.
    fn registers(
        &mut self,
        numbers: &[(usize, DType, f64)],
        stores: &[(usize, Walk, bool)],
        folds: &[(usize, usize)],
    ) -> usize {
        let end = self.code.len();
        let mut last = vec![0; self.slots.len()];
        for (at, step) in self.code.iter().enumerate() {
            step.from.iter().for_each(|operand| last[operand.slot] = at);
        }
        stores.iter().for_each(|&(slot, ..)| last[slot] = end);
        folds.iter().for_each(|&(slot, _)| last[slot] = end);
        numbers.iter().for_each(|&(slot, ..)| last[slot] = end);
        let mut top = 0;
        let mut free: Vec<(usize, usize)> = Vec::new();
        let mut take = |bytes: usize, free: &mut Vec<(usize, usize)>| match free.iter().position(|f| f.0 == bytes) {
            Some(index) => free.swap_remove(index).1,
            None => {
                top += bytes;
                top - bytes
            }
        };
        let bytes: Vec<usize> = (0..self.slots.len())
            .map(|slot| {
                let (lane, class) = self.lanes[slot];
                let count = match class {
                    Class::Full => self.chunk.0 * self.chunk.1,
                    Class::Row => self.chunk.0,
                    Class::Col => self.chunk.1,
                    Class::Scalar => 1,
                };
                aligned(count * lane_bytes(lane))
            })
            .collect();
        // Loads and numbers are there from the start.
        let from_start = (0..self.kernel.loads.len()).chain(numbers.iter().map(|n| n.0));
        for slot in from_start {
            if self.slots[slot].is_none() {
                self.slots[slot] = Some(Slot::Register(take(bytes[slot], &mut free)));
            }
        }
        for at in 0..self.code.len() {
            let step = self.code[at];
            if self.slots[step.to.slot].is_none() {
                self.slots[step.to.slot] = Some(Slot::Register(take(bytes[step.to.slot], &mut free)));
            }
            let mut done: Vec<usize> = step.from.iter().map(|o| o.slot).filter(|&s| last[s] == at).collect();
            done.push(step.to.slot);
            done.sort_unstable();
            done.dedup();
            for slot in done {
                if let Some(Slot::Register(offset)) = self.slots[slot]
                    && last[slot] <= at
                {
                    free.push((bytes[slot], offset));
                }
            }
        }
        top
    }

    fn finish(
        self,
        loads: Vec<(usize, Walk)>,
        numbers: Vec<(usize, DType, f64)>,
        stores: Vec<(usize, Walk, bool)>,
        fold_slots: &[(usize, usize)],
        registers: usize,
    ) -> CpuFused {
        let kernel = self.kernel;
        let row_chunks = (kernel.rows / kernel.segments).div_ceil(self.chunk.0);
        let col_chunks = kernel.cols.div_ceil(self.chunk.1);
        let col_parts = if col_chunks > 1 { col_chunks.div_ceil(TASK) } else { 1 };
        let mut row_parts = (row_chunks * col_chunks).div_ceil(TASK * col_parts).clamp(1, row_chunks.max(1));
        let mut room = PARTIALS;
        for fold in &kernel.folds {
            let width = if fold.per_column { kernel.cols } else { 1 };
            room = room.min(PARTIALS / (width * kernel.segments).max(1));
        }
        if !kernel.folds.is_empty() {
            row_parts = row_parts.min(room.clamp(1, 64));
        }
        let mut partials = 0;
        let folds = kernel.folds.iter().zip(fold_slots).map(|(fold, &(slot, _))| {
            let dtype = self.buffers[fold.to.buffer].dtype;
            let (width, count) = if fold.per_column { (kernel.cols, row_parts) } else { (1, row_parts * col_parts) };
            let lane = self.lanes[slot].0;
            let start = partials;
            partials += aligned(kernel.segments * count * width * lane_bytes(lane));
            let to = Walk::new(&fold.to, dtype, width);
            CpuFold { slot, lane, op: fold.op, per_column: fold.per_column, to, partials: start, count }
        });
        let folds = folds.collect();
        let work = (self.code.len() + loads.len() + stores.len() + 1) * kernel.rows * kernel.cols;
        CpuFused {
            rows: kernel.rows,
            cols: kernel.cols,
            chunk: self.chunk,
            segments: kernel.segments,
            parts: (row_parts, col_parts),
            alone: work < ALONE,
            slots: self.slots.into_iter().map(|slot| slot.unwrap_or(Slot::Unused)).collect(),
            loads,
            code: self.code,
            stores,
            folds,
            numbers,
            registers,
        }
    }
}
