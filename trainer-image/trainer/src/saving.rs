//! Writing checkpoints on rank 0, and resuming all ranks from one.

use crate::checkpoint::{Checkpoint, CheckpointError, Found, Position, Store, Tensors};
use crate::collective::Gang;
use crate::ending::Ending;
use crate::metrics::Metrics;
use pawl_contract::plan::CheckpointPolicy;
use pawl_contract::progress::{BestCheckpoint, CheckpointRef};
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::Shape;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Consecutive failed checkpoint writes after which the launch fails: unsaved progress is not worth continuing.
const FAILURES: u32 = 3;

/// Writes the checkpoints of a launch.
#[derive(Debug)]
pub struct Saver {
    /// Rank 0 writes; the others follow.
    store: Option<Store>,
    policy: CheckpointPolicy,
    last: Instant,
    failures: u32,
    newest: Option<CheckpointRef>,
    /// Step of the newest checkpoint that this process wrote.
    written: Option<u64>,
}

/// Rank 0's message to the others about the checkpoint to resume from.
#[derive(Serialize, Deserialize)]
struct Announcement {
    position: Position,
    reference: CheckpointRef,
    tensors: Vec<(String, Vec<usize>, bool)>,
}

impl Saver {
    /// Opens the storage at `url` on rank 0.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn new(url: &str, policy: &CheckpointPolicy, rank: u32) -> Result<Self, Ending> {
        let store = if rank == 0 { Some(Store::open(url, policy.keep)?) } else { None };
        Ok(Self { store, policy: policy.clone(), last: Instant::now(), failures: 0, newest: None, written: None })
    }

    /// The newest complete checkpoint.
    pub fn newest(&self) -> Option<&CheckpointRef> {
        self.newest.as_ref()
    }

    /// Whether this process has written the checkpoint of `step`.
    pub fn has_written(&self, step: u64) -> bool {
        self.written == Some(step)
    }

    /// Whether rank 0 wants to write one after this step.
    pub fn due(&self) -> bool {
        self.store.is_some() && self.last.elapsed() >= Duration::from_secs_f64(self.policy.every_seconds.max(0.0))
    }

    /// The checkpoint to resume from: on every rank the one that rank 0 found.
    ///
    /// # Errors
    /// When storage or a peer fails.
    pub fn resume(&mut self, gang: &Gang) -> Result<Option<Checkpoint>, Ending> {
        if !self.policy.resume {
            return Ok(None);
        }
        let bound = self.policy.resume_not_after_items;
        let found = match &self.store {
            Some(store) => store.newest(bound)?,
            None => None,
        };
        if let (Some(store), Some(items)) = (&self.store, bound) {
            store.discard_after(items)?;
        }
        let mine = found.as_ref().map(|Found { reference, checkpoint }| Announcement {
            position: checkpoint.position.clone(),
            reference: reference.clone(),
            tensors: checkpoint
                .tensors
                .iter()
                .map(|(name, array)| (name.clone(), array.shape().to_vec(), matches!(array.data(), Data::U32(_))))
                .collect(),
        });
        let Some(Some(announced)) = gang.gather(&mine)?.into_iter().next() else { return Ok(None) };
        let mut tensors = match found {
            Some(found) => found.checkpoint.tensors,
            None => announced.tensors.iter().map(blank).collect::<Result<Tensors, Ending>>()?,
        };
        for (_, array) in &mut tensors {
            match array.data_mut() {
                Data::F32(values) => gang.broadcast(0, values)?,
                // Words are only copied, never computed with.
                Data::U32(values) => gang.broadcast(0, bytemuck::cast_slice_mut(values))?,
                _ => {}
            }
        }
        tracing::info!(checkpoint = announced.reference.name, items = announced.reference.items, "resuming");
        self.newest = Some(announced.reference);
        Ok(Some(Checkpoint { position: announced.position, tensors }))
    }

    /// Writes a checkpoint on rank 0. With `must`, a failure ends the launch; otherwise only the third consecutive one does.
    ///
    /// # Errors
    /// When storage fails, as described above.
    pub fn save(&mut self, launch: &str, checkpoint: &Checkpoint, must: bool, metrics: &Metrics) -> Result<(), Ending> {
        self.write(must, metrics, |store| store.save(launch, checkpoint))
    }

    /// Writes a checkpoint on rank 0 that is the best so far, with `value` of `metric`. Returns it unless the write failed,
    /// which ends the launch as in [`Saver::save`] without `must`.
    ///
    /// # Errors
    /// When storage fails for the third consecutive time.
    pub fn save_best(
        &mut self,
        launch: &str,
        checkpoint: Checkpoint,
        (metric, value): (&str, f64),
        metrics: &Metrics,
    ) -> Result<Option<BestCheckpoint>, Ending> {
        let mut best = None;
        self.write(false, metrics, |store| {
            let saved = store.save_best(launch, checkpoint, metric, value)?;
            best = Some(saved.clone());
            Ok(saved.checkpoint)
        })?;
        Ok(best)
    }

    fn write(
        &mut self,
        must: bool,
        metrics: &Metrics,
        save: impl FnOnce(&Store) -> Result<CheckpointRef, CheckpointError>,
    ) -> Result<(), Ending> {
        let Some(store) = &self.store else { return Ok(()) };
        let start = Instant::now();
        let result = save(store);
        self.last = Instant::now();
        match result {
            Ok(reference) => {
                metrics.checkpoint(start.elapsed(), true);
                self.written = Some(reference.step);
                tracing::info!(
                    checkpoint = reference.name,
                    seconds = start.elapsed().as_secs_f64(),
                    "checkpoint written"
                );
                self.failures = 0;
                self.newest = Some(reference);
                Ok(())
            }
            Err(error) => {
                metrics.checkpoint(start.elapsed(), false);
                self.failures += 1;
                tracing::error!(failures = self.failures, "{error}");
                if must || self.failures >= FAILURES { Err(error.into()) } else { Ok(()) }
            }
        }
    }
}

/// A tensor to receive into.
fn blank((name, shape, integers): &(String, Vec<usize>, bool)) -> Result<(String, Array), Ending> {
    let shape = Shape::from(shape.as_slice());
    let len = shape.elements();
    let data = if *integers { Data::U32(vec![0; len]) } else { Data::F32(vec![0.0; len]) };
    Ok((name.clone(), Array::new(shape, data)?))
}
