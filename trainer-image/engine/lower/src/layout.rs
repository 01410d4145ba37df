//! Layout: the buffer and the strides in which each value is stored.
//!
//! A value is stored row-major in a buffer of its own, but for: outputs; updates that may be written over the state;
//! parts of a concatenation, which are written where they end up; values that are only read permuted, which are stored
//! that way, and reshapes of those; sums over ranks, which are summed in place.

use std::collections::HashSet;

use super::{
    Access, Buffer, Storage,
    fuse::{Fusion, Member, is_leaf},
    recompute::reads,
};
use pawl_graph::graph::{DType, Op, Stage};

/// Storage of all values.
pub(super) struct Layout<'a> {
    pub fusion: &'a Fusion<'a>,
    pub buffers: Vec<Buffer>,
    /// The view in which each root is stored, once decided.
    pub physical: Vec<Option<Access>>,
    /// Units in execution order.
    pub order: Vec<usize>,
    /// Outputs and updates that are copied at the end: item and where to.
    pub copies: Vec<(usize, Access)>,
    position: Vec<usize>,
    /// Units that read each root, with the operands they see it through.
    readers: Vec<Vec<(usize, usize)>>,
    /// Items by root, in order: views of it.
    views_of: Vec<Vec<usize>>,
    /// Parts of concatenations that have to be copied there.
    pub part_copies: HashSet<Part>,
}

/// A part of a concatenation: the item of the whole, and the index of its operand.
pub(super) type Part = (usize, usize);

impl<'a> Layout<'a> {
    /// The layout in which parts of concatenations are written where they end up, other than those in `apart`, which
    /// are copied there.
    pub(super) fn new(fusion: &'a Fusion<'a>, apart: &HashSet<Part>) -> Self {
        let items = fusion.work.items.len();
        let order = fusion.order();
        let mut position = vec![0; fusion.units.len()];
        order.iter().enumerate().for_each(|(at, &unit)| position[unit] = at);
        let mut readers = vec![Vec::new(); items];
        for unit in 0..fusion.units.len() {
            for (root, operand) in reads(fusion, unit) {
                readers[root].push((unit, operand));
            }
        }
        let mut views_of = vec![Vec::new(); items];
        for item in (0..items).filter(|&i| fusion.work.live[i]) {
            views_of[fusion.views.root[item]].push(item);
        }
        let mut layout = Self {
            fusion,
            buffers: Vec::new(),
            physical: vec![None; items],
            order,
            copies: Vec::new(),
            position,
            readers,
            views_of,
            part_copies: HashSet::new(),
        };
        layout.leaves();
        layout.outputs();
        layout.updates();
        layout.permutations(true);
        layout.concatenations(apart);
        layout.permutations(false);
        layout.aliases();
        layout.collectives();
        for root in (0..items).filter(|&i| fusion.home[i].is_some()) {
            if layout.physical[root].is_none() && layout.is_stored(root) {
                let access = layout.buffer(root, Storage::Arena);
                layout.physical[root] = Some(access);
            }
        }
        layout
    }

    /// The view of an item's buffer; `None` for items that are not stored (inside a kernel, or a number).
    pub(super) fn access(&self, item: usize) -> Option<Access> {
        let root = self.fusion.views.root[item];
        self.seen(item, root, self.physical[root].as_ref()?)
    }

    /// What an item sees, were its root stored as `physical`.
    fn seen(&self, item: usize, root: usize, physical: &Access) -> Option<Access> {
        if item == root {
            return Some(physical.clone());
        }
        let operand = self.fusion.work.operands(item)[0];
        self.seen(operand, root, physical)?.apply(self.fusion.work.op(item))
    }

    /// A new buffer like a root.
    pub(super) fn buffer(&mut self, root: usize, storage: Storage) -> Access {
        let fusion = self.fusion;
        let meta = fusion.work.meta(root);
        self.add(meta.dtype, &meta.shape, storage)
    }

    /// A new buffer of the arena, row-major.
    pub(super) fn temporary(&mut self, dtype: DType, shape: &[usize]) -> Access {
        self.add(dtype, shape, Storage::Arena)
    }

    fn add(&mut self, dtype: DType, shape: &[usize], storage: Storage) -> Access {
        let elements = shape.iter().product();
        self.buffers.push(Buffer { dtype, elements, storage, life: (usize::MAX, 0) });
        Access::contiguous(self.buffers.len() - 1, shape)
    }

