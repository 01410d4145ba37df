//! The report of a launch: its measurements, or the reason of its end.

use crate::ending::Ending;
use crate::launch::Launch;
use crate::run::RunningLaunch;
use crate::saving::Saver;
use pawl_contract::details::Details;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::Measured;
use pawl_contract::provenance::Provenance;
use pawl_contract::report::{Failure, Report};
use pawl_launch::report::bare;
use std::time::Duration;

/// The report of a run that ended with `result`, `wall` after the start of the process. `peak` is the largest rank's.
pub fn of_run(
    run: &RunningLaunch<'_>,
    launch: &Launch,
    result: &Result<(), Ending>,
    peak: usize,
    wall: Duration,
) -> Report {
    let (outcome, message) = match result {
        Ok(()) => (Outcome::Done, String::new()),
        Err(ending) => (ending.outcome(), ending.to_string()),
    };
    let (step, items) = (run.position.step, run.position.items);
    let stopped = !matches!(outcome, Outcome::Done);
    let bare = bare(&launch.plan, launch.rank, outcome, message, wall);
    let measured = Measured {
        steps: step,
        items,
        items_per_second: run.throughput.items_per_second(),
        steady: run.windows.steady(),
        step_seconds: run.throughput.step_seconds(),
        first_validation: run.position.first_validation.clone(),
        validation: run.validation.clone(),
        initial_weights_share: run.initial_weights_share,
        peak_memory_bytes: Some(peak as u64),
        predicted_memory_bytes: Some(run.session.memory().planned as u64),
        loader_wait_share: run.throughput.loader_share(),
        collective_wait_share: run.throughput.collective_share(),
        offload_share: run.session.offload_time().and_then(|_| run.throughput.offload_share()),
        utilization: run.throughput.utilization(),
        disturbance: run.device.disturbance(),
        float8_overflow_share: run.session.out_of_range().map(|shares| shares.overflow),
        float8_underflow_share: run.session.out_of_range().map(|shares| shares.underflow),
        ..bare.measured
    };
    Report {
        measured,
        details: details(run),
        provenance: provenance(run),
        losses: run.curve.points(),
        evaluations: run.position.evaluations.clone(),
        planned_items: run.budget.planned_items(&launch.plan, items),
        items_per_epoch: Some(run.job.items_per_epoch()),
        last_checkpoint: run.saver.as_ref().and_then(Saver::newest).cloned(),
        best_checkpoint: run.saver.as_ref().and_then(Saver::best).cloned(),
        stop_seconds: run.stop_seconds(),
        failure: stopped.then(|| failure(run, launch.rank, outcome)),
        ..bare
    }
}

/// Where it failed. What was written after the last healthy loss of a divergence may be damaged.
fn failure(run: &RunningLaunch<'_>, rank: u32, outcome: Outcome) -> Failure {
    let (step, items) = if outcome.is_divergence() { run.healthy } else { (run.position.step, run.position.items) };
    Failure { rank: Some(rank), step, items }
}

/// What only this process knows of what it ran with.
fn provenance(run: &RunningLaunch<'_>) -> Option<Provenance> {
    let device = run.device.provenance();
    match &run.known_data {
        Some(data) => Some(Provenance { data: Some(data.clone()), ..device.unwrap_or_default() }),
        None => device,
    }
}

/// What only the report contains.
fn details(run: &RunningLaunch<'_>) -> Details {
    Details {
        compile_seconds: Some(run.session.compile_time().as_secs_f64()),
        epoch_seconds: run.epochs.newest().map(|took| took.as_secs_f64()),
        gradient_norm: run.updates.gradient_norm,
        learning_rate: run.updates.learning_rate,
        updates: Some(run.position.step.saturating_sub(run.updates.skipped)),
        skipped_updates: run.updates.skipped,
        memory: Some(run.session.memory_by_kind()),
    }
}
