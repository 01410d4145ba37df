//! A rank from its environment to its exit code.

use crate::checkpoints::{Checkpoints, write};
use crate::faults::{Armed, armed};
use crate::launch::{End, Patience, Run, measured, total_steps};
use crate::script::{FaultKind, Script};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{CheckpointPolicy, LaunchKind, LaunchPlan};
use pawl_contract::progress::Progress;
use pawl_contract::report::{Failure, LossPoint, Report};
use pawl_contract::{CONTRACT_VERSION, env};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often progress is written at most, and how long a rank waits for a dead peer.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
const PEER_PATIENCE: Duration = Duration::from_secs(60);
/// Steps of one throughput window.
const WINDOW: u64 = 20;
/// Most points of the loss curve.
const LOSSES: u64 = 64;

/// The rank that this process is.
struct Rank {
    number: u32,
    world_size: u32,
    report: PathBuf,
    progress: PathBuf,
    checkpoints: String,
    memory: PathBuf,
    stop: Arc<AtomicBool>,
    begun: Instant,
}

/// Runs the rank that the environment describes.
pub fn main() -> ExitCode {
    let (rank, plan) = match Rank::from_env().and_then(|rank| Ok((rank, read_plan()?))) {
        Ok(both) => both,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(Outcome::InvalidPlan.exit_code());
        }
    };
    let mut report = Report::bare(&plan, rank.number, Outcome::Done);
    let ended = match Script::from_config(&plan.workload.config) {
        Ok(script) => rank.play(&script, &plan, &mut report),
        Err(e) => Err(End::new(Outcome::InvalidPlan, e.to_string())),
    };
    if let Err(End { outcome, message }) = ended {
        eprintln!("{message}");
        (report.outcome, report.message) = (outcome, message);
        let (step, items) = (report.measured.steps, report.measured.items);
        report.failure = Some(Failure { rank: Some(rank.number), step, items });
    }
    report.measured.wall_seconds = Some(rank.begun.elapsed().as_secs_f64());
    if let Err(e) = write(&rank.report, &report) {
        eprintln!("{}: {e}", rank.report.display());
        return ExitCode::FAILURE;
    }
    ExitCode::from(report.outcome.exit_code())
}

fn read_plan() -> Result<LaunchPlan, String> {
    let path = std::env::var(env::PLAN).map_err(|_| format!("{}: not set", env::PLAN))?;
    let content = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
    let plan: LaunchPlan = serde_json::from_slice(&content).map_err(|e| format!("{path}: {e}"))?;
    if plan.contract != CONTRACT_VERSION {
        return Err(format!("{path}: contract {}: this trainer supports contract {CONTRACT_VERSION}", plan.contract));
    }
    Ok(plan)
}

