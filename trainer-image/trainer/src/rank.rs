//! Runs one rank of one launch, from its plan to its report.

use crate::budget::Budget;
use crate::checkpoint::{self, Author, Position};
use crate::collective::{Exchange, Gang};
use crate::device::{self, Place, RankDevice};
use crate::ending::Ending;
use crate::epochs::EpochClock;
use crate::feed::Feed;
use crate::launch::{Launch, kernel_cache};
use crate::metrics::Metrics;
use crate::progress::Publisher;
use crate::run::RunningLaunch;
use crate::saving::{self, Saver};
use crate::session::{Lineup, Session};
use crate::signals::StopRequest;
use crate::throughput::Throughput;
use crate::workload::{Refused, ending};
use crate::{model_flops, recipe, report, train};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::progress::{Progress, RankPhase};
use pawl_contract::provenance::Data as KnownData;
use pawl_contract::report::Report;
use pawl_graph::executor::ExecOptions;
use pawl_graph::recipe::{LossScale, Recipe};
use pawl_launch::connect;
use pawl_launch::report::bare;
use pawl_launch::straggler::{Seat, StragglerWatch};
use pawl_workloads::{Job, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs a launch to its report; never fails, because failures are part of the report.
pub fn run(launch: &Launch, stop: &StopRequest, started: Instant) -> Report {
    let only = |outcome, message| bare(&launch.plan, launch.rank, outcome, message, started.elapsed());
    let result = match launch.plan.kind {
        LaunchKind::Preflight => preflight(launch).map(|predicted| {
            let mut report = only(Outcome::Done, String::new());
            report.measured.predicted_memory_bytes = Some(predicted as u64);
            report
        }),
        LaunchKind::Measure | LaunchKind::Quality | LaunchKind::Search | LaunchKind::Train => {
            measured(launch, stop, started)
        }
    };
    result.unwrap_or_else(|ending| only(ending.outcome(), ending.to_string()))
}

/// A validated plan: what will be trained, and how.
pub(crate) struct Prepared {
    pub job: Box<dyn Job>,
    pub recipe: Recipe,
    pub lineup: Lineup,
}

/// Validates a plan against trainer and workload, and builds its programs; accesses no data.
pub(crate) fn prepare(plan: &LaunchPlan, place: Place, rank: u32, world_size: u32) -> Result<Prepared, Refused> {
    let (job, recipe) = validated(plan, place, rank, world_size)?;
    let lineup = Lineup::new(&recipe, job.programs())?;
    recipe::check_scopes(&plan.settings, &lineup.programs)?;
    Ok(Prepared { job, recipe, lineup })
}

/// As [`prepare`], without the programs of a step, on which only the scopes in `compileScope` depend.
pub(crate) fn validated(
    plan: &LaunchPlan,
    place: Place,
    rank: u32,
    world_size: u32,
) -> Result<(Box<dyn Job>, Recipe), Refused> {
    let name = plan.workload.name.as_deref().ok_or_else(|| {
        Ending::InvalidPlan("workload.name: missing: this trainer only runs built-in workloads".to_owned())
    })?;
    let workload = pawl_workloads::workload(name)?;
    recipe::check(&plan.settings, place, name, workload.settings())?;
    let request = Request {
        config: plan.workload.config.clone(),
        settings: plan.settings.clone(),
        seed: plan.seed,
        rank,
        world: world_size,
    };
    let job = workload.prepare(&request)?;
    let recipe = recipe::recipe(&plan.settings, job.as_ref(), (rank, world_size))?;
    Ok((job, recipe))
}

/// Validates the plan, looks for the data, proves that the checkpoint storage can be used, and predicts the peak
/// memory, bytes.
fn preflight(launch: &Launch) -> Result<usize, Ending> {
    let Launch { plan, rank, world_size, .. } = launch;
    let place = Place::from_env()?;
    let prepared = prepare(plan, place, *rank, *world_size)?;
    prepared.job.require_source().map_err(ending)?;
    if let (Some(_), Some(url)) = (&plan.checkpoint, &launch.checkpoints) {
        checkpoint::probe(url).map_err(|error| Ending::unusable(&error))?;
    }
    if place == Place::AbsentGpu {
        return Ok(device::predict(&prepared.lineup.programs, &plan.settings)?.planned);
    }
    let alone = Arc::new(Gang::alone());
    let device = open(launch, place)?;
    let executor = device.executor(&plan.settings);
    let options =
        ExecOptions { seed: plan.seed, collective: alone, memory_limit: device.memory(), ..ExecOptions::default() };
    let session = Session::new(prepared.lineup, executor.as_ref(), &options)?;
    Ok(session.memory().planned)
}

/// Runs a launch that trains.
fn measured(launch: &Launch, stop: &StopRequest, started: Instant) -> Result<Report, Ending> {
    let Launch { plan, rank, world_size, .. } = launch;
    let publisher = publisher(launch)?;
    let place = Place::from_env()?;
    let Prepared { job, recipe, lineup } = prepare(plan, place, *rank, *world_size)?;
    let accumulation = recipe.accumulation as u32;
    let scales_loss = recipe.loss_scale != LossScale::None;
    let step_items = u64::from(job.items_per_batch()) * u64::from(accumulation) * u64::from(*world_size);
    let budget = Budget::new(plan, step_items, job.items_per_epoch())?;
    let mut device = open(launch, place)?;
    let meet = |exchange: &mut dyn Exchange, deadline| device.meet(*rank, *world_size, exchange, deadline);
    let gang = Arc::new(connect::gang(launch, meet)?);
    let ranks = StragglerWatch::new(&gang, &Seat::here(device.uuid()))?;
    let saver = saver(launch, &publisher)?;
    let flops_per_item = model_flops::per_item(job.as_ref(), &lineup, step_items, accumulation);
    let copies =
        if saver.as_ref().is_some_and(Saver::writes) { saving::memory(&lineup.checkpoint_bytes()?) } else { 0 };
    let mut session = compiled(plan, lineup, &device, &gang, (copies, &publisher))?;
    publisher.enter(RankPhase::DataGeneration);
    let data = job.open(&launch.data, &Advance::new(&publisher).observer()).map_err(ending)?;
    data.resident().map_err(ending)?.into_iter().try_for_each(|(name, array)| session.write_data(&name, &array))?;
    let flops_share = device.peak(&plan.settings).map(|peak| flops_per_item / (peak * f64::from(*world_size)));
    let mut run = RunningLaunch {
        launch,
        job: job.as_ref(),
        feed: Feed::new(Arc::clone(&data), &plan.settings, 0, step_items, accumulation),
        data,
        known_data: known_data(plan, *rank, job.as_ref()),
        gang: Arc::clone(&gang),
        session,
        throughput: Throughput::new(step_items, budget.warmup, device.devices()),
        windows: Default::default(),
        device,
        budget,
        step_items,
        accumulation,
        position: Position::start(plan.workload.name.as_deref().unwrap_or_default(), plan.seed),
        curve: Default::default(),
        healthy: Default::default(),
        loss: None,
        updates: Default::default(),
        epochs: EpochClock::start(job.items_per_epoch(), 0),
        validation: None,
        initial_weights_share: None,
        straggler: None,
        ranks,
        longest_step: Duration::ZERO,
        saver,
        flops_share,
        scales_loss,
        publisher,
        stop: stop.clone(),
    };
    run.publish();
    let result = train::train(&mut run);
    if let Err(ending) = &result {
        run.finish_saving(ending);
    }
    let own = run.session.memory().peak;
    let peak = if result.is_ok() { gang.gather(&own)?.into_iter().max().unwrap_or(own) } else { own };
    Ok(report::of_run(&run, launch, &result, peak, started.elapsed()))
}

/// Which data the launch has, on rank 0, whose report says so.
fn known_data(plan: &LaunchPlan, rank: u32, job: &dyn Job) -> Option<KnownData> {
    let workload = plan.workload.name.as_deref().filter(|_| rank == 0)?;
    job.source().hashed(workload)
}

/// What publishes the progress of this rank; it publishes the first one.
fn publisher(launch: &Launch) -> Result<Publisher, Ending> {
    let Launch { plan, progress, metrics, .. } = launch;
    let all = Metrics::new().map_err(|e| Ending::Failed(format!("metrics: {e}")))?;
    let publisher = Publisher::new((&plan.launch, plan.kind), progress.clone(), metrics.clone(), all);
    publisher.publish(Progress::at_start(&plan.launch, plan.kind));
    Ok(publisher)
}

/// The compiled programs, in the memory that is left beside `copies` bytes of host memory for copies of checkpoints.
fn compiled(
    plan: &LaunchPlan,
    lineup: Lineup,
    device: &RankDevice,
    gang: &Arc<Gang>,
    (copies, publisher): (usize, &Publisher),
) -> Result<Session, Ending> {
    publisher.enter(RankPhase::Compiling);
    let compiler = publisher.clone();
    let options = ExecOptions {
        seed: plan.seed,
        collective: Arc::clone(gang) as _,
        memory_limit: device.memory_beside(copies),
        on_compiled: Some(Arc::new(move || compiler.beat(1))),
    };
    let session = Session::new(lineup, device.executor(&plan.settings).as_ref(), &options)?;
    publisher.metrics().compiled(&session.memory_by_kind(), session.compile_time());
    Ok(session)
}

/// Turns the progress of data generation into heartbeats.
struct Advance<'a> {
    publisher: &'a Publisher,
    last: AtomicU64,
}

