//! The loop: steps, evaluations and checkpoints of a launch.

use crate::error::{Error, Result};
use crate::exchange::WORKLOAD;
use crate::hardware;
use crate::optimizer::Optimizer;
use crate::order::Order;
use crate::rank::Core;
use crate::record::Record;
use crate::tensors;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use pawl_contract::measured::Validation;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::RankPhase;
use pawl_contract::steady::BLOCKS;
use pawl_launch::budget::Budget;
use pawl_launch::checkpoint::{Author, Checkpoint, Position};
use pawl_launch::ending::Ending;
use pawl_launch::epochs::EpochClock;
use pawl_launch::gpu_reading::GpuReading;
use pawl_launch::place;
use pawl_launch::saving::{Best, Origin, Resumed, Saver};
use pawl_launch::straggler::{RankTime, Seat, StragglerWatch};
use pawl_launch::throughput::{Devices, StepTime, Stopwatch, Throughput, Totals, processor_time};
use pawl_launch::validation;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

mod metrics;
mod steps;

use steps::{Agreed, Open};

/// Where the loop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    /// Within a step.
    Step,
    /// After a step.
    Between,
    End,
}

/// The loop of a launch, made by [`Run::training`](crate::Run::training).
///
/// While [`Training::next`] returns true: [`Training::load`] and [`Training::backward`] once for each of
/// [`Training::accumulation_steps`], then [`Training::step`].
pub struct Training<'a, O> {
    core: &'a Core,
    record: &'a mut Record,
    vars: Vec<(String, Var)>,
    optimizer: O,
    order: Order,
    at: At,
    /// Steps before this launch: those of the resumed checkpoint.
    first: u64,
    accumulation: u32,
    micro: u32,
    clip: Option<f64>,
    /// Of the open window.
    clock: Stopwatch,
    loader: Duration,
    /// Of the current step: gradients by variable, the last store of gradients, and the sum of the losses.
    gradients: Vec<Option<Tensor>>,
    store: Option<GradStore>,
    loss_sum: Option<Tensor>,
    open: Open,
    agreed: Agreed,
}

impl<'a, O: Optimizer> Training<'a, O> {
    pub(crate) fn begin(
        core: &'a Core,
        record: &'a mut Option<Record>,
        vars: &VarMap,
        optimizer: O,
        items: u64,
    ) -> Result<Self> {
        let plan = &core.launch.plan;
        for name in ["batchPerGpu", "accumulationSteps", "globalBatch"] {
            core.settings.get::<u32>(name)?;
        }
        let clip = core.settings.get::<f64>("gradientClip")?;
        if let Some(limit) = clip.filter(|limit| *limit <= 0.0) {
            return Err(Error::invalid(format!(
                "settings.gradientClip: {limit} must be above 0: remove it for no clipping"
            )));
        }
        core.settings.require_read()?;
        let order = Order::new(plan.seed, items)?;
        let world = core.launch.world_size;
        let invalid = |error: &dyn std::fmt::Display| Error::invalid(error.to_string());
        let accumulation = core.given.accumulation(world).map_err(|e| invalid(&e))?;
        let step_items = core.given.items_per_step(world).map_err(|e| invalid(&e))?;
        let budget = Budget::new(plan, step_items, items)?;
        let record = record.insert(recorded(core, budget, (step_items, items), optimizer.learning_rate())?);
        let vars = tensors::named(vars);
        let mut training = Self {
            core,
            record,
            gradients: vec![None; vars.len()],
            vars,
            optimizer,
            order,
            at: At::Start,
            first: 0,
            accumulation,
            micro: 0,
            clip,
            clock: Stopwatch::start(Totals::default()),
            loader: Duration::ZERO,
            store: None,
            loss_sum: None,
            open: Open::default(),
            agreed: Agreed::default(),
        };
        if plan.kind != LaunchKind::Preflight {
            training.resume()?;
            training.first = training.record.position.step;
            training.publish();
        }
        Ok(training)
    }

