//! Gates: small functions, one file each, in ordered chains: [`PHASE`] for a phase, [`BUNDLE`] for all accepted phases
//! together, [`TRAINING`] for the training under way.
//!
//! A gate compares what was measured with what the spec demands. It either passes (`None`), which leaves the decision to the
//! gates after it, or decides. Each comparison is written once, in the gate's file; a chain only lists the gates that apply.

pub(crate) mod batch;
pub(crate) mod quality;
pub(crate) mod safety;
pub(crate) mod sequential;
pub(crate) mod speed;

mod band;
mod equivalence;
mod memory;
mod offload;
mod retries;
mod throughput;
mod utilization;

use crate::comparison::Comparison;
use crate::launch::{Launch, Work};
use crate::reason::Reason;
use crate::revision::accepted;
use pawl_api::spec::{Numerics, Phase, TrainingJobSpec, Trigger};
use pawl_api::status::{BaselineStatus, LaunchStatus, Purpose, TrainingStatus};
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;

/// What a gate decides.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// More launches are needed.
    Run(Work),
    /// A launch ended in a way that its settings explain.
    Broken { trigger: Trigger, reason: Reason, message: String },
    /// The settings do not hold: a rung that answers the trigger, or a rollback.
    Fails { trigger: Option<Trigger>, reason: Reason, message: String },
    /// The evidence does not suffice and will not.
    Inconclusive { reason: Reason, message: String },
    /// The infrastructure failed too often.
    Error { reason: Reason, message: String },
    /// The trainer refuses the plan: only a changed spec helps.
    InvalidPlan { message: String },
    /// Everything holds.
    Holds { reason: Reason, message: String },
}

/// Settings under judgement.
pub(crate) struct Subject<'a> {
    pub comparison: Comparison<'a>,
    /// The phase that is judged on top of the settings accepted so far; `None` for all accepted phases together, which are
    /// judged on the baseline.
    pub phase: Option<&'a Phase>,
}

/// A gate on settings under judgement.
type Gate = fn(&Subject<'_>) -> Option<Verdict>;

/// The gates of a phase: what costs nothing first, safety before speed, speed before quality.
const PHASE: &[Gate] = &[
    batch::arithmetic,
    batch::misdeclared,
    safety::candidate,
    retries::exhausted,
    memory::predicted,
    memory::peak,
    offload::overhead,
    speed::speedup,
    equivalence::losses,
    quality::regression,
];

/// The gates of all accepted phases together.
const BUNDLE: &[Gate] = &[
    safety::candidate,
    speed::speedup,
    memory::peak,
    offload::overhead,
    utilization::busy,
    throughput::items_per_second,
    throughput::epoch_seconds,
    quality::regression,
];

/// The verdict on a phase, or on all accepted phases together.
pub(crate) fn judge(subject: &Subject<'_>) -> Verdict {
    let chain = if subject.phase.is_some() { PHASE } else { BUNDLE };
    chain.iter().find_map(|gate| gate(subject)).unwrap_or_else(|| speed::holds(subject))
}

/// A training under way.
pub(crate) struct Watched<'a> {
    pub spec: &'a TrainingJobSpec,
    pub baseline: Option<&'a BaselineStatus>,
    pub training: &'a TrainingStatus,
    pub progress: &'a Progress,
}

/// What a gate finds in a training under way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Alarm {
    /// Validation is worse than the gates allow.
    Quality(String),
    /// This throughput window is slower than the evidence promises.
    BelowPromise(String),
    /// This throughput window is slower than a gate demands.
    BelowGate(String),
}

/// The gates of the training, damage first.
const TRAINING: &[fn(&Watched<'_>) -> Option<Alarm>] =
    &[quality::in_training, throughput::promise, throughput::least_in_training];

/// The first gate that the training does not pass.
pub(crate) fn watch(watched: &Watched<'_>) -> Option<Alarm> {
    TRAINING.iter().find_map(|gate| gate(watched))
}

impl<'a> Subject<'a> {
    /// The spec of the job.
    fn spec(&self) -> &'a TrainingJobSpec {
        self.comparison.draft.spec
    }

    /// Whether the settings compute something else than the baseline does, by what the phases declare.
    pub fn changes_numerics(&self) -> bool {
        let changed = |phase: &Phase| phase.numerics == Numerics::Changed;
        match self.phase {
            Some(phase) => changed(phase),
            None => {
                let draft = self.comparison.draft;
                let mut phases = draft.spec.phases.iter().zip(&draft.status.phases);
                phases.any(|(phase, status)| accepted(status) && changed(phase))
            }
        }
    }

    /// An attempt for `launches`.
    fn run(&self, purpose: Purpose, launches: Vec<Launch>) -> Verdict {
        let purpose = if self.phase.is_none() && purpose == Purpose::Speed { Purpose::Bundle } else { purpose };
        Verdict::Run(Work {
            purpose,
            phase: self.phase.map(|phase| phase.name.clone()),
            trial: self.comparison.trial.to_string(),
            launches,
            stop_on_failure: true,
        })
    }

    /// The median over the candidate's measured launches, if any reports the value.
    pub fn median(&self, value: impl Fn(&LaunchStatus) -> Option<f64>) -> Option<f64> {
        let measured = self.comparison.candidates().filter(|launch| launch.kind == LaunchKind::Measure);
        speed::median(measured.filter_map(value))
    }

    /// The verdict on a gate for which nothing was measured: such a gate is never passed.
    fn unmeasured(gate: &str, what: &str) -> Verdict {
        Verdict::Inconclusive {
            reason: Reason::GateUnmeasured,
            message: format!("{gate} cannot be checked: the trainer reports no {what}"),
        }
    }
}
