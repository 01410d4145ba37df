//! What a launch has measured so far, and its report.

use pawl_contract::details::Details;
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::progress::Progress;
use pawl_contract::report::{Failure, Report};
use pawl_launch::budget::Budget;
use pawl_launch::checkpoint::Position;
use pawl_launch::ending::Ending;
use pawl_launch::epochs::EpochClock;
use pawl_launch::launch::Launch;
use pawl_launch::losses::Curve;
use pawl_launch::report::bare;
use pawl_launch::saving::Saver;
use pawl_launch::straggler::StragglerWatch;
use pawl_launch::throughput::{Throughput, Windows};
use std::time::Duration;

/// The measurements of a launch.
pub(crate) struct Record {
    pub budget: Budget,
    pub step_items: u64,
    pub items_per_epoch: u64,
    pub position: Position,
    pub throughput: Throughput,
    pub windows: Windows,
    pub curve: Curve,
    /// Step and items of the last healthy loss, or those at which the launch has begun.
    pub healthy: (u64, u64),
    pub loss: Option<f64>,
    pub gradient_norm: Option<f64>,
    pub learning_rate: f64,
    pub epochs: EpochClock,
    pub validation: Option<Validation>,
    pub straggler: Option<String>,
    pub ranks: StragglerWatch,
    pub longest_step: Duration,
    pub peak_memory: Option<u64>,
    pub saver: Option<Saver>,
    /// Whether the loop has ended as the plan says.
    pub ended: bool,
}

impl Record {
    /// Estimated seconds from SIGTERM to the exit after a checkpoint.
    fn stop_seconds(&self) -> Option<f64> {
        let save = self.saver.as_ref()?.longest()?;
        Some((self.longest_step + 2 * save).as_secs_f64())
    }

    /// The progress of the launch.
    pub fn progress(&self, launch: &Launch) -> Progress {
        let left = self.budget.items.saturating_sub(self.position.items);
        let speed = self.throughput.newest();
        Progress {
            step: self.position.step,
            total_steps: Some(self.position.step + left.div_ceil(self.step_items)),
            items: self.position.items,
            epoch: (self.position.items / self.items_per_epoch) as u32,
            loss: self.loss,
            items_per_second: speed,
            windows: self.throughput.windows(),
            eta_seconds: speed.filter(|speed| *speed > 0.0).map(|speed| left as f64 / speed),
            validation: self.validation.clone(),
            last_checkpoint: self.saver.as_ref().and_then(Saver::newest).cloned(),
            straggler: self.straggler.clone(),
            stop_seconds: self.stop_seconds(),
            ..Progress::at_start(&launch.plan.launch, launch.plan.kind)
        }
    }

    /// The report of the launch, which ended with `result` after `wall`.
    pub fn report(&self, launch: &Launch, result: Result<(), Ending>, wall: Duration) -> Report {
        let (outcome, message) = match &result {
            Ok(()) => (Outcome::Done, String::new()),
            Err(ending) => (ending.outcome(), ending.to_string()),
        };
        let (step, items) = (self.position.step, self.position.items);
        let bare = bare(&launch.plan, launch.rank, outcome, message, wall);
        Report {
            measured: Measured {
                steps: step,
                items,
                items_per_second: self.throughput.items_per_second(),
                steady: self.windows.steady(),
                step_seconds: self.throughput.step_seconds(),
                first_validation: self.position.first_validation.clone(),
                validation: self.validation.clone(),
                peak_memory_bytes: self.peak_memory,
                loader_wait_share: self.throughput.loader_share(),
                collective_wait_share: self.throughput.collective_share(),
                utilization: self.throughput.utilization(),
                ..bare.measured
            },
            details: Details {
                epoch_seconds: self.epochs.newest().map(|took| took.as_secs_f64()),
                gradient_norm: self.gradient_norm,
                learning_rate: Some(self.learning_rate),
                ..Details::default()
            },
            losses: self.curve.points(),
            evaluations: self.position.evaluations.clone(),
            planned_items: self.budget.planned_items(&launch.plan, self.position.items),
            items_per_epoch: Some(self.items_per_epoch),
            last_checkpoint: self.saver.as_ref().and_then(Saver::newest).cloned(),
            best_checkpoint: self.saver.as_ref().and_then(Saver::best).cloned(),
            stop_seconds: self.stop_seconds(),
            failure: (outcome != Outcome::Done).then(|| self.failure(launch.rank, outcome)),
            ..bare
        }
    }

    /// Where it failed. What was written after the last healthy loss of a divergence may be damaged.
    fn failure(&self, rank: u32, outcome: Outcome) -> Failure {
        let here = (self.position.step, self.position.items);
        let (step, items) = if outcome.is_divergence() { self.healthy } else { here };
        Failure { rank: Some(rank), step, items }
    }
}
