//! Extents that depend on the batch size, found by comparing programs that were traced for several.

use std::fmt;

use pawl_graph::graph::{Node, NodeId, Op, Program, Shape};

/// A forward program and the batch size for which it was traced.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Batch size.
    pub batch: usize,
    /// The program. It has no updates.
    pub program: Program,
}

/// `fixed + per_batch * batch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub fixed: i64,
    pub per_batch: i64,
}

impl Extent {
    pub const fn fixed(extent: usize) -> Self {
        Self { fixed: extent as i64, per_batch: 0 }
    }

    pub fn is_fixed(self) -> bool {
        self.per_batch == 0
    }

    pub fn plus(self, more: i64) -> Self {
        Self { fixed: self.fixed + more, ..self }
    }

    /// The extent that is `values[i]` for batch size `batches[i]`; `None` if it is no line.
    fn through(batches: &[usize], values: &[usize]) -> Option<Self> {
        let point = |i: usize| Some((i64::try_from(*batches.get(i)?).ok()?, i64::try_from(*values.get(i)?).ok()?));
        let ((b0, v0), (b1, v1)) = (point(0)?, point(1)?);
        let per_batch = (v1 - v0).checked_div(b1 - b0)?;
        let line = Self { fixed: v0 - per_batch * b0, per_batch };
        let on_line = |i: usize| point(i).is_some_and(|(batch, value)| line.fixed + per_batch * batch == value);
        (0..values.len()).all(on_line).then_some(line)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { fixed, per_batch: 0 } => write!(f, "{fixed}"),
            Self { fixed: 0, per_batch: 1 } => write!(f, "batch"),
            Self { fixed: 0, per_batch } => write!(f, "{per_batch}*batch"),
            Self { fixed, per_batch: 1 } => write!(f, "batch{fixed:+}"),
            Self { fixed, per_batch } => write!(f, "{per_batch}*batch{fixed:+}"),
        }
    }
}

/// The values that a node reads to compute its own: without those that only differentiation or scheduling use.
pub(crate) fn read(node: &Node) -> &[NodeId] {
    let count = match node.op {
        Op::After | Op::GivenGradient => 1,
        Op::Gather { .. } => 2,
        _ => node.operands.len(),
    };
    &node.operands[..count]
}

/// For each node, whether an output is computed from it.
pub(crate) fn needed(program: &Program) -> Vec<bool> {
    let mut needed = vec![false; program.graph.len()];
    for output in &program.outputs {
        needed[output.node.index()] = true;
    }
    for (id, node) in program.graph.iter().rev() {
        if needed[id.index()] {
            read(node).iter().for_each(|operand| needed[operand.index()] = true);
        }
    }
    needed
}

/// Extents of the values of all needed nodes; those of others are empty.
pub(crate) type Extents = Vec<Vec<Extent>>;

/// The extents of one program as they are.
pub(crate) fn of_one(program: &Program, needed: &[bool]) -> Extents {
    let of = |(node, &needed): (&Node, &bool)| match needed {
        true => node.meta.shape.dims().iter().map(|&extent| Extent::fixed(extent)).collect(),
        false => Vec::new(),
    };
    program.graph.nodes().iter().zip(needed).map(of).collect()
}

/// The extents as functions of the batch size, where all programs are the same but for these.
pub(crate) fn of_all(traced: &[Traced], needed: &[bool]) -> Option<Extents> {
    let (first, others) = traced.split_first()?;
    let batches: Vec<usize> = traced.iter().map(|traced| traced.batch).collect();
    if others.is_empty() || others.iter().any(|other| other.program.graph.len() != needed.len()) {
        return None;
    }
    let of = |(index, node): (usize, &Node)| {
        if !needed[index] {
            return Some(Vec::new());
        }
        let nodes = traced.iter().map(|traced| &traced.program.graph.nodes()[index]);
        if !nodes.clone().all(|other| is_alike(node, other)) {
            return None;
        }
        let extent = |axis: usize| {
            let values: Vec<usize> = nodes.clone().map(|node| node.meta.shape[axis]).collect();
            Extent::through(&batches, &values)
        };
        (0..node.meta.shape.rank()).map(extent).collect()
    };
    first.program.graph.nodes().iter().enumerate().map(of).collect()
}

/// Whether two nodes are the same but for the extents of their values.
fn is_alike(a: &Node, b: &Node) -> bool {
    let kind = |node: &Node| (node.meta.dtype, node.meta.shape.rank());
    a.operands == b.operands && kind(a) == kind(b) && without_extents(&a.op) == without_extents(&b.op)
}

/// The operator without what the extents of its value say too.
fn without_extents(op: &Op) -> Op {
    let none = Shape::scalar;
    match op {
        Op::Fill { value, dtype, .. } => Op::Fill { value: *value, shape: none(), dtype: *dtype },
        Op::Iota { axis, .. } => Op::Iota { axis: *axis, shape: none() },
        Op::Reshape(_) => Op::Reshape(none()),
        Op::Broadcast(_) => Op::Broadcast(none()),
        Op::Slice { axis, start, .. } => Op::Slice { axis: *axis, start: *start, len: 0 },
        Op::ScatterAdd { axis, .. } => Op::ScatterAdd { axis: *axis, extent: 0 },
        Op::SegmentRepeat { .. } => Op::SegmentRepeat { rows: 0 },
        // Of any other one, all that it says has to be equal.
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_nothing_else() {
        let batches = [2, 3, 5];
        let through = |values: [usize; 3]| Extent::through(&batches, &values).map(|extent| extent.to_string());
        assert_eq!(through([7, 7, 7]).as_deref(), Some("7"));
        assert_eq!(through([2, 3, 5]).as_deref(), Some("batch"));
        assert_eq!(through([16, 24, 40]).as_deref(), Some("8*batch"));
        assert_eq!(through([17, 25, 41]).as_deref(), Some("8*batch+1"));
        assert_eq!(through([4, 9, 25]), None, "a square");
    }
}
