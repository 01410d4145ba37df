//! Printing: what `--dump graph` shows.

use std::fmt;

use super::{Op, Program, ScopeId, Stage};

impl fmt::Display for Program {
    /// One line a node: `%id = op operands : dtype[shape]`, grouped by stage and scope, then outputs and updates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.states.iter().map(|s| s.meta.bytes()).sum();
        writeln!(
            f,
            "program {}: {} nodes, {} inputs, {} states ({bytes} bytes), {} outputs",
            self.name,
            self.graph.len(),
            self.inputs.len(),
            self.states.len(),
            self.outputs.len()
        )?;
        let mut place: Option<(Stage, ScopeId)> = None;
        for (id, node) in self.graph.iter() {
            if place != Some((node.stage, node.scope)) {
                place = Some((node.stage, node.scope));
                writeln!(f, "  -- {:?} {}", node.stage, self.graph.scope(node.scope))?;
            }
            write!(f, "  %{} = ", id.0)?;
            match &node.op {
                Op::Input(input) => write!(f, "input `{}`", self.inputs[input.0 as usize].name)?,
                Op::State(state) => write!(f, "state `{}`", self.states[state.0 as usize].name)?,
                op => write!(f, "{op}")?,
            }
            for operand in &node.operands {
                write!(f, " %{}", operand.0)?;
            }
            writeln!(f, " : {}", node.meta)?;
        }
        for output in &self.outputs {
            writeln!(f, "  output `{}` = %{}", output.name, output.node.0)?;
        }
        for update in &self.updates {
            writeln!(f, "  `{}` <- %{}", self.state_decl(update.state).name, update.value.0)?;
        }
        Ok(())
    }
}
