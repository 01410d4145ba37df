//! Reverse-mode differentiation, graph to graph.
//!
//! [`gradients`] appends the backward pass to the program under construction: for each forward node on a path from a
//! wanted value to the loss, last first, its [`vjp`] turns the gradient of its value into contributions to those of its
//! operands. A backward node has the scope of its forward node and [`Stage::Backward`]. Contributions are added in the
//! order they are met, so sums are deterministic.

mod vjp;

use std::collections::HashMap;

use crate::graph::{GraphError, NodeId, Op, Stage, StateId, Var};

/// Gradients of the scalar `loss` with respect to `wrt`, in its order, each of the dtype and shape of its value; `None`
/// where the loss does not depend on the value (or only through integers, comparisons or [`Op::StopGradient`]). All
/// reads of one state count as one value.
///
/// ```
/// use pawl_graph::{
///     autodiff::gradients,
///     graph::{Builder, DType, Init, Stage},
/// };
/// let b = Builder::new("linear");
/// let x = b.input("x", DType::F32, [8, 3]);
/// let (w, unused) = (b.parameter("w", [4, 3], Init::Fill(0.5)), b.parameter("unused", [4], Init::Fill(0.0)));
/// let loss = x.matmul_t(w).square().mean_all();
/// let found = gradients(loss, &[w, unused]);
/// let dw = found[0].expect("the loss depends on w");
/// assert_eq!(dw.shape().dims(), [4, 3]);
/// assert!(found[1].is_none());
/// b.output("dw", dw);
/// let program = b.finish()?;
/// assert_eq!(program.graph.node(program.output("dw")?).stage, Stage::Backward);
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
///
/// A mistake (a loss that is not a float scalar, an operator that has no gradient) poisons the builder: see
/// [`Builder::finish`](crate::graph::Builder::finish).
#[track_caller]
pub fn gradients<'b>(loss: Var<'b>, wrt: &[Var<'b>]) -> Vec<Option<Var<'b>>> {
    let b = loss.builder();
    let (Some(loss_id), Some(wrt)) = (loss.id(), wrt.iter().map(|v| v.id()).collect::<Option<Vec<_>>>()) else {
        return vec![None; wrt.len()];
    };
    if loss.shape().rank() != 0 || !loss.dtype().is_float() {
        b.poison(GraphError::Operands {
            op: "gradients".into(),
            operands: loss.meta().to_string(),
            reason: "the loss is a float scalar; take a sum or mean first".into(),
        });
        return vec![None; wrt.len()];
    }
    let mut pass = Backward::new(loss, loss_id, &wrt);
    b.stage(Stage::Backward, || {
        pass.contribute(loss_id, b.scalar(1.0, loss.dtype()));
        for index in (0..=loss_id.index()).rev() {
            pass.visit(NodeId(index as u32));
        }
    });
    wrt.iter().map(|&id| pass.gradient(id)).collect()
}

/// The state of one backward pass.
struct Backward<'b> {
    of: Var<'b>,
    /// First read of each state: reads of one state are one value.
    first_read: HashMap<StateId, NodeId>,
    /// For each forward node, whether it depends on a wanted value.
    active: Vec<bool>,
    gradients: Vec<Option<Var<'b>>>,
}

impl<'b> Backward<'b> {
    fn new(of: Var<'b>, loss: NodeId, wrt: &[NodeId]) -> Self {
        let len = loss.index() + 1;
        let mut pass = Self { of, first_read: HashMap::new(), active: vec![false; len], gradients: vec![None; len] };
        of.builder().peek(|program| {
            for (id, node) in program.graph.iter() {
                if let Op::State(state) = node.op {
                    pass.first_read.entry(state).or_insert(id);
                }
            }
            let wanted: Vec<NodeId> = wrt.iter().map(|&id| pass.canonical(id, &program.graph.node(id).op)).collect();
            for (id, node) in program.graph.iter().take(len) {
                let differentiable = node.meta.dtype.is_float() && !matches!(node.op, Op::StopGradient);
                let reached = || node.operands.iter().any(|o| pass.active[o.index()]);
                pass.active[id.index()] =
                    wanted.contains(&pass.canonical(id, &node.op)) || (differentiable && reached());
            }
        });
        pass
    }

    fn canonical(&self, id: NodeId, op: &Op) -> NodeId {
        match op {
            Op::State(state) => self.first_read.get(state).copied().unwrap_or(id),
            _ => id,
        }
    }

    fn slot(&self, id: NodeId) -> NodeId {
        self.of.builder().peek(|program| self.canonical(id, &program.graph.node(id).op))
    }

    fn gradient(&self, id: NodeId) -> Option<Var<'b>> {
        self.gradients.get(self.slot(id).index()).copied().flatten()
    }

    fn contribute(&mut self, to: NodeId, gradient: Var<'b>) {
        if !self.active[to.index()] {
            return;
        }
        let slot = self.slot(to).index();
        self.gradients[slot] = Some(match self.gradients[slot] {
            Some(sum) => sum + gradient,
            None => gradient,
        });
    }

    fn visit(&mut self, id: NodeId) {
        let b = self.of.builder();
        let Some(gradient) = self.gradients[id.index()].filter(|_| self.active[id.index()]) else { return };
        let (node, scope) = b.peek(|program| {
            let node = program.graph.node(id).clone();
            let scope = program.graph.scope(node.scope).to_owned();
            (node, scope)
        });
        b.within(&scope, || {
            let wanted: Vec<bool> = node.operands.iter().map(|o| self.active[o.index()]).collect();
            for (operand, contribution) in vjp::vjp(b, id, &node, gradient, &wanted) {
                self.contribute(node.operands[operand], contribution);
            }
        });
    }
}
