//! `pawl plan`.

use super::built_in::place;
use super::{print, source};
use crate::args::{Dump, PlanArgs};
use crate::exit;
use pawl_api::TrainingJob;
use pawl_contract::CONTRACT_VERSION;
use pawl_contract::plan::{Budget, LaunchKind, LaunchPlan, WorkloadPlan};
use pawl_trainer::View;
use std::process::ExitCode;

/// Prints the programs of a measuring launch of the job.
pub fn plan(arguments: &PlanArgs) -> ExitCode {
    let job = match source::load(&arguments.file) {
        Ok(job) => job,
        Err(error) => return source::reject(&error),
    };
    let launch = match launch(&job, &arguments.phases) {
        Ok(launch) => launch,
        Err(message) => return exit::with_error(exit::INPUT, &message),
    };
    let view = match arguments.dump {
        Dump::Graph => View::Graph,
        Dump::Kernels => View::Kernels,
        Dump::Memory => View::Memory,
    };
    match pawl_trainer::plan(&launch, job.spec.trainer.world_size(), place(&job), view) {
        Ok(text) => print(&(text + "\n")),
        Err(ending) => exit::with_error(exit::INPUT, &ending),
    }
}

/// A measuring launch with the baseline and the named phases, in the given order.
fn launch(job: &TrainingJob, phases: &[String]) -> Result<LaunchPlan, String> {
    let spec = &job.spec;
    let Some(workload) = &spec.workload.name else {
        return Err(
            "spec.workload.command: only the built-in trainer's plan can be printed: set spec.workload.name".to_owned()
        );
    };
    let mut settings = spec.settings.clone();
    for name in phases {
        let Some(phase) = spec.phases.iter().find(|phase| phase.name == *name) else {
            let known: Vec<&str> = spec.phases.iter().map(|phase| phase.name.as_str()).collect();
            return Err(format!("--phase: {name:?} is not a phase of the manifest: choose from {}", known.join(", ")));
        };
        settings = settings.with(&phase.settings);
    }
    let name = job.metadata.name.clone().unwrap_or_default();
    Ok(LaunchPlan {
        contract: CONTRACT_VERSION,
        attempt: format!("{name}-1"),
        job: name,
        launch: "plan".to_owned(),
        title: String::new(),
        kind: LaunchKind::Measure,
        workload: WorkloadPlan { name: Some(workload.clone()), config: spec.workload.config.clone() },
        settings,
        seed: spec.seeds.first().copied().map_or(0, u64::from),
        budget: Budget {
            warmup_steps: Some(spec.analysis.warmup_steps.into()),
            window_steps: Some(spec.analysis.window_steps.into()),
            ..Budget::default()
        },
        checkpoint: None,
        hang_timeout_seconds: spec.lifecycle.hang_timeout.seconds(),
    })
}
