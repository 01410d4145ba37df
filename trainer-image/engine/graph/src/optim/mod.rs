//! Optimisers, as nodes of the graph.
//!
//! An optimiser sees *units*: a unit is a parameter, or an arena of parameters (the fused form), with its gradient. Its
//! slots are states named after it (`adamw.m/<parameter>`), so both forms have the same checkpoints.

mod adamw;
mod muon;

pub use adamw::AdamW;
pub use muon::Muon;

use crate::{
    graph::{Builder, DType, Init, Meta, Op, Role, Seat, Shape, StateDecl, Var},
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

/// A parameter, an arena of parameters, or this rank's shard of an arena, updated at once.
pub(crate) struct Unit<'b> {
    /// The parameter, arena or shard.
    pub(crate) decl: StateDecl,
    /// Its value before the step.
    pub(crate) value: Var<'b>,
    /// Its gradient, of the same shape, float32.
    pub(crate) gradient: Var<'b>,
    /// The arena that every rank holds as a whole, when `value` is this rank's part of it.
    pub(crate) replica: Option<Var<'b>>,
}

impl<'b> Unit<'b> {
    /// Sets the next value: of the state, or of this rank's part of the arena, which is then gathered from all ranks.
    fn set(&self, context: &StepContext<'b>, next: Var<'b>) {
        match (self.replica, self.decl.whole()) {
            (Some(arena), Some((_, Seat { world, .. }))) => {
                let next = context.valid_or(next, self.value);
                let flat = next.reshape([next.shape().elements()]);
                let all = context.b.push(Op::AllGather { world }, &[flat]);
                context.b.update(arena, all.reshape(arena.shape()));
            }
            _ => context.update(self.value, next),
        }
    }

    /// The value after the step.
    fn next(&self, b: &'b Builder) -> Var<'b> {
        match (self.replica, self.decl.whole()) {
            (Some(arena), Some((_, Seat { rank, .. }))) => own_rows(b.next_of(arena), rank, &self.value.shape()),
            _ => b.next_of(self.value),
        }
    }

    /// The parameter, or the arena's first part: all parts of an arena are matrices of one shape, or none is a matrix,
    /// and weight decay applies to all of them or to none.
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
        self.b.update(state, self.valid_or(value, state));
    }

    /// `value`, or `old` when the step does not count.
    fn valid_or(&self, value: Var<'b>, old: Var<'b>) -> Var<'b> {
        self.valid.map_or(value, |valid| valid.broadcast(value.shape()).select(value, old))
    }
}

impl Optimizer {
    /// Whether a parameter of this shape is a matrix for [`Optimizer::matrices`].
    fn is_matrix(&self, shape: &Shape) -> bool {
        self.matrices.is_some() && shape.rank() >= 2
    }

    /// The arenas of a group of parameters: a flat one (two, when weight decay does not apply to all), and a stack for
    /// each shape of matrices. With `shards`, the ranks can divide each; with `by_block`, each block of the model has
    /// flat ones of its own.
    pub(crate) fn arenas(
        &self,
        group: &str,
        parameters: &[StateDecl],
        (shards, by_block): (Option<Seat>, bool),
    ) -> Vec<Arena> {
        let mut arenas: Vec<Arena> = Vec::new();
        for parameter in parameters {
            let shape = &parameter.meta.shape;
            let matrix = self.is_matrix(shape);
            let block = if by_block { block(&parameter.name) } else { "" };
            let name = match matrix {
                true => format!("arena/{group}muon{shape}"),
                false if self.others.decays(parameter) => format!("arena/{group}adamw{block}"),
                false => format!("arena/{group}adamw.undecayed{block}"),
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
        if let Some(Seat { world, .. }) = shards {
            for arena in &mut arenas {
                let unit = if arena.shape.rank() == 1 { world * SHARD_ALIGNMENT } else { world };
                arena.shape = arena.shape.with(0, arena.shape[0].next_multiple_of(unit));
            }
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

/// Elements of which each shard of a flat arena is a multiple, so that vectors of kernels do not cross its ends.
const SHARD_ALIGNMENT: usize = 64;

/// The block of the model to which a parameter belongs, by its name: up to the first component that is a number, such
/// as `blocks.3`; empty for parameters outside of blocks.
fn block(name: &str) -> &str {
    let mut end = 0;
    for component in name.split('.') {
        end += component.len();
        if !component.is_empty() && component.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    ""
}

/// The rows of `whole` that `rank` holds: as many as `shape` has.
pub(crate) fn own_rows<'b>(whole: Var<'b>, rank: usize, shape: &Shape) -> Var<'b> {
    whole.slice(0, rank * shape[0], shape[0])
}

/// Prefix of the counters of updates of the moving averages of a group: `average.updates/<group>`.
pub const AVERAGE_UPDATES: &str = "average.updates/";

/// Decay of a moving average at its update after `updates` others: `min(decay, (1 + updates) / (10 + updates))`.
///
/// An average with a constant decay consists of initial weights for `1 / (1 - decay)` steps: after 100 steps with
/// 0.999, by 90 %. This decay warms up, so that after three updates less than 1 % is left of them. It is the rule of
/// `tf.train.ExponentialMovingAverage` with `num_updates`, and of `EMAModel` in Hugging Face Diffusers.
fn decay_after(decay: f64, updates: u64) -> f64 {
    decay.min((1.0 + updates as f64) / (10.0 + updates as f64))
}

/// Share of the initial weights in a moving average after `updates` updates, 0 to 1.
///
/// ```
/// use pawl_graph::optim::initial_share;
///
/// assert_eq!(initial_share(0.999, 0), 1.0);
/// assert!(initial_share(0.999, 6) < 0.01);
/// ```
pub fn initial_share(decay: f64, updates: u64) -> f64 {
    // Below this share nothing of them is left in float32.
    const NOTHING: f64 = 1e-12;
    let mut share = 1.0;
    for update in 0..updates {
        share *= decay_after(decay, update);
        if share < NOTHING {
            return 0.0;
        }
    }
    share
}

/// The decay of this update of a group's averages, which is counted. Float32 scalar.
pub(crate) fn average_decay<'b>(context: &StepContext<'b>, group: &str, decay: f64) -> Var<'b> {
    let updates = counter(context.b, format!("{AVERAGE_UPDATES}{group}"));
    context.update(updates, updates + 1.0);
    let n = updates.cast(DType::F32);
    ((n + 1.0) / (n + 10.0)).minimum(decay)
}

/// Appends the moving average of a unit: `average <- decay * average + (1 - decay) * value`, started from the first
/// value.
pub(crate) fn average<'b>(context: &StepContext<'b>, unit: &Unit<'b>, decay: Var<'b>) {
    let average = context.b.state(average_of(&unit.decl));
    context.update(average, average * decay + unit.next(context.b) * (-decay + 1.0));
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
    if let Some((whole, seat)) = decl.whole() {
        return beside(whole, prefix, role, init).shard(seat);
    }
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