impl<'a> Advance<'a> {
    fn new(publisher: &'a Publisher) -> Self {
        Self { publisher, last: AtomicU64::new(0) }
    }

    /// A callback for [`Job::open`]: a call that reports as much as the one before is no heartbeat.
    fn observer(&self) -> impl Fn(&str, u64, u64) + Sync {
        |phase, done, total| {
            if self.last.swap(done, Ordering::Relaxed) != done {
                tracing::info!(done, total, "data: {phase}");
                self.publisher.beat(1);
            }
        }
    }
}

/// What saves the checkpoints, if the plan has a checkpoint policy and is to train.
fn saver(launch: &Launch, publisher: &Publisher) -> Result<Option<Saver>, Ending> {
    let Launch { plan, rank, .. } = launch;
    match (&plan.checkpoint, plan.kind, &launch.checkpoints) {
        (Some(policy), LaunchKind::Train | LaunchKind::Search, Some(url)) => {
            Ok(Some(Saver::new(url, policy, Author::of(plan), *rank, publisher)?))
        }
        (Some(_), LaunchKind::Train | LaunchKind::Search, None) => {
            let variable = pawl_contract::env::CHECKPOINTS;
            Err(Ending::InvalidPlan(format!("checkpoint: {variable} is not set: name the checkpoint storage")))
        }
        _ => Ok(None),
    }
}

/// The device of this launch.
fn open(launch: &Launch, place: Place) -> Result<RankDevice, Ending> {
    RankDevice::open(place, &kernel_cache(&launch.data))
}