    fn is_stored(&self, root: usize) -> bool {
        let unit = self.fusion.home[root].map(|u| &self.fusion.units[u]);
        let copied = self.copies.iter().any(|&(item, _)| self.fusion.views.root[item] == root);
        copied || !self.readers[root].is_empty() || unit.is_some_and(|u| !u.fused)
    }

    fn leaves(&mut self) {
        for item in 0..self.fusion.work.items.len() {
            if !self.fusion.work.live[item] {
                continue;
            }
            let storage = match self.fusion.work.op(item) {
                Op::Input(id) => Storage::Input(*id),
                Op::State(id) => Storage::State(*id),
                Op::Constant(array) if array.shape().elements() != 1 => Storage::Constant(array.clone()),
                _ => continue,
            };
            let known = self.buffers.iter().position(|b| b.storage == storage);
            let access = match known {
                Some(buffer) => Access::contiguous(buffer, &self.fusion.work.meta(item).shape),
                None => self.buffer(item, storage),
            };
            self.physical[item] = Some(access);
        }
    }

    fn is_free(&self, root: usize) -> bool {
        self.physical[root].is_none() && self.fusion.home[root].is_some()
    }

    fn outputs(&mut self) {
        for (index, &item) in self.fusion.work.outputs.iter().enumerate() {
            let root = self.fusion.views.root[item];
            let whole = self.fusion.views.logical[item].is_identity();
            let same = self.fusion.work.meta(item).shape.elements() == self.fusion.work.meta(root).shape.elements();
            if self.is_free(root) && whole && same {
                let access = self.buffer(root, Storage::Output(index));
                self.physical[root] = Some(access);
            } else {
                let access = self.buffer(item, Storage::Output(index));
                self.copies.push((item, access));
            }
        }
    }

    fn updates(&mut self) {
        for &(state, item) in &self.fusion.work.updates {
            let root = self.fusion.views.root[item];
            let storage = Storage::State(state);
            let buffer = self.buffers.iter().position(|b| b.storage == storage);
            let place = match buffer {
                Some(buffer) => Access::contiguous(buffer, &self.fusion.work.meta(item).shape),
                None => self.buffer(item, storage),
            };
            let logical = &self.fusion.views.logical[item];
            let same = logical.elements() == self.fusion.work.meta(root).shape.elements();
            if self.is_free(root) && logical.is_identity() && same && self.may_overwrite(place.buffer, root) {
                self.physical[root] = place.reshape(&self.fusion.work.meta(root).shape);
            } else {
                self.copies.push((item, place));
            }
        }
    }

    /// Whether the content of `buffer` (of a state) is no longer read once the kernel that computes `root` writes it.
    fn may_overwrite(&self, buffer: usize, root: usize) -> bool {
        let home = self.fusion.home[root].expect("checked by `is_free`");
        let writes = match self.fusion.work.op(root) {
            Op::Concat { .. } => (self.fusion.work.operands(root).iter())
                .filter_map(|&part| self.fusion.home[self.fusion.views.root[part]])
                .map(|unit| self.position[unit])
                .min()
                .unwrap_or(0)
                .min(self.position[home]),
            _ => self.position[home],
        };
        let held = |item: &usize| self.physical[*item].as_ref().is_some_and(|p| p.buffer == buffer);
        let roots = (0..self.physical.len()).filter(held);
        let copied = |r: usize| self.copies.iter().any(|&(item, _)| self.fusion.views.root[item] == r);
        let later = self.fusion.work.updates.iter().any(|&(_, item)| {
            let r = self.fusion.views.root[item];
            self.physical[r].as_ref().is_some_and(|p| p.buffer == buffer)
        });
        let unit = &self.fusion.units[home];
        let elementwise = unit.fused && unit.class.get(&root) == Some(&Member::Full);
        // Some update or output copies this state at the end: the old value has to last until then.
        !later
            && roots.into_iter().all(|r| {
                !copied(r)
                    && self.readers[r].iter().all(|&(reader, operand)| {
                        let view = &self.fusion.views.logical[operand];
                        let in_step =
                            reader == home && elementwise && view.is_identity() && view.elements() == unit.elements;
                        self.position[reader] < writes || in_step
                    })
            })
    }

