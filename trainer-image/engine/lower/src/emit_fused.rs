//! The kernel of a fused unit.

use std::collections::HashMap;

use super::{
    Access, Class, Fold, Fused, Instruction, Load, Store,
    fuse::{Fusion, Member, Unit},
    layout::Layout,
    simplify::reduction,
};
use pawl_graph::graph::{DType, Op, ReduceOp};

/// Copies to make before a kernel: from, to, dtype.
pub(super) type Copies = Vec<(Access, Access, DType)>;

/// Columns for `elements` loops over these views: rows that end where a view's innermost loop does. `whole` is a run of
/// elements that rows must not cross.
pub(super) fn columns<'v>(elements: usize, whole: usize, views: impl IntoIterator<Item = &'v Access>) -> usize {
    let mut cols = whole.min(elements).max(1);
    for view in views {
        if let Some(&(extent, _)) = view.collapsed().last().filter(|_| !view.is_contiguous()) {
            cols = gcd(cols, extent);
        }
    }
    cols
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) struct FusedBuilder<'l, 'a> {
    layout: &'l mut Layout<'a>,
    unit: &'l Unit,
    rows: usize,
    cols: usize,
    fused: Fused,
    /// Values of members and of loads.
    of_item: HashMap<usize, usize>,
    of_load: HashMap<(Access, bool), usize>,
    of_number: HashMap<(u64, DType), usize>,
    before: Copies,
    /// Places that could not be walked with the kernel's columns, and their copies.
    copies: HashMap<(Access, bool), Access>,
}

impl<'l, 'a> FusedBuilder<'l, 'a> {
    /// The kernel of unit `index`, with the copies it needs first; no kernel when nothing of it is stored.
    pub(super) fn build(layout: &'l mut Layout<'a>, index: usize) -> (Copies, Option<Fused>) {
        let fusion = layout.fusion;
        let unit = &fusion.units[index];
        let stored: Vec<usize> = (unit.members.iter().copied())
            .filter(|&item| fusion.home[item] == Some(index) && layout.physical[item].is_some())
            .collect();
        if stored.is_empty() {
            return (Vec::new(), None);
        }
        let needed = needed(fusion, unit, &stored);
        let cols = unit.cols.unwrap_or_else(|| unit_columns(layout, unit, &stored, &needed));
        let mut builder = Self::new(layout, unit, cols);
        // Loads first: values are numbered so.
        for &item in &needed {
            builder.loads(item);
        }
        for &item in &needed {
            builder.instruction(item);
        }
        for &item in &stored {
            builder.store(item);
        }
        (builder.before, Some(builder.fused))
    }

    fn new(layout: &'l mut Layout<'a>, unit: &'l Unit, cols: usize) -> Self {
        let rows = unit.elements / cols;
        Self {
            layout,
            unit,
            rows,
            cols,
            fused: Fused {
                rows,
                cols,
                loads: Vec::new(),
                code: Vec::new(),
                values: Vec::new(),
                stores: Vec::new(),
                folds: Vec::new(),
                segments: unit.segments.unwrap_or(1),
            },
            of_item: HashMap::new(),
            of_load: HashMap::new(),
            of_number: HashMap::new(),
            before: Vec::new(),
            copies: HashMap::new(),
        }
    }

    /// The view through which a member reads something from elsewhere, over all elements.
    fn outside(&mut self, operand: usize, per_row: bool) -> Access {
        let access = self.layout.access(operand).expect("what is read from elsewhere is stored");
        let key = (access.clone(), per_row);
        if let Some(copy) = self.copies.get(&key) {
            return copy.clone();
        }
        let spread = |mut access: Access| {
            if per_row {
                access.dims.push(self.cols);
                access.strides.push(0);
            }
            access
        };
        let seen = spread(access.clone());
        if seen.nest(self.cols).is_some() {
            return seen;
        }
        let dtype = self.layout.buffers[access.buffer].dtype;
        let copy = self.layout.temporary(dtype, &access.dims);
        self.before.push((access, copy.clone(), dtype));
        let copy = spread(copy);
        self.copies.insert(key, copy.clone());
        copy
    }

    fn loads(&mut self, item: usize) {
        let work = self.layout.fusion.work;
        let per_row = self.unit.class[&item] == Member::Row && !matches!(work.op(item), Op::Reduce { .. });
        for &operand in work.operands(item) {
            let root = self.layout.fusion.views.root[operand];
            if self.unit.class.contains_key(&root) || self.layout.fusion.immediate(operand).is_some() {
                continue;
            }
            let scalar = work.meta(operand).shape.elements() == 1;
            let mut access = self.outside(operand, per_row && !scalar);
            if scalar {
                access.dims = vec![self.rows, self.cols];
                access.strides = vec![0, 0];
            }
            let next = self.fused.loads.len();
            self.of_load.entry((access.clone(), per_row)).or_insert_with(|| {
                let class = access.class(self.cols).expect("checked, or copied");
                self.fused.values.push((self.layout.buffers[access.buffer].dtype, class));
                self.fused.loads.push(Load { from: access });
                next
            });
        }
    }

    fn push(&mut self, instruction: Instruction, dtype: DType, class: Class) -> usize {
        self.fused.code.push(instruction);
        self.fused.values.push((dtype, class));
        self.fused.values.len() - 1
    }

