//! Publishes `progress.json` and `metrics.prom`, a few times a second at most.

use crate::metrics::Metrics;
use pawl_contract::progress::Progress;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Minimum interval between two writes.
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
    /// Publishes progress to the file `progress`, and `metrics` to the file `text`; `None` disables either.
    pub fn new(progress: Option<PathBuf>, text: Option<PathBuf>, metrics: Metrics) -> Self {
        Self { progress, text, metrics, last: None, complained: false }
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether the minimum interval since the last write has passed.
    pub fn due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= PERIOD)
    }

    /// Publishes now. A failed write is logged once, and training continues.
    pub fn publish(&mut self, progress: &Progress) {
        self.last = Some(Instant::now());
        if let Err(error) = self.write(progress)
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::error!("cannot write the progress: {error}");
        }
    }

    fn write(&self, progress: &Progress) -> io::Result<()> {
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
