//! Forward values that are always cheaper to compute again than to keep: dequantised weights, dropped-out inputs.

use std::collections::HashMap;

use super::{rewrite::rewrite, scopes::Pattern};
use crate::graph::{Builder, GraphError, NodeId, Op, Program, Stage, Var};

/// Makes the backward pass read copies of the forward values of `regions` (scopes), recomputed where they are first
/// needed, so that none of them is kept from forward to backward. Unlike with [`recompute`](super::recompute()), the
/// outputs of a region are not kept either.
///
/// Losses and gradients stay bit-equal. To be run after differentiation.
///
/// # Errors
/// When the program is ill-formed.
pub fn rematerialize(program: &Program, regions: &[Pattern]) -> Result<Program, GraphError> {
    let graph = &program.graph;
    let of_scope: Vec<bool> =
        graph.scopes().iter().map(|path| regions.iter().any(|pattern| pattern.region(path).is_some())).collect();
    let inside: Vec<bool> = graph
        .nodes()
        .iter()
        .map(|node| {
            let plain = !node.op.is_leaf() && node.op.side_results() == 0 && !matches!(node.op, Op::Side(_));
            node.stage == Stage::Forward && plain && of_scope[node.scope.0 as usize]
        })
        .collect();
    let mut copies = Copies { program, inside: &inside, made: HashMap::new() };
    let mut originals: Vec<Option<NodeId>> = vec![None; graph.len()];
    rewrite(program, |visit| {
        let value = if visit.node.stage == Stage::Backward {
            let operands: Vec<Var<'_>> =
                visit.node.operands.iter().map(|&o| copies.of(visit.b, o, &originals)).collect();
            visit.b.copy(visit.node, visit.scope, &operands)
        } else {
            visit.copy()
        };
        originals[visit.id.index()] = value.id();
        value
    })
}

struct Copies<'p> {
    program: &'p Program,
    inside: &'p [bool],
    /// Copies made, by source node.
    made: HashMap<NodeId, NodeId>,
}

impl Copies<'_> {
    /// What the backward pass reads for `id`: a copy of a value inside a region, else the value.
    fn of<'b>(&mut self, b: &'b Builder, id: NodeId, originals: &[Option<NodeId>]) -> Var<'b> {
        if !self.inside[id.index()] {
            return b.var(originals[id.index()].expect("operands come before their users"));
        }
        if let Some(&made) = self.made.get(&id) {
            return b.var(made);
        }
        let graph = &self.program.graph;
        let mut node = graph.node(id).clone();
        node.stage = Stage::Recompute;
        let operands: Vec<Var<'b>> = node.operands.iter().map(|&o| self.of(b, o, originals)).collect();
        let copy = b.copy(&node, graph.scope(node.scope), &operands);
        if let Some(made) = copy.id() {
            self.made.insert(id, made);
        }
        copy
    }
}