    /// Begins the next step; false at the end of the launch. Before that it evaluates and writes a checkpoint, when
    /// they are due: `evaluate` returns the validation metrics of this rank by name, `loss` among them; the mean over
    /// the ranks is reported.
    ///
    /// # Errors
    /// Errors of `evaluate`; [`Ending::NonFinite`] when the validation loss is not finite; [`Ending::Stopped`] after a
    /// request to stop; when a rank or the storage fails.
    pub fn next<N: Into<String>, M: IntoIterator<Item = (N, f64)>>(
        &mut self,
        mut evaluate: impl FnMut() -> Result<M>,
    ) -> Result<bool> {
        let mut evaluate = || {
            let metrics = evaluate()?.into_iter().map(|(name, value)| (name.into(), value));
            Ok(metrics.collect::<BTreeMap<String, f64>>())
        };
        if self.core.launch.plan.kind == LaunchKind::Preflight {
            (self.record.ended, self.at) = (true, At::End);
        }
        match self.at {
            At::End => return Ok(false),
            At::Step => {
                return Err(Error::invalid("training.next(): the step before it was not ended: call training.step()"));
            }
            At::Start => self.start(&mut evaluate)?,
            At::Between => self.between(&mut evaluate)?,
        }
        if self.is_done() {
            self.finish(&mut evaluate)?;
            return Ok(false);
        }
        self.core.publisher.enter(RankPhase::Training);
        if self.open.steps == 0 {
            // Within a window the device may still compute earlier steps of it: their time counts, too.
            self.core.device.synchronize()?;
            self.clock = Stopwatch::start(self.totals());
        }
        (self.at, self.micro) = (At::Step, 0);
        Ok(true)
    }

    /// Micro-steps per optimizer step.
    pub fn accumulation_steps(&self) -> u32 {
        self.accumulation
    }

    /// Optimizer steps done, those before a resumed checkpoint included.
    pub fn steps(&self) -> u64 {
        self.record.position.step
    }

    /// Items seen by all ranks, those before a resumed checkpoint included.
    pub fn items(&self) -> u64 {
        self.record.position.items
    }

    /// Fraction of the launch (of a complete trial, in a search) that is done, 0 to 1: for schedules.
    pub fn fraction(&self) -> f64 {
        (self.record.position.items as f64 / self.record.budget.horizon.max(1) as f64).min(1.0)
    }

