//! The results of the parts of a decision.

use crate::launch::Work;
use pawl_api::status::Stage;

/// The desired state of attempts.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// An attempt with these launches.
    Run(Work),
    /// No new attempt until the current one has ended.
    Drain,
    /// No attempt.
    Idle(Stage),
}

/// The result of one part of a decision.
pub(crate) enum Step {
    /// It changed the status: start again with the first part.
    Moved,
    /// This is the desired state.
    Go(Next),
    /// Nothing to do in this part: continue with the next one.
    Pass,
}
