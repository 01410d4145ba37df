//! Errors of workloads, as the ends of a launch.

use crate::ending::Ending;
use pawl_workloads::WorkloadError;

/// The end of a launch whose workload failed with `error`.
pub(crate) fn ending(error: WorkloadError) -> Ending {
    let message = error.to_string();
    match error {
        WorkloadError::Config { .. }
        | WorkloadError::File { .. }
        | WorkloadError::UnknownWorkload { .. }
        | WorkloadError::Setting { .. } => Ending::InvalidPlan(message),
        WorkloadError::Unsupported { .. } => Ending::Unsupported(message),
        WorkloadError::Data(error) if error.is_full() => Ending::StorageFull(message),
        _ => Ending::Failed(message),
    }
}

/// Why a plan is refused before anything of it runs.
#[derive(Debug)]
pub(crate) enum Refused {
    /// By the workload.
    Workload(WorkloadError),
    /// By the trainer.
    Trainer(Ending),
}

impl From<WorkloadError> for Refused {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(error)
    }
}

impl From<Ending> for Refused {
    fn from(ending: Ending) -> Self {
        Self::Trainer(ending)
    }
}

impl From<Refused> for Ending {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Workload(error) => ending(error),
            Refused::Trainer(ending) => ending,
        }
    }
}
