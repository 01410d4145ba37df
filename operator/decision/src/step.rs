//! The results of the parts of a decision.

use crate::launch::Work;
use pawl_api::status::Stage;

/// The desired state of attempts.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// An attempt with these launches.
    Run(Work),
    /// An attempt for each of these, at most `most` of them at the same time.
    Several { works: Vec<Work>, most: usize },
    /// No new attempt until the current one has ended.
    Drain,
    /// No attempt.
    Idle(Stage),
}

impl Next {
    /// What the attempts run.
    pub fn works(&self) -> &[Work] {
        match self {
            Self::Run(work) => std::slice::from_ref(work),
            Self::Several { works, .. } => works,
            Self::Drain | Self::Idle(_) => &[],
        }
    }

    /// Number of attempts at the same time.
    pub fn most(&self) -> usize {
        match self {
            Self::Run(_) => 1,
            Self::Several { most, .. } => *most,
            Self::Drain | Self::Idle(_) => 0,
        }
    }

    /// What the attempt of this task runs; of a task that is not wanted, the first.
    pub fn work_of(&self, task: &str) -> Option<&Work> {
        self.works().iter().find(|work| work.task == task).or(self.works().first())
    }
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
