//! Fusion: which nodes run in one kernel.
//!
//! Nodes are taken in execution order; each joins the kernel of an operand (or one that reads the same value) when the
//! loops agree and no path leads from that kernel through another one back to the node; two kernels that both feed a
//! node are joined when neither needs the other.

use std::collections::HashMap;

use super::{
    LowerOptions,
    simplify::{Views, Work, reduction},
};
use pawl_graph::graph::{Graph, Op, Stage};

/// How a member of a fused unit varies over the unit's loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// One value for each element.
    Full,
    /// One value for each row.
    Row,
    /// Reduced over rows, for each column (and segment); not read inside the unit.
    FoldColumns,
    /// Reduced over all elements of a segment; not read inside the unit.
    FoldAll,
}

/// Nodes that become one kernel (a concatenation: no kernel, or a few copies).
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// Whether the unit is loops over elements, to which more nodes may be added.
    pub fused: bool,
    /// Nodes, ascending. A node may be in several units when it is computed again; it is stored by its home.
    pub members: Vec<usize>,
    /// How each member of a fused unit varies.
    pub class: HashMap<usize, Member>,
    /// Elements in the loops.
    pub elements: usize,
    /// Columns, when a reduction fixes them.
    pub cols: Option<usize>,
    /// Segments, when a fold fixes them.
    pub segments: Option<usize>,
    /// Roots that are read from other units (some may have become members), and items that must have run before.
    pub needs: Vec<usize>,
    /// First node: units run in this order as far as their dependencies allow.
    pub first: usize,
    late: u8,
    closed: bool,
}

impl Unit {
    /// Whether a setting excludes the unit from fusion.
    pub(super) fn excluded(&self) -> bool {
        self.fused && self.closed
    }
}

/// Largest number of nodes in a unit.
const MEMBERS: usize = 96;
/// Rows longer than this are not kept whole in cache: reductions along them are folds.
const ROW: usize = 16 * 1024;
/// How far back (in units) a node may join a unit that only reads the same value.
const SIBLINGS: usize = 24;

/// The units of a program.
#[derive(Debug)]
pub(super) struct Fusion<'a> {
    pub work: &'a Work,
    pub views: &'a Views,
    /// Units; one without members was joined to another.
    pub units: Vec<Unit>,
    /// The unit that computes each item; none for leaves and layout operators.
    pub home: Vec<Option<usize>>,
    readers: HashMap<usize, Vec<usize>>,
}

impl<'a> Fusion<'a> {
    pub(super) fn new(work: &'a Work, views: &'a Views, graph: &Graph, options: &LowerOptions) -> Self {
        let home = vec![None; work.items.len()];
        let mut fusion = Self { work, views, units: Vec::new(), home, readers: HashMap::new() };
        let excluded: Vec<bool> = graph.scopes().iter().map(|path| options.excludes(path)).collect();
        for item in 0..work.items.len() {
            if work.live[item] && views.root[item] == item && !is_leaf(work, item) {
                let closed = excluded[work.items[item].node.scope.0 as usize];
                fusion.place(item, closed);
            }
        }
        fusion
    }

    /// Whether a fused kernel may hold this item's value as a number in its code.
    pub(super) fn immediate(&self, item: usize) -> Option<f64> {
        immediate(self.work, self.views.root[item])
    }

    /// Roots that an item reads, and items that must have run before it.
    fn needs(&self, item: usize) -> Vec<usize> {
        let mut needs = Vec::new();
        for &operand in self.work.operands(item) {
            needs.push(self.views.root[operand]);
            needs.extend(&self.views.tokens[operand]);
        }
        needs.retain(|&root| immediate(self.work, root).is_none());
        needs
    }

