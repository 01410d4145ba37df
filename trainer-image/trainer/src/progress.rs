//! Saying how it goes: `progress.json` and the metrics, a few times a second at most.

use crate::durable::write_json;
use crate::metrics::Metrics;
use pawl_contract::progress::Progress;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Least time between two writes.
const PERIOD: Duration = Duration::from_millis(300);

/// Publishes the progress of rank 0.
#[derive(Debug)]
pub struct Publisher {
    path: Option<PathBuf>,
    metrics: Metrics,
    last: Option<Instant>,
    complained: bool,
}

impl Publisher {
    /// Publishes to the file at `path`, if any, and to `metrics`.
    pub fn new(path: Option<PathBuf>, metrics: Metrics) -> Self {
        Self { path, metrics, last: None, complained: false }
    }

    /// Where metrics are counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether enough time has gone by since the last publication.
    pub fn due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= PERIOD)
    }

    /// Publishes now. A file that cannot be written is complained about once: training goes on.
    pub fn publish(&mut self, progress: &Progress) {
        self.last = Some(Instant::now());
        self.metrics.progress(progress);
        let written = self.path.as_ref().map_or(Ok(()), |path| write_json(path, progress, false));
        if let Err(error) = written
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::error!("cannot write the progress: {error}");
        }
    }
}
