//! The arena of nodes.

use super::{GraphError, Meta, Op, StateId, infer, infer_sides};

/// A value: the node that computes it. Smaller ids run earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Index into [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A scope: index into [`Graph::scopes`]. Scope 0 is the root, with an empty path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ScopeId(pub u32);

/// The part of a training step a node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Stage {
    /// The model and its loss.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// A copy of a forward node, computed again because the value was not kept.
    Recompute,
    /// Gradient reduction, optimiser, averages.
    Update,
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// From what, in the order the operator documents.
    pub operands: Vec<NodeId>,
    /// Dtype and shape of the main value.
    pub meta: Meta,
    /// Where in the model: a path such as `blocks.3/attn`. A gradient has the scope of the node it is the gradient of.
    pub scope: ScopeId,
    /// Which part of the step.
    pub stage: Stage,
}

/// Nodes in execution order.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    nodes: Vec<Node>,
    scopes: Vec<String>,
}

impl Default for Graph {
    fn default() -> Self {
        Self { nodes: Vec::new(), scopes: vec![String::new()] }
    }
}

impl Graph {
    /// All nodes; `nodes()[id.index()]` is node `id`.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Ids with their nodes, in execution order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i as u32), node))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Node `id`.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Dtype and shape of value `id`.
    pub fn meta(&self, id: NodeId) -> &Meta {
        &self.nodes[id.index()].meta
    }

    /// Path of a scope; the root's is empty.
    pub fn scope(&self, id: ScopeId) -> &str {
        &self.scopes[id.0 as usize]
    }

    /// All scope paths, by id.
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// The scope with this path, added if it is new.
    pub fn intern_scope(&mut self, path: &str) -> ScopeId {
        let index = self.scopes.iter().rposition(|s| s == path).unwrap_or_else(|| {
            self.scopes.push(path.to_owned());
            self.scopes.len() - 1
        });
        ScopeId(index as u32)
    }

    /// Appends a node whose value follows from its operands (anything but [`Op::Input`] and [`Op::State`]).
    ///
    /// # Errors
    /// [`GraphError::Operands`] when the dtypes or shapes of the operands are invalid.
    pub fn push(&mut self, op: Op, operands: &[NodeId], scope: ScopeId, stage: Stage) -> Result<NodeId, GraphError> {
        let meta = self.infer(&op, operands)?;
        Ok(self.push_unchecked(Node { op, operands: operands.to_vec(), meta, scope, stage }))
    }

    /// Appends a node as it is: for leaves, whose meta is their declaration's, and for passes that copy nodes.
    pub fn push_unchecked(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).expect("a graph has fewer than 2^32 nodes"));
        self.nodes.push(node);
        id
    }

    /// Dtype and shape of `op` applied to these operands.
    ///
    /// # Errors
    /// [`GraphError::Operands`] when the dtypes or shapes of the operands are invalid.
    pub fn infer(&self, op: &Op, operands: &[NodeId]) -> Result<Meta, GraphError> {
        if let (Op::Side(index), [of]) = (op, operands) {
            let node = self.node(*of);
            let metas: Vec<&Meta> = node.operands.iter().map(|&o| self.meta(o)).collect();
            let sides = infer_sides(&node.op, &metas);
            return usize::from(*index).checked_sub(1).and_then(|i| sides.get(i)).cloned().ok_or_else(|| {
                GraphError::Operands {
                    op: op.to_string(),
                    operands: node.op.to_string(),
                    reason: format!("that operator has {} side results, counted from 1", sides.len()),
                }
            });
        }
        let metas: Vec<&Meta> = operands.iter().map(|&o| self.meta(o)).collect();
        infer(op, &metas)
    }

    /// Makes each [`Op::State`] read `renamed[its id]`.
    pub(crate) fn rename_states(&mut self, renamed: &[StateId]) {
        for node in &mut self.nodes {
            if let Op::State(state) = &mut node.op {
                *state = renamed[state.0 as usize];
            }
        }
    }

    /// For each node, the index of the last node that uses its value (its own if none does).
    /// A use of a side result counts for the node of [`Op::Side`], not for the operator it belongs to.
    pub fn last_uses(&self) -> Vec<usize> {
        let mut last: Vec<usize> = (0..self.nodes.len()).collect();
        for (i, node) in self.nodes.iter().enumerate() {
            for operand in &node.operands {
                last[operand.index()] = i;
            }
        }
        last
    }
}
