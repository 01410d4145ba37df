//! A running launch on one rank: the building blocks of the main loop in [`crate::train`].

use crate::budget::Budget;
use crate::checkpoint::{Checkpoint, Position};
use crate::collective::Gang;
use crate::device::RankDevice;
use crate::ending::Ending;
use crate::epochs::EpochClock;
use crate::feed::Feed;
use crate::launch::Launch;
use crate::losses::Curve;
use crate::progress::Publisher;
use crate::saving::{Best, Origin, Resumed, Saver};
use crate::session::{OutOfRange, Session, Sharing, StepResult};
use crate::signals::StopRequest;
use crate::throughput::{StepTime, Throughput, Totals, Windows};
use crate::vote::Vote;
use crate::workload::ending;
use pawl_contract::measured::Validation;
use pawl_contract::plan::{LaunchKind, WindowLimit};
use pawl_contract::progress::{Progress, RankPhase};
use pawl_contract::provenance::Data as KnownData;
use pawl_contract::settings::Precision;
use pawl_launch::straggler::{RankTime, StragglerWatch};
use pawl_launch::validation;
use pawl_workloads::{At, Batch, Data, Job, Optimization, RatePosition, Warmup};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running launch on one rank.
pub struct RunningLaunch<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) job: &'a dyn Job,
    pub(crate) data: Arc<dyn Data>,
    /// Which data they are, on rank 0, as far as that is known.
    pub(crate) known_data: Option<KnownData>,
    pub(crate) gang: Arc<Gang>,
    pub(crate) session: Session,
    pub(crate) device: RankDevice,
    pub(crate) feed: Feed,
    pub(crate) budget: Budget,
    pub(crate) step_items: u64,
    pub(crate) accumulation: u32,
    pub(crate) position: Position,
    pub(crate) throughput: Throughput,
    pub(crate) windows: Windows,
    pub(crate) curve: Curve,
    /// Step and items of the last healthy loss, or those at which the launch has begun.
    pub(crate) healthy: (u64, u64),
    pub(crate) loss: Option<f64>,
    /// Gradient norm, learning rate and skipped updates.
    pub(crate) updates: Updates,
    pub(crate) epochs: EpochClock,
    pub(crate) validation: Option<Validation>,
    /// Share of the initial weights in the averages of which `validation` is.
    pub(crate) initial_weights_share: Option<f64>,
    pub(crate) straggler: Option<String>,
    pub(crate) ranks: StragglerWatch,
    pub(crate) longest_step: Duration,
    pub(crate) saver: Option<Saver>,
    /// Fraction of the device's peak that one item per second uses; `None` when the peak is unknown.
    pub(crate) flops_share: Option<f64>,
    /// Whether the loss is scaled, to represent small gradients in half precision.
    pub(crate) scales_loss: bool,
    pub(crate) publisher: Publisher,
    pub(crate) stop: StopRequest,
}

/// The optimizer steps of this launch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Updates {
    /// Norm of the newest step's gradient, before clipping.
    pub gradient_norm: Option<f64>,
    /// The newest step's learning rate.
    pub learning_rate: Option<f64>,
    /// Steps without an update.
    pub skipped: u64,
    /// The newest steps in a row that were not finite.
    pub not_finite: u32,
}

/// Steps in a row that are not finite after which a launch ends.
const MOST_NOT_FINITE: u32 = 3;

/// A wait for the device longer than this means that it was busy before.
const STILL_RUNNING: Duration = Duration::from_millis(1);

