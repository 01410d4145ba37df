//! Recomputation of values that are cheaper to compute again than to keep.
//!
//! Gradients of elementwise expressions read intermediate values of the forward pass: for GELU three of them, all
//! functions of one. A kernel that can compute such a value from what it already reads and at most one more array does
//! so; then the value is neither written, nor kept until the gradient arrives, nor read.

use std::collections::{BTreeSet, HashSet};

use super::fuse::{Fusion, Member};
use pawl_graph::graph::{BinaryOp, Op, UnaryOp};

/// Largest cost of what is computed again for one value, in additions.
const COST: usize = 40;

/// Roots that a unit reads, with the operands (items) through which it sees them.
pub(super) fn reads(fusion: &Fusion<'_>, unit: usize) -> Vec<(usize, usize)> {
    let of = &fusion.units[unit];
    let mut reads = Vec::new();
    for &item in &of.members {
        if matches!(fusion.work.op(item), Op::Side(_)) {
            continue;
        }
        // A token (the second operand of `After`) is never read: `After` is a layout operator, hence no member.
        for &operand in fusion.work.operands(item) {
            let root = fusion.views.root[operand];
            let inside = of.class.contains_key(&root) || of.fused && fusion.immediate(operand).is_some();
            if !inside {
                reads.push((root, operand));
            }
        }
    }
    reads.sort_unstable();
    reads.dedup();
    reads
}

/// Puts copies of cheap expressions into the units that read their values.
pub(super) fn recompute(fusion: &mut Fusion<'_>, pinned: &HashSet<usize>) {
    let order = fusion.order();
    let mut position = vec![0; fusion.units.len()];
    order.iter().enumerate().for_each(|(at, &unit)| position[unit] = at);
    let mut reading: Vec<Vec<(usize, usize)>> = (0..fusion.units.len()).map(|u| reads(fusion, u)).collect();
    let mut readers = vec![BTreeSet::new(); fusion.work.items.len()];
    for (unit, reads) in reading.iter().enumerate() {
        reads.iter().for_each(|&(root, _)| {
            readers[root].insert(unit);
        });
    }
    for &unit in &order {
        if !fusion.units[unit].fused {
            continue;
        }
        for value in fusion.units[unit].members.clone() {
            if fusion.home[value] != Some(unit) || pinned.contains(&value) || readers[value].is_empty() {
                continue;
            }
            let tables = RecomputeTables { fusion, pinned, readers: &readers, reading: &reading, position: &position };
            let Some(plan) = tables.plan(unit, value) else { continue };
            for consumer in std::mem::take(&mut readers[value]) {
                let into = &mut fusion.units[consumer];
                for &item in &plan.again {
                    if into.class.insert(item, Member::Full).is_none() {
                        into.members.push(item);
                    }
                }
                into.members.sort_unstable();
                into.needs.extend(plan.leaves.iter().chain(&plan.tokens));
                for &(root, _) in &reading[consumer] {
                    readers[root].remove(&consumer);
                }
                reading[consumer] = reads(fusion, consumer);
                for &(root, _) in &reading[consumer] {
                    readers[root].insert(consumer);
                }
            }
        }
    }
}

/// How to compute a value again.
struct RecomputePlan {
    /// The expression: items that are computed again, the value among them.
    again: Vec<usize>,
    /// The values that the expression reads.
    leaves: Vec<usize>,
    /// Items that must have run before, although none of their values is read.
    tokens: Vec<usize>,
}

/// The tables of the pass, by item or by unit.
struct RecomputeTables<'t, 'f> {
    fusion: &'t Fusion<'f>,
    /// Items that are stored in any case.
    pinned: &'t HashSet<usize>,
    /// For each item, the units that read it.
    readers: &'t [BTreeSet<usize>],
    /// For each unit, its [`reads`].
    reading: &'t [Vec<(usize, usize)>],
    /// For each unit, its place in execution order.
    position: &'t [usize],
}

impl RecomputeTables<'_, '_> {
    /// How to compute `value`, a member of `unit`, again in all its readers; `None` when that is impossible or costs
    /// more than keeping it.
    fn plan(&self, unit: usize, value: usize) -> Option<RecomputePlan> {
        self.can_move(unit, value).then_some(())?;
        let cheap =
            |narrowed| self.expression(unit, value, narrowed).filter(|plan| self.saves_memory(unit, value, plan));
        cheap(false).or_else(|| cheap(true))
    }

