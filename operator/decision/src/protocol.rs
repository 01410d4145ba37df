//! The order in which a shell carries out a decision, and why a crash at any point is safe.
//!
//! 1. *Write* the status, which contains the intended actions ([`Shell::write`]).
//! 2. *Act*: start, stop, release, in the order of [`Decision::actions`] ([`Shell::act`]).
//! 3. *Emit* the events ([`Shell::emit`]).
//!
//! A status that differs from the stored one only by the progress of a training may be written later; any other must be
//! durable before the first action. If the write fails, no action is taken.
//!
//! # Why a crash between any two steps is safe
//! After a restart the shell decides on the newest written status and on new observations.
//!
//! - *Before the write*: no action was taken. The same observations lead to the same decision.
//! - *After the write, before a start*: the status names an attempt that was never observed. It is started again under
//!   the same name with the same plan; names are unique, so starting it twice starts it once.
//! - *After the write, before a stop*: the attempt's `stop` is set in the status. The stop is decided again until the
//!   attempt is observed to have ended.
//! - *After the write, before a release*: only an attempt that an earlier written status no longer needs is released.
//!   Its remaining objects are observed again, and released again.
//! - *Between two actions*: each is idempotent, and the missing ones are decided again.
//! - *Before the events*: they are lost. No decision depends on them; the status contains their evidence.

use crate::action::{Action, Decision, Event};
use pawl_api::TrainingJobStatus;
use std::time::Duration;

/// The side effects of a shell. [`Decision::carry_out`] calls them in the order of the [protocol](self).
#[allow(async_fn_in_trait, reason = "each shell awaits its own futures on a runtime that it knows")]
pub trait Shell {
    /// Error of a side effect.
    type Error;

    /// Makes `status` the current one. The write must be durable, unless the status differs from the stored one only by
    /// progress. `urgent`: there are actions or events, so that progress must not be delayed either.
    ///
    /// # Errors
    /// The status could not be written, or another writer changed it concurrently: then no action of the decision is
    /// taken.
    async fn write(&mut self, status: TrainingJobStatus, urgent: bool) -> Result<(), Self::Error>;

    /// Takes one action. Returns whether it changed the observable state.
    ///
    /// # Errors
    /// The action failed or was only partly done: it is decided again.
    async fn act(&mut self, action: Action) -> Result<bool, Self::Error>;

    /// Emits one event.
    ///
    /// # Errors
    /// A shell that stores its events could not store it.
    async fn emit(&mut self, event: Event) -> Result<(), Self::Error>;
}

/// The result of carrying out a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedOut {
    /// Whether an action changed the observable state.
    pub acted: bool,
    /// [`Decision::requeue_after`].
    pub requeue_after: Option<Duration>,
}

impl Decision {
    /// Carries out the decision: writes the status, acts, emits the events.
    ///
    /// # Errors
    /// The first error of `shell`. After a failed action no further one is taken, but the events are emitted: their
    /// status is written, so that they are not decided again.
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
