//! What the parts of a decision hand to each other.

use crate::launch::Work;
use pawl_api::status::Stage;

/// What should run now.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// These launches.
    Run(Work),
    /// Nothing until the attempt that is alive has ended.
    Drain,
    /// Nothing.
    Idle(Stage),
}

/// What a part of the decision did.
pub(crate) enum Step {
    /// The status moved: look at everything again.
    Moved,
    /// This is next.
    Go(Next),
    /// It has nothing to do or to wait for.
    Pass,
}
