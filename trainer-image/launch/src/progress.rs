//! Publishes `progress.json` and `metrics.prom`, a few times a second at most.

use crate::metrics::Metrics;
use parking_lot::Mutex;
use pawl_contract::checkpoint::TrainedPart;
use pawl_contract::plan::LaunchKind;
use pawl_contract::progress::{Progress, RankPhase};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Minimum interval between two writes.
const PERIOD: Duration = Duration::from_millis(300);

/// Publishes the progress and the metrics of rank 0. Clones share the state: the threads that work outside of steps
/// report heartbeats through them.
#[derive(Clone, Debug)]
pub struct Publisher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    progress: Option<PathBuf>,
    text: Option<PathBuf>,
    metrics: Metrics,
    heartbeat: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    newest: Progress,
    last: Option<Instant>,
    complained: bool,
}

impl Publisher {
    /// Publishes the progress of `launch` to the file `progress`, and `metrics` to the file `text`; `None` disables
    /// either.
    pub fn new(
        (launch, kind): (&str, LaunchKind),
        progress: Option<PathBuf>,
        text: Option<PathBuf>,
        metrics: Metrics,
    ) -> Self {
        let newest = Progress { phase: Some(RankPhase::Starting), ..Progress::at_start(launch, kind) };
        let state = Mutex::new(State { newest, last: None, complained: false });
        Self(Arc::new(Shared { progress, text, metrics, heartbeat: AtomicU64::new(0), state }))
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Whether the minimum interval since the last write has passed.
    pub fn due(&self) -> bool {
        self.0.state.lock().due()
    }

    /// Publishes `progress` now, with the current phase and heartbeat. A failed write is logged once, and training
    /// continues.
    pub fn publish(&self, progress: Progress) {
        let mut state = self.0.state.lock();
        let Progress { phase, resumed_items, .. } = state.newest;
        let trained = std::mem::take(&mut state.newest.trained);
        let quarantined = std::mem::take(&mut state.newest.quarantined);
        state.newest = Progress { phase, resumed_items, trained, quarantined, ..progress };
        self.0.write(&mut state);
    }

    /// Notes at how many items the launch resumed, 0 for none, the parts of the model, and the names of damaged
    /// checkpoints: all that is published from now on says so.
    pub fn resumed(&self, items: u64, trained: Vec<TrainedPart>, quarantined: Vec<String>) {
        let newest = &mut self.0.state.lock().newest;
        (newest.resumed_items, newest.trained, newest.quarantined) = (Some(items), trained, quarantined);
    }

    /// Enters a phase, and publishes it unless it is the current one.
    pub fn enter(&self, phase: RankPhase) {
        let mut state = self.0.state.lock();
        if state.newest.phase != Some(phase) {
            state.newest.phase = Some(phase);
            self.0.write(&mut state);
        }
    }

    /// Records that work has advanced by `amount`, such as bytes written; publishes it when due. While the rank trains,
    /// only its steps publish: a checkpoint that is written meanwhile says nothing about them.
    pub fn beat(&self, amount: u64) {
        self.0.heartbeat.fetch_add(amount, Ordering::Relaxed);
        let mut state = self.0.state.lock();
        if state.newest.phase != Some(RankPhase::Training) && state.due() {
            self.0.write(&mut state);
        }
    }
}

impl State {
    fn due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= PERIOD)
    }
}

impl Shared {
    fn write(&self, state: &mut State) {
        state.last = Some(Instant::now());
        state.newest.heartbeat = self.heartbeat.load(Ordering::Relaxed);
        if let Err(error) = self.replace(&state.newest)
            && !std::mem::replace(&mut state.complained, true)
        {
            tracing::error!("cannot write the progress: {error}");
        }
    }

    fn replace(&self, progress: &Progress) -> io::Result<()> {
        if let Some(path) = &self.progress {
            replace(path, &serde_json::to_vec_pretty(progress)?)?;
        }
        match &self.text {
            Some(path) => replace(path, self.metrics.text().map_err(io::Error::other)?.as_bytes()),
            None => Ok(()),
        }
    }
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    pawl_durable::replace(path, content)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
    fn work_outside_of_training_is_published_and_work_beside_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("progress.json");
        let publisher = Publisher::new(("l", LaunchKind::Train), Some(file.clone()), None, Metrics::new().unwrap());
        let read = || serde_json::from_slice::<Progress>(&std::fs::read(&file).unwrap()).unwrap();
        publisher.enter(RankPhase::Saving);
        publisher.beat(5);
        std::thread::sleep(PERIOD);
        publisher.beat(2);
        assert_eq!((read().phase, read().heartbeat), (Some(RankPhase::Saving), 7));
        publisher.enter(RankPhase::Training);
        std::thread::sleep(PERIOD);
        publisher.beat(100);
        assert_eq!((read().phase, read().heartbeat), (Some(RankPhase::Training), 7));
        publisher.publish(Progress { step: 3, ..Progress::at_start("l", LaunchKind::Train) });
        assert_eq!((read().phase, read().heartbeat, read().step), (Some(RankPhase::Training), 107, 3));
    }
}
