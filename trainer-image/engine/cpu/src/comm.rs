//! Collectives beside computation: a thread that talks to the other ranks while kernels go on.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use pawl_graph::collective::{Collective, CollectiveError};
use pawl_lower::CollectOp;

/// A collective over memory that is not accessed until it is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub op: CollectOp,
    /// This rank's part; for an all-reduce what `to` already holds.
    pub from: (*const f32, usize),
    pub to: (*mut f32, usize),
}

// SAFETY: the executor leaves the memory alone until the job is done.
unsafe impl Send for Job {}

impl Job {
    fn run(self, collective: &dyn Collective) -> Result<(), CollectiveError> {
        // SAFETY: as above.
        let to = unsafe { std::slice::from_raw_parts_mut(self.to.0, self.to.1) };
        if self.op == CollectOp::AllReduce {
            return collective.all_reduce(to);
        }
        // SAFETY: as above; `from` and `to` are different buffers.
        let from = unsafe { std::slice::from_raw_parts(self.from.0, self.from.1) };
        match self.op {
            CollectOp::ReduceScatter => collective.reduce_scatter(from, to),
            _ => collective.all_gather(from, to),
        }
    }
}

/// Runs collectives one after the other, in the order they are issued.
pub(super) struct Comm {
    collective: Arc<dyn Collective>,
    /// None for a gang of one: collectives then run where they are issued.
    thread: Option<(Arc<Shared>, JoinHandle<()>)>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    issued: usize,
    done: usize,
    error: Option<CollectiveError>,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Comm {
    /// For programs of at most `most` collectives.
    pub(super) fn new(collective: Arc<dyn Collective>, most: usize) -> Self {
        let thread = (collective.world() > 1 && most > 0).then(|| {
            let shared = Arc::new(Shared::default());
            shared.lock().waiting.reserve(most);
            let (theirs, collective) = (Arc::clone(&shared), Arc::clone(&collective));
            (shared, std::thread::spawn(move || serve(&theirs, &*collective)))
        });
        Self { collective, thread }
    }

    /// Collectives issued so far.
    pub(super) fn issued(&self) -> usize {
        self.thread.as_ref().map_or(0, |(shared, _)| shared.lock().issued)
    }

    /// Begins a collective; gives the number to [`Comm::wait`] for.
    pub(super) fn issue(&self, job: Job) -> Result<usize, CollectiveError> {
        let Some((shared, _)) = &self.thread else {
            job.run(&*self.collective)?;
            return Ok(0);
        };
        let mut state = shared.lock();
        state.waiting.push_back(job);
        state.issued += 1;
        shared.changed.notify_all();
        Ok(state.issued)
    }

    /// Waits until the first `count` collectives are done; `None`: all.
    pub(super) fn wait(&self, count: Option<usize>) -> Result<(), CollectiveError> {
        let Some((shared, _)) = &self.thread else { return Ok(()) };
        let mut state = shared.lock();
        let count = count.unwrap_or(state.issued);
        while state.done < count && state.error.is_none() {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Some((shared, thread)) = self.thread.take() {
            shared.lock().stop = true;
            shared.changed.notify_all();
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared, collective: &dyn Collective) {
    loop {
        let mut state = shared.lock();
        let job = loop {
            if state.stop {
                return;
            }
            match state.waiting.pop_front() {
                Some(job) => break job,
                None => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        let broken = state.error.is_some();
        drop(state);
        let result = if broken { Ok(()) } else { job.run(collective) };
        let mut state = shared.lock();
        state.done += 1;
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        shared.changed.notify_all();
    }
}
