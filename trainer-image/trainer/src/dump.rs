//! Prints the programs of a plan as text.

use crate::device::Place;
use crate::ending::Ending;
use crate::executors;
use crate::launch::read_plan;
use crate::rank::{Prepared, prepare};
use pawl_contract::plan::LaunchPlan;
use pawl_graph::executor::ExecError;
use pawl_graph::graph::GraphError;
use pawl_graph::passes::{expand_norms, join_sums};
use pawl_lower::Lowered;
use std::path::Path;

/// View of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Operators after all passes.
    Graph,
    /// Kernels, as the graph executor runs them.
    Kernels,
    /// Memory layout, and the predicted peak.
    Memory,
}

/// The programs of the launch plan in the file at `path`, for rank 0 of `world_size`.
///
/// # Errors
/// When the plan is rejected, with the reason.
pub fn plan_file(path: &Path, world_size: u32, view: View) -> Result<String, Ending> {
    plan(&read_plan(path)?, world_size, Place::from_env()?, view)
}

/// The programs of `plan`, for rank 0 of `world_size` at `place`, where nothing runs: the GPU may be absent.
///
/// # Errors
/// When the plan is rejected, with the reason.
pub fn plan(plan: &LaunchPlan, world_size: u32, place: Place, view: View) -> Result<String, Ending> {
    let Prepared { lineup, .. } = prepare(plan, place, 0, world_size)?;
    let options = executors::lowering(&plan.settings);
    let text = lineup.programs.iter().map(|program| {
        // No kernel of the CPU normalises heads on their way into attention, or adds a product to another.
        let on_gpu = place != Place::Cpu;
        let program = &expand_norms(program, |_, _| on_gpu)?;
        let program = &join_sums(program, |scope| !on_gpu || options.excludes(scope))?;
        Ok(match view {
            View::Graph => format!("{program}"),
            View::Kernels => Lowered::new(program, &options).dump_kernels(),
            View::Memory => Lowered::new(program, &options).dump_memory(),
        })
    });
    Ok(text.collect::<Result<Vec<_>, GraphError>>().map_err(ExecError::from)?.join("\n"))
}
