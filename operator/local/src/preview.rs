//! What a job would run on this machine, without running it.

use crate::shell::{Options, RunError, checkpoints, environment};
use crate::state::{StateDir, attempts};
use pawl_agent::{Node, Preview};
use pawl_api::TrainingJob;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::template::RenderError;

/// Launches, each with what it would run, or why its command cannot be rendered.
pub type Previews = Vec<(LaunchPlan, Result<Preview, RenderError>)>;

/// The launches of the baseline, of each phase and of the training, and what they would run. Nothing is started or
/// written, and no GPU is needed.
///
/// # Errors
/// [`RunError`]: the storage of the manifest is available in clusters only, or the current directory is unknown.
pub fn preview(job: &TrainingJob, options: &Options) -> Result<Previews, RunError> {
    let state = StateDir::new(std::path::absolute(options.state.root())?);
    let plan = pawl_decision::preview(job);
    let mut node = Node::local(attempts::directory(&state, &plan.attempt), options.trainer.clone());
    node.checkpoints = checkpoints(&state, job)?;
    node.data = state.data();
    // Values of the variables of this process may be secret: their placeholders are shown.
    node.env = environment(job, &|_| None).into_iter().filter(|(name, _)| !name.starts_with("PAWL_")).collect();
    let launches = plan.launches.iter();
    Ok(launches.map(|launch| (launch.clone(), pawl_agent::preview(&plan, launch, &node))).collect())
}
