//! Judges what was recorded of a job anew: no launch is run.

use crate::decide;
use crate::observed::Observed;
use jiff::Timestamp;
use pawl_api::spec::Pin;
use pawl_api::status::{PhaseState, PhaseStatus};
use pawl_api::{TrainingJob, TrainingJobStatus};

/// The verdicts on recorded launches, on the phases and on all accepted ones together, by the spec of `job`: its gates
/// and its analysis may be others than those under which the launches were run. A launch counts where it ran what a
/// phase would be judged by: a changed patch, or an earlier phase that is now rolled back, needs new ones.
///
/// What needs new launches has no final state; later phases are judged with it as it was recorded. What judging may
/// cost is not asked again, and the reverts by the guard of the training are no verdicts of a ladder.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}, "phases": [{"name": "compile", "settings": {"compile": "Graph"}}]},
/// }))?;
/// let replayed = pawl_decision::replay(&job, &Default::default(), jiff::Timestamp::UNIX_EPOCH);
/// assert!(!replayed.phases[0].state.is_final(), "nothing was recorded");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn replay(job: &TrainingJob, recorded: &TrainingJobStatus, now: Timestamp) -> TrainingJobStatus {
    let mut job = job.clone();
    job.status = None;
    (job.spec.suspend, job.spec.analysis.budget_percent) = (false, None);
    job.spec.search.clear();
    let mut status = unjudged(recorded);
    let (mut undecided, mut offered) = (Vec::new(), false);
    // Each round decides as far as it can: a phase is left open once, and all together get their launches once.
    for _ in 0..job.spec.phases.len() + 2 {
        status = idle(decide(&job, &status, &Observed::default(), now).status);
        if let Some(index) = status.phases.iter().position(|phase| !phase.state.is_final()) {
            let name = &status.phases[index].name;
            let before = recorded.phases.iter().find(|phase| phase.name == *name);
            let accepted = before.is_some_and(|phase| phase.state == PhaseState::Accepted);
            undecided.push(status.phases[index].clone());
            job.spec.phases[index].pin = Some(if accepted { Pin::Accepted } else { Pin::RolledBack });
            continue;
        }
        let open = status.bundle.as_mut().filter(|bundle| !bundle.state.is_final());
        match (open, &recorded.bundle) {
            (Some(bundle), Some(before)) if !offered => {
                bundle.launches.clone_from(&before.launches);
                offered = true;
            }
            _ => break,
        }
    }
    for open in undecided {
        let phase = status.phases.iter_mut().find(|phase| phase.name == open.name);
        phase.into_iter().for_each(|phase| phase.clone_from(&open));
    }
    status
}

/// The status with all launches and without a verdict.
fn unjudged(recorded: &TrainingJobStatus) -> TrainingJobStatus {
    let TrainingJobStatus { baseline, trainer, phases, cost, attempts, start_time, .. } = recorded.clone();
    let phases = phases.into_iter().map(|phase| {
        let PhaseStatus { name, checked, launches, .. } = phase;
        PhaseStatus { name, checked, launches, ..PhaseStatus::default() }
    });
    TrainingJobStatus {
        baseline,
        trainer,
        phases: phases.collect(),
        cost,
        attempts,
        start_time,
        ..TrainingJobStatus::default()
    }
}

/// The status of a job whose attempts are not started.
fn idle(status: TrainingJobStatus) -> TrainingJobStatus {
    TrainingJobStatus { attempt: None, parallel: Vec::new(), retry: None, retries: Vec::new(), ..status }
}
