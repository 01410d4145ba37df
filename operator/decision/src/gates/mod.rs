//! Gates: small functions, one file each, in ordered chains: [`PHASE`] for a phase, [`BUNDLE`] for all accepted phases
//! together, [`TRAINING`] for the running training, [`DRY_RUN`] for the dry run of a search.
//!
//! A gate compares a measurement with a requirement of the spec. It either passes (`None`), which leaves the decision
//! to the following gates, or returns a verdict. Each comparison is implemented once, in the gate's file; a chain only
//! lists the gates that apply.
//!
//! For example, a phase that ran out of memory is rejected by `safety::candidate` before `speed::speedup` requests
//! further pairs, and a phase whose speedup is sufficient reaches `quality::regression`, which requests its quality
//! launches only then.

pub(crate) mod batch;
pub(crate) mod cusum;
pub(crate) mod equivalence;
pub(crate) mod quality;
pub(crate) mod safety;
pub(crate) mod speed;
pub(crate) mod throughput;

mod band;
mod evidence;
mod memory;
mod offload;
mod retries;
mod utilization;

use crate::comparison::Comparison;
use crate::launch::{Launch, Work};
use crate::reason::Reason;
use crate::revision::accepted;
use crate::statistics::median;
use pawl_api::spec::{Numerics, Phase, TrainingJobSpec, Trigger};
use pawl_api::status::{Arm, BaselineStatus, LaunchStatus, Purpose, TrainingStatus};
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;
use pawl_contract::settings::Settings;

/// Verdict of a gate.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// More launches are needed.
    Run(Work),
    /// A launch failed because of its settings.
    Broken { trigger: Trigger, reason: Reason, message: String },
    /// The settings violate the gate: leads to a fallback for the trigger, or to a rollback.
    Fails { trigger: Option<Trigger>, reason: Reason, message: String },
    /// The evidence is not sufficient, and further launches would not change that.
    Inconclusive { reason: Reason, message: String },
    /// What the verdict needs cannot be had with this trainer, and neither fallbacks nor further launches would change
    /// that.
    Unsupported { reason: Reason, message: String },
    /// Infrastructure failures exceeded their limit.
    Error { reason: Reason, message: String },
    /// The trainer rejects the plan: the spec must be changed.
    InvalidPlan { message: String },
    /// All gates pass.
    Holds { reason: Reason, message: String },
}

/// Settings being evaluated.
pub(crate) struct Subject<'a> {
    pub comparison: Comparison<'a>,
    /// The phase, which is compared with the settings accepted so far; `None` for all accepted phases together, which
    /// are compared with the baseline.
    pub phase: Option<&'a Phase>,
}

/// A gate on settings being evaluated.
type Gate = fn(&Subject<'_>) -> Option<Verdict>;

/// The gates of a phase: those without launches first, safety before speed, speed before quality.
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
    speed::confirmed,
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
    if let Some(verdict) = chain.iter().find_map(|gate| gate(subject)) {
        return verdict;
    }
    match (speed::holds(subject), quality::caveat(subject)) {
        (Verdict::Holds { reason, message }, Some(caveat)) => {
            Verdict::Holds { reason, message: format!("{message}; quality: {caveat}") }
        }
        (verdict, _) => verdict,
    }
}

/// Why a phase that is fast enough is judged by the quality gates although it declares `numerics: Equivalent`.
pub(crate) fn escalation(subject: &Subject<'_>) -> Option<String> {
    let decided = speed::speedup(subject).or_else(|| equivalence::losses(subject));
    if decided.is_some() { None } else { equivalence::unclear(subject) }
}

/// The state of a running training.
pub(crate) struct RunningTraining<'a> {
    pub spec: &'a TrainingJobSpec,
    pub baseline: Option<&'a BaselineStatus>,
    /// Settings of the baseline's quality launches.
    pub reference: Settings,
    pub training: &'a TrainingStatus,
    /// The devices on which it runs.
    pub placement: &'a str,
    pub progress: &'a Progress,
}

