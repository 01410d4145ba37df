//! Whether this trainer accepts a plan, before anything of it runs.

use crate::device::Place;
use crate::ending::Ending;
use crate::rank::{prepare, validated};
use crate::workload::Refused;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::problem::{Problem, quoted};
use pawl_workloads::WorkloadError;

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of reason it is.
    pub kind: RefusalKind,
    /// The field of the plan, such as `workload.config.data.source`, with its value and the remedy. An empty field: the
    /// message names it.
    pub problem: Problem,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The plan is wrong: a job with it fails.
    Invalid,
    /// There is no implementation: a phase with it is not applied.
    Unsupported,
    /// A file that it names cannot be read on this machine. Everything that needs no file is valid.
    Unread,
}

/// Validates `plan` as the preflight does, but for memory, data and storage: for rank 0 of `world_size` at `place`,
/// where nothing runs. Returns the names of the metrics that evaluations report.
///
/// # Errors
/// The first reason for which the plan is refused.
pub fn check(plan: &LaunchPlan, world_size: u32, place: Place) -> Result<Vec<String>, Refusal> {
    metrics(plan, world_size, place).map_err(|refused| match refused {
        Refused::Workload(error) => of_workload(error),
        Refused::Trainer(ending) => of_trainer(&ending),
    })
}

fn metrics(plan: &LaunchPlan, world_size: u32, place: Place) -> Result<Vec<String>, Refused> {
    // Seconds less for a large model.
    if plan.settings.compile_scope.is_none() {
        return Ok(validated(plan, place, 0, world_size)?.0.metrics());
    }
    Ok(prepare(plan, place, 0, world_size)?.job.metrics())
}

fn of_workload(error: WorkloadError) -> Refusal {
    use RefusalKind::{Invalid, Unread, Unsupported};
    let config = |field: &str| format!("workload.config.{field}");
    let setting = |field: &str| format!("settings.{field}");
    let message = error.to_string();
    let (kind, problem) = match error {
        WorkloadError::Config { field, value, problem } => (Invalid, Problem::new(config(&field), value, problem, "")),
        WorkloadError::File { field, value, problem } => (Unread, Problem::new(config(&field), value, problem, "")),
        WorkloadError::UnknownWorkload { name, remedy } => {
            (Invalid, Problem::new("workload.name", quoted(&name), "is not a workload", remedy))
        }
        WorkloadError::Setting { field, value, problem } => {
            (Invalid, Problem::new(setting(&field), value, problem, ""))
        }
        WorkloadError::Unsupported { field, value, problem } => {
            (Unsupported, Problem::new(setting(&field), value, problem, ""))
        }
        WorkloadError::Data(_) | WorkloadError::Worker { .. } | WorkloadError::Model(_) => {
            (Invalid, Problem::new("", "", message, ""))
        }
    };
    Refusal { kind, problem }
}

fn of_trainer(ending: &Ending) -> Refusal {
    let is_unsupported = ending.outcome() == Outcome::Unsupported;
    let kind = if is_unsupported { RefusalKind::Unsupported } else { RefusalKind::Invalid };
    Refusal { kind, problem: Problem::new("", "", ending.to_string(), "") }
}
