//! Verdicts: a chain of small checks, each of which passes or speaks.

pub(crate) mod batch;
pub(crate) mod equivalence;
pub(crate) mod memory;
pub(crate) mod offload;
pub(crate) mod quality;
pub(crate) mod retries;
pub(crate) mod safety;
pub(crate) mod sequential;
pub(crate) mod speed;

use crate::comparison::Comparison;
use crate::launch::Work;
use pawl_api::spec::{Numerics, Phase, Trigger};

/// What a check says.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// More launches are needed.
    Run(Work),
    /// The settings do not hold: a rung that answers the trigger, or a rollback.
    Fails { trigger: Option<Trigger>, reason: &'static str, message: String },
    /// The evidence does not suffice and will not.
    Inconclusive { reason: &'static str, message: String },
    /// The infrastructure failed too often.
    Error { reason: &'static str, message: String },
    /// The trainer refuses the plan: nothing can be done without a person.
    InvalidPlan { message: String },
    /// Everything holds.
    Holds { reason: &'static str, message: String },
}

/// A phase under judgement.
pub(crate) struct Trial<'a> {
    pub phase: &'a Phase,
    pub comparison: Comparison<'a>,
}

/// In this order: what costs nothing first, safety before speed, speed before quality.
const CHECKS: &[fn(&Trial<'_>) -> Option<Verdict>] = &[
    batch::arithmetic,
    batch::misdeclared,
    safety::candidate,
    retries::exhausted,
    memory::predicted,
    memory::peak,
    offload::overhead,
    speed::speedup,
    equivalence::losses,
    quality::phase,
];

/// The verdict on a phase.
pub(crate) fn judge(trial: &Trial<'_>) -> Verdict {
    CHECKS.iter().find_map(|check| check(trial)).unwrap_or_else(|| speed::holds(trial))
}

impl Trial<'_> {
    /// Whether the phase says that it changes the mathematics.
    pub fn changes_numerics(&self) -> bool {
        self.phase.numerics == Numerics::Changed
    }
}