    /// The optimizer, such as to set its learning rate before a step.
    pub fn optimizer(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Loads the next batch of this rank by `load`, which gets its indices into the data: `batchPerGpu` of them, in an
    /// order that is a function of the seed, in which each epoch has every item once. The time counts as waiting for
    /// data.
    ///
    /// # Errors
    /// Errors of `load`.
    pub fn load<B>(&mut self, load: impl FnOnce(&[u32]) -> Result<B>) -> Result<B> {
        let launch = &self.core.launch;
        let batch = u64::from(self.core.given.batch_per_gpu());
        let batches = u64::from(self.micro) * u64::from(launch.world_size) + u64::from(launch.rank);
        let indices = self.order.indices(self.record.position.items + batches * batch, batch);
        let began = Instant::now();
        let loaded = load(&indices);
        self.loader += began.elapsed();
        loaded
    }

    /// Adds the gradients of a micro-step, whose mean loss is `loss`, a tensor with one element.
    ///
    /// # Errors
    /// When the device fails, or it is called more than [`Training::accumulation_steps`] times in a step.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        if self.at != At::Step || self.micro == self.accumulation {
            return Err(Error::invalid(format!(
                "training.backward(): a step has {} micro-steps: call training.next() before each step, and training.step() \
                 after its last micro-step",
                self.accumulation
            )));
        }
        self.micro += 1;
        let loss = loss.flatten_all()?.mean(0)?.to_dtype(DType::F32)?;
        let store = loss.backward()?;
        for ((_, var), sum) in self.vars.iter().zip(&mut self.gradients) {
            let Some(gradient) = store.get(var) else { continue };
            // The graph of the backward pass is not kept.
            let gradient = gradient.detach();
            *sum = Some(match sum.take() {
                Some(sum) => (sum + gradient)?,
                None => gradient,
            });
        }
        self.store = Some(store);
        let loss = loss.detach();
        self.loss_sum = Some(match self.loss_sum.take() {
            Some(sum) => (sum + loss)?,
            None => loss,
        });
        Ok(())
    }

    fn is_done(&self) -> bool {
        let Record { position, budget, .. } = &*self.record;
        position.items >= budget.items || validation::stopped_early(&self.core.launch.plan, position)
    }

    /// Validation before the first step, for the launches that report it.
    fn start(&mut self, evaluate: &mut dyn FnMut() -> Result<BTreeMap<String, f64>>) -> Result<()> {
        if self.record.budget.evaluates && self.record.position.first_validation.is_none() {
            let first = self.validate(evaluate)?;
            validation::require_metrics(&self.core.launch.plan, &first, "this program")?;
            self.record.position.first_validation = Some(first.clone());
            self.record.validation = Some(first);
            self.publish();
        }
        let (items, position) = (self.record.items_per_epoch, self.record.position.items);
        self.record.epochs = EpochClock::start(items, position);
        Ok(())
    }

    /// What is due between two steps.
    fn between(&mut self, evaluate: &mut dyn FnMut() -> Result<BTreeMap<String, f64>>) -> Result<()> {
        self.record.saver.as_mut().map_or(Ok(()), Saver::poll)?;
        let (Record { position, budget, step_items, .. }, agreed) = (&*self.record, std::mem::take(&mut self.agreed));
        let (items, before) = (position.items, position.items - step_items);
        if budget.evaluation_due(before, items) && items < budget.items {
            self.evaluate(evaluate)?;
            self.publish();
        }
        if agreed.stop {
            return self.stop();
        }
        if !self.is_done() {
            self.record_epoch();
            if agreed.checkpoint {
                self.checkpoint(false)?;
                self.publish();
            }
        }
        if self.core.publisher.due() {
            self.publish();
        }
        Ok(())
    }

    fn finish(&mut self, evaluate: &mut dyn FnMut() -> Result<BTreeMap<String, f64>>) -> Result<()> {
        let items = self.record.position.items;
        let evaluated = self.record.validation.as_ref().is_some_and(|v| v.items == items && items > 0);
        if self.record.budget.evaluates && !evaluated {
            self.evaluate(evaluate)?;
        }
        self.checkpoint(true)?;
        self.record_epoch();
        let peak = hardware::peak_memory(&self.core.device);
        self.record.peak_memory = self.core.gang.gather(&peak)?.into_iter().flatten().max();
        self.publish();
        self.core.gang.barrier()?;
        (self.at, self.record.ended) = (At::End, true);
        Ok(())
    }

    /// Ends on a request to stop: after a checkpoint, and not before it is written.
    fn stop(&mut self) -> Result<()> {
        self.checkpoint(true)?;
        self.publish();
        self.core.gang.barrier()?;
        let saved = if self.record.saver.is_some() { ", after a checkpoint" } else { "" };
        let step = self.record.position.step;
        Err(Ending::Stopped(format!("stopped on request at step {step}{saved}")).into())
    }

    fn record_epoch(&mut self) {
        if let Some(took) = self.record.epochs.reached(self.record.position.items) {
            self.core.publisher.metrics().epoch(took);
        }
    }

    fn evaluate(&mut self, evaluate: &mut dyn FnMut() -> Result<BTreeMap<String, f64>>) -> Result<()> {
        let validation = self.validate(evaluate)?;
        let plan = &self.core.launch.plan;
        validation::improve(&mut self.record.position, plan.budget.early_stopping.as_ref(), &validation);
        let sizes = (self.record.step_items, self.record.items_per_epoch);
        validation::note(plan, &mut self.record.position, sizes, &validation);
        tracing::info!(items = validation.items, loss = validation.metrics["loss"], "validation");
        if let Some(saver) = self.record.saver.as_mut().filter(|saver| saver.writes())
            && let Some(value) = validation::best_value(plan, &validation, saver.best_value())
        {
            saver.make_room();
            let metric = plan.checkpoint.as_ref().map(|policy| policy.best.metric.clone()).unwrap_or_default();
            let best = Best { checkpoint: self.snapshot()?, metric, value };
            if let Some(saver) = &mut self.record.saver {
                saver.keep_best(best);
            }
        }
        self.record.validation = Some(validation);
        Ok(())
    }

    /// The mean of the ranks' metrics.
    fn validate(&mut self, evaluate: &mut dyn FnMut() -> Result<BTreeMap<String, f64>>) -> Result<Validation> {
        self.core.publisher.enter(RankPhase::Validating);
        let metrics = evaluate()?;
        if !metrics.contains_key("loss") {
            let known: Vec<&str> = metrics.keys().map(String::as_str).collect();
            return Err(Error::invalid(format!(
                "evaluate: no metric loss among {}: return the validation loss",
                known.join(", ")
            )));
        }
        self.core.publisher.beat(1);
        // JSON has neither NaN nor infinity: bits do.
        let bits: BTreeMap<String, u64> = metrics.into_iter().map(|(name, value)| (name, value.to_bits())).collect();
        let means = metrics::means(&self.core.gang.gather(&bits)?)?;
        Ok(validation::validated(&self.record.position, means)?)
    }

    /// Starts to write the checkpoint of this step; with `must`, waits until it is written.
    fn checkpoint(&mut self, must: bool) -> Result<()> {
        if must {
            self.wait_for_save(false)?;
        }
        let step = self.record.position.step;
        let Some(saver) = self.record.saver.as_ref().filter(|saver| saver.writes()) else { return Ok(()) };
        let (began, missing) = (Instant::now(), !saver.holds(step));
        let checkpoint = if missing { Some(self.snapshot()?) } else { None };
        if let Some(saver) = &mut self.record.saver {
            saver.start(checkpoint, began.elapsed())?;
        }
        if must { self.wait_for_save(true) } else { Ok(()) }
    }

    fn wait_for_save(&mut self, must: bool) -> Result<()> {
        let Some(saver) = self.record.saver.as_mut().filter(|saver| saver.writes()) else { return Ok(()) };
        self.core.publisher.enter(RankPhase::Saving);
        Ok(saver.wait(must)?)
    }

    /// A copy of the variables and the state of the optimizer.
    fn snapshot(&self) -> Result<Checkpoint> {
        let state = self.optimizer.state()?;
        let vars = self.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone()));
        let tensors = vars
            .chain(state)
            .map(|(name, tensor)| Ok((name.clone(), tensors::to_array(&name, &tensor)?)))
            .collect::<Result<_>>()?;
        Ok(Checkpoint { position: Position { best_checkpoint: None, ..self.record.position.clone() }, tensors })
    }

    /// Resumes from the newest checkpoint, if the plan says so and there is one. Otherwise all ranks start with the
    /// weights of rank 0.
    fn resume(&mut self) -> Result<()> {
        self.core.publisher.enter(RankPhase::Resuming);
        let gang = &self.core.gang;
        let resumed = self.record.saver.as_mut().map(|saver| saver.resume(gang)).transpose()?.flatten();
        let Some(Resumed { checkpoint, origin }) = resumed else { return self.share_weights() };
        let seed = self.core.launch.plan.seed;
        let (belongs, remedy) = match origin {
            Origin::Own => {
                (checkpoint.made_by(WORKLOAD, seed, &[]), "use another checkpoint storage, or empty this one")
            }
            Origin::Other => (
                checkpoint.fits(WORKLOAD, &[]),
                "train.resumeFrom needs weightsOnly: true for a checkpoint of a built-in workload",
            ),
            Origin::OtherWeights => (Ok(()), ""),
        };
        belongs.map_err(|foreign| Error::invalid(format!("{foreign}: {remedy}")))?;
        let state: BTreeMap<_, _> = checkpoint.tensors.iter().map(|(name, array)| (name.as_str(), array)).collect();
        for (name, var) in &self.vars {
            let array = state.get(name.as_str()).ok_or_else(|| {
                Error::invalid(format!(
                    "the checkpoint has no weight {name}: it belongs to another model; use an empty checkpoint storage"
                ))
            })?;
            tensors::set(name, var, array)?;
        }
        if origin != Origin::OtherWeights {
            self.optimizer.restore(&state)?;
        }
        self.record.position = match origin {
            Origin::Own => checkpoint.position,
            Origin::Other => Position { seed, best_checkpoint: None, ..checkpoint.position },
            Origin::OtherWeights => return Ok(()),
        };
        self.record.healthy = (self.record.position.step, self.record.position.items);
        Ok(())
    }

    fn share_weights(&self) -> Result<()> {
        if self.core.gang.world_size() == 1 {
            return Ok(());
        }
        for (name, var) in self.vars.iter().filter(|(_, var)| var.dtype().is_float()) {
            let mut values: Vec<f32> = var.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
            self.core.gang.broadcast(0, &mut values)?;
            let shared = pawl_graph::array::Array::new(var.dims(), pawl_graph::array::Data::F32(values))?;
            tensors::set(name, var, &shared)?;
        }
        Ok(())
    }

    fn publish(&self) {
        if let Some(share) = self.record.throughput.utilization() {
            self.core.publisher.metrics().utilization(share);
        }
        if self.core.launch.rank == 0 {
            self.core.publisher.publish(self.record.progress(&self.core.launch));
        }
    }

    /// Time spent in collectives so far.
    fn waited(&self) -> Duration {
        self.core.gang.waited() + self.core.average.waited()
    }
}

