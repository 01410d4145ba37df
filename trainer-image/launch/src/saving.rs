//! Writing checkpoints on rank 0, and resuming all ranks from one.

use crate::checkpoint::{
    Author, Checkpoint, CheckpointError, Found, Heartbeat, Position, Store, Tensors, Writer, largest_shard,
};
use crate::collective::Gang;
use crate::ending::Ending;
use crate::progress::Publisher;
use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef, reported};
use pawl_contract::env;
use pawl_contract::plan::CheckpointPolicy;
use pawl_contract::progress::RankPhase;
use pawl_graph::array::{Array, Data};
use pawl_graph::graph::Shape;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Consecutive failed checkpoint writes after which the launch fails: unsaved progress is not worth continuing.
const FAILURES: u32 = 3;

/// Minimum time from the end of a save to the start of one that writes only the best checkpoint: a run that improves at
/// every evaluation does not write a checkpoint after each. The next regular checkpoint writes the best one at the
/// latest, so that a run that resumes always knows the best checkpoint of the time before.
const BEST_REST: Duration = Duration::from_secs(30);

/// Maximum number of copies of the states in host memory: a best and a regular checkpoint that are being written, and a
/// newer best one that waits.
const COPIES: usize = 3;

/// Writes the checkpoints of a launch on a thread of its own, while training continues: at most one save is in
/// progress.
///
/// A regular checkpoint that becomes due during a save is postponed until the save has ended. The best checkpoint so
/// far waits in memory, where a better one replaces it, and is written before the next regular checkpoint; after a
/// failed write it waits for the next save. So there are at most three copies (see `COPIES`) of the states in host
/// memory, and one encoded shard.
pub struct Saver {
    /// Rank 0 writes; the others follow.
    writer: Option<Arc<Writer>>,
    url: String,
    policy: CheckpointPolicy,
    publisher: Publisher,
    running: Option<Running>,
    waiting: Option<Best>,
    /// The best checkpoint on storage.
    best: Option<BestCheckpoint>,
    /// End of the last save.
    last: Instant,
    /// Time of the last regular checkpoint's copy.
    regular: Instant,
    failures: u32,
    newest: Option<CheckpointRef>,
    /// Step of the newest checkpoint that this process wrote.
    written: Option<u64>,
    /// Longest save, from the copy of the states to the end of the write.
    longest: Option<Duration>,
}

/// A checkpoint that is the best so far.
pub struct Best {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The validation metric by which it is the best.
    pub metric: String,
    /// Value of the metric.
    pub value: f64,
}

/// A save in progress.
struct Running {
    thread: JoinHandle<Saved>,
    /// Time of copying the states.
    copy: Duration,
    /// The newest step that it contains.
    step: u64,
    /// Metric and value of the best checkpoint that it contains.
    best: Option<(String, f64)>,
}

/// The results of a save, in the order of the writes, and how long each took.
struct Saved {
    best: Option<(Result<BestCheckpoint, Box<Unsaved>>, Duration)>,
    regular: Option<(Result<CheckpointRef, CheckpointError>, Duration)>,
}

/// A best checkpoint whose write failed.
struct Unsaved {
    error: CheckpointError,
    best: Best,
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
    pub fn new(
        url: &str,
        policy: &CheckpointPolicy,
        author: Author,
        rank: u32,
        publisher: &Publisher,
    ) -> Result<Self, Ending> {
        let open = || Writer::open(url, policy.keep, author).map(|writer| writer.with_heartbeat(heartbeat(publisher)));
        Ok(Self {
            writer: (rank == 0).then(open).transpose()?.map(Arc::new),
            url: url.to_owned(),
            policy: policy.clone(),
            publisher: publisher.clone(),
            running: None,
            waiting: None,
            best: None,
            last: Instant::now(),
            regular: Instant::now(),
            failures: 0,
            newest: None,
            written: None,
            longest: None,
        })
    }

    /// Whether this rank writes.
    pub fn writes(&self) -> bool {
        self.writer.is_some()
    }

    /// The newest complete checkpoint.
    pub fn newest(&self) -> Option<&CheckpointRef> {
        self.newest.as_ref()
    }

    /// The best complete checkpoint, by the metric of the policy.
    pub fn best(&self) -> Option<&BestCheckpoint> {
        self.best.as_ref().filter(|best| best.metric == self.policy.best.metric)
    }

    /// Reads the best checkpoint on rank 0; see [`Store::best`]. No save may be in progress.
    ///
    /// # Errors
    /// When storage cannot be read.
    pub fn read_best(&self) -> Result<Option<Found>, Ending> {
        if self.writer.is_none() {
            return Ok(None);
        }
        Ok(Store::open(&self.url)?.with_heartbeat(heartbeat(&self.publisher)).best()?)
    }

