//! The bundle: all accepted phases together against the baseline, and every gate.

use crate::comparison::Comparison;
use crate::draft::{Draft, bounded};
use crate::fingerprint::fingerprint;
use crate::goal;
use crate::launch::{Launch, Target, Work};
use crate::revert::{Blame, responsible, revert};
use crate::revision::{accepted, fold};
use crate::step::{Next, Step};
use crate::verdict::sequential::{Interval, Sequential, looks};
use crate::verdict::{quality, safety, speed};
use pawl_api::quantity::Bytes;
use pawl_api::spec::{Numerics, Scope};
use pawl_api::status::{BundleStatus, LaunchStatus, PhaseState, Purpose};
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::LaunchKind;
use serde_json::json;

/// The trial of the settings in effect now: launches of another input or of other settings have other names.
pub(crate) fn trial_name(draft: &Draft<'_>) -> String {
    let input = draft.status.bundle.as_ref().map(|bundle| bundle.input_hash.as_str());
    format!("bundle-{}", fingerprint(&json!([input, draft.effective()]), 4))
}

impl Draft<'_> {
    /// The evidence of the bundle.
    pub fn bundle_launches(&self) -> &[LaunchStatus] {
        self.status.bundle.as_ref().map_or(&[], |bundle| &bundle.launches)
    }
}

/// Whether there is something to judge together: several accepted phases, or one and a gate.
fn needed(draft: &Draft<'_>) -> bool {
    let gates = &draft.spec.gates;
    let gated = gates.overall_speedup.is_some()
        || gates.validation_loss_delta.is_some()
        || !gates.validation_metrics.is_empty()
        || gates.gpu_memory.is_some();
    let count = draft.accepted_names().len();
    count > 1 || count == 1 && gated
}

/// Hash of what the bundle's verdict depends on. What was reverted after its own trial still counts, so that such a
/// revert does not ask for the bundle again.
fn input_hash(draft: &Draft<'_>) -> String {
    let spec = draft.spec;
    let judged = fold(spec, &draft.status, |_, phase| accepted(phase) || phase.held);
    let gates = (&spec.gates, &spec.rollback, &spec.analysis);
    let trainer = (&spec.trainer.image, spec.trainer.replicas, spec.trainer.gpus_per_replica);
    fingerprint(&json!([spec.workload, trainer, spec.settings, spec.seeds, gates, judged]), 12)
}

/// Whether the bundle is under judgement; opens it when its input is new.
pub(crate) fn open(draft: &mut Draft<'_>) -> bool {
    let touched = draft.status.phases.iter().any(|phase| accepted(phase) || phase.held);
    if !touched {
        draft.status.bundle = None;
        return false;
    }
    let hash = input_hash(draft);
    let known = draft.status.bundle.as_ref().is_some_and(|bundle| bundle.input_hash == hash);
    if !known && !needed(draft) {
        draft.status.bundle = None;
        return false;
    }
    if !known {
        let left_out = draft.status.bundle.take().map(|bundle| bundle.left_out).unwrap_or_default();
        let state = PhaseState::Measuring;
        let launches = own_evidence(draft);
        draft.status.bundle =
            Some(BundleStatus { input_hash: hash, state, left_out, launches, ..BundleStatus::default() });
    }
    draft.status.bundle.as_ref().is_some_and(|bundle| !bundle.state.is_final())
}

/// What was measured already. One accepted phase on the baseline is the bundle. Of several, what the last one was judged
/// with are the settings in effect, and quality is always judged against the baseline: only speed is measured anew.
fn own_evidence(draft: &Draft<'_>) -> Vec<LaunchStatus> {
    let phases = draft.status.phases.iter().filter(|phase| accepted(phase));
    let launches: Vec<LaunchStatus> = phases.clone().flat_map(|phase| phase.launches.clone()).collect();
    if phases.count() == 1 {
        return launches;
    }
    let settings = (draft.spec.settings.clone(), draft.effective());
    let comparison = Comparison::new(draft, (trial_name(draft), Target::Bundle), settings, &launches);
    let fits = |launch: &&LaunchStatus| {
        launch.kind == LaunchKind::Quality
            && comparison.find(launch.kind, launch.arm, launch.pair).is_some_and(|found| std::ptr::eq(found, *launch))
    };
    launches.iter().filter(fits).cloned().collect()
}

/// Judges the bundle.
pub(crate) fn advance(draft: &mut Draft<'_>) -> Step {
    if !open(draft) {
        return Step::Pass;
    }
    if draft.accepted_names().is_empty() {
        return conclude(draft, PhaseState::RolledBack, "NothingAccepted", "every phase was reverted");
    }
    let evidence = draft.bundle_launches().to_vec();
    let settings = (draft.spec.settings.clone(), draft.effective());
    let trial = trial_name(draft);
    let comparison = Comparison::new(draft, (trial.clone(), Target::Bundle), settings, &evidence);
    if let Some(launch) = safety::broken(&comparison) {
        let (reason, message) = (format!("{:?}", launch.outcome), safety::told(launch));
        return broken(draft, &reason, &message);
    }
    let judged = judge(&comparison);
    let measured = Measured::of(&comparison);
    if let Some(bundle) = &mut draft.status.bundle {
        measured.write(bundle);
    }
    let spent = draft.exhausted(&trial);
    match (judged, spent) {
        (Judged::Run(_, _), Some(retry)) => {
            let message = format!("{} failures; the last: {}", retry.count, retry.message);
            conclude(draft, PhaseState::Error, "RetriesExhausted", &message)
        }
        (Judged::Run(purpose, launches), None) => {
            let work = Work { purpose, phase: None, trial, launches, stop_on_failure: true };
            Step::Go(Next::Run(work.bounded()))
        }
        (Judged::Met(message), _) => conclude(draft, PhaseState::Accepted, "GoalMet", &message),
        (Judged::Missed(message), _) => {
            let state = goal::missed(draft, &message);
            conclude(draft, state, goal::MISSED, &message)
        }
    }
}

