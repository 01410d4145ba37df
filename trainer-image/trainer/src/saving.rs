//! Writing checkpoints on rank 0, and resuming all ranks from one.

use crate::checkpoint::{Author, Checkpoint, CheckpointError, Found, Position, Store, Tensors, Writer};
use crate::collective::Gang;
use crate::ending::Ending;
use crate::metrics::Metrics;
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef};
use pawl_contract::env;
use pawl_contract::plan::CheckpointPolicy;
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
    writer: Option<Writer>,
    url: String,
    policy: CheckpointPolicy,
    last: Instant,
    failures: u32,
    newest: Option<CheckpointRef>,
    /// Step of the newest checkpoint that this process wrote.
    written: Option<u64>,
}

/// Whose checkpoint it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// This job's own.
    Own,
    /// Another job's, at its position.
    Other,
    /// Another job's, of which only the weights are used.
    OtherWeights,
}

/// A checkpoint to resume from.
#[derive(Debug)]
pub struct Resumed {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Whose it is.
    pub origin: Origin,
}

/// Rank 0's message to the others about the checkpoint to resume from.
#[derive(Serialize, Deserialize)]
struct Announcement {
    origin: Origin,
    position: Position,
    reference: CheckpointRef,
    tensors: Vec<(String, Vec<usize>, bool)>,
}

impl Saver {
    /// Opens the storage at `url` on rank 0, and supersedes all earlier gangs of the job.
    ///
    /// # Errors
    /// When it cannot be opened, or a later gang writes there.
    pub fn new(url: &str, policy: &CheckpointPolicy, author: Author, rank: u32) -> Result<Self, Ending> {
        let writer = if rank == 0 { Some(Writer::open(url, policy.keep, author)?) } else { None };
        Ok(Self {
            writer,
            url: url.to_owned(),
            policy: policy.clone(),
            last: Instant::now(),
            failures: 0,
            newest: None,
            written: None,
        })
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
        self.writer.is_some() && self.last.elapsed() >= Duration::from_secs_f64(self.policy.every_seconds.max(0.0))
    }

    /// The checkpoint to resume from: on every rank the one that rank 0 found.
    ///
    /// # Errors
    /// [`Ending::CheckpointUnreadable`] when there is none although one is expected, or the newest is of a later format; when
    /// storage or a peer fails.
    pub fn resume(&mut self, gang: &Gang) -> Result<Option<Resumed>, Ending> {
        if !self.policy.resume {
            return Ok(None);
        }
        let found = self.find()?;
        if let (Some(writer), Some(items)) = (&self.writer, self.policy.resume_not_after_items) {
            writer.discard_after(items)?;
        }
        let mine = found.as_ref().map(|(Found { reference, checkpoint }, origin)| Announcement {
            origin: *origin,
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
            Some((found, _)) => found.checkpoint.tensors,
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
        if announced.origin == Origin::Own {
            self.newest = Some(announced.reference);
        }
        let checkpoint = Checkpoint { position: announced.position, tensors };
        Ok(Some(Resumed { checkpoint, origin: announced.origin }))
    }

    /// On rank 0: the newest own checkpoint, or else that of the job to start from.
    fn find(&self) -> Result<Option<(Found, Origin)>, Ending> {
        let Some(writer) = &self.writer else { return Ok(None) };
        if let Some(found) = writer.newest(self.policy.resume_not_after_items)? {
            return Ok(Some((found, Origin::Own)));
        }
        let url = &self.url;
        if let Some(CheckpointRef { name, items, .. }) = &self.policy.expected {
            return Err(Ending::CheckpointUnreadable(format!(
                "checkpoint {name} at {items} items was written, but {url} contains no complete checkpoint: restore the storage or \
                 its mount, then set spec.suspend to true and back to false to continue; or delete the job and create it again \
                 to start from the beginning"
            )));
        }
        let Some(from) = &self.policy.resume_from else { return Ok(None) };
        let field = "train.resumeFrom.storage";
        let location = std::env::var(env::RESUME_FROM).unwrap_or_else(|_| from.storage.clone());
        let store = Store::open(&location).map_err(|error| Ending::InvalidPlan(format!("{field}: {error}")))?;
        let found = store.newest(None)?.ok_or_else(|| {
            Ending::InvalidPlan(format!(
                "{field}: {} contains no complete checkpoint: use status.training.storage of a job that has trained",
                from.storage
            ))
        })?;
        let origin = if from.weights_only { Origin::OtherWeights } else { Origin::Other };
        Ok(Some((found, origin)))
    }

    /// Writes a checkpoint on rank 0. With `must`, a failure ends the launch; otherwise only the third consecutive one does.
    ///
    /// # Errors
    /// When storage fails, as described above.
    pub fn save(&mut self, checkpoint: &Checkpoint, must: bool, metrics: &Metrics) -> Result<(), Ending> {
        self.write(must, metrics, |writer| writer.save(checkpoint))
    }

    /// Writes a checkpoint on rank 0 that is the best so far, with `value` of `metric`. Returns it unless the write failed,
    /// which ends the launch as in [`Saver::save`] without `must`.
    ///
    /// # Errors
    /// When storage fails for the third consecutive time.
    pub fn save_best(
        &mut self,
        checkpoint: Checkpoint,
        (metric, value): (&str, f64),
        metrics: &Metrics,
    ) -> Result<Option<BestCheckpoint>, Ending> {
        let mut best = None;
        self.write(false, metrics, |writer| {
            let saved = writer.save_best(checkpoint, metric, value)?;
            best = Some(saved.clone());
            Ok(saved.checkpoint)
        })?;
        Ok(best)
    }

    fn write(
        &mut self,
        must: bool,
        metrics: &Metrics,
        save: impl FnOnce(&Writer) -> Result<CheckpointRef, CheckpointError>,
    ) -> Result<(), Ending> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let start = Instant::now();
        let result = save(writer);
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
                let superseded = matches!(error, CheckpointError::Superseded { .. });
                if must || superseded || self.failures >= FAILURES { Err(error.into()) } else { Ok(()) }
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