    /// The value of the best checkpoint so far, written or not.
    pub fn best_value(&self) -> Option<f64> {
        let metric = &self.policy.best.metric;
        let waiting = self.waiting.as_ref().map(|best| (&best.metric, best.value));
        let running = self.running.as_ref().and_then(|running| running.best.as_ref());
        let running = running.map(|(metric, value)| (metric, *value));
        let written = self.best.as_ref().map(|best| (&best.metric, best.value));
        [waiting, running, written].into_iter().flatten().find(|(known, _)| *known == metric).map(|(_, value)| value)
    }

    /// The longest save so far; `None` before the first one has ended.
    pub fn longest(&self) -> Option<Duration> {
        self.longest
    }

    /// Whether the checkpoint of `step` is written or will be, and none of an earlier step will be written after it.
    pub fn holds(&self, step: u64) -> bool {
        let waiting = self.waiting.as_ref().map(|best| best.checkpoint.position.step);
        let running = self.running.as_ref().map(|running| running.step);
        waiting.is_none_or(|waiting| waiting >= step) && [self.written, waiting, running].contains(&Some(step))
    }

    /// Whether the best checkpoint that waits is of an earlier step than one on storage, because its write failed. It
    /// is then only written with a regular one after it: a run resumes from the checkpoint that was written last.
    fn outdated(&self) -> bool {
        self.waiting.as_ref().is_some_and(|best| self.written > Some(best.checkpoint.position.step))
    }

    /// Whether rank 0 wants to write one after this step.
    pub fn due(&self) -> bool {
        let interval = Duration::from_secs_f64(self.policy.every_seconds.max(0.0));
        self.writes() && self.running.is_none() && self.regular.elapsed() >= interval
    }

    /// The checkpoint to resume from: on every rank the one that rank 0 found.
    ///
    /// # Errors
    /// [`Ending::CheckpointUnreadable`] when there is none although one is expected, or the newest is of a later
    /// format; when storage or a peer fails.
    pub fn resume(&mut self, gang: &Gang) -> Result<Option<Resumed>, Ending> {
        if !self.policy.resume {
            return Ok(None);
        }
        let found = self.find()?;
        if let Some((found, Origin::Own)) = &found {
            self.continues(found)?;
        }
        if let Some(writer) = &self.writer {
            writer.discard_after(self.policy.resume_not_after_items)?;
        }
        let own = found.as_ref().filter(|(_, origin)| *origin == Origin::Own);
        let chain = self.writer.as_ref().map(|writer| reported(&writer.author().trained).to_vec());
        let damaged = self.writer.as_ref().map(|writer| writer.store().damaged());
        let items = own.map_or(0, |(found, _)| found.reference.items);
        self.publisher.resumed(items, chain.unwrap_or_default(), damaged.unwrap_or_default());
        let mine = found.as_ref().map(|(Found { reference, checkpoint, .. }, origin)| Announcement {
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
            self.best.clone_from(&announced.position.best_checkpoint);
        }
        let checkpoint = Checkpoint { position: announced.position, tensors };
        Ok(Some(Resumed { checkpoint, origin: announced.origin }))
    }

    /// Records that what is written from now on continues an own checkpoint.
    ///
    /// # Errors
    /// [`Ending::CheckpointUnreadable`] when it is one of another training, which a job never presents as its own.
    fn continues(&mut self, found: &Found) -> Result<(), Ending> {
        let Found { reference: CheckpointRef { name, items, .. }, author, .. } = found;
        // Nothing is being written yet.
        let writer = self.writer.as_mut().and_then(Arc::get_mut);
        if writer.is_some_and(|writer| !writer.resume(author, *items)) {
            return Err(Ending::CheckpointUnreadable(format!(
                "checkpoint {name} in {} was trained with another workload, configuration or seed, by attempt {} of job {}: \
                 use another train.checkpoint.storage, or name this one in train.resumeFrom to start from it",
                self.url, author.attempt, author.job
            )));
        }
        Ok(())
    }

    /// On rank 0: the newest own checkpoint, or else that of the job to start from.
    fn find(&self) -> Result<Option<(Found, Origin)>, Ending> {
        let Some(writer) = &self.writer else { return Ok(None) };
        if let Some(found) = writer.store().newest(self.policy.resume_not_after_items)? {
            return Ok(Some((found, Origin::Own)));
        }
        let url = &self.url;
        let limit = self.policy.resume_not_after_items;
        let known = self.policy.known();
        let damaged = writer.damaged(known, limit);
        let restore = "restore the storage or its mount, then set spec.suspend to true and back to false to continue; or delete \
                       the job and create it again to start from the beginning";
        if !damaged.is_empty() {
            let names = damaged.join(", ");
            return Err(Ending::CheckpointUnreadable(format!(
                "{url} contains no complete checkpoint, only damaged ones ({names}): {restore}"
            )));
        }
        if let Some(known @ CheckpointRef { name, items, .. }) = known {
            if !writer.is_bad(known, limit)? {
                return Err(Ending::CheckpointUnreadable(format!(
                    "checkpoint {name} at {items} items was written, but {url} contains no complete checkpoint: {restore}"
                )));
            }
            tracing::warn!(
                "nothing that was saved, such as {name}, is before the last good position: training begins anew"
            );
        }
        self.other()
    }

    /// On rank 0: the checkpoint of the job to start from.
    fn other(&self) -> Result<Option<(Found, Origin)>, Ending> {
        let Some(from) = &self.policy.resume_from else { return Ok(None) };
        let field = "train.resumeFrom.storage";
        let location = std::env::var(env::RESUME_FROM).unwrap_or_else(|_| from.storage.clone());
        let store = Store::open(&location).map_err(|error| Ending::InvalidPlan(format!("{field}: {error}")))?;
        let store = store.with_heartbeat(heartbeat(&self.publisher));
        let found = store.newest(None)?.ok_or_else(|| {
            Ending::InvalidPlan(format!(
                "{field}: {} contains no complete checkpoint: use status.training.storage of a job that has trained",
                from.storage
            ))
        })?;
        let origin = if from.weights_only { Origin::OtherWeights } else { Origin::Other };
        Ok(Some((found, origin)))
    }

    /// On rank 0, after the last save of a training that has diverged after `items`: deletes what was saved since then.
    /// The report of the divergence may be lost, and nothing in a checkpoint says that it is damaged. Errors are
    /// logged: the next launch deletes it if its plan says so.
    pub fn discard_after(&mut self, items: u64) {
        let Some(writer) = &self.writer else { return };
        if let Err(error) = writer.discard_after(Some(items)) {
            tracing::error!(items, "what was saved after the last healthy loss is not deleted: {error}");
        }
        self.newest.take_if(|newest| newest.items > items);
        self.best.take_if(|best| best.checkpoint.items > items);
    }

    /// Makes `best` the checkpoint that waits to be written as the best one.
    pub fn keep_best(&mut self, best: Best) {
        self.waiting = Some(best);
    }

    /// Drops the best checkpoint that waits, before a better one is copied: the two are never in memory together.
    pub fn make_room(&mut self) {
        self.waiting = None;
    }

    /// Starts to write the best checkpoint that waits and then `regular`, whose copy took `copy`; `None` when the
    /// checkpoint of this step is the best one, or is written already. No save may be in progress.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(&mut self, regular: Option<Checkpoint>, copy: Duration) -> Result<(), Ending> {
        self.regular = Instant::now();
        self.spawn(regular, copy)
    }

