//! A running launch on one rank: the building blocks of the main loop in [`crate::train`].

use crate::budget::Budget;
use crate::checkpoint::{Checkpoint, Position};
use crate::collective::Gang;
use crate::device::RankDevice;
use crate::ending::Ending;
use crate::feed::Feed;
use crate::launch::Launch;
use crate::losses::{Curve, SpikeWatch};
use crate::progress::Publisher;
use crate::saving::{Origin, Resumed, Saver};
use crate::session::{Session, StepResult};
use crate::signals::StopRequest;
use crate::throughput::{StepTime, Throughput};
use crate::vote::Vote;
use pawl_contract::checkpoint::BestCheckpoint;
use pawl_contract::measured::Validation;
use pawl_contract::plan::{Criterion, LaunchKind};
use pawl_contract::progress::Progress;
use pawl_workloads::{At, Batch, Data, Job};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running launch on one rank.
pub struct RunningLaunch<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) job: &'a dyn Job,
    pub(crate) data: Arc<dyn Data>,
    pub(crate) gang: Arc<Gang>,
    pub(crate) session: Session,
    pub(crate) device: RankDevice,
    pub(crate) feed: Feed,
    pub(crate) budget: Budget,
    pub(crate) step_items: u64,
    pub(crate) accumulation: u32,
    pub(crate) position: Position,
    pub(crate) throughput: Throughput,
    pub(crate) curve: Curve,
    pub(crate) spikes: SpikeWatch,
    pub(crate) loss: Option<f64>,
    pub(crate) validation: Option<Validation>,
    pub(crate) straggler: Option<String>,
    pub(crate) busy: Vec<f64>,
    pub(crate) saver: Option<Saver>,
    /// Fraction of the device's peak that one item per second uses; `None` when the peak is unknown.
    pub(crate) flops_share: Option<f64>,
    pub(crate) publisher: Publisher,
    pub(crate) stop: StopRequest,
}

/// Ratio to the fastest rank's time over a window above which a rank counts as a straggler.
const STRAGGLER: f64 = 1.3;

/// A wait for the device longer than this means that it was busy before.
const STILL_RUNNING: Duration = Duration::from_millis(1);