impl RunningLaunch<'_> {
    /// Whether the budget is used up, or the evaluations end the launch.
    pub fn done(&self) -> bool {
        self.position.items >= self.budget.items || validation::stopped_early(&self.launch.plan, &self.position)
    }

    /// Times so far. This rank waits for others on the device, and in the exchange of votes.
    pub fn totals(&self) -> Totals {
        Totals {
            loader: self.feed.waited(),
            collective: self.session.collective_wait() + self.gang.waited(),
            busy: self.device.busy_time(),
            offload: self.session.offload_time().unwrap_or_default(),
        }
    }

    /// Resumes from the newest good checkpoint, if the plan says so and there is one.
    ///
    /// # Errors
    /// When it belongs to another job, or cannot be read.
    pub fn resume(&mut self) -> Result<(), Ending> {
        if self.saver.is_some() {
            self.publisher.enter(RankPhase::Resuming);
        }
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
        self.healthy = (self.position.step, self.position.items);
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
        if !self.launch.plan.settings.loader_async_copy() {
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

    /// The learning rate of the next step, by the workload's schedule and stages; `warmupSteps` overrides its warm-up.
    fn learning_rate(&self) -> f64 {
        let optimization = self.job.optimization();
        let &Optimization { learning_rate, mut schedule, .. } = optimization;
        if let Some(steps) = self.launch.plan.settings.warmup_steps {
            schedule.warmup = Warmup::Updates(u64::from(steps));
        }
        let at = RatePosition {
            step: self.position.step,
            items: self.position.items,
            step_items: self.step_items,
            total_items: self.budget.horizon,
        };
        learning_rate * schedule.factor(at) * optimization.stage_factor(at.items)
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
            lasted: self.window_limit().is_some_and(|limit| self.throughput.has_lasted(&limit)),
            busy,
            gpu: self.device.reading(),
        };
        let votes = if self.gang.world_size() == 1 {
            vec![vote]
        } else {
            self.gang.gather_bytes(&vote.to_bytes())?.iter().map(|bytes| Vote::from_bytes(bytes)).collect()
        };
        let times = votes.iter().map(|vote| RankTime { busy: vote.busy, gpu: vote.gpu });
        self.ranks.add(times.clone());
        if self.gang.rank() == 0 {
            self.publisher.metrics().ranks(self.ranks.seats(), times);
        }
        Ok(Vote::of_all(&votes))
    }

    /// Records a step that all ranks have agreed on.
    ///
    /// # Errors
    /// [`Ending::NonFinite`], [`Ending::LossSpike`].
    pub fn record(&mut self, result: &StepResult, agreed: &Vote, time: StepTime) -> Result<(), Ending> {
        let loss = agreed.loss_sum / (f64::from(self.accumulation) * f64::from(self.gang.world_size()));
        let problem = self.not_finite(loss, result);
        let rate = self.learning_rate();
        self.publisher.metrics().update(result.gradient_norm, result.skipped, rate);
        self.updates = Updates {
            gradient_norm: Some(result.gradient_norm).filter(|norm| norm.is_finite()),
            learning_rate: Some(rate),
            skipped: self.updates.skipped + u64::from(result.skipped),
            not_finite: problem.map_or(0, |_| self.updates.not_finite + 1),
        };
        if let Some(problem) = problem {
            self.skip(problem, result.skipped)?;
        }
        let before = self.position.items;
        self.position.step += 1;
        self.position.items += self.step_items;
        self.publisher.metrics().step(time);
        self.longest_step = self.longest_step.max(time.wall);
        if self.throughput.add(time) {
            self.straggler = self.ranks.window();
        }
        let epoch = self.job.items_per_epoch();
        if before / epoch != self.position.items / epoch && self.feed.epoch_over(self.position.items) {
            self.throughput.loaders_restarted();
        }
        self.throughput.prepared(self.feed.prepared());
        if problem.is_some() {
            // Its loss says nothing about the training.
            return Ok(());
        }
        self.loss = Some(loss);
        // Launches are compared by the losses of the same steps.
        if before < self.budget.horizon {
            self.curve.add(self.position.items, loss);
        }
        let spike = self.position.losses.add(loss);
        if self.position.losses.is_healthy() {
            self.healthy = (self.position.step, self.position.items);
        }
        match spike {
            Some(bound) => Err(Ending::LossSpike(format!(
                "the training loss spiked at step {}: {loss:.4}, three consecutive steps above {bound:.4}, far \
                 above its recent level; lower settings.learningRate, or set settings.gradientClip or warmupSteps",
                self.position.step
            ))),
            None => Ok(()),
        }
    }

    fn window_limit(&self) -> Option<WindowLimit> {
        self.launch.plan.window_limit(self.accumulation)
    }

    /// Ends the warm-up or the window of a measurement that has lasted long enough: it needs no more steps.
    pub fn end_by_time(&mut self, agreed: &Vote) {
        let budget = &self.launch.plan.budget;
        let (Some(limit), Some(window)) = (self.window_limit().filter(|_| agreed.lasted), budget.window_steps) else {
            return;
        };
        if self.throughput.is_warming_up() {
            self.throughput.restart();
            self.budget.items = self.position.items + window * self.step_items;
        } else if self.throughput.counted() >= limit.window_steps {
            self.budget.items = self.budget.items.min(self.position.items);
        }
    }

    /// Extends a measurement whose window is shorter than the plan says on some rank; by another window, which replaces
    /// the one so far, if that was not steady.
    ///
    /// # Errors
    /// When a peer is lost.
    pub fn extend_window(&mut self) -> Result<(), Ending> {
        let plan = &self.launch.plan;
        let window = plan.budget.window_steps.filter(|_| plan.kind == LaunchKind::Measure);
        let Some(window) = window.filter(|_| self.position.items >= self.budget.items) else { return Ok(()) };
        let steady = self.throughput.is_steady(u64::from(self.accumulation)) != Some(false);
        let mine = (steady, self.throughput.steps_short_of(plan.budget.min_window_seconds.unwrap_or_default()));
        let all = self.gang.gather(&mine)?;
        let short = all.iter().map(|(_, short)| *short).max().unwrap_or_default();
        if short > 0 {
            self.budget.items += short * self.step_items;
        } else if self.windows.extends(all.iter().all(|(steady, _)| *steady)) {
            tracing::info!(step = self.position.step, "the speed still changes: another window is measured");
            self.throughput.restart();
            self.budget.items += window * self.step_items;
        }
        Ok(())
    }

    /// Starts to time the epochs, at the current position.
    pub fn start_epochs(&mut self) {
        self.epochs = EpochClock::start(self.job.items_per_epoch(), self.position.items);
    }

    /// Records the end of an epoch, if the current position is beyond it.
    pub fn record_epoch(&mut self) {
        if let Some(took) = self.epochs.reached(self.position.items) {
            self.publisher.metrics().epoch(took);
        }
    }

    /// What of a step is not finite, and its value. With a loss scale, gradients that are not finite are part of
    /// finding it.
    fn not_finite(&self, loss: f64, result: &StepResult) -> Option<(&'static str, f64)> {
        let finite = result.gradient_norm.is_finite() || result.skipped && self.scales_loss;
        match (loss.is_finite(), finite) {
            (true, true) => None,
            (false, _) => Some(("the training loss", loss)),
            (true, false) => Some(("the norm of the gradient", result.gradient_norm)),
        }
    }

    /// Leaves out a step that is not finite; `skipped`: it has changed nothing.
    ///
    /// # Errors
    /// [`Ending::NonFinite`] when it has, when the workload skips no steps, and when there are too many in a row.
    fn skip(&mut self, (what, value): (&str, f64), skipped: bool) -> Result<(), Ending> {
        let (step, in_a_row) = (self.position.step + 1, self.updates.not_finite);
        let skips = skipped && self.job.optimization().skip_non_finite;
        if skips && in_a_row < MOST_NOT_FINITE {
            tracing::warn!(step, "{what} is {value}: the step is skipped");
            return Ok(());
        }
        let before =
            if skips { format!(", the last of {in_a_row} steps in a row that were skipped") } else { String::new() };
        let tensor = self.session.first_non_finite();
        let tensor = tensor.map_or_else(String::new, |name| format!("; first tensor that is not finite: {name}"));
        Err(Ending::NonFinite(format!(
            "{what} is {value} at step {step}{before}{tensor}; lower settings.learningRate, set settings.gradientClip, or use a wider \
             settings.precision"
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
        let reporter = format!("workload {}", self.position.workload);
        validation::require_metrics(&self.launch.plan, &first, &reporter)?;
        self.position.first_validation = Some(first.clone());
        self.validation = Some(first);
        self.publish();
        Ok(())
    }

    /// Evaluates, updates whether validation still improves, and keeps a checkpoint if it is the best so far.
    ///
    /// # Errors
    /// [`Ending::NonFinite`] when the validation loss is not finite; when data, device or a peer fail.
    pub fn evaluate(&mut self) -> Result<(), Ending> {
        let validation = self.validate()?;
        let loss = validation.metrics["loss"];
        validation::improve(&mut self.position, self.launch.plan.budget.early_stopping.as_ref(), &validation);
        let sizes = (self.step_items, self.job.items_per_epoch());
        validation::note(&self.launch.plan, &mut self.position, sizes, &validation);
        tracing::info!(items = self.position.items, loss, "validation");
        self.keep_best(&validation)?;
        self.validation = Some(validation);
        Ok(())
    }

    /// Counts what is out of the range of 8-bit floats in the next batch, if the precision is `fp8`.
    ///
    /// # Errors
    /// When data or device fail.
    pub fn count_out_of_range(&mut self) -> Result<(), Ending> {
        if self.launch.plan.settings.precision() != Precision::Fp8 {
            return Ok(());
        }
        self.session.count_out_of_range(self.feed.peek()?)?;
        if let Some(OutOfRange { overflow, underflow }) = self.session.out_of_range() {
            self.publisher.metrics().float8_out_of_range(overflow, underflow);
        }
        Ok(())
    }

    /// Keeps a checkpoint, to be written soon, if this evaluation is the best so far.
    fn keep_best(&mut self, validation: &Validation) -> Result<(), Ending> {
        let plan = &self.launch.plan;
        let saver = self.saver.as_mut().filter(|saver| saver.writes());
        let value = saver.as_ref().and_then(|saver| validation::best_value(plan, validation, saver.best_value()));
        let metric = plan.checkpoint.as_ref().map(|policy| policy.best.metric.clone()).unwrap_or_default();
        if let Some(saver) = saver.filter(|_| value.is_some()) {
            saver.make_room();
        }
        let checkpoint = self.snapshot_if(value.is_some())?;
        if let (Some(saver), Some(checkpoint), Some(value)) = (&mut self.saver, checkpoint, value) {
            saver.keep_best(Best { checkpoint, metric, value });
        }
        Ok(())
    }

    fn validate(&mut self) -> Result<Validation, Ending> {
        let data = Arc::clone(&self.data);
        let metrics = self.measure(data.as_ref())?;
        self.initial_weights_share = match self.job.optimization().average {
            Some(decay) => self.session.initial_weights_share(decay)?,
            None => None,
        };
        validation::validated(&self.position, metrics)
    }

    /// The metrics of the evaluated split of `data`, finite or not: every rank evaluates its share, sums are computed
    /// in rank order.
    ///
    /// # Errors
    /// When data, device or a peer fail.
    pub(crate) fn measure(&mut self, data: &dyn Data) -> Result<BTreeMap<String, f64>, Ending> {
        self.publisher.enter(RankPhase::Validating);
        let mut sums = vec![0.0; data.sums()];
        let (rank, world) = (self.gang.rank() as usize, self.gang.world_size() as usize);
        let (sharing, evaluations) = (self.session.sharing(), data.evaluations());
        let (first, stride) = if sharing == Sharing::Together { (0, 1) } else { (rank, world) };
        for index in (0..evaluations.div_ceil(stride)).map(|round| round * stride + first) {
            if index >= evaluations && sharing == Sharing::Apart {
                break;
            }
            let outputs = self.session.evaluate(&data.evaluation(index % evaluations).map_err(ending)?)?;
            // What the last round has too much, and what other ranks evaluate too, is not counted.
            if index < evaluations && (sharing != Sharing::Together || rank == 0) {
                data.add(index, &outputs, &mut sums);
            }
            self.publisher.beat(1);
        }
        let all = self.gang.gather_bytes(bytemuck::cast_slice(&sums))?;
        let mut total = vec![0.0; sums.len()];
        for bytes in &all {
            for (sum, word) in total.iter_mut().zip(bytes.chunks_exact(8)) {
                *sum += f64::from_ne_bytes(std::array::from_fn(|i| word[i]));
            }
        }
        Ok(data.metrics(&total))
    }

    /// Starts to write the checkpoint of this step, unless a save is in progress; see [`Saver`]. With `must`, waits
    /// until the checkpoint of this step, and all before it, are written.
    ///
    /// # Errors
    /// As [`RunningLaunch::snapshot`]; when storage fails.
    pub fn checkpoint(&mut self, must: bool) -> Result<(), Ending> {
        if must {
            self.wait_for_save(false)?;
        }
        let step = self.position.step;
        let missing = self.saver.as_ref().is_some_and(|saver| saver.writes() && !saver.holds(step));
        let began = Instant::now();
        let checkpoint = self.snapshot_if(missing)?;
        let Some(saver) = self.saver.as_mut().filter(|saver| saver.writes()) else { return Ok(()) };
        saver.start(checkpoint, began.elapsed())?;
        if must { self.wait_for_save(true) } else { Ok(()) }
    }

    fn wait_for_save(&mut self, must: bool) -> Result<(), Ending> {
        let Some(saver) = self.saver.as_mut().filter(|saver| saver.writes()) else { return Ok(()) };
        self.publisher.enter(RankPhase::Saving);
        saver.wait(must)
    }

    /// Takes the result of a save that has ended; see [`Saver::poll`].
    ///
    /// # Errors
    /// As [`Saver::poll`].
    pub fn poll_save(&mut self) -> Result<(), Ending> {
        self.saver.as_mut().map_or(Ok(()), Saver::poll)
    }

    /// Ends the saving of a launch that ends with an error; see [`Saver::finish`]. What a training saved after its last
    /// healthy loss is deleted if it has diverged.
    pub fn finish_saving(&mut self, ending: &Ending) {
        let (_, healthy) = self.healthy;
        if let Some(saver) = &mut self.saver {
            saver.finish();
            if ending.outcome().is_divergence() {
                saver.discard_after(healthy);
            }
        }
    }

    /// The checkpoint of this step on the rank that writes it, if it `wants` one. All ranks call this: those that hold
    /// a part of the states contribute it if the writer wants the checkpoint.
    ///
    /// # Errors
    /// As [`RunningLaunch::snapshot`].
    fn snapshot_if(&mut self, wants: bool) -> Result<Option<Checkpoint>, Ending> {
        let takes_part = match self.session.is_sharded() {
            true => self.gang.gather(&wants)?.contains(&true),
            false => wants,
        };
        let checkpoint = takes_part.then(|| self.snapshot()).transpose()?;
        Ok(checkpoint.filter(|_| wants))
    }

    /// The checkpoint of this step: a copy of the states in host memory.
    ///
    /// # Errors
    /// When the device fails.
    fn snapshot(&mut self) -> Result<Checkpoint, Ending> {
        let mut tensors = self.session.states()?;
        // The parts that a program reads are states already.
        let extras = self.job.extras().into_iter().filter(|(name, _)| tensors.iter().all(|(known, _)| known != name));
        tensors.extend(extras.collect::<Vec<_>>());
        // The writer knows the best checkpoint that is complete by then.
        let position = Position { best_checkpoint: None, ..self.position.clone() };
        Ok(Checkpoint { position, tensors })
    }

    /// Estimated seconds from SIGTERM to the exit after a checkpoint.
    pub fn stop_seconds(&self) -> Option<f64> {
        let save = self.saver.as_ref()?.longest()?;
        Some((self.longest_step + 2 * save).as_secs_f64())
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
            self.publisher.publish(self.progress());
        }
    }

    fn progress(&self) -> Progress {
        let left = self.budget.items.saturating_sub(self.position.items);
        let speed = self.throughput.newest();
        Progress {
            step: self.position.step,
            total_steps: Some(self.position.step + left.div_ceil(self.step_items)),
            items: self.position.items,
            epoch: (self.position.items / self.job.items_per_epoch()) as u32,
            loss: self.loss,
            skipped_updates: self.updates.skipped,
            items_per_second: speed,
            windows: self.throughput.windows(),
            eta_seconds: speed.filter(|speed| *speed > 0.0).map(|speed| left as f64 / speed),
            validation: self.validation.clone(),
            last_checkpoint: self.saver.as_ref().and_then(Saver::newest).cloned(),
            straggler: self.straggler.clone(),
            stop_seconds: self.stop_seconds(),
            ..Progress::at_start(&self.launch.plan.launch, self.launch.plan.kind)
        }
    }
}
