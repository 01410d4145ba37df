//! The order in which a shell carries out a decision, and why it may be stopped at any point of it.
//!
//! 1. *Write* the status, which says what will be done ([`Shell::write`]).
//! 2. *Act*: start, stop, release, in the order of [`Decision::actions`] ([`Shell::act`]).
//! 3. *Emit* the events ([`Shell::emit`]).
//!
//! A status that differs from the one on record by mere progress of a training may be written later; everything else is
//! durable before the first action. A write that is refused ends the decision: nothing was done.
//!
//! # Why a crash between any two steps is safe
//! After a restart the shell decides on the status that was written last and on what it observes then.
//!
//! - *Before the write*: nothing was done. The same facts lead to the same decision.
//! - *After the write, before a start*: the status names an attempt that was never seen. It is started again under the
//!   same name with the same plan; names are unique, so starting it twice starts it once.
//! - *After the write, before a stop*: the attempt's `stop` says why it is to end. The stop is decided again until the
//!   attempt was seen to end.
//! - *After the write, before a release*: only an attempt that a status written earlier no longer needs is released. What
//!   is left of it is observed again, and released again.
//! - *Between two actions*: each is idempotent, and those that are missing are decided again.
//! - *Before the events*: they are lost. No decision reads them; the status holds the evidence that they announce.

use crate::action::{Action, Decision, Event};
use pawl_api::TrainingJobStatus;
use std::time::Duration;

/// The side effects of a shell. [`Decision::carry_out`] calls them in the order of the [protocol](self).
#[allow(async_fn_in_trait, reason = "each shell awaits its own futures on a runtime that it knows")]
pub trait Shell {
    /// Why a side effect failed.
    type Error;

    /// Makes `status` the newest one, durably unless it differs from the one on record by mere progress. `urgent`: there
    /// are actions or events, so that progress is not to wait either.
    ///
    /// # Errors
    /// When the status could not be written, or another writer was faster: then nothing of the decision is done.
    async fn write(&mut self, status: TrainingJobStatus, urgent: bool) -> Result<(), Self::Error>;

    /// Carries out one action. Returns whether that changed what can be observed.
    ///
    /// # Errors
    /// When the action failed or was only done in part: it is decided again.
    async fn act(&mut self, action: Action) -> Result<bool, Self::Error>;

    /// Emits one event.
    ///
    /// # Errors
    /// When a shell that keeps its events cannot store it.
    async fn emit(&mut self, event: Event) -> Result<(), Self::Error>;
}

/// What remains of a decision that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedOut {
    /// An action changed what can be observed.
    pub acted: bool,
    /// [`Decision::requeue_after`].
    pub requeue_after: Option<Duration>,
}

impl Decision {
    /// Carries out the decision: writes the status, acts, emits the events.
    ///
    /// # Errors
    /// The first error of `shell`. After a failed action no further one is tried, but the events are emitted: the status
    /// that they announce is written, so that they will not be decided again.
    pub async fn carry_out<S: Shell>(self, shell: &mut S) -> Result<CarriedOut, S::Error> {
        let Self { status, actions, events, requeue_after } = self;
        shell.write(status, !actions.is_empty() || !events.is_empty()).await?;
        let acted = act(shell, actions).await;
        for event in events {
            shell.emit(event).await?;
        }
        Ok(CarriedOut { acted: acted?, requeue_after })
    }
}

async fn act<S: Shell>(shell: &mut S, actions: Vec<Action>) -> Result<bool, S::Error> {
    let mut acted = false;
    for action in actions {
        acted |= shell.act(action).await?;
    }
    Ok(acted)
}
