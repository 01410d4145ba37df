//! Batches in order, from loaders that live as long as the settings say.

use crate::ending::Ending;
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
    /// What earlier loaders made steps wait.
    waited: Duration,
    /// Waits that something else was done during.
    hidden: Duration,
    /// The next batch, looked at before its time.
    ahead: Option<Batch>,
}

impl Feed {
    /// Starts at `items` seen items.
    pub fn new(data: Arc<dyn Data>, settings: &Settings, items: u64, step_items: u64, accumulation: u32) -> Self {
        let (workers, prefetch) = (settings.loader_workers.unwrap_or(0), settings.loader_prefetch.unwrap_or(2));
        let by_epoch = workers > 0 && !settings.loader_persistent.unwrap_or(false);
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
        Ok(batch?)
    }

    /// What [`Feed::next_batch`] will give.
    ///
    /// # Errors
    /// When the data cannot be read.
    pub fn peek(&mut self) -> Result<&Batch, Ending> {
        let batch = self.next_batch()?;
        Ok(self.ahead.insert(batch))
    }

    /// Of the time waited, `duration` made nobody wait.
    pub fn hide(&mut self, duration: Duration) {
        self.hidden += duration;
    }

    /// Gives a used batch back.
    pub fn recycle(&self, batch: Batch) {
        self.loader.recycle(batch);
    }

    /// An epoch is over after `items` items: workers that are not persistent end, and new ones begin.
    pub fn epoch_over(&mut self, items: u64) {
        if self.by_epoch {
            self.waited += self.loader.waited();
            // The new loader begins with it.
            self.ahead = None;
            let schedule = Schedule::new(items, self.step_items, self.accumulation);
            self.loader = Loader::new(Arc::clone(&self.data), schedule, self.workers, self.prefetch);
        }
    }

    /// Time that steps have waited for data.
    pub fn waited(&self) -> Duration {
        (self.waited + self.loader.waited()).saturating_sub(self.hidden)
    }
}