    fn spawn(&mut self, regular: Option<Checkpoint>, copy: Duration) -> Result<(), Ending> {
        debug_assert!(self.running.is_none());
        let best = self.waiting.take();
        let steps = [best.as_ref().map(|best| &best.checkpoint), regular.as_ref()];
        let Some(step) = steps.into_iter().flatten().map(|checkpoint| checkpoint.position.step).max() else {
            return Ok(());
        };
        let Some(writer) = self.writer.clone() else { return Ok(()) };
        let (kept, value) = (self.best.clone(), best.as_ref().map(|best| (best.metric.clone(), best.value)));
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(move || write(&writer, best, regular, kept));
        let thread = thread.map_err(|error| Ending::Failed(format!("cannot start writing a checkpoint: {error}")))?;
        self.running = Some(Running { thread, copy, step, best: value });
        Ok(())
    }

    /// Between two steps: takes the result of a save that has ended, and starts to write the best checkpoint if it has
    /// waited for long enough.
    ///
    /// # Errors
    /// When a save has failed for the third consecutive time, or must not continue.
    pub fn poll(&mut self) -> Result<(), Ending> {
        if self.running.as_ref().is_some_and(|running| running.thread.is_finished()) {
            self.wait(false)?;
        }
        // A regular checkpoint that is due writes the best one too.
        let waits = self.waiting.is_some() && !self.outdated();
        if self.running.is_none() && !self.due() && waits && self.last.elapsed() >= BEST_REST {
            self.spawn(None, Duration::ZERO)?;
        }
        Ok(())
    }

