//! A running gang, and what its agent answered last.

use pawl_contract::live::Attempt;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::Progress;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A running gang.
#[derive(Debug)]
pub(crate) struct Gang {
    pub(crate) attempt: String,
    /// Of agent 0.
    pub(crate) address: IpAddr,
    /// Time of the next poll.
    pub(crate) due: Instant,
    pub(crate) answer: Option<Arc<Attempt>>,
    /// When the job was last handed to the controller because of an answer, and with what.
    pub(crate) reported: Option<(Instant, Reported)>,
}

/// The part of an answer that decisions depend on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reported {
    /// Number of finished launches.
    results: usize,
    /// Of a training: the progress of a measurement matters only at its end.
    progress: Option<Progress>,
}

impl Gang {
    /// Takes in an answer. Returns whether the job is to be reconciled: at once when a launch ended, else at most every
    /// `progress_every`.
    pub(crate) fn answered(&mut self, answer: Attempt, now: Instant, progress_every: Duration) -> bool {
        let new = Reported::of(&answer);
        self.answer = Some(Arc::new(answer));
        let matters = match &self.reported {
            None => new.results > 0 || new.progress.is_some(),
            Some((_, old)) if old.results != new.results => true,
            Some((when, old)) => *old != new && now.duration_since(*when) >= progress_every,
        };
        if matters {
            self.reported = Some((now, new));
        }
        matters
    }
}

impl Reported {
    fn of(answer: &Attempt) -> Self {
        let progress = answer.progress.as_ref().filter(|progress| progress.kind == LaunchKind::Train);
        Self { results: answer.results.len(), progress: progress.cloned() }
    }
}
