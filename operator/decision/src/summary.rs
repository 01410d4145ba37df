//! The summary in the status: stage, progress, settings in effect, speedup, the baseline's throughput. Bounds its size.

use crate::aggregate::together;
use crate::bundle::is_current;
use crate::draft::Draft;
use crate::launch::EvidenceTarget;
use crate::revision::{accepted, revision};
use crate::step::Next;
use crate::train::{expected_items_per_second, measured_with};
use pawl_api::spec::TrainingJobSpec;
use pawl_api::status::{MAX_LAUNCHES, PhaseStatus, Purpose, Stage};
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;

/// Maximum size of the status in bytes of JSON; old evidence is dropped beyond that.
const MAX_BYTES: usize = 56 * 1024;
/// The progress of a job that waits in its queue.
const QUEUED: &str = "queued";

/// Aligns the phases of the status with those of the spec.
pub(crate) fn align(draft: &mut Draft<'_>) {
    let spec: &TrainingJobSpec = draft.spec;
    let same = spec.phases.iter().map(|phase| &phase.name).eq(draft.status.phases.iter().map(|phase| &phase.name));
    if same {
        return;
    }
    let mut old = std::mem::take(&mut draft.status.phases);
    let found = |name: &str, old: &mut Vec<PhaseStatus>| {
        let index = old.iter().position(|phase| phase.name == name)?;
        Some(old.swap_remove(index))
    };
    let fresh = |name: &str| PhaseStatus { name: name.to_owned(), ..PhaseStatus::default() };
    draft.status.phases =
        spec.phases.iter().map(|phase| found(&phase.name, &mut old).unwrap_or_else(|| fresh(&phase.name))).collect();
}

/// Writes the summary.
pub(crate) fn set(draft: &mut Draft<'_>, next: &Next) {
    let stage = match next {
        // The training waits for these launches.
        Next::Run(work) if work.launches.iter().any(|launch| launch.target == EvidenceTarget::Slowdown) => {
            Stage::Training
        }
        Next::Run(work) => match work.purpose {
            Purpose::Preflight => Stage::Preflight,
            Purpose::Speed | Purpose::Quality | Purpose::Bundle | Purpose::LeaveOneOut => Stage::Optimizing,
            Purpose::Search => Stage::Searching,
            Purpose::Train => Stage::Training,
        },
        Next::Several { .. } => Stage::Searching,
        Next::Drain => draft.status.stage,
        Next::Idle(stage) => *stage,
    };
    draft.status.stage = stage;
    let effective = draft.tuned();
    draft.status.revision = Some(revision(&effective));
    draft.status.effective_settings = Some(effective);
    if draft.status.baseline.as_ref().is_some_and(|baseline| baseline.measured.items_per_second.is_none())
        && let Some(speed) = expected_items_per_second(draft, &draft.spec.settings).and_then(Decimal::from_f64)
    {
        let measured = together(measured_with(draft, &draft.spec.settings).into_iter());
        if let Some(baseline) = draft.status.baseline.as_mut() {
            let predicted_memory_bytes = baseline.measured.predicted_memory_bytes;
            baseline.measured = Measured { items_per_second: Some(speed), predicted_memory_bytes, ..measured };
        }
    }
    draft.status.speedup = speedup(draft);
    draft.status.progress = progress(draft);
    bound(draft);
}

impl Draft<'_> {
    /// The baseline's peak memory in bytes: of its launches in the evidence, otherwise as measured earlier.
    pub fn baseline_peak(&self) -> Option<u64> {
        let known = together(measured_with(self, &self.spec.settings).into_iter()).peak_memory_bytes;
        known.or(self.status.baseline.as_ref()?.measured.peak_memory_bytes)
    }
}

fn speedup(draft: &Draft<'_>) -> Option<Decimal> {
    let bundle = draft.status.bundle.as_ref().filter(|bundle| is_current(draft, bundle));
    if let Some(speedup) = bundle.and_then(|bundle| bundle.speedup.as_ref()) {
        return Some(speedup.estimate.clone());
    }
    let kept = || draft.status.phases.iter().filter(|phase| accepted(phase));
    if kept().any(|phase| phase.training_fallback.is_some()) {
        // A fallback that the training took was not measured.
        return None;
    }
    let kept = kept();
    let mut known = kept.filter_map(|phase| phase.speedup.as_ref()).map(|speedup| speedup.estimate.value()).peekable();
    known.peek()?;
    Decimal::from_f64(known.product())
}

fn progress(draft: &Draft<'_>) -> String {
    let status = &draft.status;
    let queued = draft.queued_since().is_some();
    match status.stage {
        Stage::Failed | Stage::Suspended if status.progress == QUEUED => String::new(),
        Stage::Failed | Stage::Suspended => status.progress.clone(),
        Stage::Complete => "100%".to_owned(),
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training if queued => {
            QUEUED.to_owned()
        }
        Stage::Pending | Stage::Preflight => String::new(),
        Stage::Searching => crate::search::progress(draft),
        Stage::Optimizing => {
            let judged = status.phases.iter().filter(|phase| phase.state.is_final()).count();
            if judged == status.phases.len() {
                return "bundle".to_owned();
            }
            format!("phase {}/{}", judged + 1, status.phases.len())
        }
        Stage::Training => {
            let items = status.training.as_ref().map_or(0, |training| training.measured.items);
            match (draft.spec.train.items, draft.spec.train.epochs, &status.training) {
                (Some(target), _, _) if target > 0 => {
                    format!("{}%", (items as f64 / target as f64 * 100.0).min(100.0) as u32)
                }
                (_, Some(epochs), Some(training)) => {
                    format!("epoch {}/{epochs}", training.epoch.saturating_add(1).min(epochs))
                }
                _ => String::new(),
            }
        }
    }
}

/// Bounds the size of the status: a final phase keeps its newest launches, and the oldest evidence is dropped first.
fn bound(draft: &mut Draft<'_>) {
    for phase in draft.status.phases.iter_mut().filter(|phase| phase.state.is_final()) {
        let surplus = phase.launches.len().saturating_sub(MAX_LAUNCHES + 1);
        phase.launches.drain(..surplus);
    }
    let size = |draft: &Draft<'_>| serde_json::to_string(&draft.status).map_or(0, |text| text.len());
    if size(draft) <= MAX_BYTES {
        return;
    }
    for index in 0..draft.status.phases.len() {
        let phase = &mut draft.status.phases[index];
        if phase.state.is_final() && !phase.launches.is_empty() {
            phase.launches.clear();
            if size(draft) <= MAX_BYTES {
                return;
            }
        }
    }
}