enum Judged {
    Run(Purpose, Vec<Launch>),
    Met(String),
    Missed(String),
}

fn judge(comparison: &Comparison<'_>) -> Judged {
    let (speed, mut told) = match overall_speedup(comparison) {
        Judged::Met(message) => (None, message),
        Judged::Missed(message) => (Some(message.clone()), message),
        run @ Judged::Run(..) => return run,
    };
    if let Some(missed) = speed.or_else(|| memory(comparison)) {
        return Judged::Missed(missed);
    }
    let draft = comparison.draft;
    let phases = draft.spec.phases.iter().zip(&draft.status.phases);
    if phases.into_iter().any(|(phase, status)| accepted(status) && phase.numerics == Numerics::Changed) {
        match quality::judge(comparison) {
            quality::Quality::Missing(launches) => return Judged::Run(Purpose::Quality, launches),
            quality::Quality::Worse(message) => return Judged::Missed(message),
            quality::Quality::Underpowered(message) => return Judged::Missed(format!("GateUnderpowered: {message}")),
            quality::Quality::Good(message) => told = format!("{told}; {message}"),
        }
    }
    Judged::Met(told)
}

fn overall_speedup(comparison: &Comparison<'_>) -> Judged {
    let spec = comparison.draft.spec;
    let shown = |interval: &Interval| format!("all accepted phases together: {}", speed::shown(interval));
    let Some(gate) = &spec.gates.overall_speedup else {
        let wanted = looks(&spec.analysis).first().copied().unwrap_or(1);
        let (pairs, missing) = comparison.pairs(wanted);
        if pairs.len() < wanted && !missing.is_empty() {
            return Judged::Run(Purpose::Bundle, missing);
        }
        return Judged::Met(speed::measured(comparison).as_ref().map(shown).unwrap_or_default());
    };
    let (said, missing) = speed::compare(comparison, gate.value());
    match said {
        Sequential::More(_) => Judged::Run(Purpose::Bundle, missing),
        Sequential::Above(interval) => Judged::Met(format!("{} clears gates.overallSpeedup {gate}", shown(&interval))),
        Sequential::Below(interval) => {
            Judged::Missed(format!("{} is below gates.overallSpeedup {gate}", shown(&interval)))
        }
        Sequential::Undecided(interval) => {
            Judged::Missed(format!("{} does not show gates.overallSpeedup {gate}", shown(&interval)))
        }
    }
}

fn peak(comparison: &Comparison<'_>) -> Option<u64> {
    let ran = comparison.candidates().filter(|launch| launch.kind != LaunchKind::Preflight);
    ran.filter_map(|launch| launch.memory).max()
}

fn memory(comparison: &Comparison<'_>) -> Option<String> {
    let gate = comparison.draft.spec.gates.gpu_memory.as_ref()?;
    let peak = peak(comparison)?;
    (peak > gate.get()).then(|| format!("peak memory {} is above gates.gpuMemory {gate}", Bytes::display(peak)))
}

/// What was measured of the bundle.
struct Measured {
    speedup: Option<pawl_api::status::Speedup>,
    quality: Option<pawl_api::status::QualityStatus>,
    peak_memory: Option<u64>,
    utilization: Option<Decimal>,
}

impl Measured {
    fn of(comparison: &Comparison<'_>) -> Self {
        let speedup = match &comparison.draft.spec.gates.overall_speedup {
            Some(gate) => speed::reached(comparison, gate.value()),
            None => speed::measured(comparison),
        };
        let utilization =
            speed::median(comparison.candidates().filter_map(|l| l.utilization.as_ref()).map(Decimal::value));
        Self {
            speedup: speedup.as_ref().and_then(speed::status),
            quality: quality::status(comparison),
            peak_memory: peak(comparison),
            utilization: utilization.and_then(Decimal::from_f64),
        }
    }

    fn write(self, bundle: &mut BundleStatus) {
        bundle.speedup = self.speedup;
        bundle.quality = self.quality;
        bundle.peak_memory = self.peak_memory;
        bundle.utilization = self.utilization;
    }
}

/// The settings in effect broke: the newest phase goes, and what is left is judged again.
pub(crate) fn broken(draft: &mut Draft<'_>, reason: &str, message: &str) -> Step {
    match responsible(draft, Blame::Newest) {
        Some(index) => {
            revert(draft, index, Scope::Phase, reason, message);
            if let Some(bundle) = &mut draft.status.bundle {
                bundle.launches.clear();
            }
            Step::Moved
        }
        None => conclude(draft, PhaseState::Error, "BundleFailed", message),
    }
}

/// The bundle's final state.
pub(crate) fn conclude(draft: &mut Draft<'_>, state: PhaseState, reason: &str, message: &str) -> Step {
    if let Some(bundle) = &mut draft.status.bundle {
        bundle.state = state;
        bundle.reason = reason.to_owned();
        bundle.message = bounded(message);
    }
    if state == PhaseState::Accepted && reason != goal::MISSED {
        draft.normal(reason, message, None);
    } else {
        draft.warning(reason, message, None);
    }
    Step::Moved
}
