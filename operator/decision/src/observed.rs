//! The facts that decisions are made on.

use jiff::Timestamp;
use pawl_contract::progress::Progress;
use pawl_contract::report::LaunchResult;

/// Everything that is known of a job's attempts. Facts may be missing, late, or seen twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The attempts that exist, in any order.
    pub attempts: Vec<AttemptFacts>,
}

/// What is known of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptFacts {
    /// `<job>-<number>`.
    pub name: String,
    /// Hash of the plan that it was started with.
    pub plan_hash: String,
    /// Where it is.
    pub state: AttemptState,
    /// Which devices it runs on; launches with equal placement may be compared. Empty when unknown.
    pub placement: String,
    /// Results of the launches that ended, in order. They survive the attempt.
    pub results: Vec<LaunchResult>,
    /// The launch that runs.
    pub progress: Option<Progress>,
}

/// Where an attempt is.
#[derive(Clone, Debug, PartialEq)]
pub enum AttemptState {
    /// None of its ranks may run yet: a queue holds it back, for as long as it likes.
    Queued,
    /// Not all of its ranks run yet.
    Pending {
        /// Since when.
        since: Timestamp,
        /// Why, for people.
        message: String,
    },
    /// All of its ranks run.
    Running,
    /// Some of its ranks ended or are about to, others still hold devices.
    Leaving(Leaving),
    /// None of its ranks runs or will run.
    Ended(Ending),
}

/// Why an attempt is coming to its end while some of its ranks hold devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// Its ranks end by themselves, or because they were asked to.
    Draining,
    /// Its queue preempted it: it would run again in its turn if it were not stopped.
    Preempted,
    /// A rank was lost, and the others wait for it in vain.
    Broken,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// It ran what it could of its plan; the results say how that went.
    Completed,
    /// It was stopped on request.
    Stopped,
    /// Its queue preempted it: that is no failure, and it runs again in its turn.
    Preempted,
    /// It went away: a lost node, a preemption, a deleted pod, a killed process. The message is for people.
    Lost(String),
}
