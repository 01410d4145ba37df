//! Fallbacks of a phase, numbered from 1: tried in order, each at most once; each replaces the previous one.

use crate::draft::{Draft, bounded};
use crate::reason::Reason;
use crate::revert::{Blame, suspects};
use pawl_api::spec::{Phase, Trigger};
use pawl_api::status::PhaseState;
use pawl_contract::measured::Measured;

/// The next fallback after `current` (0: none) for `trigger`.
fn next(phase: &Phase, current: u32, trigger: Trigger) -> Option<u32> {
    let mut fallbacks = phase.fallbacks.iter().enumerate().skip(current as usize);
    fallbacks.find(|(_, fallback)| fallback.when.contains(&trigger)).map(|(index, _)| index as u32 + 1)
}

/// Selects the next fallback for `trigger` and evaluates the phase again with it; `false` when there is none.
pub(crate) fn take(draft: &mut Draft<'_>, index: usize, trigger: Trigger, reason: Reason, message: &str) -> bool {
    let spec = &draft.spec.phases[index];
    let phase = &mut draft.status.phases[index];
    let Some(fallback) = next(spec, phase.fallback, trigger) else { return false };
    phase.fallback = fallback;
    phase.launches.clear();
    phase.speedup = None;
    phase.quality = None;
    phase.measured = Measured::default();
    let message = format!("{message}; trying fallback {fallback} of {}", spec.fallbacks.len());
    draft.phase_to(index, PhaseState::Retrying, reason, &message);
    true
}

/// Selects the next fallback for a failure of the training, of the most likely responsible phase that has one: training
/// resumes with it. Its settings passed the preflight but are not measured first; the guard monitors the training.
/// `false` when no accepted phase has such a fallback.
pub(crate) fn take_in_training(
    draft: &mut Draft<'_>,
    blame: Blame,
    trigger: Trigger,
    reason: Reason,
    message: &str,
) -> bool {
    let answer = |index: usize| {
        let fallback = draft.status.phases[index].effective_fallback();
        Some((index, next(&draft.spec.phases[index], fallback, trigger)?))
    };
    let Some((index, fallback)) = suspects(draft, blame).into_iter().find_map(answer) else { return false };
    let count = draft.spec.phases[index].fallbacks.len();
    let phase = &mut draft.status.phases[index];
    let message = format!("{message}; training resumes with fallback {fallback} of {count}, which was not measured");
    phase.training_fallback = Some(fallback);
    phase.reason = reason.to_string();
    phase.message = bounded(&message);
    let name = phase.name.clone();
    draft.warning(reason, format!("phase {name}: {message}"), Some(&name));
    true
}
