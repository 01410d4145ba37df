//! Loads batches: prefetched by worker threads, delivered in order.

use crate::workload::{At, Batch, Data, WorkloadError};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Prepares the batches of a schedule.
///
/// With workers, at most `workers * prefetch` batches are prepared or in preparation; the order of delivery is that of
/// the schedule and the bytes do not depend on the number of workers. Without workers, a batch is made on request.
pub struct Loader {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    delivered: u64,
    waited: Duration,
}

struct Shared {
    data: Arc<dyn Data>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Maximum number of batches prepared or in preparation.
    bound: u64,
}

struct Queue {
    schedule: Box<dyn Iterator<Item = At> + Send>,
    /// Index of the next batch that a worker takes.
    next: u64,
    /// Whether the schedule has ended.
    ended: bool,
    /// Index of the next batch that is delivered.
    wanted: u64,
    ready: BTreeMap<u64, Result<Batch, WorkloadError>>,
    spare: Vec<Batch>,
    stop: bool,
}

impl Loader {
    /// Starts `workers` threads that prepare the batches of `schedule`, each up to `prefetch` (at least 1) ahead.
    pub fn new(
        data: Arc<dyn Data>,
        schedule: impl Iterator<Item = At> + Send + 'static,
        workers: u32,
        prefetch: u32,
    ) -> Self {
        let queue = Queue {
            schedule: Box::new(schedule),
            next: 0,
            ended: false,
            wanted: 0,
            ready: BTreeMap::new(),
            spare: Vec::new(),
            stop: false,
        };
        let bound = u64::from(workers) * u64::from(prefetch.max(1));
        let shared = Arc::new(Shared { data, queue: Mutex::new(queue), changed: Condvar::new(), bound });
        let workers = (0..workers)
            .filter_map(|number| {
                let shared = Arc::clone(&shared);
                let name = format!("loader-{number}");
                std::thread::Builder::new().name(name).spawn(move || shared.work()).ok()
            })
            .collect();
        Self { shared, workers, delivered: 0, waited: Duration::ZERO }
    }

    /// The next batch; `None` when the schedule has ended.
    ///
    /// # Errors
    /// When the batch could not be made.
    pub fn next_batch(&mut self) -> Option<Result<Batch, WorkloadError>> {
        let began = Instant::now();
        let batch = if self.workers.is_empty() { self.make() } else { self.take() };
        self.waited += began.elapsed();
        self.delivered += u64::from(batch.is_some());
        batch
    }

    /// Returns a used batch, whose buffers are reused.
    pub fn recycle(&self, batch: Batch) {
        let mut queue = self.shared.queue.lock();
        if queue.spare.len() as u64 <= self.shared.bound {
            queue.spare.push(batch);
        }
    }

    /// Total time spent in [`Loader::next_batch`]: the time that training steps waited for data.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Batches that are prepared, and not delivered yet.
    pub fn prepared(&self) -> u64 {
        self.shared.queue.lock().ready.len() as u64
    }

