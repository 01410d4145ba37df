//! Our arm: the trainer's own session, on the peer's weights and batches.

use crate::{Experiment, Repetition};
use anyhow::Context;
use pawl_graph::array::Array;
use pawl_graph::executor::ExecOptions;
use pawl_trainer::device::{Place, RankDevice};
use pawl_trainer::recipe;
use pawl_trainer::session::{Lineup, Session};
use pawl_workloads::{Data, Loader, Request, Schedule, workload};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What a round of an arm gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Items per second, of the timed steps.
    pub items_per_second: f64,
    /// Mean loss of each step.
    pub losses: Vec<f64>,
    /// Bytes of device memory at the peak, as the driver (ours) or the allocator (the peer) counts them.
    pub peak_bytes: Option<f64>,
    /// Bytes that were predicted before the first kernel.
    pub predicted_bytes: Option<f64>,
    /// Seconds from the start of the process to the end of the first step.
    pub first_step_seconds: Option<f64>,
    /// What was held out, after the last step: the error of UPS (`nrmse`), the language model's loss, the accuracy of
    /// Vision-BDH.
    pub validation: Option<f64>,
    /// Windows per second whose forecasts are sampled, of workloads that sample.
    pub forecasts_per_second: Option<f64>,
}

/// What a workload's round begins with.
pub struct Entry {
    /// Values for states, when not the workload's own.
    pub weights: Option<Vec<(String, Array)>>,
    /// The batches.
    pub data: Arc<dyn Data>,
    /// Learning rate of a step.
    pub rate: Box<dyn Fn(usize) -> f64>,
}

impl Experiment {
    fn counts(&self) -> Counts {
        match self {
            Self::Ups(of) => Counts {
                items: of.items(),
                accumulation: of.accumulation,
                steps: of.steps,
                warmup: of.warmup,
                gpu: of.device == "cuda",
            },
            Self::Slm(of) => Counts {
                items: of.windows,
                accumulation: of.accumulation,
                steps: of.steps,
                warmup: of.warmup,
                gpu: of.device == "cuda",
            },
            Self::VisionBdh(of) => Counts {
                items: of.images,
                accumulation: of.accumulation,
                steps: of.steps,
                warmup: of.warmup,
                gpu: of.device == "cuda",
            },
            Self::Forex(of) => Counts {
                items: of.windows,
                accumulation: 1,
                steps: of.steps,
                warmup: of.warmup,
                gpu: of.device == "cuda",
            },
            Self::Atft(of) => Counts {
                items: of.samples,
                accumulation: 1,
                steps: of.steps,
                warmup: of.warmup,
                gpu: of.device == "cuda",
            },
        }
    }

    /// The workload's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ups(_) => "ups",
            Self::Slm(_) => "slm",
            Self::VisionBdh(_) => "vision-bdh",
            Self::Forex(_) => "forex",
            Self::Atft(_) => "atft-gat-fan",
        }
    }

    /// The metric that is validated, as we call it.
    pub fn metric(&self) -> &'static str {
        match self {
            Self::Ups(_) => "nrmse",
            Self::Slm(_) | Self::Forex(_) | Self::Atft(_) => "loss",
            Self::VisionBdh(_) => "accuracy",
        }
    }

    /// Whether each arm has its own weights and data.
    pub fn apart(&self) -> bool {
        match self {
            Self::Ups(of) => of.apart(),
            Self::Slm(of) => of.apart,
            Self::VisionBdh(_) | Self::Forex(_) | Self::Atft(_) => false,
        }
    }

    /// Seconds of a step, as the peer's report takes them: the mean, or the median (language model, forex,
    /// ATFT-GAT-FAN).
    fn typical(&self, times: &mut [f64]) -> f64 {
        match self {
            Self::Ups(_) | Self::VisionBdh(_) => times.iter().sum::<f64>() / times.len() as f64,
            Self::Slm(_) | Self::Forex(_) | Self::Atft(_) => median(times),
        }
    }

    /// Whether some steps are timed.
    pub fn is_timed(&self) -> bool {
        let Counts { steps, warmup, .. } = self.counts();
        steps > warmup
    }
}

/// Sizes of a round.
struct Counts {
    items: usize,
    accumulation: usize,
    steps: usize,
    warmup: usize,
    gpu: bool,
}

impl Counts {
    /// Items of a step.
    fn step_items(&self) -> usize {
        self.items * self.accumulation
    }
}