/// A violation of a gate on throughput by a running training, with a human-readable message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Alarm {
    /// The throughput of this window is below the measured one.
    BelowExpected(String),
    /// The throughput of this window is below a gate.
    BelowGate(String),
}

/// The gates on the throughput of the training. Its quality is judged beside them: [`quality::training::in_training`].
const TRAINING: &[fn(&RunningTraining<'_>) -> Option<Alarm>] =
    &[throughput::below_expected, throughput::least_in_training];

/// The alarm of the first violated gate.
pub(crate) fn watch(watched: &RunningTraining<'_>) -> Option<Alarm> {
    TRAINING.iter().find_map(|gate| gate(watched))
}

/// A launch of the dry run of a search, of whose settings nothing else is known.
pub(crate) struct DryRun<'a> {
    pub spec: &'a TrainingJobSpec,
    pub result: &'a LaunchResult,
}

/// A gate on a dry run; its violation, human-readable.
type DryRunGate = fn(&DryRun<'_>) -> Option<String>;

/// The gates of the measurement with which a dry run begins: those that bound a value itself.
const DRY_RUN: &[DryRunGate] = &[
    memory::of_dry_run,
    offload::of_dry_run,
    utilization::of_dry_run,
    throughput::items_per_second_of_dry_run,
    throughput::epoch_seconds_of_dry_run,
];

/// The first violation by the measurement of a dry run.
pub(crate) fn measured_dry_run(run: &DryRun<'_>) -> Option<String> {
    DRY_RUN.iter().find_map(|gate| gate(run))
}

/// The first violation by the validation at the end of a dry run.
pub(crate) fn validated_dry_run(run: &DryRun<'_>) -> Option<String> {
    quality::values_of_dry_run(run)
}

impl<'a> Subject<'a> {
    /// The spec of the job.
    fn spec(&self) -> &'a TrainingJobSpec {
        self.comparison.draft.spec
    }

    /// Whether the phase declares `numerics: Changed`.
    fn declares_change(&self) -> bool {
        self.phase.is_some_and(|phase| phase.numerics == Numerics::Changed)
    }

    /// Whether a phase of the settings is judged as one that changes the numerics: by its declaration, or because its
    /// losses do not show that it doesn't.
    pub fn changes_numerics(&self) -> bool {
        let draft = self.comparison.draft;
        match self.phase {
            Some(_) => self.declares_change() || equivalence::unclear(self).is_some(),
            None => (0..draft.spec.phases.len())
                .any(|index| draft.status.phases.get(index).is_some_and(accepted) && draft.is_judged_as_changed(index)),
        }
    }

    /// The verdict that requests `launches`; where a candidate has failed that nothing is compared with yet, its
    /// control first.
    fn run(&self, purpose: Purpose, mut launches: Vec<Launch>) -> Verdict {
        if self.comparison.draft.needs_its_control(&self.comparison.task.to_string()) {
            launches.sort_by_key(|launch| launch.arm != Arm::Control);
        }
        let purpose = if self.phase.is_none() && purpose == Purpose::Speed { Purpose::Bundle } else { purpose };
        Verdict::Run(Work {
            purpose,
            phase: self.phase.map(|phase| phase.name.clone()),
            task: self.comparison.task.to_string(),
            launches,
            stop_on_failure: true,
        })
    }

    /// The median over the candidate's Measure launches that were steady, if any reports the value.
    pub fn median(&self, value: impl Fn(&LaunchStatus) -> Option<f64>) -> Option<f64> {
        let steady = |launch: &&LaunchStatus| launch.kind == LaunchKind::Measure && launch.measured.is_steady();
        let measured = self.comparison.candidates().filter(steady);
        median(measured.filter_map(value))
    }

    /// The verdict of a gate whose metric was not measured: such a gate never passes.
    fn unmeasured(gate: &str, what: &str) -> Verdict {
        Verdict::Inconclusive { reason: Reason::GateUnmeasured, message: unmeasured(gate, what) }
    }
}

fn unmeasured(gate: &str, what: &str) -> String {
    format!("{gate} cannot be checked: the trainer reports no {what}")
}
