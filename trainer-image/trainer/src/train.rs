//! The main loop.

use crate::ending::Ending;
use crate::run::RunningLaunch;
use crate::throughput::Stopwatch;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::RankPhase;

/// Runs a launch from its start (or checkpoint) to the end of its budget.
///
/// # Errors
/// When it ends early.
pub fn train(run: &mut RunningLaunch<'_>) -> Result<(), Ending> {
    run.resume()?;
    run.evaluate_before_training()?;
    run.start_epochs();
    while !run.done() {
        run.publisher.enter(RankPhase::Training);
        let before = run.position.items;
        let clock = Stopwatch::start(run.totals());
        let mine = run.step()?;
        let so_far = clock.stop(run.totals());
        let agreed = run.agree(&mine, so_far.wall.saturating_sub(so_far.collective).as_secs_f64())?;
        let time = clock.stop(run.totals());
        if let Err(ending) = run.record(&mine, &agreed, time) {
            // All ranks end here, and no rank exits before rank 0 has written what it keeps.
            run.finish_saving(&ending);
            let _ = run.gang.barrier();
            return Err(ending);
        }
        run.poll_save()?;
        run.end_by_time(&agreed);
        run.extend_window()?;

        if run.budget.evaluation_due(before, run.position.items) && run.position.items < run.budget.items {
            run.evaluate()?;
            run.count_out_of_range()?;
            run.publish();
        }
        if !run.done() {
            run.record_epoch();
        }
        if agreed.stop {
            return stop(run);
        }
        if agreed.checkpoint && !run.done() {
            run.checkpoint(false)?;
            run.publish();
        }
        run.publish_when_due();
    }
    finish(run)
}

/// Finishes at the end of the budget: evaluation, checkpoint, test, and a barrier of all ranks.
fn finish(run: &mut RunningLaunch<'_>) -> Result<(), Ending> {
    let evaluated = run.validation.as_ref().is_some_and(|v| v.items == run.position.items && v.items > 0);
    if run.budget.evaluates && !evaluated {
        run.evaluate()?;
    }
    run.checkpoint(true)?;
    run.record_epoch();
    if let Err(problem) = run.count_out_of_range() {
        tracing::warn!("what is out of the range of 8-bit floats was not counted: {problem}");
    }
    run.test()?;
    run.publish();
    Ok(run.gang.barrier()?)
}

/// Finishes on a request to stop: writes a checkpoint, and no rank exits before that is done.
fn stop(run: &mut RunningLaunch<'_>) -> Result<(), Ending> {
    run.checkpoint(true)?;
    run.publish();
    run.gang.barrier()?;
    let saved = match (&run.saver, run.launch.plan.kind) {
        (Some(_), LaunchKind::Train | LaunchKind::Search) => ", after a checkpoint",
        _ => "",
    };
    Err(Ending::Stopped(format!("stopped on request at step {}{saved}", run.position.step)))
}
