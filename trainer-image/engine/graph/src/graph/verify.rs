//! The verifier: run on every program before it is compiled, and by tests after every pass.

use std::collections::HashSet;

use super::{GraphError, Meta, NodeId, Op, Program};

impl Program {
    /// Checks that the program is well formed: operands come before their users, every dtype and shape is what
    /// inference says, leaves agree with their declarations, names are unique, updates fit their states.
    ///
    /// # Errors
    /// The first violation: [`GraphError::Duplicate`], [`GraphError::IllFormed`] or [`GraphError::Mismatch`].
    pub fn verify(&self) -> Result<(), GraphError> {
        unique("input", self.inputs.iter().map(|i| i.name.as_str()))?;
        unique("state", self.states.iter().map(|s| s.name.as_str()))?;
        unique("output", self.outputs.iter().map(|o| o.name.as_str()))?;
        for (id, node) in self.graph.iter() {
            let fail = |reason: String| GraphError::IllFormed { node: id.0, reason };
            if let Some(late) = node.operands.iter().find(|&&o| o >= id) {
                return Err(fail(format!("operand {} does not come before it", late.0)));
            }
            if let (Op::Side(_), [of]) = (&node.op, node.operands.as_slice()) {
                let between = &self.graph.nodes()[of.index() + 1..id.index()];
                if !between.iter().all(|n| matches!(n.op, Op::Side(_)) && n.operands == [*of]) {
                    return Err(fail(format!("a side result must directly follow its operator, node {}", of.0)));
                }
            }
            let expected = match &node.op {
                Op::Input(input) => self.inputs.get(input.0 as usize).map(|d| d.meta.clone()),
                Op::State(state) => self.states.get(state.0 as usize).map(|d| d.meta.clone()),
                op => Some(self.graph.infer(op, &node.operands).map_err(|e| fail(e.to_string()))?),
            };
            let expected = expected.ok_or_else(|| fail("it reads what is not declared".into()))?;
            if node.meta != expected {
                return Err(fail(format!("it says {}, but is {expected}", node.meta)));
            }
        }
        let inside = |id: NodeId, what: &str| {
            let reason = || format!("it is the {what}, but the graph has {} nodes", self.graph.len());
            (id.index() < self.graph.len())
                .then(|| self.graph.meta(id))
                .ok_or_else(|| GraphError::IllFormed { node: id.0, reason: reason() })
        };
        for output in &self.outputs {
            inside(output.node, "output")?;
        }
        let mut written = HashSet::new();
        for update in &self.updates {
            let value = inside(update.value, "update")?;
            let decl = self.states.get(update.state.0 as usize).ok_or_else(|| GraphError::IllFormed {
                node: update.value.0,
                reason: "it updates a state that is not declared".into(),
            })?;
            fits(&format!("update of state `{}`", decl.name), &decl.meta, value)?;
            if !written.insert(update.state) {
                return Err(GraphError::Duplicate { kind: "update of state", name: decl.name.clone() });
            }
        }
        Ok(())
    }
}

/// Checks that `what`, declared as `wanted`, has that dtype and shape.
///
/// # Errors
/// [`GraphError::Mismatch`] naming `what`.
pub fn fits(what: &str, wanted: &Meta, got: &Meta) -> Result<(), GraphError> {
    if wanted == got {
        return Ok(());
    }
    Err(GraphError::Mismatch {
        what: what.to_owned(),
        dtype: wanted.dtype,
        shape: wanted.shape.clone(),
        got_dtype: got.dtype,
        got_shape: got.shape.clone(),
    })
}

fn unique<'a>(kind: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), GraphError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(GraphError::Duplicate { kind, name: name.to_owned() });
        }
    }
    Ok(())
}
