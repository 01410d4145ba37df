//! A working copy of a program in canonical form.

use pawl_graph::graph::{BinaryOp, DType, Meta, Node, NodeId, Op, Program, ReduceOp, Shape, StateId};

/// A node of the working copy.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub node: Node,
    /// Operands, as indices into [`Work::items`].
    pub operands: Vec<usize>,
}

/// The working copy: like the program's graph, in execution order.
///
/// Differences: sums of disjoint paddings are concatenations, reductions run over neighbouring axes, layout operators
/// and casts that change nothing are removed, and [`Work::live`] marks the items that are needed.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub items: Vec<Item>,
    pub outputs: Vec<usize>,
    pub updates: Vec<(StateId, usize)>,
    pub live: Vec<bool>,
}

impl Work {
    pub(super) fn new(program: &Program) -> Self {
        let mut work = Work::default();
        let mut place = Vec::with_capacity(program.graph.len());
        let mut uses = vec![0usize; program.graph.len()];
        let mut users = vec![Vec::new(); program.graph.len()];
        for (id, node) in program.graph.iter() {
            for operand in &node.operands {
                uses[operand.index()] += 1;
                users[operand.index()].push(id);
            }
        }
        for root in program.roots() {
            uses[root.index()] += 1;
            // Named by the program: as if it read itself.
            users[root.index()].push(root);
        }
        for (id, node) in program.graph.iter() {
            let index = work.copy(program, id, node, &place, (&uses, &users));
            place.push(index);
        }
        work.outputs = program.outputs.iter().map(|o| place[o.node.index()]).collect();
        work.updates = program.updates.iter().map(|u| (u.state, place[u.value.index()])).collect();
        work.mark();
        work
    }

    pub(super) fn meta(&self, item: usize) -> &Meta {
        &self.items[item].node.meta
    }

    pub(super) fn op(&self, item: usize) -> &Op {
        &self.items[item].node.op
    }

    pub(super) fn operands(&self, item: usize) -> &[usize] {
        &self.items[item].operands
    }

    fn copy(
        &mut self,
        program: &Program,
        id: NodeId,
        node: &Node,
        place: &[usize],
        (uses, users): (&[usize], &[Vec<NodeId>]),
    ) -> usize {
        let operands: Vec<usize> = node.operands.iter().map(|o| place[o.index()]).collect();
        match &node.op {
            Op::Reshape(_) | Op::Broadcast(_) | Op::Cast(_) if node.meta == *self.meta(operands[0]) => operands[0],
            Op::Permute(order) if order.iter().copied().eq(0..order.len()) => operands[0],
            Op::Slice { .. } => match Sunk::of(program, id, users) {
                Some(sunk) => self.sink(program, &sunk, sunk.value, &sunk.views, place),
                None => self.push(node.clone(), operands),
            },
            Op::Reduce { op, axes } => self.reduce(node, *op, axes, operands[0]),
            Op::Pad { axis, before, .. } => {
                self.concat(node, PadSum { axis: *axis, parts: vec![(node.operands[0], *before)] }, place)
            }
            Op::Binary(BinaryOp::Add) => match PadSum::of(program, id, uses) {
                Some(sum) => self.concat(node, sum, place),
                None => self.push(node.clone(), operands),
            },
            _ => self.push(node.clone(), operands),
        }
    }

    /// The slice of an elementwise value as the value of slices: what `from` is, seen through `views`.
    fn sink(&mut self, program: &Program, sunk: &Sunk, from: NodeId, views: &[(Op, Shape)], place: &[usize]) -> usize {
        let node = program.graph.node(from);
        if sunk.again.contains(&from) {
            if let Op::Reshape(_) | Op::Permute(_) = node.op {
                let mut all = vec![(node.op.clone(), node.meta.shape.clone())];
                all.extend_from_slice(views);
                return self.sink(program, sunk, node.operands[0], &all, place);
            }
            let operands = node.operands.iter().map(|&o| self.sink(program, sunk, o, views, place)).collect();
            let shape = &views[views.len() - 1].1;
            let meta = Meta::new(node.meta.dtype, shape);
            return self.push(Node { meta, ..node.clone() }, operands);
        }
        let mut item = place[from.index()];
        for (op, shape) in views {
            let meta = Meta::new(node.meta.dtype, shape);
            item = self.push(Node { op: op.clone(), meta, ..node.clone() }, vec![item]);
        }
        item
    }

