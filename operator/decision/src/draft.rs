//! A decision in progress: the new status, and the events so far.

use crate::action::{Event, EventKind};
use crate::observed::AttemptFacts;
use crate::reason::Reason;
use jiff::Timestamp;
use pawl_api::spec::Numerics;
use pawl_api::status::{FailureStatus, PhaseState, TrainingJobStatus};
use pawl_api::{Problem, TrainingJob, TrainingJobSpec};
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Validation;
use pawl_contract::report::{printable, truncated};

/// Maximum length of a message in the status, bytes.
pub(crate) const MAX_MESSAGE: usize = 640;
/// Maximum number of metrics of one evaluation in the status.
const MAX_METRICS: usize = 16;

/// A decision in progress.
pub(crate) struct Draft<'a> {
    pub job: &'a TrainingJob,
    pub spec: &'a TrainingJobSpec,
    /// The spec as the user wrote it: without what a shell filled in.
    pub written: &'a TrainingJobSpec,
    /// References of the pod template that the operator's policy does not allow.
    pub refused: Vec<Problem>,
    pub now: Timestamp,
    /// Whether this is the first decision on this generation of the spec.
    pub spec_is_new: bool,
    pub status: TrainingJobStatus,
    pub events: Vec<Event>,
    /// The attempts, as observed; see [`crate::observed::Observed::attempts`].
    pub attempts: &'a [AttemptFacts],
    /// Attempts from another pod template; see [`crate::observed::Observed::outdated`].
    pub outdated: &'a [String],
    /// What keeps an attempt from ending; see [`crate::observed::Observed::obstacle`].
    pub obstacle: &'a str,
    /// Fields of the job that this version ignores; see [`crate::observed::Observed::unknown_fields`].
    pub unknown_fields: &'a str,
    /// Build that a new attempt would run; see [`crate::observed::Observed::build`].
    pub build: &'a str,
}

/// `text`, truncated to the maximum length of a message in the status, without control characters: an agent in a
/// foreign image is not trusted to remove them.
pub(crate) fn bounded(text: &str) -> String {
    printable(truncated(text, MAX_MESSAGE))
}

/// An evaluation for the status: finite metrics, at most [`MAX_METRICS`].
pub(crate) fn decimals(validation: &Validation) -> Validation<Decimal> {
    let Validation { items, metrics } = validation.filter_map(|value| Decimal::from_f64(*value));
    Validation { items, metrics: metrics.into_iter().take(MAX_METRICS).collect() }
}

impl<'a> Draft<'a> {
    pub fn new(job: &'a TrainingJob, refused: Vec<Problem>, status: &TrainingJobStatus, now: Timestamp) -> Self {
        let spec_is_new = status.observed_generation != job.metadata.generation;
        Self {
            job,
            spec: &job.spec,
            written: &job.spec,
            refused,
            now,
            spec_is_new,
            status: status.clone(),
            events: Vec::new(),
            attempts: &[],
            outdated: &[],
            obstacle: "",
            unknown_fields: "",
            build: "",
        }
    }

    /// Name of the job; the API server and the manifest reader guarantee that it is set.
    pub fn name(&self) -> &'a str {
        self.job.metadata.name.as_deref().unwrap_or("job")
    }

    pub fn normal(&mut self, reason: Reason, message: impl Into<String>, phase: Option<&str>) {
        self.event(EventKind::Normal, reason, message.into(), phase);
    }

    pub fn warning(&mut self, reason: Reason, message: impl Into<String>, phase: Option<&str>) {
        self.event(EventKind::Warning, reason, message.into(), phase);
    }

    fn event(&mut self, kind: EventKind, reason: Reason, message: String, phase: Option<&str>) {
        let phase = phase.map(str::to_owned);
        self.events.push(Event { kind, reason: reason.to_string(), message: bounded(&message), phase });
    }

    /// Sets the state of a phase, and emits an event.
    pub fn phase_to(&mut self, index: usize, state: PhaseState, reason: Reason, message: &str) {
        let Some(phase) = self.status.phases.get_mut(index) else { return };
        phase.state = state;
        phase.reason = reason.to_string();
        phase.message = bounded(message);
        let name = phase.name.clone();
        let text = format!("phase {name}: {message}");
        match state {
            PhaseState::Pending
            | PhaseState::Preflight
            | PhaseState::Measuring
            | PhaseState::Accepted
            | PhaseState::Skipped => self.normal(reason, text, Some(&name)),
            PhaseState::Retrying
            | PhaseState::RollingBack
            | PhaseState::RolledBack
            | PhaseState::Unsupported
            | PhaseState::Inconclusive
            | PhaseState::Error => self.warning(reason, text, Some(&name)),
        }
    }

    /// Whether a phase is judged as one that changes the numerics: it declares so, or its training losses did not show
    /// that it doesn't.
    pub fn is_judged_as_changed(&self, index: usize) -> bool {
        self.spec.phases.get(index).is_some_and(|phase| phase.numerics == Numerics::Changed)
            || self.status.phases.get(index).is_some_and(|phase| !phase.judged_as_changed.is_empty())
    }

    /// Sets the failure of the job, which is final until its spec changes.
    pub fn fail(&mut self, reason: Reason, message: &str) {
        let spec_hash = crate::fingerprint::fingerprint(self.written, 16);
        let failure = FailureStatus { reason: reason.to_string(), message: bounded(message), spec_hash };
        if self.status.failure.as_ref() != Some(&failure) {
            self.warning(reason, message, None);
            self.status.failure = Some(failure);
        }
    }
}
