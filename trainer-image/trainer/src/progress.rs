//! Saying how it goes: `progress.json` and `metrics.prom`, a few times a second at most.

use crate::durable::{write, write_json};
use crate::metrics::Metrics;
use pawl_contract::progress::Progress;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Least time between two writes.
const PERIOD: Duration = Duration::from_millis(300);

/// Publishes the progress and the metrics of rank 0.
#[derive(Debug)]
pub struct Publisher {
    progress: Option<PathBuf>,
    text: Option<PathBuf>,
    metrics: Metrics,
    last: Option<Instant>,
    complained: bool,
}

impl Publisher {
    /// Publishes progress to the file at `progress`, and `metrics` to that at `text`, those that are named.
    pub fn new(progress: Option<PathBuf>, text: Option<PathBuf>, metrics: Metrics) -> Self {
        Self { progress, text, metrics, last: None, complained: false }
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
        if let Err(error) = self.write(progress)
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::error!("cannot write how it goes: {error}");
        }
    }

    fn write(&self, progress: &Progress) -> io::Result<()> {
        if let Some(path) = &self.progress {
            write_json(path, progress, false)?;
        }
        match &self.text {
            Some(path) => write(path, self.metrics.text().map_err(io::Error::other)?.as_bytes(), false),
            None => Ok(()),
        }
    }
}
