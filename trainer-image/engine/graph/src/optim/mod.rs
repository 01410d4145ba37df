//! Optimisers, as nodes of the graph.
//!
//! An optimiser sees *units*: a unit is a parameter, or an arena of parameters (the fused form), with its gradient. Its slots are states
//! named after it (`adamw.m/<parameter>`), so both forms have the same checkpoints.

mod adamw;
mod muon;

pub use adamw::AdamW;
pub use muon::Muon;

use crate::{
    graph::{Builder, DType, Init, Meta, Role, Shape, StateDecl, Var},
    passes::Arena,
};

/// Which optimiser trains which parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    /// For parameters with two or more axes; `None`: they use `others`.
    pub matrices: Option<Muon>,
    /// For all other parameters.
    pub others: AdamW,
}

/// How an optimiser's arithmetic is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OptimizerKernel {
    /// One update per parameter.
    #[default]
    PerTensor,
    /// One update per arena: AdamW over one flat array, Muon over stacks `[n, rows, columns]` of matrices of one shape.
    Fused,
}

/// Prefix of moving averages: `average/<parameter>`.
pub const AVERAGE: &str = "average/";

/// A parameter or an arena of parameters, updated at once.
pub(crate) struct Unit<'b> {
    /// The parameter or arena.
    pub(crate) decl: StateDecl,
    /// Its value before the step.
    pub(crate) value: Var<'b>,
    /// Its gradient, of the same shape, float32.
    pub(crate) gradient: Var<'b>,
}

impl Unit<'_> {
    /// The parameter, or the arena's first part: all parts of an arena are matrices of one shape, or none is a matrix, and weight decay applies to
    /// all of them or to none.
    fn first_part(&self) -> &StateDecl {
        self.decl.parts().first().unwrap_or(&self.decl)
    }
}

/// Values shared by all units of a step.
pub(crate) struct StepContext<'b> {
    pub(crate) b: &'b Builder,
    /// Learning rate, float32 scalar.
    pub(crate) learning_rate: Var<'b>,
    /// Whether the step counts (Bool scalar); always, if `None`.
    pub(crate) valid: Option<Var<'b>>,
}

impl<'b> StepContext<'b> {
    /// Sets the next value of a state; the old one stays when the step does not count.
    pub(crate) fn update(&self, state: Var<'b>, value: Var<'b>) {
        let value = match self.valid {
            Some(valid) => valid.broadcast(value.shape()).select(value, state),
            None => value,
        };
        self.b.update(state, value);
    }
}

impl Optimizer {
    /// Whether a parameter of this shape is a matrix for [`Optimizer::matrices`].
    fn is_matrix(&self, shape: &Shape) -> bool {
        self.matrices.is_some() && shape.rank() >= 2
    }

    /// The arenas of a group of parameters: a flat one (two, when weight decay does not apply to all), and a stack for each shape of matrices.
    pub(crate) fn arenas(&self, group: &str, parameters: &[StateDecl]) -> Vec<Arena> {
        let mut arenas: Vec<Arena> = Vec::new();
        for parameter in parameters {
            let shape = &parameter.meta.shape;
            let matrix = self.is_matrix(shape);
            let name = match matrix {
                true => format!("arena/{group}muon{shape}"),
                false if self.others.decays(parameter) => format!("arena/{group}adamw"),
                false => format!("arena/{group}adamw.undecayed"),
            };
            let index = arenas.iter().position(|a| a.name == name).unwrap_or_else(|| {
                arenas.push(Arena { name, shape: Shape::scalar(), parts: Vec::new() });
                arenas.len() - 1
            });
            let arena = &mut arenas[index];
            arena.parts.push(parameter.clone());
            arena.shape = match matrix {
                true => [&[arena.parts.len()], shape.dims()].concat().into(),
                false => [arena.parts.iter().map(|p| p.meta.shape.elements()).sum::<usize>()].into(),
            };
        }
        arenas
    }

    /// Appends the update of every unit of a group.
    pub(crate) fn step(&self, context: &StepContext<'_>, group: &str, units: &[Unit<'_>]) {
        let (matrices, others): (Vec<&Unit<'_>>, Vec<&Unit<'_>>) =
            units.iter().partition(|unit| self.is_matrix(&unit.first_part().meta.shape));
        if let Some(muon) = &self.matrices {
            for unit in matrices {
                muon.step(context, unit);
            }
        }
        if !others.is_empty() {
            self.others.step(context, group, &others);
        }
    }
}

/// Appends the moving average of a unit: `average <- decay * average + (1 - decay) * value`, started from the first value.
pub(crate) fn average<'b>(context: &StepContext<'b>, unit: &Unit<'b>, value: Var<'b>, decay: f64) {
    let average = context.b.state(average_of(&unit.decl));
    context.update(average, average * decay + value * (1.0 - decay));
}

/// Declaration of the moving average of a parameter or arena.
pub(crate) fn average_of(decl: &StateDecl) -> StateDecl {
    let same = |d: &StateDecl| Init::SameAs(d.name.clone());
    beside(decl, AVERAGE, Role::Average, &same)
}

/// Declaration of a state of the same shape, `prefix` before its name: a slot of an optimiser.
pub(crate) fn slot(decl: &StateDecl, prefix: &str) -> StateDecl {
    beside(decl, prefix, Role::Optimizer, &|_| Init::Fill(0.0))
}

fn beside(decl: &StateDecl, prefix: &str, role: Role, init: &dyn Fn(&StateDecl) -> Init) -> StateDecl {
    let init = match decl.parts() {
        [] => init(decl),
        parts => Init::Parts(parts.iter().map(|p| beside(p, prefix, role, init)).collect()),
    };
    StateDecl { name: format!("{prefix}{}", decl.name), meta: decl.meta.clone(), role, init }
}

/// A counter state, U32 scalar.
pub(crate) fn counter<'b>(b: &'b Builder, name: String) -> Var<'b> {
    let meta = Meta::new(DType::U32, []);
    b.state(StateDecl { name, meta, role: Role::Optimizer, init: Init::Fill(0.0) })
}