    fn place(&mut self, item: usize, closed: bool) {
        if let Op::Side(_) = self.work.op(item) {
            let of = self.views.root[self.work.operands(item)[0]];
            let unit = self.home[of].expect("an operator comes before its side results");
            self.home[item] = Some(unit);
            self.units[unit].members.push(item);
            return;
        }
        let needs = self.needs(item);
        let late = lateness(self.work.items[item].node.stage);
        let fusable = is_fusable(self.work, item);
        let mut joined: Option<usize> = None;
        if fusable && !closed {
            for candidate in self.candidates(item, &needs, late) {
                match joined {
                    None if self.joins(item, &needs, candidate) => {
                        self.add(item, needs.clone(), candidate);
                        joined = Some(candidate);
                    }
                    Some(unit) => self.merge(unit, candidate),
                    None => {}
                }
            }
        }
        if joined.is_none() {
            let index = self.units.len();
            let mut unit = Unit {
                fused: fusable,
                members: vec![item],
                class: HashMap::new(),
                elements: self.loop_elements(item),
                cols: None,
                segments: None,
                needs: needs.clone(),
                first: item,
                late,
                closed: closed || !fusable,
            };
            if fusable {
                let (class, cols, segments) = self.fits(item, &unit).expect("a unit of one node has that node's loops");
                unit.class.insert(item, class);
                (unit.cols, unit.segments) = (cols, segments);
            }
            self.units.push(unit);
            self.home[item] = Some(index);
            self.note(index, &needs);
        }
    }

    fn note(&mut self, unit: usize, needs: &[usize]) {
        for &root in needs {
            let readers = self.readers.entry(root).or_default();
            if readers.last() != Some(&unit) {
                readers.push(unit);
            }
        }
    }

    /// Units an item could join: those of its operands, the latest first, then those that read the same values.
    fn candidates(&self, item: usize, needs: &[usize], late: u8) -> Vec<usize> {
        let elements = self.loop_elements(item);
        let mut units: Vec<usize> = needs.iter().filter_map(|&root| self.home[root]).collect();
        units.sort_unstable_by(|a, b| b.cmp(a));
        let recent = self.units.len().saturating_sub(SIBLINGS);
        for root in needs.iter().filter(|&&root| self.work.meta(root).shape.elements() == elements) {
            units.extend(self.readers.get(root).into_iter().flatten().rev().filter(|&&u| u >= recent));
        }
        let mut seen = Vec::new();
        for unit in units {
            let of = &self.units[unit];
            if of.fused && !of.closed && of.late == late && !of.members.is_empty() && !seen.contains(&unit) {
                seen.push(unit);
            }
        }
        seen
    }

    /// Elements in the loops of a kernel of this item alone.
    fn loop_elements(&self, item: usize) -> usize {
        let over = match self.work.op(item) {
            Op::Reduce { .. } => self.work.operands(item)[0],
            _ => item,
        };
        self.work.meta(over).shape.elements()
    }

    fn joins(&self, item: usize, needs: &[usize], unit: usize) -> bool {
        let of = &self.units[unit];
        of.members.len() < MEMBERS && self.fits(item, of).is_some() && !self.reaches(needs, unit)
    }

    fn add(&mut self, item: usize, needs: Vec<usize>, unit: usize) {
        let (class, cols, segments) = self.fits(item, &self.units[unit]).expect("checked by `joins`");
        self.home[item] = Some(unit);
        self.note(unit, &needs);
        let of = &mut self.units[unit];
        of.members.push(item);
        of.class.insert(item, class);
        (of.cols, of.segments) = (cols, segments);
        of.needs.extend(needs);
    }

