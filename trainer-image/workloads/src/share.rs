//! A rank's share of the items of a run.

use crate::random::mix;
use crate::workload::{At, Request, WorkloadError};

/// The sizes of batches, and the place of a rank in its gang.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Items per micro-step and rank.
    pub batch: usize,
    /// Items per evaluation batch.
    pub evaluation_batch: usize,
    /// Seed of the launch.
    pub seed: u64,
    /// This rank.
    pub rank: u64,
    /// Ranks in the gang.
    pub world: u64,
    /// Micro-steps per step.
    pub accumulation: u64,
}

impl Share {
    /// The share of the rank that `request` names.
    ///
    /// # Errors
    /// When `globalBatch` cannot be divided among the ranks.
    pub fn new(request: &Request) -> Result<Self, WorkloadError> {
        let (settings, world) = (&request.settings, request.world.max(1));
        let accumulation = settings.accumulation(world).map_err(|mismatch| {
            WorkloadError::setting("globalBatch", mismatch.global_batch, format!("is not possible: {mismatch}"))
        })?;
        let batch = settings.batch_per_gpu().max(1);
        Ok(Self {
            batch: batch as usize,
            evaluation_batch: settings.eval_batch.unwrap_or(batch).max(1) as usize,
            seed: request.seed,
            rank: u64::from(request.rank),
            world: u64::from(world),
            accumulation: u64::from(accumulation.max(1)),
        })
    }

    /// The first item of this rank's batch at `at`, counted over the whole gang and run.
    pub fn first_item(&self, at: At) -> u64 {
        at.items + (u64::from(at.micro) * self.world + self.rank) * self.batch as u64
    }

    /// Counter of random draws on the device, such as those of dropout: unique per micro-step and rank.
    pub fn counter(&self, at: At) -> u32 {
        mix(self.seed ^ mix(self.first_item(at))) as u32
    }

    /// Micro-batches per step over all ranks.
    pub fn micro_batches(&self) -> u64 {
        self.accumulation * self.world
    }

    /// Items per step over all ranks.
    pub fn step_items(&self) -> u64 {
        self.micro_batches() * self.batch as u64
    }
}
