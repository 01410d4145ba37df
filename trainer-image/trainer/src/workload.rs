//! Errors of workloads, as the ends of a launch.

use crate::ending::Ending;
use pawl_workloads::WorkloadError;

/// The end of a launch whose workload failed with `error`.
pub(crate) fn ending(error: WorkloadError) -> Ending {
    let message = error.to_string();
    match error {
        WorkloadError::Config { .. } | WorkloadError::UnknownWorkload { .. } | WorkloadError::Setting { .. } => {
            Ending::InvalidPlan(message)
        }
        WorkloadError::Unsupported { .. } => Ending::Unsupported(message),
        WorkloadError::Data(error) if error.is_full() => Ending::StorageFull(message),
        _ => Ending::Failed(message),
    }
}
