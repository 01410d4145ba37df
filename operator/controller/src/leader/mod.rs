//! Leader election: a Lease, a pure evaluation, thin I/O.
//!
//! [`evaluate`] decides what to do about a lease; [`Election`] does it, every few seconds; [`Leadership`] tells the
//! rest of the operator the result; [`Fence`] prevents a replica that does not lead from writing.
//!
//! # No clock is compared with another
//!
//! The times in a Lease are informational. A follower measures, on its own monotonic clock, how long the lease has *not
//! changed since it saw it last*, and takes it over when that is longer than the lease's duration (15 s). Machines
//! whose clocks differ by an hour elect as well as any.
//!
//! # At most one acts
//!
//! A leader counts its right to act from the moment *before* it sent its last successful renewal, and gives it up
//! [`Timing::act_for`] (10 s) later. No follower saw that renewal before it was sent, so none takes the lease earlier
//! than [`Timing::duration`] (15 s) after that moment. The 5 s between are the longest that a request may still be
//! under way which passed the fence at the last moment. What slips through even so, such as a request that the API
//! server holds back for longer, makes no second gang: attempts have deterministic names, owned objects are created or
//! applied idempotently, and a status is written with the field manager of both replicas, decided from the same facts.
//! Objects are deleted by their uid.
//!
//! A lease that a person deletes is made again by its holder; a follower waits as if it were still there. Only a
//! replica that starts, or was cut off, in that moment cannot know of it.
//!
//! The clock is `CLOCK_MONOTONIC`: a process that was stopped (SIGSTOP, a debugger) finds its right expired when it
//! resumes. A machine that was suspended whole is not detected by that clock; there the update of the lease, which
//! names the version that it replaces, is what fails.
//!
//! # Times
//!
//! Killed with SIGKILL, a leader is replaced at most `duration` + one look later: 15 s + 2 s. One that receives SIGTERM
//! releases the lease, and is replaced at the next look. A container that restarts in the same pod has the same
//! identity and continues at once.

mod election;
mod fence;

#[cfg(test)]
mod tests;

pub use election::{Election, Leadership, Role};
pub use fence::{Fence, Fenced};

use k8s_openapi::api::coordination::v1::Lease;
use std::time::Duration;
use tokio::time::Instant;

/// A lease that names a longer duration was not written by an operator.
const LONGEST: Duration = Duration::from_secs(600);
/// Name of the lease.
pub const LEASE: &str = "pawl-operator";

/// How long things take. Every replica must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A lease that was not renewed for this long may be taken over.
    pub duration: Duration,
    /// A leader acts for this long after a renewal; less than `duration` by the longest request.
    pub act_for: Duration,
    /// Time between renewals, and the longest that a renewal may take.
    pub renew_every: Duration,
    /// Time between two looks of a follower.
    pub look_every: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            act_for: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
            look_every: Duration::from_secs(2),
        }
    }
}

/// A lease as this replica saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The lease.
    pub lease: Lease,
    /// When this version of it was seen first.
    pub at: Instant,
}

impl Seen {
    /// Looks again: the time of the first look is kept while the lease is the same version.
    pub fn look(last: Option<Self>, lease: Lease, now: Instant) -> Self {
        let same = |last: &Self| last.lease.metadata.resource_version == lease.metadata.resource_version;
        let at = last.filter(same).map_or(now, |last| last.at);
        Self { lease, at }
    }

    /// The holder; `None` when it was released.
    pub fn holder(&self) -> Option<&str> {
        let holder = self.lease.spec.as_ref()?.holder_identity.as_deref()?;
        (!holder.is_empty()).then_some(holder)
    }

    /// Whether another one than `me` may act by it at `now`, even if it was deleted since.
    fn binds(&self, me: &str, now: Instant, timing: &Timing) -> bool {
        self.holder().is_some_and(|holder| holder != me) && now < self.expires(timing)
    }

    /// When it may be taken, unless it changes before.
    fn expires(&self, timing: &Timing) -> Instant {
        let own = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let own = own.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
        self.at + own.unwrap_or(timing.duration).min(LONGEST)
    }
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// There is none: make it.
    Create,
    /// It is ours: renew it.
    Renew,
    /// It was released, or not renewed for its duration: take it.
    Take,
    /// Another one holds it, at least until then.
    Follow {
        /// When it may be taken, unless it changes before.
        until: Instant,
    },
}

/// Decides about the lease. Total; depends on nothing but its arguments.
pub fn evaluate(seen: Option<&Seen>, me: &str, now: Instant, timing: &Timing) -> Act {
    let Some(seen) = seen else { return Act::Create };
    match seen.holder() {
        None => Act::Take,
        Some(holder) if holder == me => Act::Renew,
        Some(_) if now >= seen.expires(timing) => Act::Take,
        Some(_) => Act::Follow { until: seen.expires(timing) },
    }
}