    /// Whether the kernel of `root` can write it as `access`, and all its readers can see it there.
    fn suits(&self, root: usize, access: &Access) -> bool {
        let Some(home) = self.fusion.home[root] else { return false };
        let unit = &self.fusion.units[home];
        let writes = match (unit.class.get(&root), self.fusion.work.op(root)) {
            (Some(Member::Full | Member::Row), _) => {
                access.is_contiguous() || unit.cols.is_none_or(|cols| access.nest(cols).is_some())
            }
            (Some(_), _) => access.is_contiguous(),
            (None, op) => {
                matches!(op, Op::MatMul { .. } | Op::MatMulAdd { .. } | Op::ScaledMatMul { .. })
                    || is_packed(op)
                    || access.is_contiguous()
            }
        };
        let packed = is_packed(self.fusion.work.op(root));
        let any_stride = !packed && unit.class.is_empty();
        let rows = any_stride || access.dims.last() == Some(&1) || access.strides.last() == Some(&1);
        writes
            && rows
            && access.dims == *self.fusion.work.meta(root).shape
            && self.views_of[root].iter().all(|&item| self.seen(item, root, access).is_some())
    }

    fn concatenations(&mut self, apart: &HashSet<Part>) {
        for item in (0..self.fusion.work.items.len()).rev() {
            let (Op::Concat { axis }, true) = (self.fusion.work.op(item), self.fusion.work.live[item]) else {
                continue;
            };
            let whole = match self.physical[item].clone() {
                Some(whole) => whole,
                None => {
                    let whole = self.buffer(item, Storage::Arena);
                    self.physical[item] = Some(whole.clone());
                    whole
                }
            };
            let mut start = 0;
            for (index, &part) in self.fusion.work.operands(item).iter().enumerate() {
                let extent = self.fusion.work.meta(part).shape[*axis];
                let region = whole.slice(*axis, start, extent);
                start += extent;
                let root = self.fusion.views.root[part];
                match self.place_of_root(part, root, region) {
                    Some(place)
                        if self.is_free(root) && self.suits(root, &place) && !apart.contains(&(item, index)) =>
                    {
                        self.physical[root] = Some(place);
                    }
                    _ => {
                        self.part_copies.insert((item, index));
                    }
                }
            }
        }
    }

    /// Parts that are written where they end up in a concatenation of the update, which holds memory of the arena from
    /// the first of them on; in the order in which they are written.
    pub(super) fn gathered(&self) -> Vec<Part> {
        let mut found = Vec::new();
        for (item, of) in self.fusion.work.items.iter().enumerate() {
            let joins = matches!(of.node.op, Op::Concat { .. }) && of.node.stage == Stage::Update;
            let Some(whole) = self.physical[item].as_ref().filter(|_| joins && self.fusion.work.live[item]) else {
                continue;
            };
            if self.buffers[whole.buffer].storage != Storage::Arena {
                continue;
            }
            for (index, &part) in self.fusion.work.operands(item).iter().enumerate() {
                let root = self.fusion.views.root[part];
                let inside = self.physical[root].as_ref().is_some_and(|place| place.buffer == whole.buffer);
                let Some(unit) = self.fusion.home[root].filter(|_| inside) else { continue };
                found.push((self.position[unit], (item, index)));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, part)| part).collect()
    }

    /// How a root has to be stored for `item`, a view of all of it, to lie at `access`.
    fn place_of_root(&self, mut item: usize, root: usize, mut access: Access) -> Option<Access> {
        while item != root {
            let operand = self.fusion.work.operands(item)[0];
            access = match self.fusion.work.op(item) {
                Op::Reshape(_) => access.reshape(&self.fusion.work.meta(operand).shape)?,
                Op::Permute(order) => {
                    let mut inverse = vec![0; order.len()];
                    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
                    access.permute(&inverse)
                }
                Op::After | Op::StopGradient | Op::GivenGradient => access,
                _ => return None,
            };
            item = operand;
        }
        Some(access)
    }

