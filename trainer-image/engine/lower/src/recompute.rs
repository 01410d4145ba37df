//! Values that are cheaper to compute again than to keep.
//!
//! Gradients of elementwise expressions read intermediate values of the forward pass: for GELU three of them, all functions of one.
//! A kernel that can compute such a value from what it already reads and at most one more array does so; then the value is
//! neither written, nor kept until the gradient arrives, nor read.

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
            let of = |narrowed| plan(fusion, unit, value, narrowed, pinned, &readers, &reading, &position);
            let Some(plan) = of(false).or_else(|| of(true)) else { continue };
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

struct RecomputePlan {
    again: Vec<usize>,
    leaves: Vec<usize>,
    /// What must have run before, though nobody reads it.
    tokens: Vec<usize>,
}

/// What has to be computed again for `value`, and from what; `narrowed`: a value that was rounded to fewer bits and widened again is taken from
/// those bits (which are then kept in its place), not computed from what it was rounded from.
#[expect(clippy::too_many_arguments, reason = "the tables of one pass")]
fn plan(
    fusion: &Fusion<'_>,
    unit: usize,
    value: usize,
    narrowed: bool,
    pinned: &HashSet<usize>,
    readers: &[BTreeSet<usize>],
    reading: &[Vec<(usize, usize)>],
    position: &[usize],
) -> Option<RecomputePlan> {
    let of = &fusion.units[unit];
    (of.class[&value] == Member::Full && !of.excluded()).then_some(())?;
    for &consumer in &readers[value] {
        let to = &fusion.units[consumer];
        let plain = to.fused && to.elements == of.elements && to.members.len() < 128;
        let seen = reading[consumer].iter().filter(|&&(root, _)| root == value);
        let whole = seen.clone().all(|&(_, operand)| {
            let view = &fusion.views.logical[operand];
            view.is_identity() && view.elements() == of.elements
        });
        // A row value that reads the element-wise value through a view of as many elements cannot be: loops are equal.
        (plain && whole && !to.excluded()).then_some(())?;
    }
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
    let large = |root: usize| fusion.work.meta(root).shape.elements() * 4 > of.elements;
    let leaf = |root: usize| super::fuse::is_leaf(fusion.work, root);
    for &consumer in &readers[value] {
        let known = |root: usize| {
            fusion.units[consumer].class.contains_key(&root) || reading[consumer].iter().any(|&(r, _)| r == root)
        };
        let more = leaves.iter().filter(|&&root| large(root) && !known(root)).count();
        let longer = leaves.iter().filter(|&&root| {
            let last = readers[root].iter().map(|&u| position[u]).max().unwrap_or(0);
            large(root) && !leaf(root) && !pinned.contains(&root) && last < position[consumer]
        });
        (more <= 1 && longer.count() <= 1).then_some(())?;
    }
    again.sort_unstable();
    Some(RecomputePlan { again, leaves, tokens })
}

/// Cost of an operator for an element, in additions; `None` when it is not computed again.
fn price(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Unary(
            UnaryOp::Exp | UnaryOp::Log | UnaryOp::Erf | UnaryOp::Tanh | UnaryOp::Sigmoid | UnaryOp::Sin | UnaryOp::Cos,
        )
        | Op::Random { .. } => 8,
        Op::Unary(UnaryOp::Sqrt | UnaryOp::Rsqrt | UnaryOp::Recip) | Op::Binary(BinaryOp::Div) => 3,
        op if op.is_elementwise() => 1,
        Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Iota { .. } => 1,
        _ => return None,
    })
}