impl Rank {
    fn from_env() -> Result<Self, String> {
        let text = |name: &str| std::env::var(name).map_err(|_| format!("{name}: not set: start ranks through `pawl`"));
        let number = |name: &str| text(name)?.parse().map_err(|e| format!("{name}: {e}"));
        let stop = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop)).map_err(|e| e.to_string())?;
        Ok(Self {
            number: number(env::RANK)?,
            world_size: number(env::WORLD_SIZE)?,
            report: text(env::REPORT)?.into(),
            progress: text(env::PROGRESS)?.into(),
            checkpoints: text(env::CHECKPOINTS)?,
            memory: text(env::DATA)?.into(),
            stop,
            begun: Instant::now(),
        })
    }

    /// The launch from start to end, into `report`.
    fn play(&self, script: &Script, plan: &LaunchPlan, report: &mut Report) -> Result<(), End> {
        let items_per_step =
            plan.settings.items_per_step(self.world_size).map_err(|e| End::new(Outcome::InvalidPlan, e.to_string()))?;
        if items_per_step == 0 {
            return Err(End::new(Outcome::InvalidPlan, "settings.batchPerGpu: 0: choose at least 1"));
        }
        // A launch that runs again is another run: faults that happen once have happened.
        let meeting = std::env::var(env::RENDEZVOUS).unwrap_or_default();
        let run = format!("{} {} {meeting}", plan.attempt, plan.launch);
        let memory = script.fault_directory.as_deref().unwrap_or(&self.memory);
        let faults = armed(script, plan, memory, &run).map_err(End::failed)?;
        let mut run = Run {
            script,
            plan,
            faults,
            items_per_step,
            total_steps: total_steps(script, plan, items_per_step)?,
            items_per_second: script.measured_items_per_second(&plan.settings, &plan.launch),
            step: 0,
            validation: None,
            evaluations: Vec::new(),
            checkpoint: None,
            written: None,
        };
        let needed = script.memory_bytes(&plan.settings);
        report.measured.predicted_memory_bytes = Some(needed);
        report.items_per_epoch = Some(script.items_per_epoch);
        self.strike(&mut run, true)?;
        if plan.kind == LaunchKind::Preflight {
            let limit = script.memory.limit_bytes;
            return if needed > limit {
                let message = format!(
                    "predicted memory of {needed} bytes exceeds the device's {limit}: use a smaller batchPerGpu"
                );
                Err(End::new(Outcome::OutOfMemory, message))
            } else {
                Ok(())
            };
        }
        let ended = self.steps(&mut run, needed, report);
        self.tell(&mut run, true).map_err(End::failed)?;
        (report.measured.steps, report.measured.items) = (run.step, run.items());
        report.measured.validation.clone_from(&run.validation);
        report.evaluations.clone_from(&run.evaluations);
        report.last_checkpoint.clone_from(&run.checkpoint);
        ended
    }

    fn steps(&self, run: &mut Run<'_>, needed: u64, report: &mut Report) -> Result<(), End> {
        let plan = run.plan;
        let storage = match (plan.kind, &plan.checkpoint) {
            (LaunchKind::Train | LaunchKind::Search, Some(policy)) => {
                Some((Checkpoints::open(&self.checkpoints, policy).map_err(End::failed)?, policy))
            }
            _ => None,
        };
        if let Some((storage, policy)) = &storage {
            self.resume(run, storage, policy)?;
        }
        let validates = matches!(plan.kind, LaunchKind::Quality | LaunchKind::Train | LaunchKind::Search);
        if validates {
            report.measured.first_validation = Some(run.validate().clone());
        }
        let mut seconds = Vec::new();
        let (mut since_checkpoint, mut patience) = (0.0, Patience::default());
        let first = run.step;
        let stride = (run.total_steps - first.min(run.total_steps)).div_ceil(LOSSES).max(1);
        self.tell(run, true).map_err(End::failed)?;
        while run.step < run.total_steps {
            run.fits(needed)?;
            self.strike(run, false)?;
            if self.stop.load(Ordering::Relaxed) {
                if let Some((storage, _)) = &storage {
                    self.save(run, storage)?;
                }
                return Err(End::new(Outcome::Stopped, format!("stopped after step {}", run.step)));
            }
            if run.script.step_seconds > 0.0 {
                std::thread::sleep(Duration::from_secs_f64(run.script.step_seconds));
            }
            let step_seconds = run.items_per_step as f64 / run.rate();
            run.step += 1;
            report.measured.peak_memory_bytes = Some(needed);
            if run.step > first + plan.budget.warmup_steps.unwrap_or(0) {
                seconds.push(step_seconds);
            }
            if (run.step - first).is_multiple_of(stride) {
                report.losses.push(LossPoint { items: run.items(), loss: run.script.loss(run.items()) });
            }
            let every = plan.budget.eval_every_items.filter(|every| plan.kind == LaunchKind::Train && *every > 0);
            if every.is_some_and(|every| run.items() / every > (run.items() - run.items_per_step) / every) {
                patience.evaluate(run);
            }
            run.list();
            since_checkpoint += step_seconds;
            if let Some((storage, policy)) = &storage
                && (since_checkpoint >= policy.every_seconds || run.step == run.total_steps)
            {
                self.save(run, storage)?;
                since_checkpoint = 0.0;
            }
            self.tell(run, run.step == run.total_steps).map_err(End::failed)?;
        }
        if validates {
            run.validate();
        }
        measured(run, seconds, &mut report.measured);
        Ok(())
    }

    fn resume(&self, run: &mut Run<'_>, storage: &Checkpoints, policy: &CheckpointPolicy) -> Result<(), End> {
        if !policy.resume {
            return Ok(());
        }
        run.checkpoint = storage.newest(policy);
        if let (None, Some(expected)) = (&run.checkpoint, &policy.expected) {
            return Err(End::new(
                Outcome::CheckpointUnreadable,
                format!("there is no checkpoint, {} was expected", expected.name),
            ));
        }
        // Steps may be of another size now: what counts is the items.
        run.step = run.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.items / run.items_per_step);
        if self.number == 0 {
            storage.forget_damaged(policy).map_err(End::failed)?;
        }
        Ok(())
    }

    fn save(&self, run: &mut Run<'_>, storage: &Checkpoints) -> Result<(), End> {
        if self.number == 0 {
            run.checkpoint = Some(storage.write(run.step, run.items()).map_err(End::failed)?);
        }
        Ok(())
    }

    /// Rank 0 says where it is, now and then.
    fn tell(&self, run: &mut Run<'_>, now: bool) -> std::io::Result<()> {
        if self.number != 0 || (!now && run.written.is_some_and(|at| at.elapsed() < PROGRESS_EVERY)) {
            return Ok(());
        }
        run.written = Some(Instant::now());
        let rate = run.rate();
        let left = run.total_steps.saturating_sub(run.step) * run.items_per_step;
        let progress = Progress {
            step: run.step,
            total_steps: Some(run.total_steps),
            items: run.items(),
            epoch: (run.items() / run.script.items_per_epoch) as u32,
            loss: Some(run.script.loss(run.items())),
            items_per_second: Some(rate),
            windows: run.step / WINDOW,
            eta_seconds: Some(left as f64 / rate),
            validation: run.validation.clone(),
            last_checkpoint: run.checkpoint.clone(),
            ..Progress::at_start(&run.plan.launch, run.plan.kind)
        };
        write(&self.progress, &progress)
    }

    /// Lets the faults happen whose step has come. The ranks that a fault spares wait for the one that it does not.
    fn strike(&self, run: &mut Run<'_>, early: bool) -> Result<(), End> {
        let step = run.step;
        let due = |armed: &&Armed| {
            let fault = &armed.fault;
            fault.fault.kills() && (fault.fault.is_early() == early) && (early || fault.at_step <= step)
        };
        let Some(due) = run.faults.iter().find(due).cloned() else { return Ok(()) };
        self.tell(run, true).map_err(End::failed)?;
        if due.fault.rank % self.world_size != self.number {
            std::thread::sleep(PEER_PATIENCE);
            return Err(End::new(Outcome::LostPeer, format!("rank {} was lost at step {step}", due.fault.rank)));
        }
        due.spend().map_err(End::failed)?;
        let end = |outcome, text: &str| Err(End::new(outcome, format!("{text} at step {step}, as scripted")));
        match due.fault.fault {
            FaultKind::OutOfMemory => end(Outcome::OutOfMemory, "device out of memory"),
            FaultKind::HostOutOfMemory => end(Outcome::HostOutOfMemory, "host out of memory"),
            FaultKind::NonFinite => end(Outcome::NonFinite, "loss is NaN"),
            FaultKind::LossSpike => end(Outcome::LossSpike, "loss rose to 10 times its recent mean"),
            FaultKind::Unsupported => end(Outcome::Unsupported, "these settings are not supported"),
            FaultKind::InvalidPlan => end(Outcome::InvalidPlan, "the plan is not valid"),
            FaultKind::CompileFailed => end(Outcome::CompileFailed, "a kernel does not compile"),
            FaultKind::LostPeer => end(Outcome::LostPeer, "a peer was lost"),
            FaultKind::Hang => loop {
                std::thread::park();
            },
            FaultKind::ExhaustMemory => {
                exhaust_memory(due.fault.bytes.unwrap_or(0));
                end(Outcome::HostOutOfMemory, "host out of memory")
            }
            FaultKind::Crash => crash(due.fault.signal, due.fault.exit_code),
            // They do not kill, and are not due.
            FaultKind::SlowLoader | FaultKind::Slow | FaultKind::QualityLoss => Ok(()),
        }
    }
}

/// Takes so much memory, and gives it back if it may.
fn exhaust_memory(bytes: u64) {
    const PIECE: u64 = 16 << 20;
    let mut taken = Vec::new();
    for _ in 0..bytes.div_ceil(PIECE) {
        // Not zeros: those need no memory before they are written.
        taken.push(vec![1_u8; PIECE as usize]);
        std::thread::sleep(Duration::from_millis(10));
    }
    std::hint::black_box(&taken);
}

fn crash(signal: Option<i32>, code: Option<u8>) -> ! {
    if let Some(signal) = signal.and_then(rustix::process::Signal::from_named_raw) {
        // When the signal does not kill, the exit below does.
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("crashed, as scripted");
    std::process::exit(code.map_or(1, i32::from))
}
