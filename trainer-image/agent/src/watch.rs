//! Hang detection: the progress of rank 0, and the time since its last sign of life (see [`pawl_contract::progress`]).

use crate::files::{MAX_PROGRESS, read_bounded};
use crate::node::Limits;
use crate::ranks::{Ranks, Shared};
use pawl_contract::plan::LaunchPlan;
use pawl_contract::plausible;
use pawl_contract::progress::{Progress, RankPhase};
use pawl_contract::report::{printable, truncated, unprintable};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The progress of rank 0, and when it last changed.
pub(crate) struct Watch {
    file: PathBuf,
    stuck: PathBuf,
    launch: String,
    timeout: Duration,
    allowance: Duration,
    longest: fn(RankPhase) -> Option<Duration>,
    resumes: bool,
    /// Whether the progress is that of a script whose output is read: its heartbeats are lines in which something was
    /// found.
    reads_lines: bool,
    text: Vec<u8>,
    pub(crate) progress: Option<Progress>,
    moved: bool,
    /// Last sign of life.
    since: Instant,
    /// Begin of the current phase, or of the newest step in it.
    phase_since: Instant,
    pub(crate) started: Instant,
}

impl Watch {
    pub(crate) fn new(plan: &LaunchPlan, shared: &Shared, limits: &Limits) -> Self {
        let dir = shared.dir(&plan.launch);
        let timeout = Duration::try_from_secs_f64(plan.hang_timeout_seconds).unwrap_or(Duration::MAX);
        Self {
            file: dir.join("progress.json"),
            stuck: dir.join("stuck.txt"),
            launch: plan.launch.clone(),
            timeout,
            allowance: limits.start_allowance,
            longest: limits.longest_phase,
            resumes: plan.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.resume),
            reads_lines: shared.script.as_ref().is_some_and(|script| script.monitor().is_some()),
            text: Vec::new(),
            progress: None,
            moved: false,
            since: Instant::now(),
            phase_since: Instant::now(),
            started: Instant::now(),
        }
    }

    /// Reads `progress.json`; returns the progress if it has changed, and may be believed. Numbers that cannot be true
    /// are a sign of life all the same.
    pub(crate) fn look(&mut self) -> Option<Progress> {
        let text = read_bounded(&self.file, MAX_PROGRESS).ok()?;
        if text == self.text {
            return None;
        }
        self.text = text;
        let mut progress = serde_json::from_slice::<Progress>(&self.text).ok().filter(|p| p.launch == self.launch)?;
        progress.straggler = progress.straggler.as_deref().map(printable);
        if let Some(validation) = &mut progress.validation {
            validation.retain(|name| !name.contains(unprintable));
        }
        let work = |p: &Progress| {
            (p.step, p.items, p.validation.as_ref().map(|v| v.items), p.last_checkpoint.as_ref().map(|c| c.step))
        };
        let before = self.progress.as_ref();
        let worked = before.map(work) != Some(work(&progress));
        let phase_changed = before.and_then(|p| p.phase) != progress.phase;
        if worked || phase_changed {
            self.phase_since = Instant::now();
        }
        // While steps are expected, other work that advances, such as the write of a checkpoint, proves nothing about
        // them.
        let beats = self.reads_lines || !trains(progress.phase);
        let advanced = beats && before.map(|p| p.heartbeat) != Some(progress.heartbeat);
        if worked || phase_changed || advanced {
            self.since = Instant::now();
        }
        // The first progress of training may only report the position at which the launch resumes.
        self.moved |= match before {
            Some(before) => trains(before.phase) && progress.step > before.step,
            None => trains(progress.phase) && progress.step > 0 && !self.resumes,
        };
        self.progress = Some(progress.clone());
        plausible::progress(&progress).is_none().then_some(progress)
    }

    /// The message of a hang: no sign of life for too long, or a phase that does not end.
    pub(crate) fn hung(&self) -> Option<String> {
        let phase = self.progress.as_ref().and_then(|progress| progress.phase);
        let preparing = phase.filter(|phase| !trains(Some(*phase)));
        let allowed =
            if preparing.is_none() && self.moved { self.timeout } else { self.timeout.saturating_add(self.allowance) };
        let (silent, lasted) = (self.since.elapsed(), self.phase_since.elapsed());
        let place = match (&self.progress, preparing) {
            (Some(p), Some(phase)) if p.step > 0 => format!("; the phase is {phase}, the last step was {}", p.step),
            (_, Some(phase)) => format!("; the phase is {phase}, no step was completed"),
            (Some(p), None) => format!("; the last step was {}", p.step),
            (None, None) => "; no step was completed".to_owned(),
        };
        if silent >= allowed {
            return Some(format!("no progress for {:.0} s{place}", silent.as_secs_f64()));
        }
        let longest = preparing.and_then(self.longest).filter(|longest| lasted >= *longest)?;
        Some(format!(
            "no step for {:.0} s although work goes on: the limit of this phase is {:.0} s{place}",
            lasted.as_secs_f64(),
            longest.as_secs_f64()
        ))
    }

    /// Writes the state of the ranks to a file; returns the beginning of it in one line.
    pub(crate) fn note_stuck(&self, ranks: &Ranks) -> String {
        let text = ranks.whereabouts();
        if let Err(e) = std::fs::write(&self.stuck, &text) {
            tracing::warn!(file = %self.stuck.display(), error = %e, "cannot write where the ranks hang");
        }
        truncated(&text, 1000).lines().collect::<Vec<_>>().join(" ")
    }
}

/// Whether steps are expected: a trainer that reports no phases is taken to train.
fn trains(phase: Option<RankPhase>) -> bool {
    phase.is_none_or(|phase| phase == RankPhase::Training)
}