    /// Batches delivered so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    fn make(&self) -> Option<Result<Batch, WorkloadError>> {
        let (at, mut batch) = {
            let mut queue = self.shared.queue.lock();
            (queue.schedule.next()?, queue.spare.pop().unwrap_or_default())
        };
        Some(self.shared.data.train(at, &mut batch).map(|()| batch))
    }

    fn take(&self) -> Option<Result<Batch, WorkloadError>> {
        let mut queue = self.shared.queue.lock();
        loop {
            let wanted = queue.wanted;
            if let Some(batch) = queue.ready.remove(&wanted) {
                queue.wanted += 1;
                self.shared.changed.notify_all();
                return Some(batch);
            }
            if queue.ended && queue.next == wanted {
                return None;
            }
            self.shared.changed.wait(&mut queue);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some((number, at, mut batch)) = self.claim() {
            // A panic while making a batch must fail the step that needs it, not leave it waiting.
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.data.train(at, &mut batch)));
            let result = match made {
                Ok(result) => result.map(|()| batch),
                Err(_) => Err(WorkloadError::Worker { number }),
            };
            self.queue.lock().ready.insert(number, result);
            self.changed.notify_all();
        }
    }

    /// The next batch to prepare, once there is capacity; `None` at the end.
    fn claim(&self) -> Option<(u64, At, Batch)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop || queue.ended {
                return None;
            }
            if queue.next - queue.wanted < self.bound {
                let Some(at) = queue.schedule.next() else {
                    queue.ended = true;
                    self.changed.notify_all();
                    return None;
                };
                queue.next += 1;
                return Some((queue.next - 1, at, queue.spare.pop().unwrap_or_default()));
            }
            self.changed.wait(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_graph::array::Array;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Batches that hold their own position; made out of order on purpose. Micro-step `fails` cannot be made.
    struct Positions {
        fails: u64,
        panics: bool,
        open: AtomicU64,
        most: AtomicU64,
    }

    impl Data for Positions {
        fn train(&self, at: At, batch: &mut Batch) -> Result<(), WorkloadError> {
            let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(open, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(crate::random::mix(at.items) % 300));
            if at.items == self.fails {
                assert!(!self.panics, "asked to");
                return Err(WorkloadError::setting("x", 1, "fails"));
            }
            batch.inputs = vec![Array::scalar(at.items as f32)];
            Ok(())
        }
        fn evaluations(&self) -> usize {
            0
        }
        fn evaluation(&self, _: usize) -> Result<Batch, WorkloadError> {
            Ok(Batch::default())
        }
        fn sums(&self) -> usize {
            0
        }
        fn add(&self, _: usize, _: &[Array], _: &mut [f64]) {}
        fn metrics(&self, _: &[f64]) -> BTreeMap<String, f64> {
            BTreeMap::new()
        }
    }

    fn positions(fails: u64, panics: bool) -> Arc<Positions> {
        Arc::new(Positions { fails, panics, open: AtomicU64::new(0), most: AtomicU64::new(0) })
    }

    fn schedule(count: u64) -> impl Iterator<Item = At> + Send + 'static {
        (0..count).map(|items| At { items, micro: 0 })
    }

    #[test]
    fn order_does_not_depend_on_the_number_of_workers() {
        for workers in [0, 1, 2, 5] {
            let mut loader = Loader::new(positions(u64::MAX, false), schedule(60), workers, 2);
            for expected in 0..60 {
                let batch = loader.next_batch().unwrap().unwrap();
                assert_eq!(batch.inputs[0].item(), f64::from(expected), "{workers} workers");
                loader.recycle(batch);
            }
            assert!(loader.next_batch().is_none() && loader.next_batch().is_none());
            assert_eq!(loader.delivered(), 60);
        }
    }

    #[test]
    fn preparation_is_bounded() {
        let data = positions(u64::MAX, false);
        let mut loader = Loader::new(Arc::clone(&data) as Arc<dyn Data>, schedule(1000), 3, 2);
        for taken in 0..20 {
            loader.next_batch().unwrap().unwrap();
            std::thread::sleep(Duration::from_millis(1));
            assert!(data.open.load(Ordering::SeqCst) <= taken + 1 + 6, "more than 3 x 2 batches ahead");
        }
    }

    #[test]
    fn errors_and_panics_arrive_in_their_place() {
        for (workers, panics) in [(0, false), (2, false), (2, true)] {
            let mut loader = Loader::new(positions(4, panics), schedule(8), workers, 2);
            for number in 0..8 {
                assert_eq!(loader.next_batch().unwrap().is_err(), number == 4, "batch {number}");
            }
        }
    }

    #[test]
    fn an_abandoned_loader_ends_its_workers() {
        let data = positions(u64::MAX, false);
        let loader = Loader::new(Arc::clone(&data) as Arc<dyn Data>, schedule(u64::MAX), 4, 8);
        drop(loader);
        assert_eq!(Arc::strong_count(&data), 1, "a worker still holds the data");
    }
}