/// Trains on the export in `folder`.
///
/// # Errors
/// When the repetition or its export does not fit the workload, the device cannot run it, or a step fails.
pub fn round(folder: &Path, repetition: &Repetition) -> anyhow::Result<Round> {
    let started = Instant::now();
    let Repetition { experiment, seed, validates } = repetition;
    let counts = experiment.counts();
    let (mut settings, config) = match experiment {
        Experiment::Ups(of) => (of.settings(*validates)?, of.config()),
        Experiment::Slm(of) => (of.settings()?, of.config(folder)),
        Experiment::VisionBdh(of) => (of.settings()?, of.config()),
        Experiment::Forex(of) => (of.settings()?, of.config()),
        Experiment::Atft(of) => (of.settings()?, of.config()),
    };
    if counts.gpu {
        (settings.loader_pinned, settings.loader_async_copy) = (Some(true), Some(true));
    }
    let place = if counts.gpu { Place::Cuda(0) } else { Place::Cpu };
    let of = workload(experiment.name())?;
    recipe::check(&settings, place, experiment.name(), of.settings())?;
    let job = of.prepare(&Request { config, settings: settings.clone(), seed: *seed, rank: 0, world: 1 })?;
    let recipe = recipe::recipe(&settings, job.as_ref(), (0, 1))?;
    let mut programs = job.programs().clone();
    if !validates {
        // The peer's memory and time do not count its evaluation either.
        programs.evaluation.clear();
    }
    let lineup = Lineup::new(&recipe, &programs)?;
    let device = RankDevice::open(place, &pawl_trainer::launch::kernel_cache(folder))?;
    let executor = device.executor(&settings);
    let options = ExecOptions { seed: *seed, memory_limit: device.memory(), ..ExecOptions::default() };
    let mut session = Session::new(lineup, executor.as_ref(), &options)?;
    let Entry { weights, data, rate } = match experiment {
        Experiment::Ups(of) => of.entry(job.as_ref(), folder)?,
        Experiment::Slm(of) => of.entry(job.as_ref(), folder)?,
        Experiment::VisionBdh(of) => of.entry(job.as_ref(), folder)?,
        Experiment::Forex(of) => of.entry(job.as_ref(), folder)?,
        Experiment::Atft(of) => of.entry(job.as_ref(), folder)?,
    };
    if let Some(weights) = weights {
        session.restore(weights, false)?;
    }
    data.resident()?.into_iter().try_for_each(|(name, array)| session.write_data(&name, &array))?;
    let Steps { losses, mut times, first_step } = train(&mut session, &data, rate.as_ref(), &counts, started)?;
    let memory = session.memory();
    let validation = validates.then(|| validate(&mut session, data.as_ref(), experiment.metric())).transpose()?;
    drop(session);
    let forecasts_per_second = match experiment {
        Experiment::Forex(of) => of.forecasts_per_second(executor.as_ref(), &recipe, folder)?,
        _ => None,
    };
    Ok(Round {
        items_per_second: counts.step_items() as f64 / experiment.typical(&mut times[counts.warmup..]),
        losses,
        peak_bytes: Some(memory.peak as f64),
        predicted_bytes: Some(memory.planned as f64),
        first_step_seconds: first_step,
        validation,
        forecasts_per_second,
    })
}

/// Measurements of the steps of a round.
struct Steps {
    /// Mean loss of each step.
    losses: Vec<f64>,
    /// Seconds of each step.
    times: Vec<f64>,
    /// Seconds from the start of the round to the end of the first step.
    first_step: Option<f64>,
}

/// Runs all steps of a round that began at `started`.
fn train(
    session: &mut Session,
    data: &Arc<dyn Data>,
    rate: &dyn Fn(usize) -> f64,
    counts: &Counts,
    started: Instant,
) -> anyhow::Result<Steps> {
    let Counts { accumulation, steps, .. } = *counts;
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8) as u32;
    let schedule = Schedule::new(0, counts.step_items() as u64, accumulation as u32);
    let mut loader = Loader::new(Arc::clone(data), schedule, workers, 2);
    let mut next = || loader.next_batch().context("the loader ended").and_then(|batch| Ok(batch?));
    let mut losses = Vec::with_capacity(steps);
    let mut times = Vec::with_capacity(steps);
    let mut first_step = None;
    let mut batch = next()?;
    for step in 0..steps {
        let began = Instant::now();
        for micro in 0..accumulation {
            session.start(&batch, rate(step), micro + 1 == accumulation)?;
            batch = next()?;
            session.prefetch(&batch)?;
            if let Some(result) = session.finish()? {
                losses.push(result.loss_sum / accumulation as f64);
            }
        }
        times.push(began.elapsed().as_secs_f64());
        first_step.get_or_insert_with(|| started.elapsed().as_secs_f64());
    }
    Ok(Steps { losses, times, first_step })
}

/// `metric` of what is held out.
fn validate(session: &mut Session, data: &dyn Data, metric: &str) -> anyhow::Result<f64> {
    let mut sums = vec![0.0; data.sums()];
    for index in 0..data.evaluations() {
        let outputs = session.evaluate(&data.evaluation(index)?)?;
        data.add(index, &outputs, &mut sums);
    }
    data.metrics(&sums).get(metric).copied().with_context(|| format!("validation has no {metric}"))
}

/// The middle one; of an even number, the mean of the two.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let half = times.len() / 2;
    if times.len().is_multiple_of(2) { (times[half - 1] + times[half]) / 2.0 } else { times[half] }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