    /// Waits for the save in progress. With `must`, its failure is an error; otherwise only the third consecutive one
    /// is. A best checkpoint whose write failed waits for the next save, unless a better one does.
    ///
    /// # Errors
    /// When storage fails, as described above; when a later gang writes; when a tensor is not finite.
    pub fn wait(&mut self, must: bool) -> Result<(), Ending> {
        let Some(Running { thread, copy, .. }) = self.running.take() else { return Ok(()) };
        let joined = thread.join();
        let Saved { best, regular } =
            joined.map_err(|_| Ending::Failed("writing a checkpoint panicked, which is a bug".to_owned()))?;
        self.last = Instant::now();
        let writes = [best.as_ref().map(|(_, took)| *took), regular.as_ref().map(|(_, took)| *took)];
        self.longest = self.longest.max(Some(copy + writes.into_iter().flatten().sum::<Duration>()));
        let first = best.map_or(Ok(()), |(result, took)| {
            let result = match result {
                Ok(saved) => Ok(self.best.insert(saved).checkpoint.clone()),
                Err(unsaved) => {
                    let Unsaved { error, best } = *unsaved;
                    if !fatal(&error) {
                        self.waiting.get_or_insert(best);
                    }
                    Err(error)
                }
            };
            self.record(result, took, must)
        });
        let second = regular.map_or(Ok(()), |(result, took)| self.record(result, took, must));
        first.and(second)
    }

    /// Ends the saving of a launch that ends with another error: waits for the save in progress, then writes the best
    /// checkpoint that waits, unless a later one was written. Errors are logged.
    pub fn finish(&mut self) {
        let waiting = |saver: &mut Self| {
            saver.publisher.enter(RankPhase::Saving);
            saver.wait(false)?;
            if saver.outdated() {
                tracing::warn!(
                    "the best checkpoint is not written: its write failed, and a later checkpoint was written"
                );
                return Ok(());
            }
            saver.spawn(None, Duration::ZERO)?;
            saver.wait(false)
        };
        if (self.running.is_some() || self.waiting.is_some())
            && let Err(ending) = waiting(self)
        {
            tracing::warn!("the last checkpoint is not written: {ending}");
        }
    }

    fn record(
        &mut self,
        result: Result<CheckpointRef, CheckpointError>,
        took: Duration,
        must: bool,
    ) -> Result<(), Ending> {
        self.publisher.metrics().checkpoint(took, result.is_ok());
        match result {
            Ok(reference) => {
                self.written = Some(reference.step);
                tracing::info!(checkpoint = reference.name, seconds = took.as_secs_f64(), "checkpoint written");
                self.failures = 0;
                self.newest = Some(reference);
                Ok(())
            }
            Err(error) => {
                self.failures += 1;
                tracing::error!(failures = self.failures, "{error}");
                if must || fatal(&error) || self.failures >= FAILURES { Err(error.into()) } else { Ok(()) }
            }
        }
    }
}

/// Whether an error ends the launch: another attempt to write the same checkpoint would fail too.
fn fatal(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Superseded { .. } | CheckpointError::NotFinite { .. })
}

/// Writes `best`, then `regular`, whose manifest names the best one: the new one or else `kept`.
fn write(writer: &Writer, best: Option<Best>, regular: Option<Checkpoint>, kept: Option<BestCheckpoint>) -> Saved {
    let best = best.map(|best| {
        let start = Instant::now();
        (save_best(writer, best), start.elapsed())
    });
    let regular = regular.map(|mut regular| {
        let start = Instant::now();
        let new = best.as_ref().and_then(|(result, _)| result.as_ref().ok());
        regular.position.best_checkpoint = new.cloned().or(kept);
        (writer.save(&regular), start.elapsed())
    });
    Saved { best, regular }
}

/// Writes `best`; keeps it if that fails.
fn save_best(writer: &Writer, mut best: Best) -> Result<BestCheckpoint, Box<Unsaved>> {
    let saved = writer.save_best(&mut best.checkpoint, &best.metric, best.value);
    saved.map_err(|error| Box::new(Unsaved { error, best }))
}

/// Maximum bytes of host memory that a [`Saver`] needs for checkpoints of tensors of `sizes` bytes.
pub fn memory(sizes: &[usize]) -> usize {
    COPIES * sizes.iter().sum::<usize>() + largest_shard(sizes)
}

/// Reports bytes as heartbeats.
fn heartbeat(publisher: &Publisher) -> Heartbeat {
    let publisher = publisher.clone();
    Arc::new(move |bytes| publisher.beat(bytes))
}

/// A tensor to receive into.
fn blank((name, shape, integers): &(String, Vec<usize>, bool)) -> Result<(String, Array), Ending> {
    let shape = Shape::from(shape.as_slice());
    let len = shape.elements();
    let data = if *integers { Data::U32(vec![0; len]) } else { Data::F32(vec![0.0; len]) };
    Ok((name.clone(), Array::new(shape, data)?))
}

#[cfg(test)]
mod rule;
#[cfg(test)]
mod tests;