/// The measurements of a launch of steps of `step_items` items, before its first step.
fn recorded(
    core: &Core,
    budget: Budget,
    (step_items, items_per_epoch): (u64, u64),
    learning_rate: f64,
) -> Result<Record> {
    let devices = core.device.is_cpu().then(|| Devices::Cpus(place::threads()));
    Ok(Record {
        budget,
        step_items,
        items_per_epoch,
        position: Position::start(WORKLOAD, core.launch.plan.seed),
        throughput: Throughput::new(step_items, budget.warmup, devices),
        windows: Default::default(),
        curve: Default::default(),
        healthy: Default::default(),
        loss: None,
        gradient_norm: None,
        learning_rate,
        epochs: EpochClock::start(items_per_epoch, 0),
        validation: None,
        straggler: None,
        ranks: StragglerWatch::new(&core.gang, &Seat::here(hardware::uuid(&core.device)))?,
        longest_step: Duration::ZERO,
        peak_memory: None,
        saver: saver(core)?,
        ended: false,
    })
}

/// What saves the checkpoints, if the plan has a checkpoint policy and is to train.
fn saver(core: &Core) -> Result<Option<Saver>> {
    let plan = &core.launch.plan;
    let trains = matches!(plan.kind, LaunchKind::Train | LaunchKind::Search);
    match (plan.checkpoint.as_ref().filter(|_| trains), &core.launch.checkpoints) {
        (Some(policy), Some(url)) => {
            Ok(Some(Saver::new(url, policy, Author::of(plan), core.launch.rank, &core.publisher)?))
        }
        (Some(_), None) => Err(Error::invalid(format!(
            "checkpoint: {} is not set: name the checkpoint storage",
            pawl_contract::env::CHECKPOINTS
        ))),
        _ => Ok(None),
    }
}
