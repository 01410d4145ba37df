//! The setting `activationCheckpointing`: forward values that are computed again instead of kept.

use std::collections::HashMap;

use super::{rewrite::rewrite, scopes::Pattern};
use crate::graph::{Builder, GraphError, NodeId, Op, Program, Stage, Var};

/// Activation checkpointing: makes the backward pass of each region (the scopes that match one of `regions`) read
/// copies of the region's forward values, recomputed from the region's inputs when the region's gradient is computed.
/// Between forward and backward, only the inputs and outputs of regions are kept.
///
/// Copies are the same operators on the same operands (random numbers too: they are counter-based), so losses and
/// gradients stay **bit-equal**. Only what the backward pass reads is copied. [`Op::After`] keeps other passes from
/// undoing it. To be run after differentiation.
///
/// # Errors
/// When the program is ill-formed.
pub fn recompute(program: &Program, regions: &[Pattern]) -> Result<Program, GraphError> {
    let graph = &program.graph;
    let mut names: HashMap<&str, usize> = HashMap::new();
    let region_of_scope: Vec<Option<usize>> = graph
        .scopes()
        .iter()
        .map(|path| {
            let name = regions.iter().find_map(|pattern| pattern.region(path))?;
            let next = names.len();
            Some(*names.entry(name).or_insert(next))
        })
        .collect();
    let region = |id: NodeId| region_of_scope[graph.node(id).scope.0 as usize];
    let inside: Vec<Option<usize>> = graph
        .iter()
        .map(|(id, node)| region(id).filter(|_| node.stage == Stage::Forward && !node.op.is_leaf()))
        .collect();
    // What crosses the border is kept anyway.
    let mut crosses = vec![false; graph.len()];
    for (id, node) in graph.iter().filter(|(_, node)| node.stage == Stage::Forward) {
        for operand in &node.operands {
            crosses[operand.index()] |=
                inside[operand.index()].is_some() && inside[operand.index()] != inside[id.index()];
        }
    }
    for root in program.roots() {
        crosses[root.index()] = true;
    }

    let mut copies = Copies { program, inside: &inside, crosses: &crosses, kept: HashMap::new(), made: HashMap::new() };
    let mut originals: Vec<Option<NodeId>> = vec![None; graph.len()];
    rewrite(program, |visit| {
        let mine = region(visit.id).filter(|_| visit.node.stage == Stage::Backward);
        let value = match mine {
            None => visit.copy(),
            Some(mine) => {
                let token = visit.node.operands.iter().zip(visit.operands).find_map(|(&o, &v)| {
                    (graph.node(o).stage == Stage::Backward && !graph.node(o).op.is_leaf()).then_some(v)
                });
                let operands: Vec<Var<'_>> = visit
                    .node
                    .operands
                    .iter()
                    .zip(visit.operands)
                    .map(|(&o, &v)| match inside[o.index()] == Some(mine) && !crosses[o.index()] {
                        true => copies.of(visit.b, o, &originals, token),
                        false => v,
                    })
                    .collect();
                visit.b.copy(visit.node, visit.scope, &operands)
            }
        };
        originals[visit.id.index()] = value.id();
        value
    })
}

struct Copies<'p> {
    program: &'p Program,
    inside: &'p [Option<usize>],
    crosses: &'p [bool],
    /// Inputs of a region, delayed by [`Op::After`]: by region and source node.
    kept: HashMap<(usize, NodeId), NodeId>,
    /// Copies made, by source node.
    made: HashMap<NodeId, NodeId>,
}

impl Copies<'_> {
    /// The copy of `id`, made with what it needs if it is the first time.
    fn of<'b>(&mut self, b: &'b Builder, id: NodeId, originals: &[Option<NodeId>], token: Option<Var<'b>>) -> Var<'b> {
        if let Some(&made) = self.made.get(&id) {
            return b.var(made);
        }
        let graph = &self.program.graph;
        let mut node = graph.node(id).clone();
        if matches!(node.op, Op::Side(_)) {
            self.of(b, node.operands[0], originals, token);
            return b.var(self.made[&id]);
        }
        let region = self.inside[id.index()].expect("only nodes of a region are copied");
        let operands: Vec<Var<'b>> = node
            .operands
            .iter()
            .map(|&o| match self.inside[o.index()] == Some(region) && !self.crosses[o.index()] {
                true => self.of(b, o, originals, token),
                false => self.held(b, region, o, originals, token),
            })
            .collect();
        node.stage = Stage::Recompute;
        let scope = graph.scope(node.scope);
        let copy = b.copy(&node, scope, &operands);
        self.remember(id, copy);
        // Side results stand directly after their operator.
        for (side, node) in graph.iter().skip(id.index() + 1) {
            if !(matches!(node.op, Op::Side(_)) && node.operands == [id]) {
                break;
            }
            let mut node = node.clone();
            node.stage = Stage::Recompute;
            let value = b.copy(&node, scope, &[copy]);
            self.remember(side, value);
        }
        copy
    }

    fn remember(&mut self, source: NodeId, copy: Var<'_>) {
        if let Some(copy) = copy.id() {
            self.made.insert(source, copy);
        }
    }

    /// A value from outside the region, not to be read before the region's gradient is there. Leaves are there anyway.
    fn held<'b>(
        &mut self,
        b: &'b Builder,
        region: usize,
        id: NodeId,
        originals: &[Option<NodeId>],
        token: Option<Var<'b>>,
    ) -> Var<'b> {
        let original = b.var(originals[id.index()].expect("operands come before their users"));
        let Some(token) = token.filter(|_| !self.program.graph.node(id).op.is_leaf()) else { return original };
        if let Some(&kept) = self.kept.get(&(region, id)) {
            return b.var(kept);
        }
        let held = b.stage(Stage::Recompute, || original.after(token));
        if let Some(held) = held.id() {
            self.kept.insert((region, id), held);
        }
        held
    }
}
