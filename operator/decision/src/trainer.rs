//! The build of the trainer that the evidence is about: launches of different builds are never compared.
//!
//! The name of an image does not identify it, because its tag may be moved; which build runs is known only once it
//! does. All launches in the status ran `status.trainer.build`, except those that name another build themselves.

use crate::draft::{Draft, bounded};
use crate::observed::AttemptFacts;
use crate::reason::Reason;
use crate::retry::MissingEvidence;
use pawl_api::status::{LaunchStatus, PhaseState, Purpose, TrainerStatus, TrainingJobStatus};
use pawl_contract::attempt::AttemptName;
use pawl_contract::measured::Measured;
use pawl_contract::report::truncated;

/// Length of a build in the evidence, bytes: that of a digest which registries and tools display.
const SHORT: usize = 12;

/// Whether the launch ran the current build of the trainer, so that it may be compared with newer launches.
pub(crate) fn comparable(launch: &LaunchStatus) -> bool {
    launch.trainer.is_empty()
}

/// A build in short.
pub(crate) fn short(build: &str) -> &str {
    truncated(build.strip_prefix("sha256:").unwrap_or(build), SHORT)
}

/// Records the build that the current attempt runs. `true` when it is another one than that of the evidence: the
/// launches so far are kept under the name of their build, open measurements start again, and final verdicts stay.
pub(crate) fn watch(draft: &mut Draft<'_>, facts: &AttemptFacts) -> bool {
    // Gangs of an older build may still run beside the attempt that brought the current one.
    let is_known = |known: &TrainerStatus| {
        known.build == facts.trainer || AttemptName::number_of(&facts.name) < AttemptName::number_of(&known.attempt)
    };
    if facts.trainer.is_empty() || draft.status.trainer.as_ref().is_some_and(is_known) {
        return false;
    }
    let image = draft.spec.trainer.image.clone().unwrap_or_default();
    let new = TrainerStatus { image, build: bounded(&facts.trainer), attempt: facts.name.clone() };
    let Some(before) = draft.status.trainer.replace(new.clone()) else { return true };
    let message = format!(
        "{} runs build {} of the trainer, earlier launches ran {}: they are not compared with each other, and open \
         measurements start again; an image that is named by its digest (name@sha256:...) does not change",
        facts.name,
        short(&new.build),
        short(&before.build)
    );
    draft.warning(Reason::TrainerChanged, &message, None);
    let lost = mark(&mut draft.status, short(&before.build), short(&new.build));
    forget_measurements(&mut draft.status);
    // Otherwise two nodes with different builds under one name could repeat measurements without end.
    if lost
        && before.image == new.image
        && let Some(attempt) = draft.attempt(&facts.name).filter(|attempt| attempt.purpose != Purpose::Train)
    {
        let task = attempt.task.clone();
        draft.count_failure(&task, &MissingEvidence::because(message));
    }
    true
}

/// Marks the launches of the build `before`, and takes the mark from those of the build `new`. Returns whether a launch
/// of an open measurement was marked.
fn mark(status: &mut TrainingJobStatus, before: &str, new: &str) -> bool {
    let baseline = status.baseline.iter_mut().map(|baseline| (true, &mut baseline.launches));
    let phases = status.phases.iter_mut().map(|phase| (is_open(phase.state), &mut phase.launches));
    let bundle = status.bundle.iter_mut().map(|bundle| (is_open(bundle.state), &mut bundle.launches));
    let mut lost = false;
    for (open, launches) in baseline.chain(phases).chain(bundle) {
        for launch in launches {
            if comparable(launch) {
                before.clone_into(&mut launch.trainer);
                lost |= open;
            } else if launch.trainer == new {
                launch.trainer.clear();
            }
        }
    }
    lost
}

fn is_open(state: PhaseState) -> bool {
    !state.is_final()
}

/// Discards the figures that new launches would be compared with.
fn forget_measurements(status: &mut TrainingJobStatus) {
    if let Some(baseline) = &mut status.baseline {
        let predicted_memory_bytes = baseline.measured.predicted_memory_bytes;
        baseline.measured = Measured { predicted_memory_bytes, ..Measured::default() };
    }
    if let Some(training) = &mut status.training {
        training.promised_items_per_second = None;
        training.slow_windows = 0;
        (training.slowdown, training.slow_machine, training.cusum) = (None, None, None);
    }
}