    /// How `item` would vary in `unit`, with the columns and segments the unit then has; `None` when the loops do not
    /// agree.
    fn fits(&self, item: usize, unit: &Unit) -> Option<(Member, Option<usize>, Option<usize>)> {
        let operands = self.work.operands(item);
        if let Op::Reduce { axes, .. } = self.work.op(item) {
            let shape = &self.work.meta(operands[0]).shape;
            (shape.elements() == unit.elements && unit.elements > 0).then_some(())?;
            self.sees(operands[0], unit, Member::Full, unit.cols)?;
            let (before, reduced, after) = reduction(shape, axes);
            let (member, cols, segments) = match (before, after) {
                (1, 1) => (Member::FoldAll, None, Some(1)),
                (_, 1) if reduced > ROW => (Member::FoldAll, None, Some(before)),
                (_, 1) => (Member::Row, Some(reduced), None),
                _ => (Member::FoldColumns, Some(after), Some(before)),
            };
            // One row is a row and the whole: seen inside when it is short.
            let (member, cols, segments) = match member {
                Member::FoldAll if reduced <= ROW && unit.cols.is_none_or(|c| c == reduced) && before == 1 => {
                    (Member::Row, Some(reduced), None)
                }
                _ => (member, cols, segments),
            };
            let agree = |new: Option<usize>, old: Option<usize>| new.is_none() || old.is_none() || new == old;
            let kept = cols.or(unit.cols);
            // A segment is whole rows.
            let whole = segments.is_none_or(|s| (unit.elements / s).is_multiple_of(kept.unwrap_or(1)));
            return (agree(cols, unit.cols) && agree(segments, unit.segments) && whole).then_some((
                member,
                kept,
                segments.or(unit.segments),
            ));
        }
        let elements = self.work.meta(item).shape.elements();
        let member = match unit.cols {
            _ if elements == unit.elements => Member::Full,
            Some(cols) if elements * cols == unit.elements => Member::Row,
            _ => return None,
        };
        if let Op::Random { .. } | Op::Iota { .. } = self.work.op(item) {
            return (member == Member::Full).then_some((member, unit.cols, unit.segments));
        }
        for &operand in operands {
            self.sees(operand, unit, member, unit.cols)?;
        }
        Some((member, unit.cols, unit.segments))
    }

    /// Whether a reader that varies like `member` finds `operand` in the unit element by element (or outside of it).
    fn sees(&self, operand: usize, unit: &Unit, member: Member, cols: Option<usize>) -> Option<()> {
        let Some(class) = unit.class.get(&self.views.root[operand]) else { return Some(()) };
        let view = &self.views.logical[operand];
        let whole = view.is_identity();
        let fine = match (class, member) {
            (Member::Full, Member::Full) => whole && view.elements() == unit.elements,
            (Member::Row, Member::Row) => whole && cols.is_some_and(|c| view.elements() * c == unit.elements),
            (Member::Row, Member::Full) => cols.is_some_and(|c| view.is_row_identity(unit.elements / c, c)),
            _ => false,
        };
        fine.then_some(())
    }

    /// Whether a path leads from `unit` through another unit to one of `roots`.
    fn reaches(&self, roots: &[usize], unit: usize) -> bool {
        self.reaches_beside(roots, unit, unit)
    }

    /// The same of paths that do not lead through `beside`.
    fn reaches_beside(&self, roots: &[usize], unit: usize, beside: usize) -> bool {
        // All earlier units must be searched: a unit of early nodes may depend on one to which late nodes were added.
        let mut seen = vec![false; self.units.len()];
        (seen[unit], seen[beside]) = (true, true);
        let mut open: Vec<usize> = roots.iter().filter_map(|&r| self.home[r]).collect();
        while let Some(next) = open.pop() {
            if std::mem::replace(&mut seen[next], true) {
                continue;
            }
            for home in self.units[next].needs.iter().filter_map(|&root| self.home[root]) {
                if home == unit {
                    return true;
                }
                if !seen[home] {
                    open.push(home);
                }
            }
        }
        false
    }