    /// Whether all readers loop over the elements of `value` as its own unit does.
    fn can_move(&self, unit: usize, value: usize) -> bool {
        let of = &self.fusion.units[unit];
        let fits = |consumer: usize| {
            let to = &self.fusion.units[consumer];
            let plain = to.fused && to.elements == of.elements && to.members.len() < 128;
            let mut seen = self.reading[consumer].iter().filter(|&&(root, _)| root == value);
            // A row value that reads the element-wise value through a view of as many elements cannot be: loops are
            // equal.
            plain
                && !to.excluded()
                && seen.all(|&(_, operand)| {
                    let view = &self.fusion.views.logical[operand];
                    view.is_identity() && view.elements() == of.elements
                })
        };
        of.class[&value] == Member::Full && !of.excluded() && self.readers[value].iter().all(|&unit| fits(unit))
    }

    /// The expression of `value` over values that are stored, if it is cheap. With `narrowed`, a value that was rounded
    /// to fewer bits and widened again is read from those bits (which are then kept in its place), not computed from
    /// the value that was rounded.
    fn expression(&self, unit: usize, value: usize, narrowed: bool) -> Option<RecomputePlan> {
        let Self { fusion, pinned, readers, .. } = *self;
        let of = &fusion.units[unit];
        let (mut again, mut leaves, mut tokens, mut cost) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut open = vec![value];
        while let Some(item) = open.pop() {
            if again.contains(&item) {
                continue;
            }
            again.push(item);
            cost += price(fusion.work.op(item))?;
            (cost <= COST).then_some(())?;
            for &operand in fusion.work.operands(item) {
                let root = fusion.views.root[operand];
                if fusion.immediate(operand).is_some() {
                    continue;
                }
                let fewer = fusion.work.meta(root).dtype.bytes() < fusion.work.meta(item).dtype.bytes();
                let bits = narrowed && fewer && matches!(fusion.work.op(item), Op::Cast(_));
                let kept = bits || pinned.contains(&root) || !readers[root].is_empty();
                match of.class.get(&root) {
                    Some(Member::Full) if !kept => open.push(root),
                    _ => leaves.push(root),
                }
                tokens.extend(&fusion.views.tokens[operand]);
            }
        }
        leaves.sort_unstable();
        leaves.dedup();
        again.sort_unstable();
        Some(RecomputePlan { again, leaves, tokens })
    }

    /// Whether each reader reads at most one large value more than before, and keeps at most one alive for longer.
    fn saves_memory(&self, unit: usize, value: usize, plan: &RecomputePlan) -> bool {
        let Self { fusion, pinned, readers, reading, position } = *self;
        let elements = fusion.units[unit].elements;
        let large = |root: usize| fusion.work.meta(root).shape.elements() * 4 > elements;
        let leaf = |root: usize| super::fuse::is_leaf(fusion.work, root);
        readers[value].iter().all(|&consumer| {
            let known = |root: usize| {
                fusion.units[consumer].class.contains_key(&root) || reading[consumer].iter().any(|&(r, _)| r == root)
            };
            let more = plan.leaves.iter().filter(|&&root| large(root) && !known(root));
            let longer = plan.leaves.iter().filter(|&&root| {
                let last = readers[root].iter().map(|&u| position[u]).max().unwrap_or(0);
                large(root) && !leaf(root) && !pinned.contains(&root) && last < position[consumer]
            });
            more.count() <= 1 && longer.count() <= 1
        })
    }
}

/// Cost of an operator for an element, in additions; `None` when it is not computed again.
fn price(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Unary(op) => match op {
            UnaryOp::Exp
            | UnaryOp::Log
            | UnaryOp::Erf
            | UnaryOp::Tanh
            | UnaryOp::Sigmoid
            | UnaryOp::Sin
            | UnaryOp::Cos => 8,
            UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip => 3,
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Square | UnaryOp::Sign | UnaryOp::Floor | UnaryOp::IsFinite => 1,
        },
        Op::Random { .. } => 8,
        Op::Binary(BinaryOp::Div) => 3,
        op if op.is_elementwise() => 1,
        Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Iota { .. } => 1,
        _ => return None,
    })
}