    /// Concatenations, or everything else, that is read through one permutation only.
    fn permutations(&mut self, concatenations: bool) {
        for root in 0..self.fusion.work.items.len() {
            let joins = matches!(self.fusion.work.op(root), Op::Concat { .. });
            if joins != concatenations || !self.is_free(root) || self.views_of[root].len() < 2 {
                continue;
            }
            // All readers go through one permutation that leaves the last axis where it is.
            let direct = |item: &&usize| **item != root && self.fusion.work.operands(**item)[0] == root;
            let mut orders = self.views_of[root].iter().filter(direct).map(|&item| self.fusion.work.op(item));
            let Some(Op::Permute(order)) = orders.next().cloned() else { continue };
            let same = orders.all(|op| *op == Op::Permute(order.clone()));
            // Attention takes rows wherever they lie.
            let takes_rows = |unit: usize| {
                let of = &self.fusion.units[unit];
                !of.fused
                    && !matches!(self.fusion.work.op(of.members[0]), Op::Concat { .. })
                    && is_packed(self.fusion.work.op(of.members[0]))
            };
            let seen_plain = self.readers[root].iter().any(|&(unit, operand)| operand == root && !takes_rows(unit));
            if !same || seen_plain || order.last() != Some(&(order.len() - 1)) {
                continue;
            }
            let shape: Vec<usize> = order.iter().map(|&a| self.fusion.work.meta(root).shape[a]).collect();
            let mut inverse = vec![0; order.len()];
            order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
            let probe = Access::contiguous(0, &shape).permute(&inverse);
            if self.suits(root, &probe) {
                let buffer = self.buffer(root, Storage::Arena).buffer;
                self.physical[root] = Some(Access { buffer, ..probe });
            }
        }
    }

    /// A reshape that is no view of a row-major value may be one of the value as it is stored.
    fn aliases(&mut self) {
        for item in 0..self.fusion.work.items.len() {
            let alone = self.fusion.home[item].is_some_and(|unit| self.fusion.units[unit].members == [item]);
            let (Op::Reshape(shape), true) = (self.fusion.work.op(item), alone && self.is_free(item)) else { continue };
            let place = self.access(self.fusion.work.operands(item)[0]).and_then(|access| access.reshape(shape));
            let in_arena = |place: &Access| self.buffers[place.buffer].storage == Storage::Arena;
            self.physical[item] = place.filter(|place| place.is_contiguous() && in_arena(place));
        }
    }

    /// Whether a value is stored where its operands are stored: no kernel is needed for it.
    pub(super) fn is_alias(&self, item: usize) -> bool {
        let Op::Reshape(shape) = self.fusion.work.op(item) else { return false };
        let own = self.physical[item].as_ref();
        own.is_some() && self.access(self.fusion.work.operands(item)[0]).and_then(|a| a.reshape(shape)).as_ref() == own
    }

    /// A sum over ranks is computed in place when this rank's part is not read afterwards.
    fn collectives(&mut self) {
        for item in 0..self.fusion.work.items.len() {
            if !self.fusion.work.live[item] || !matches!(self.fusion.work.op(item), Op::AllReduce) {
                continue;
            }
            let operand = self.fusion.work.operands(item)[0];
            let root = self.fusion.views.root[operand];
            let unit = self.fusion.home[item].expect("a collective is computed by a kernel");
            let last = self.readers[root].iter().all(|&(reader, _)| self.position[reader] <= self.position[unit]);
            let whole = self.fusion.views.logical[operand].is_identity()
                && self.fusion.work.meta(operand).shape.elements() == self.fusion.work.meta(root).shape.elements();
            let pinned = self.copies.iter().any(|&(copied, _)| self.fusion.views.root[copied] == root);
            if !last || !whole || pinned || !self.is_free(item) || is_leaf(self.fusion.work, root) {
                continue;
            }
            if self.is_free(root) {
                let access = self.buffer(root, Storage::Arena);
                self.physical[root] = Some(access);
            }
            let place = self.physical[root].clone().filter(Access::is_contiguous);
            let in_arena = place.as_ref().is_some_and(|p| self.buffers[p.buffer].storage == Storage::Arena);
            // Parts of a concatenation live in its buffer: none may be read later either.
            let shared = place.as_ref().is_some_and(|place| {
                (0..self.physical.len()).any(|other| {
                    self.physical[other].as_ref().is_some_and(|p| p.buffer == place.buffer)
                        && self.readers[other].iter().any(|&(reader, _)| self.position[reader] > self.position[unit])
                })
            });
            let shape = &self.fusion.work.meta(item).shape;
            self.physical[item] = place
                .filter(|_| in_arena && !shared)
                .and_then(|place| place.reshape(shape))
                .filter(|place| self.suits(item, place));
        }
    }
}

/// Whether the kernels of an operator write rows of any distance, whose elements lie side by side.
fn is_packed(op: &Op) -> bool {
    matches!(
        op,
        Op::Attention(_)
            | Op::AttentionGrad(_)
            | Op::NormedAttention(_)
            | Op::NormedAttentionGrad(_)
            | Op::Side(_)
            | Op::Concat { .. }
    )
}