    /// Joins `other` to `unit` when their loops agree and neither needs the other.
    fn merge(&mut self, unit: usize, other: usize) {
        let (a, b) = (&self.units[unit], &self.units[other]);
        let agree = |x: Option<usize>, y: Option<usize>| x.is_none() || y.is_none() || x == y;
        let alike = a.elements == b.elements
            && agree(a.cols, b.cols)
            && agree(a.segments, b.segments)
            && a.members.len() + b.members.len() <= MEMBERS;
        if unit == other || !alike || b.needs.iter().any(|&root| self.home[root] == Some(unit)) {
            return;
        }
        // What the first reads of the second has to be seen element by element once they are one.
        let mut both = b.clone();
        both.cols = a.cols.or(b.cols);
        both.segments = a.segments.or(b.segments);
        let whole = both.segments.is_none_or(|s| (both.elements / s).is_multiple_of(both.cols.unwrap_or(1)));
        let mut ordered = a.members.clone();
        ordered.sort_unstable();
        for item in ordered {
            match self.fits(item, &both) {
                Some((class, cols, segments)) if class == a.class[&item] => {
                    both.class.insert(item, class);
                    (both.cols, both.segments) = (cols, segments);
                }
                _ => return,
            }
        }
        // What leads from one straight to the other is within.
        if !whole || self.reaches_beside(&a.needs, other, unit) || self.reaches_beside(&b.needs, unit, other) {
            return;
        }
        let moved = std::mem::take(&mut self.units[other].members);
        let (needs, first) = {
            let from = &mut self.units[other];
            from.class.clear();
            (std::mem::take(&mut from.needs), from.first)
        };
        moved.iter().for_each(|&item| self.home[item] = Some(unit));
        self.note(unit, &needs);
        let into = &mut self.units[unit];
        into.members.extend(moved);
        into.members.sort_unstable();
        (into.class, into.cols, into.segments) = (both.class, both.cols, both.segments);
        into.needs.extend(needs);
        into.first = into.first.min(first);
    }

    /// Units in an order in which each comes after all it needs: by first node where there is a choice.
    pub(super) fn order(&self) -> Vec<usize> {
        use std::{cmp::Reverse, collections::BinaryHeap};
        let mut waiting = vec![0usize; self.units.len()];
        let mut then: Vec<Vec<usize>> = vec![Vec::new(); self.units.len()];
        for (index, unit) in self.units.iter().enumerate() {
            let mut before: Vec<usize> =
                unit.needs.iter().filter_map(|&r| self.home[r]).filter(|&u| u != index).collect();
            before.sort_unstable();
            before.dedup();
            waiting[index] = before.len();
            before.into_iter().for_each(|u| then[u].push(index));
        }
        let live = |u: &usize| !self.units[*u].members.is_empty();
        let mut ready: BinaryHeap<_> = (0..self.units.len())
            .filter(live)
            .filter(|&u| waiting[u] == 0)
            .map(|u| Reverse((self.units[u].first, u)))
            .collect();
        let mut order = Vec::with_capacity(self.units.len());
        while let Some(Reverse((_, unit))) = ready.pop() {
            order.push(unit);
            for &next in &then[unit] {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(Reverse((self.units[next].first, next)));
                }
            }
        }
        let all = self.units.iter().filter(|unit| !unit.members.is_empty()).count();
        assert_eq!(order.len(), all, "grouping made a circle");
        order
    }
}

/// Values that are there before the run begins.
pub(super) fn is_leaf(work: &Work, item: usize) -> bool {
    matches!(work.op(item), Op::Input(_) | Op::State(_) | Op::Constant(_) | Op::Fill { .. })
}

/// The number that all elements of a root are, if it is a constant.
pub(super) fn immediate(work: &Work, root: usize) -> Option<f64> {
    match work.op(root) {
        Op::Fill { value, .. } => Some(*value),
        Op::Constant(array) if array.shape().elements() == 1 => Some(array.item()),
        _ => None,
    }
}

fn is_fusable(work: &Work, item: usize) -> bool {
    let op = work.op(item);
    let layout = matches!(op, Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. });
    op.is_elementwise() || layout || matches!(op, Op::Reduce { .. } | Op::Iota { .. } | Op::Random { .. })
}

/// Nodes of different lateness are not joined: values of the forward pass would wait for gradients.
fn lateness(stage: Stage) -> u8 {
    match stage {
        Stage::Forward => 0,
        Stage::Backward | Stage::Recompute => 1,
        Stage::Update => 2,
    }
}