    fn push(&mut self, node: Node, operands: Vec<usize>) -> usize {
        self.items.push(Item { node, operands });
        self.items.len() - 1
    }

    /// One reduction for each run of neighbouring axes (axes of extent 1 reduce to themselves), last run first.
    fn reduce(&mut self, node: &Node, op: ReduceOp, axes: &[usize], operand: usize) -> usize {
        let mut runs: Vec<Vec<usize>> = Vec::new();
        let mut value = operand;
        let shape = self.meta(operand).shape.clone();
        for &axis in axes.iter().filter(|&&axis| shape[axis] != 1) {
            let joins = |run: &Vec<usize>| (run[run.len() - 1] + 1..axis).all(|between| shape[between] == 1);
            match runs.last_mut().filter(|run| joins(run)) {
                Some(run) => run.push(axis),
                None => runs.push(vec![axis]),
            }
        }
        let dtype = node.meta.dtype;
        let several = runs.len() > 1 && dtype != dtype.accumulator();
        if several {
            value = self.cast(node, value, dtype.accumulator());
        }
        for axes in runs.into_iter().rev() {
            let from = self.meta(value);
            let dims = axes.iter().fold(from.shape.clone(), |shape, &axis| shape.with(axis, 1));
            let meta = Meta::new(from.dtype, dims);
            value = self.push(Node { op: Op::Reduce { op, axes }, meta, ..node.clone() }, vec![value]);
        }
        if several { self.cast(node, value, dtype) } else { value }
    }

    fn cast(&mut self, like: &Node, value: usize, dtype: DType) -> usize {
        let meta = Meta::new(dtype, &self.meta(value).shape);
        self.push(Node { op: Op::Cast(dtype), meta, ..like.clone() }, vec![value])
    }

    fn concat(&mut self, node: &Node, sum: PadSum, place: &[usize]) -> usize {
        let PadSum { axis, mut parts } = sum;
        let shape = node.meta.shape.clone();
        parts.sort_unstable_by_key(|part| part.1);
        let mut operands = Vec::new();
        let mut at = 0;
        for (part, start) in parts.into_iter().map(|(id, start)| (place[id.index()], start)) {
            self.gap(node, &mut operands, axis, start - at);
            at = start + self.meta(part).shape[axis];
            operands.push(part);
        }
        self.gap(node, &mut operands, axis, shape[axis] - at);
        self.push(Node { op: Op::Concat { axis }, ..node.clone() }, operands)
    }

    fn gap(&mut self, node: &Node, operands: &mut Vec<usize>, axis: usize, len: usize) {
        if len > 0 {
            let meta = Meta::new(node.meta.dtype, node.meta.shape.with(axis, len));
            let op = Op::Fill { value: 0.0, shape: meta.shape.clone(), dtype: meta.dtype };
            let fill = self.push(Node { op, meta, ..node.clone() }, Vec::new());
            operands.push(fill);
        }
    }

    fn mark(&mut self) {
        self.live = vec![false; self.items.len()];
        for root in self.outputs.iter().chain(self.updates.iter().map(|(_, value)| value)) {
            self.live[*root] = true;
        }
        for item in (0..self.items.len()).rev() {
            if self.live[item] {
                for operand in self.items[item].operands.clone() {
                    self.live[operand] = true;
                }
            }
        }
    }
}

/// A slice of an elementwise value (a product with its bias) of which only slices are read: it is faster to compute
/// each slice in its reader, from slices of the operands, than to write the whole value and read it again.
struct Sunk {
    /// The elementwise value, and those of its operands that are computed again.
    value: NodeId,
    again: Vec<NodeId>,
    /// Layout operators from the value to the slice, with their shapes.
    views: Vec<(Op, Shape)>,
}

