//! Delivers batches in order, from loaders that persist between epochs if the settings say so.

use crate::ending::Ending;
use crate::workload::ending;
use pawl_contract::settings::Settings;
use pawl_workloads::{Batch, Data, Loader, Schedule};
use std::sync::Arc;
use std::time::Duration;

/// The batches of a run.
pub struct Feed {
    data: Arc<dyn Data>,
    loader: Loader,
    workers: u32,
    prefetch: u32,
    /// Whether loaders end with the epoch.
    by_epoch: bool,
    step_items: u64,
    accumulation: u32,
    /// Time that steps waited for earlier loaders.
    waited: Duration,
    /// Waiting time that was overlapped with other work.
    hidden: Duration,
    /// The next batch, if it was peeked.
    ahead: Option<Batch>,
}

impl Feed {
    /// Starts at `items` seen items.
    pub fn new(data: Arc<dyn Data>, settings: &Settings, items: u64, step_items: u64, accumulation: u32) -> Self {
        let (workers, prefetch) = (settings.loader_workers(), settings.loader_prefetch());
        let by_epoch = workers > 0 && !settings.loader_persistent();
        let loader = Loader::new(Arc::clone(&data), Schedule::new(items, step_items, accumulation), workers, prefetch);
        let (waited, hidden) = (Duration::ZERO, Duration::ZERO);
        Self { data, loader, workers, prefetch, by_epoch, step_items, accumulation, waited, hidden, ahead: None }
    }

    /// The next batch.
    ///
    /// # Errors
    /// When the data cannot be read.
    pub fn next_batch(&mut self) -> Result<Batch, Ending> {
        if let Some(batch) = self.ahead.take() {
            return Ok(batch);
        }
        let batch = self.loader.next_batch().ok_or_else(|| Ending::Failed("the loader ended early".to_owned()))?;
        batch.map_err(ending)
    }

    /// Peeks at the batch that [`Feed::next_batch`] will return.
    ///
    /// # Errors
    /// When the data cannot be read.
    pub fn peek(&mut self) -> Result<&Batch, Ending> {
        let batch = self.next_batch()?;
        Ok(self.ahead.insert(batch))
    }

    /// Marks `duration` of the waiting time as overlapped with other work.
    pub fn hide(&mut self, duration: Duration) {
        self.hidden += duration;
    }

    /// Returns a used batch, whose buffers are reused.
    pub fn recycle(&self, batch: Batch) {
        self.loader.recycle(batch);
    }

    /// Batches that the workers have prepared for later steps.
    pub fn prepared(&self) -> u64 {
        self.loader.prepared()
    }

    /// Ends an epoch after `items` items: workers that are not persistent end, and new ones start. Returns whether they
    /// do.
    pub fn epoch_over(&mut self, items: u64) -> bool {
        if self.by_epoch {
            self.waited += self.loader.waited();
            // The new loader starts with it.
            self.ahead = None;
            let schedule = Schedule::new(items, self.step_items, self.accumulation);
            self.loader = Loader::new(Arc::clone(&self.data), schedule, self.workers, self.prefetch);
        }
        self.by_epoch
    }

    /// Time that steps have waited for data.
    pub fn waited(&self) -> Duration {
        (self.waited + self.loader.waited()).saturating_sub(self.hidden)
    }
}
