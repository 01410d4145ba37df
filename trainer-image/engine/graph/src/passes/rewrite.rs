//! The one way passes rebuild a program: node by node, in order, leaving out what nothing needs.

use crate::graph::{Builder, GraphError, Node, NodeId, Op, Program, Var};

/// A node of the source program as a pass sees it.
pub(super) struct Visit<'a, 'b> {
    /// The program under construction.
    pub(super) b: &'b Builder,
    /// Id in the source program.
    pub(super) id: NodeId,
    /// The node in the source program.
    pub(super) node: &'a Node,
    /// Its scope's path.
    pub(super) scope: &'a str,
    /// Its operands in the new program.
    pub(super) operands: &'a [Var<'b>],
}

impl<'b> Visit<'_, 'b> {
    /// The node as it is.
    pub(super) fn copy(&self) -> Var<'b> {
        self.b.copy(self.node, self.scope, self.operands)
    }

    /// Runs `body` in the node's scope and stage.
    pub(super) fn here<T>(&self, body: impl FnOnce() -> T) -> T {
        self.b.within(self.scope, || self.b.stage(self.node.stage, body))
    }
}

/// Rebuilds `program`: `each` gives the new value of every node that outputs or updates need. Side results whose
/// operator is needed are visited too, so that they keep their place directly after it.
pub(super) fn rewrite(
    program: &Program,
    mut each: impl for<'a, 'b> FnMut(Visit<'a, 'b>) -> Var<'b>,
) -> Result<Program, GraphError> {
    let needed = program.needed();
    let b = Builder::extend(program.interface());
    let mut values: Vec<Option<Var<'_>>> = vec![None; program.graph.len()];
    for (id, node) in program.graph.iter() {
        let side_of_needed = matches!(node.op, Op::Side(_)) && needed[node.operands[0].index()];
        if !needed[id.index()] && !side_of_needed {
            continue;
        }
        let operands: Option<Vec<Var<'_>>> = node.operands.iter().map(|o| values[o.index()]).collect();
        let Some(operands) = operands else { continue };
        let scope = program.graph.scope(node.scope);
        values[id.index()] = Some(each(Visit { b: &b, id, node, scope, operands: &operands }));
    }
    for output in &program.outputs {
        if let Some(value) = values[output.node.index()] {
            b.output(&output.name, value);
        }
    }
    for update in &program.updates {
        if let Some(value) = values[update.value.index()] {
            b.update_state(update.state, value);
        }
    }
    b.finish()
}
