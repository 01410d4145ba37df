//! Judges what was recorded of a job anew: no launch is run.

use crate::decide;
use crate::launch::check_tag;
use crate::observed::Observed;
use crate::revision::standalone;
use jiff::Timestamp;
use pawl_api::spec::{JudgingBudget, TrainingJobSpec};
use pawl_api::status::{BaselineStatus, LaunchStatus, PhaseState, PhaseStatus};
use pawl_api::{TrainingJob, TrainingJobStatus};

/// What recorded launches show.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The verdicts on the phases, and on all accepted ones together. What has no final state needs launches that were
    /// not run.
    pub status: TrainingJobStatus,
    /// The phases whose verdict needs launches that are not in the record: they are as they were recorded.
    pub kept: Vec<String>,
}

/// The verdicts on recorded launches, on the phases and on all accepted ones together, by the spec of `job`: its gates
/// and its analysis may be others than those under which the launches were run. A launch counts where it ran what a
/// phase would be judged by: a changed patch, or an earlier phase that is now rolled back, needs new ones. A status
/// holds a bounded number of launches, and of a phase those of its last fallback only.
///
/// What judging may cost is not asked again, and the reverts by the guard of the training are no verdicts of a ladder.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}, "phases": [{"name": "compile", "settings": {"compile": "Graph"}}]},
/// }))?;
/// let replay = pawl_decision::replay(&job, &Default::default(), jiff::Timestamp::UNIX_EPOCH);
/// assert_eq!(replay.kept, ["compile"], "nothing was recorded");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn replay(job: &TrainingJob, recorded: &TrainingJobStatus, now: Timestamp) -> Replay {
    let mut job = job.clone();
    job.status = None;
    job.spec.suspend = false;
    job.spec.analysis.budget_percent = Some(JudgingBudget::Unlimited);
    job.spec.lifecycle.active_deadline = None;
    job.spec.search.clear();
    let mut status = unjudged(&job.spec, recorded);
    let (mut kept, mut open, mut offered) = (Vec::new(), Vec::new(), false);
    // Each round decides as far as it can: a phase is kept once, and all together get their launches once.
    for _ in 0..job.spec.phases.len() + 2 {
        status = idle(decide(&job, &status, &Observed::default(), now).status);
        if let Some(phase) = status.phases.iter_mut().find(|phase| !phase.state.is_final()) {
            kept.push(phase.name.clone());
            let before = recorded.phases.iter().find(|before| before.name == phase.name && before.state.is_final());
            let (checked, input_hash) = (std::mem::take(&mut phase.checked), String::new());
            *phase = match before {
                Some(before) => PhaseStatus { checked, input_hash, ..before.clone() },
                None => {
                    open.push(phase.clone());
                    PhaseStatus { checked, input_hash, state: PhaseState::Inconclusive, ..phase.clone() }
                }
            };
            continue;
        }
        let unjudged = status.bundle.as_mut().filter(|bundle| !bundle.state.is_final());
        match (unjudged, &recorded.bundle) {
            (Some(bundle), Some(before)) if !offered => {
                add(&mut bundle.launches, &before.launches);
                offered = true;
            }
            _ => break,
        }
    }
    for phase in open {
        let undecided = status.phases.iter_mut().find(|other| other.name == phase.name);
        undecided.into_iter().for_each(|other| other.clone_from(&phase));
    }
    Replay { status, kept }
}

/// Adds those launches that are not there.
fn add(launches: &mut Vec<LaunchStatus>, more: &[LaunchStatus]) {
    let new: Vec<_> = more.iter().filter(|launch| !launches.contains(launch)).cloned().collect();
    launches.extend(new);
}

/// The status with all launches, all checks done, and no verdict.
fn unjudged(spec: &TrainingJobSpec, recorded: &TrainingJobStatus) -> TrainingJobStatus {
    let TrainingJobStatus { baseline, trainer, cost, attempts, start_time, .. } = recorded.clone();
    let phases = spec.phases.iter().enumerate().map(|(index, phase)| {
        let before = recorded.phases.iter().find(|before| before.name == phase.name).cloned().unwrap_or_default();
        let fallbacks = phase.fallbacks.len() as u32;
        let checked = (0..=fallbacks).map(|number| check_tag(spec, &standalone(spec, index, number)));
        PhaseStatus {
            name: phase.name.clone(),
            fallback: before.fallback.min(fallbacks),
            checked: checked.collect(),
            launches: before.launches,
            ..PhaseStatus::default()
        }
    });
    let input_hash = check_tag(spec, &spec.settings);
    let baseline = BaselineStatus { input_hash, ..baseline.unwrap_or_default() };
    TrainingJobStatus {
        baseline: Some(baseline),
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