impl Sunk {
    fn of(program: &Program, slice: NodeId, users: &[Vec<NodeId>]) -> Option<Self> {
        let graph = &program.graph;
        let mut views = Vec::new();
        let mut value = slice;
        while let (true, _) | (_, Op::Reshape(_) | Op::Permute(_)) = (value == slice, &graph.node(value).op) {
            let node = graph.node(value);
            views.push((node.op.clone(), node.meta.shape.clone()));
            value = node.operands[0];
        }
        views.reverse();
        let is_computed = matches!(graph.node(value).op, Op::Binary(_) | Op::Cast(_));
        (is_computed && only_sliced(program, value, users)).then_some(())?;
        // What it is computed from ends at one product, which is stored anyway, and at what is small.
        let (mut again, mut open, mut products) = (Vec::new(), vec![value], 0);
        while let Some(next) = open.pop() {
            let node = graph.node(next);
            match &node.op {
                Op::MatMul { .. } | Op::MatMulAdd { .. } | Op::ScaledMatMul { .. } => products += 1,
                Op::Broadcast(_) | Op::Fill { .. } => {}
                Op::Binary(_) | Op::Cast(_) | Op::Reshape(_) | Op::Permute(_)
                    if users[next.index()].len() == 1 || only_sliced(program, next, users) =>
                {
                    again.push(next);
                    open.extend(&node.operands);
                }
                _ => return None,
            }
        }
        (products == 1).then_some(Self { value, again, views })
    }
}

/// Whether only slices read a value, through views and casts.
fn only_sliced(program: &Program, value: NodeId, users: &[Vec<NodeId>]) -> bool {
    users[value.index()].iter().all(|&user| match &program.graph.node(user).op {
        // What an output or an update names is noted as its own reader.
        _ if user == value => false,
        Op::Slice { .. } => true,
        Op::Reshape(_) | Op::Permute(_) | Op::Cast(_) => only_sliced(program, user, users),
        _ => false,
    })
}

/// A tree of additions whose leaves are paddings along one axis that do not overlap: the gradient of slicing one value.
struct PadSum {
    axis: usize,
    /// The padded values, each with its start along the axis.
    parts: Vec<(NodeId, usize)>,
}

impl PadSum {
    fn of(program: &Program, id: NodeId, uses: &[usize]) -> Option<Self> {
        let mut parts = Vec::new();
        let mut axis = None;
        let mut open = vec![id];
        while let Some(next) = open.pop() {
            let node = program.graph.node(next);
            match &node.op {
                Op::Binary(BinaryOp::Add) if next == id || uses[next.index()] == 1 => open.extend(&node.operands),
                Op::Pad { axis: along, before, .. } if axis.is_none_or(|a| a == *along) => {
                    axis = Some(*along);
                    parts.push((node.operands[0], *before));
                }
                _ => return None,
            }
        }
        let axis = axis?;
        let mut spans: Vec<_> =
            parts.iter().map(|&(id, start)| (start, start + program.graph.meta(id).shape[axis])).collect();
        spans.sort_unstable();
        spans.windows(2).all(|w| w[0].1 <= w[1].0).then_some(Self { axis, parts })
    }
}

/// Roots, views and order of values, for the later steps.
#[derive(Debug)]
pub(super) struct Views {
    /// The item that holds the elements that an item sees: itself, unless it is a layout operator.
    pub root: Vec<usize>,
    /// What each item sees of its root, were the root row-major.
    pub logical: Vec<super::Access>,
    /// Items that must have run before a reader of this item may ([`Op::After`]), beside its root.
    pub tokens: Vec<Vec<usize>>,
}

impl Views {
    pub(super) fn new(work: &Work) -> Self {
        let mut views = Self { root: Vec::new(), logical: Vec::new(), tokens: Vec::with_capacity(work.items.len()) };
        for (index, item) in work.items.iter().enumerate() {
            let own = || super::Access::contiguous(index, &item.node.meta.shape);
            let seen = item.operands.first().and_then(|&o| views.logical[o].apply(&item.node.op));
            let mut tokens = Vec::new();
            match seen {
                Some(view) => {
                    tokens.clone_from(&views.tokens[item.operands[0]]);
                    if matches!(item.node.op, Op::After) {
                        let token = item.operands[1];
                        tokens.push(views.root[token]);
                        tokens.extend(views.tokens[token].clone());
                    }
                    views.root.push(view.buffer);
                    views.logical.push(view);
                }
                None => {
                    views.root.push(index);
                    views.logical.push(own());
                }
            }
            views.tokens.push(tokens);
        }
        views
    }
}

/// Extents of a reduction as `before x reduced x after`: axes are neighbours.
pub(super) fn reduction(shape: &Shape, axes: &[usize]) -> (usize, usize, usize) {
    let (first, last) = (axes[0], axes[axes.len() - 1]);
    let product = |dims: &[usize]| dims.iter().product();
    (product(&shape[..first]), product(&shape[first..=last]), product(&shape[last + 1..]))
}
