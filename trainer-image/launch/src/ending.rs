//! Reasons for which a launch ends before its budget is used up, as the contract's outcomes.

use crate::checkpoint::{CheckpointError, StorageError};
use crate::collective::CollectiveError;
use pawl_contract::exit::Outcome;
use pawl_graph::executor::ExecError;
use pawl_graph::graph::GraphError;

/// End of a launch other than [`Outcome::Done`], with a human-readable message: the problem and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Ending {
    /// The step does not fit in memory.
    #[error("{0}")]
    OutOfMemory(String),
    /// A number is NaN or infinite.
    #[error("{0}")]
    NonFinite(String),
    /// The loss rose far above its recent level.
    #[error("{0}")]
    LossSpike(String),
    /// Not supported by this trainer or device.
    #[error("{0}")]
    Unsupported(String),
    /// A kernel of the step does not compile.
    #[error("{0}")]
    CompileFailed(String),
    /// The plan is contradictory, or unknown to the workload.
    #[error("{0}")]
    InvalidPlan(String),
    /// A checkpoint that must exist is missing, or is of a later format.
    #[error("{0}")]
    CheckpointUnreadable(String),
    /// The storage of checkpoints has no space or no quota left.
    #[error("{0}")]
    StorageFull(String),
    /// Stopped on request, or superseded by a later gang.
    #[error("{0}")]
    Stopped(String),
    /// Another rank was lost.
    #[error("{0}")]
    LostPeer(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

impl Ending {
    /// The contract's outcome.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::OutOfMemory(_) => Outcome::OutOfMemory,
            Self::NonFinite(_) => Outcome::NonFinite,
            Self::LossSpike(_) => Outcome::LossSpike,
            Self::Unsupported(_) => Outcome::Unsupported,
            Self::CompileFailed(_) => Outcome::CompileFailed,
            Self::InvalidPlan(_) => Outcome::InvalidPlan,
            Self::CheckpointUnreadable(_) => Outcome::CheckpointUnreadable,
            Self::StorageFull(_) => Outcome::StorageFull,
            Self::Stopped(_) => Outcome::Stopped,
            Self::LostPeer(_) => Outcome::LostPeer,
            Self::Failed(_) => Outcome::Failed,
        }
    }
}

impl From<CollectiveError> for Ending {
    fn from(error: CollectiveError) -> Self {
        match error {
            CollectiveError::LostPeer { .. } => Self::LostPeer(error.to_string()),
            CollectiveError::Disagreement { .. } => Self::Failed(error.to_string()),
        }
    }
}

impl From<ExecError> for Ending {
    fn from(error: ExecError) -> Self {
        use pawl_graph::collective::CollectiveError as Gang;
        let message = error.to_string();
        #[cfg(feature = "cuda")]
        let message = match (&error, crate::xid::newest()) {
            (ExecError::Device(_), Some(xid)) => format!("{message}; newest Xid in the kernel log: {xid}"),
            _ => message,
        };
        match error {
            ExecError::OutOfMemory { .. } => Self::OutOfMemory(message),
            ExecError::Unsupported { .. } => Self::Unsupported(message),
            ExecError::Compile { .. } => Self::CompileFailed(message),
            ExecError::Collective(Gang::PeerLost { .. } | Gang::Timeout { .. }) => Self::LostPeer(message),
            ExecError::Collective(Gang::Disagree { .. } | Gang::Transport(_))
            | ExecError::Graph(_)
            | ExecError::Index { .. }
            | ExecError::Offset { .. }
            | ExecError::Device(_) => Self::Failed(message),
        }
    }
}

impl From<GraphError> for Ending {
    fn from(error: GraphError) -> Self {
        Self::Failed(format!("the program is ill-formed, which is a bug: {error}"))
    }
}

impl From<CheckpointError> for Ending {
    fn from(error: CheckpointError) -> Self {
        let message = error.to_string();
        match error {
            CheckpointError::Unreadable { .. } | CheckpointError::Foreign { .. } => Self::CheckpointUnreadable(message),
            CheckpointError::Absent { .. } => Self::InvalidPlan(message),
            CheckpointError::Superseded { .. } => Self::Stopped(message),
            CheckpointError::NotFinite { .. } => Self::NonFinite(message),
            CheckpointError::Storage(error) if error.is_full() => Self::StorageFull(message),
            CheckpointError::Storage(_) | CheckpointError::Format { .. } => Self::Failed(message),
        }
    }
}

impl Ending {
    /// The end of a preflight whose [`probe`](crate::checkpoint::probe) of the storage failed.
    pub fn unusable(error: &StorageError) -> Self {
        if error.is_full() {
            Self::StorageFull(error.to_string())
        } else {
            Self::CheckpointUnreadable(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fallback answers it: it is evidence about the settings, not a failure of the machine.
    #[test]
    fn a_kernel_that_does_not_compile_ends_as_compile_failed() {
        let error = ExecError::Compile { kernel: "broken".to_owned(), log: "undeclared".to_owned() };
        let ending = Ending::from(error);
        assert_eq!(ending.outcome(), Outcome::CompileFailed);
        assert!(ending.to_string().contains("kernel broken does not compile"), "{ending}");
        assert!(ending.outcome().is_evidence() && ending.outcome().exit_code() == 22);
    }
}