impl RunningLaunch<'_> {
    /// Whether the budget is used up, or validation has stopped improving.
    pub fn done(&self) -> bool {
        self.position.items >= self.budget.items || self.stopped_early()
    }

    fn stopped_early(&self) -> bool {
        let rule =
            self.launch.plan.budget.early_stopping.as_ref().filter(|_| self.launch.plan.kind == LaunchKind::Train);
        rule.is_some_and(|rule| self.position.evaluations_since_best >= rule.patience)
    }

    /// Busy time of the device.
    pub fn busy_time(&self) -> Duration {
        self.device.busy_time()
    }

    /// Resumes from the newest good checkpoint, if the plan says so and there is one.
    ///
    /// # Errors
    /// When it belongs to another job, or cannot be read.
    pub fn resume(&mut self) -> Result<(), Ending> {
        let Some(Resumed { checkpoint, origin }) =
            self.saver.as_mut().map(|saver| saver.resume(&self.gang)).transpose()?.flatten()
        else {
            return Ok(());
        };
        let Position { workload, seed, .. } = self.position.clone();
        let extras = self.job.extras();
        let (belongs, remedy) = match origin {
            Origin::Own => {
                (checkpoint.made_by(&workload, seed, &extras), "use another checkpoint storage, or empty this one")
            }
            Origin::Other | Origin::OtherWeights => {
                (checkpoint.fits(&workload, &extras), "train.resumeFrom needs a job of the same workload and data")
            }
        };
        belongs.map_err(|foreign| Ending::InvalidPlan(format!("{foreign}: {remedy}")))?;
        let Checkpoint { position, tensors } = checkpoint;
        self.session.restore(tensors, origin == Origin::OtherWeights)?;
        self.position = match origin {
            Origin::Own => position,
            Origin::Other => Position { seed, best_checkpoint: None, ..position },
            Origin::OtherWeights => return Ok(()),
        };
        let (settings, items) = (&self.launch.plan.settings, self.position.items);
        self.feed = Feed::new(Arc::clone(&self.data), settings, items, self.step_items, self.accumulation);
        Ok(())
    }

    /// Micro-steps and the update of one step.
    ///
    /// # Errors
    /// When data, device or a peer fail.
    pub fn step(&mut self) -> Result<StepResult, Ending> {
        let rate = self.learning_rate();
        for micro in 0..self.accumulation {
            let batch = self.feed.next_batch()?;
            debug_assert_eq!(batch.program, self.job.variant(At { items: self.position.items, micro }));
            let result = self.micro_step(&batch, rate, micro + 1 == self.accumulation);
            self.feed.recycle(batch);
            if let Some(result) = result.map_err(|ending| self.explained(ending))? {
                return Ok(result);
            }
        }
        Err(Ending::Failed("a step needs at least one micro-step".to_owned()))
    }

    fn micro_step(&mut self, batch: &Batch, rate: f64, last: bool) -> Result<Option<StepResult>, Ending> {
        self.session.start(batch, rate, last)?;
        if self.launch.plan.settings.loader_async_copy != Some(true) {
            return self.session.finish();
        }
        let before = self.feed.waited();
        self.session.prefetch(self.feed.peek()?)?;
        let waited = self.feed.waited().saturating_sub(before);
        let start = Instant::now();
        let result = self.session.finish();
        if start.elapsed() > STILL_RUNNING {
            // The device was busy all the time.
            self.feed.hide(waited);
        }
        result
    }

    /// The learning rate of the next step: linear warm-up over `warmupSteps`, then the workload's schedule.
    fn learning_rate(&self) -> f64 {
        let optimization = self.job.optimization();
        let full = optimization.learning_rate * optimization.decay.factor(self.position.items, self.budget.items);
        match self.launch.plan.settings.warmup_steps {
            Some(steps) if self.position.step < u64::from(steps) => {
                full * (self.position.step + 1) as f64 / f64::from(steps)
            }
            _ => full,
        }
    }

    /// Completes the executor's error, which only has the lost rank, with the reason from the gang.
    fn explained(&self, ending: Ending) -> Ending {
        self.gang.failure().map_or(ending, Ending::from)
    }

    /// Aggregates a step over the gang: the mean loss, and requests of rank 0 and of signals.
    ///
    /// # Errors
    /// When a peer is lost.
    pub fn agree(&mut self, mine: &StepResult, busy: f64) -> Result<Vote, Ending> {
        let vote = Vote {
            loss_sum: mine.loss_sum,
            stop: self.stop.is_set(),
            checkpoint: self.saver.as_ref().is_some_and(Saver::due),
            busy,
        };
        let votes = if self.gang.world_size() == 1 {
            vec![vote]
        } else {
            self.gang.gather_bytes(&vote.to_bytes())?.iter().map(|bytes| Vote::from_bytes(bytes)).collect()
        };
        self.busy.resize(votes.len(), 0.0);
        self.busy.iter_mut().zip(&votes).for_each(|(sum, vote)| *sum += vote.busy);
        Ok(Vote::of_all(&votes))
    }

    /// Records a step that all ranks have agreed on.
    ///
    /// # Errors
    /// [`Ending::NonFinite`], [`Ending::LossSpike`].
    pub fn record(&mut self, result: &StepResult, agreed: &Vote, time: StepTime) -> Result<(), Ending> {
        let loss = agreed.loss_sum / (f64::from(self.accumulation) * f64::from(self.gang.world_size()));
        self.require_finite(loss, result)?;
        let before = self.position.items;
        self.position.step += 1;
        self.position.items += self.step_items;
        self.loss = Some(loss);
        self.curve.add(self.position.items, loss);
        self.publisher.metrics().step(time);
        if self.throughput.add(time) {
            self.straggler = straggler(&mut self.busy);
        }
        let epoch = self.job.items_per_epoch();
        if before / epoch != self.position.items / epoch {
            self.feed.epoch_over(self.position.items);
        }
        match self.spikes.add(loss) {
            Some(bound) => Err(Ending::LossSpike(format!(
                "the training loss spiked at step {}: {loss:.4}, three consecutive steps above {bound:.4}, far \
                 above its recent level; lower settings.learningRate, or set settings.gradientClip or warmupSteps",
                self.position.step
            ))),
            None => Ok(()),
        }
    }

    fn require_finite(&mut self, loss: f64, result: &StepResult) -> Result<(), Ending> {
        let (what, value) = match (loss.is_finite(), result.gradient_norm.is_finite() || result.skipped) {
            (true, true) => return Ok(()),
            (false, _) => ("the training loss", loss),
            (true, false) => ("the norm of the gradient", result.gradient_norm),
        };
        let tensor = self.session.first_non_finite();
        let tensor = tensor.map_or_else(String::new, |name| format!("; first tensor that is not finite: {name}"));
        Err(Ending::NonFinite(format!(
            "{what} is {value} at step {}{tensor}; lower settings.learningRate, set settings.gradientClip, or use a wider \
             settings.precision",
            self.position.step + 1
        )))
    }

    /// Validation before the first step, for the launches that report it.
    ///
    /// # Errors
    /// As [`RunningLaunch::evaluate`].
    pub fn evaluate_before_training(&mut self) -> Result<(), Ending> {
        if !self.budget.evaluates || self.position.first_validation.is_some() {
            return Ok(());
        }
        let first = self.validate()?;
        self.require_metrics(&first)?;
        self.position.first_validation = Some(first.clone());
        self.validation = Some(first);
        self.publish();
        Ok(())
    }

    /// Refuses criteria by a metric that the workload does not report.
    fn require_metrics(&self, validation: &Validation) -> Result<(), Ending> {
        let plan = &self.launch.plan;
        let stopping = plan.budget.early_stopping.as_ref().map(|rule| ("train.earlyStopping.metric", &rule.criterion));
        let best = plan.checkpoint.as_ref().map(|policy| ("train.checkpoint.best.metric", &policy.best));
        let unknown = stopping.into_iter().chain(best).find(|(_, c)| !validation.metrics.contains_key(&c.metric));
        let Some((field, criterion)) = unknown else { return Ok(()) };
        let known: Vec<&str> = validation.metrics.keys().map(String::as_str).collect();
        Err(Ending::InvalidPlan(format!(
            "{field}: {} is not a validation metric of workload {}: choose one of {}",
            criterion.metric,
            self.position.workload,
            known.join(", ")
        )))
    }

    /// The best checkpoint so far, by the metric that the plan names.
    pub fn best_checkpoint(&self) -> Option<&BestCheckpoint> {
        let policy = self.launch.plan.checkpoint.as_ref()?;
        self.position.best_checkpoint.as_ref().filter(|best| best.metric == policy.best.metric)
    }

    /// Evaluates, updates whether validation still improves, and writes a checkpoint if it is the best so far.
    ///
    /// # Errors
    /// [`Ending::NonFinite`] when the validation loss is not finite; when data, device or a peer fail.
    pub fn evaluate(&mut self) -> Result<(), Ending> {
        let validation = self.validate()?;
        let loss = validation.metrics["loss"];
        let rule = self.launch.plan.budget.early_stopping.as_ref();
        let (criterion, least) =
            rule.map_or((Criterion::default(), 0.0), |rule| (rule.criterion.clone(), rule.min_delta));
        // A metric that is not finite in this evaluation is no improvement.
        let value = validation.metrics.get(&criterion.metric).copied();
        let improves =
            |value: f64| self.position.best_validation.is_none_or(|best| criterion.better.improves(value, best, least));
        let better = value.is_some_and(improves);
        if better {
            self.position.best_validation = value;
        }
        self.position.evaluations_since_best = if better { 0 } else { self.position.evaluations_since_best + 1 };
        tracing::info!(items = self.position.items, loss, "validation");
        self.keep_best(&validation)?;
        self.validation = Some(validation);
        Ok(())
    }

    /// Writes a checkpoint if this evaluation is the best so far.
    fn keep_best(&mut self, validation: &Validation) -> Result<(), Ending> {
        let Some(policy) = self.launch.plan.checkpoint.as_ref() else { return Ok(()) };
        let Criterion { metric, better } = &policy.best;
        let Some(value) = validation.metrics.get(metric).copied() else { return Ok(()) };
        if self.best_checkpoint().is_some_and(|best| !better.improves(value, best.value, 0.0)) {
            return Ok(());
        }
        let Some(checkpoint) = self.snapshot()? else { return Ok(()) };
        let Some(saver) = self.saver.as_mut() else { return Ok(()) };
        let saved = saver.save_best(checkpoint, (metric, value), self.publisher.metrics())?;
        self.position.best_checkpoint = saved.or(self.position.best_checkpoint.take());
        Ok(())
    }

    /// The metrics of the validation split: every rank evaluates its share, sums are computed in rank order.
    fn validate(&mut self) -> Result<Validation, Ending> {
        let mut sums = vec![0.0; self.data.sums()];
        let (rank, world) = (self.gang.rank() as usize, self.gang.world_size() as usize);
        for index in (rank..self.data.evaluations()).step_by(world) {
            let outputs = self.session.evaluate(&self.data.evaluation(index)?)?;
            self.data.add(index, &outputs, &mut sums);
        }
        let all = self.gang.gather_bytes(bytemuck::cast_slice(&sums))?;
        let mut total = vec![0.0; sums.len()];
        for bytes in &all {
            for (sum, word) in total.iter_mut().zip(bytes.chunks_exact(8)) {
                *sum += f64::from_ne_bytes(std::array::from_fn(|i| word[i]));
            }
        }
        let mut metrics = self.data.metrics(&total);
        let loss = metrics.get("loss").copied().unwrap_or(f64::NAN);
        if !loss.is_finite() {
            let step = self.position.step;
            return Err(Ending::NonFinite(format!(
                "the validation loss is {loss} after step {step}; lower settings.learningRate or set settings.gradientClip"
            )));
        }
        metrics.retain(|_, value| value.is_finite());
        Ok(Validation { items: self.position.items, metrics })
    }

    /// Writes a checkpoint unless that of this step is written already; see [`Saver::save`].
    ///
    /// # Errors
    /// As [`RunningLaunch::snapshot`]; when storage fails.
    pub fn checkpoint(&mut self, must: bool) -> Result<(), Ending> {
        if self.saver.as_ref().is_some_and(|saver| saver.has_written(self.position.step)) {
            return Ok(());
        }
        let Some(checkpoint) = self.snapshot()? else { return Ok(()) };
        let Some(saver) = self.saver.as_mut() else { return Ok(()) };
        saver.save(&checkpoint, must, self.publisher.metrics())
    }

    /// The checkpoint of this step on the rank that writes it; `None` on the others, and where nothing is saved.
    ///
    /// # Errors
    /// [`Ending::NonFinite`] when a tensor is not finite: such a checkpoint must never be the newest.
    fn snapshot(&mut self) -> Result<Option<Checkpoint>, Ending> {
        if self.saver.is_none() || self.gang.rank() != 0 {
            return Ok(None);
        }
        let mut tensors = self.session.states()?;
        if let Some((name, _)) = tensors.iter().find(|(_, array)| array.to_f64().iter().any(|v| !v.is_finite())) {
            let message =
                format!("{name} is not finite after step {}; lower settings.learningRate", self.position.step);
            return Err(Ending::NonFinite(message));
        }
        // The parts that a program reads are states already.
        let extras = self.job.extras().into_iter().filter(|(name, _)| tensors.iter().all(|(known, _)| known != name));
        tensors.extend(extras.collect::<Vec<_>>());
        Ok(Some(Checkpoint { position: self.position.clone(), tensors }))
    }

    /// Publishes the progress if it is due, on rank 0.
    pub fn publish_when_due(&mut self) {
        if self.publisher.due() {
            self.publish();
        }
    }

    /// Publishes the progress, on rank 0.
    pub fn publish(&mut self) {
        let memory = self.session.memory();
        self.publisher.metrics().memory(memory.planned, memory.peak);
        if let Some(share) = self.throughput.utilization() {
            self.publisher.metrics().utilization(share);
        }
        if let (Some(share), Some(speed)) = (self.flops_share, self.throughput.newest()) {
            self.publisher.metrics().flops_utilization(share * speed);
        }
        if self.gang.rank() == 0 {
            let progress = self.progress();
            self.publisher.publish(&progress);
        }
    }

    fn progress(&self) -> Progress {
        let left = self.budget.items.saturating_sub(self.position.items);
        let speed = self.throughput.newest();
        Progress {
            launch: self.launch.plan.launch.clone(),
            kind: self.launch.plan.kind,
            step: self.position.step,
            total_steps: Some(self.position.step + left.div_ceil(self.step_items)),
            items: self.position.items,
            epoch: (self.position.items / self.job.items_per_epoch()) as u32,
            loss: self.loss,
            items_per_second: speed,
            windows: self.throughput.windows(),
            eta_seconds: speed.filter(|speed| *speed > 0.0).map(|speed| left as f64 / speed),
            validation: self.validation.clone(),
            last_checkpoint: self.saver.as_ref().and_then(Saver::newest).cloned(),
            straggler: self.straggler.clone(),
        }
    }
}

/// Names the slowest rank of a window, if it stands out; starts the next window.
fn straggler(busy: &mut [f64]) -> Option<String> {
    let fastest = busy.iter().copied().fold(f64::INFINITY, f64::min);
    let (rank, slowest) = busy.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let found = (busy.len() > 1 && slowest > STRAGGLER * fastest)
        .then(|| format!("rank {rank} takes {:.2} times as long as the fastest rank", slowest / fastest));
    busy.fill(0.0);
    found
}
