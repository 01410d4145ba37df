//! Programs: a graph with its interface.

use super::{Graph, GraphError, InputId, Meta, NodeId, StateDecl, StateId};

/// Declaration of an input: data of a batch, or a scalar that changes from step to step (learning rate, counter, loss
/// weight).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputDecl {
    /// Unique name.
    pub name: String,
    /// Dtype and shape.
    pub meta: Meta,
}

/// A value that the program returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Unique name.
    pub name: String,
    /// The value.
    pub node: NodeId,
}

/// A state's next value. All updates of a run happen together, after everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    /// What is written.
    pub state: StateId,
    /// Its next value, of the state's dtype and shape.
    pub value: NodeId,
}

/// A graph with its inputs, outputs and states.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// Name in dumps and errors: `step`, `apply`, `evaluate`.
    pub name: String,
    /// The nodes.
    pub graph: Graph,
    /// Inputs, in the order `Executable::run` takes them.
    pub inputs: Vec<InputDecl>,
    /// States. Programs that are compiled together share states of equal name.
    pub states: Vec<StateDecl>,
    /// Outputs, in the order `run` returns them.
    pub outputs: Vec<Output>,
    /// At most one for each state.
    pub updates: Vec<Update>,
}

impl Program {
    /// The input called `name`.
    ///
    /// # Errors
    /// [`GraphError::Unknown`] naming all inputs.
    pub fn input(&self, name: &str) -> Result<InputId, GraphError> {
        let names = self.inputs.iter().map(|i| i.name.as_str());
        position("input", names, name).map(|i| InputId(i as u32))
    }

    /// The state called `name`.
    ///
    /// # Errors
    /// [`GraphError::Unknown`] naming all states.
    pub fn state(&self, name: &str) -> Result<StateId, GraphError> {
        let names = self.states.iter().map(|s| s.name.as_str());
        position("state", names, name).map(|i| StateId(i as u32))
    }

    /// The value of the output called `name`.
    ///
    /// # Errors
    /// [`GraphError::Unknown`] naming all outputs.
    pub fn output(&self, name: &str) -> Result<NodeId, GraphError> {
        let names = self.outputs.iter().map(|o| o.name.as_str());
        position("output", names, name).map(|i| self.outputs[i].node)
    }

    /// Nodes that outputs and updates refer to.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.outputs.iter().map(|o| o.node).chain(self.updates.iter().map(|u| u.value))
    }

    /// The program with its name, inputs and states, but without nodes, outputs and updates: the start of a pass.
    pub fn interface(&self) -> Program {
        Program {
            name: self.name.clone(),
            inputs: self.inputs.clone(),
            states: self.states.clone(),
            ..Program::default()
        }
    }

    /// For each node, whether an output or an update depends on it.
    pub fn needed(&self) -> Vec<bool> {
        let mut needed = vec![false; self.graph.len()];
        for root in self.roots() {
            needed[root.index()] = true;
        }
        for (id, node) in self.graph.iter().rev() {
            if needed[id.index()] {
                for operand in &node.operands {
                    needed[operand.index()] = true;
                }
            }
        }
        needed
    }

    /// Declaration of a state.
    pub fn state_decl(&self, id: StateId) -> &StateDecl {
        &self.states[id.0 as usize]
    }
}

fn position<'a>(
    kind: &'static str,
    names: impl Iterator<Item = &'a str> + Clone,
    name: &str,
) -> Result<usize, GraphError> {
    names.clone().position(|n| n == name).ok_or_else(|| GraphError::Unknown {
        kind,
        name: name.to_owned(),
        known: names.collect::<Vec<_>>().join(", "),
    })
}
