//! Hang detection: the progress of rank 0, and the time since it last changed.

use crate::files::{MAX_PROGRESS, read_bounded};
use crate::node::Limits;
use crate::ranks::{Ranks, Shared};
use pawl_contract::plan::LaunchPlan;
use pawl_contract::progress::Progress;
use pawl_contract::report::truncated;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The progress of rank 0, and when it last changed.
pub(crate) struct Watch {
    file: PathBuf,
    stuck: PathBuf,
    launch: String,
    timeout: Duration,
    allowance: Duration,
    resumes: bool,
    text: Vec<u8>,
    pub(crate) progress: Option<Progress>,
    moved: bool,
    since: Instant,
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
            resumes: plan.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.resume),
            text: Vec::new(),
            progress: None,
            moved: false,
            since: Instant::now(),
            started: Instant::now(),
        }
    }

    /// Reads `progress.json`; returns the progress if it has changed.
    pub(crate) fn look(&mut self) -> Option<Progress> {
        let text = read_bounded(&self.file, MAX_PROGRESS).ok()?;
        if text == self.text {
            return None;
        }
        self.text = text;
        let progress = serde_json::from_slice::<Progress>(&self.text).ok().filter(|p| p.launch == self.launch)?;
        let mark = |p: &Progress| {
            (p.step, p.items, p.validation.as_ref().map(|v| v.items), p.last_checkpoint.as_ref().map(|c| c.step))
        };
        let before = self.progress.as_ref().map(mark);
        if before != Some(mark(&progress)) {
            self.since = Instant::now();
            // The first progress may only report the position at which the launch resumes.
            self.moved |= before.is_some() || (progress.step > 0 && !self.resumes);
        }
        self.progress = Some(progress.clone());
        Some(progress)
    }

    /// The message of a hang: no progress for too long.
    pub(crate) fn hung(&self) -> Option<String> {
        let allowed = if self.moved { self.timeout } else { self.timeout.saturating_add(self.allowance) };
        let silent = self.since.elapsed();
        (silent >= allowed).then(|| match &self.progress {
            Some(p) => format!("no progress for {:.0} s; the last step was {}", silent.as_secs_f64(), p.step),
            None => format!("no progress for {:.0} s; no step was completed", silent.as_secs_f64()),
        })
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