    /// The value of an operand.
    fn value(&mut self, operand: usize, per_row: bool) -> usize {
        let work = self.layout.fusion.work;
        let root = self.layout.fusion.views.root[operand];
        if let Some(number) = self.layout.fusion.immediate(operand) {
            let dtype = work.meta(root).dtype;
            let known = self.of_number.get(&(number.to_bits(), dtype)).copied();
            return known.unwrap_or_else(|| {
                let value = self.push(Instruction::Immediate(number), dtype, Class::Scalar);
                self.of_number.insert((number.to_bits(), dtype), value);
                value
            });
        }
        if self.unit.class.contains_key(&root) {
            return self.of_item[&root];
        }
        let scalar = work.meta(operand).shape.elements() == 1;
        let mut access = self.outside(operand, per_row && !scalar);
        if scalar {
            access.dims = vec![self.rows, self.cols];
            access.strides = vec![0, 0];
        }
        self.of_load[&(access, per_row)]
    }

    fn instruction(&mut self, item: usize) {
        let work = self.layout.fusion.work;
        let dtype = work.meta(item).dtype;
        let member = self.unit.class[&item];
        if matches!(member, Member::FoldAll | Member::FoldColumns) {
            return;
        }
        let reduces = matches!(work.op(item), Op::Reduce { .. });
        let per_row = member == Member::Row && !reduces;
        let args: Vec<usize> = work.operands(item).iter().map(|&o| self.value(o, per_row)).collect();
        let class = args.iter().map(|&a| self.fused.values[a].1).fold(Class::Scalar, join);
        let (instruction, class) = match work.op(item) {
            Op::Unary(op) => (Instruction::Unary(*op, args[0]), class),
            Op::Binary(op) => (Instruction::Binary(*op, args[0], args[1]), class),
            Op::Compare(op) => (Instruction::Compare(*op, args[0], args[1]), class),
            Op::Select => (Instruction::Select(args[0], args[1], args[2]), class),
            Op::Cast(_) => (Instruction::Cast(args[0]), class),
            Op::Reduce { op, .. } => (Instruction::Reduce(*op, args[0]), Class::Row),
            Op::Iota { axis, shape } => {
                let inner = shape[axis + 1..].iter().product();
                (Instruction::Iota { inner, extent: shape[*axis] }, Class::Full)
            }
            Op::Random { key, .. } => (Instruction::Random { key: *key, counter: args[0] }, Class::Full),
            // A layout operator that no strides describe: the value as it is.
            _ => {
                self.of_item.insert(item, args[0]);
                return;
            }
        };
        let value = self.push(instruction, dtype, class);
        self.of_item.insert(item, value);
    }

    fn store(&mut self, item: usize) {
        let work = self.layout.fusion.work;
        let to = self.layout.physical[item].clone().expect("the caller chose what is stored");
        match (self.unit.class[&item], work.op(item)) {
            (Member::FoldAll | Member::FoldColumns, Op::Reduce { op, axes }) => {
                let operand = work.operands(item)[0];
                let value = self.value(operand, false);
                let (before, _, after) = reduction(&work.meta(operand).shape, axes);
                let per_column = self.unit.class[&item] == Member::FoldColumns;
                debug_assert!(!per_column || after == self.cols, "columns of a fold are the kernel's");
                debug_assert_eq!(before, self.fused.segments, "segments of a fold are the kernel's");
                self.fused.folds.push(Fold { value, op: *op, per_column, to });
            }
            (member, _) => {
                let value = self.of_item[&item];
                self.fused.stores.push(Store { value, per_row: member == Member::Row, to });
            }
        }
    }
}

/// The members that the stored ones depend on, these included, in order.
fn needed(fusion: &Fusion<'_>, unit: &Unit, stored: &[usize]) -> Vec<usize> {
    let mut needed = vec![];
    let mut open = stored.to_vec();
    while let Some(item) = open.pop() {
        if needed.contains(&item) {
            continue;
        }
        needed.push(item);
        for &operand in fusion.work.operands(item) {
            let root = fusion.views.root[operand];
            if unit.class.contains_key(&root) && fusion.immediate(operand).is_none() {
                open.push(root);
            }
        }
    }
    needed.sort_unstable();
    needed
}

/// [`columns`] of a unit, given its members that are stored and all that are needed.
fn unit_columns(layout: &Layout<'_>, unit: &Unit, stored: &[usize], needed: &[usize]) -> usize {
    let fusion = layout.fusion;
    let mut views: Vec<Access> = stored.iter().filter_map(|&item| layout.physical[item].clone()).collect();
    for &item in needed {
        for &operand in fusion.work.operands(item) {
            if !unit.class.contains_key(&fusion.views.root[operand]) {
                views.extend(layout.access(operand));
            }
        }
    }
    views.retain(|view| view.elements() == unit.elements);
    columns(unit.elements, unit.elements / unit.segments.unwrap_or(1), &views)
}

/// Class of a function of two values.
fn join(a: Class, b: Class) -> Class {
    match (a, b) {
        (Class::Scalar, other) | (other, Class::Scalar) => other,
        (a, b) if a == b => a,
        _ => Class::Full,
    }
}

impl Fused {
    /// Whether rows have to be whole: a reduction inside needs all columns at once.
    pub fn needs_whole_rows(&self) -> bool {
        self.code.iter().any(|i| matches!(i, Instruction::Reduce(..)))
    }

    /// Identity of a reduction, as float64.
    pub fn identity(op: ReduceOp) -> f64 {
        match op {
            ReduceOp::Sum => 0.0,
            ReduceOp::Max => f64::NEG_INFINITY,
        }
    }
}
