//! Threads that run the tasks of one kernel.
//!
//! Not rayon: a kernel of a small model takes microseconds, and a step must not allocate (rayon's injector does). What
//! a task does is fixed by shapes, never by the number of threads, so results do not depend on who runs it.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

/// A task: `(task, worker)`; `worker` selects the scratch memory.
type Task<'t> = dyn Fn(usize, usize) + Sync + 't;

/// Rounds a worker looks for work before it sleeps: about 20 microseconds.
const SPINS: u32 = 4_000;

/// A calling thread and its helpers.
pub(super) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    start: Condvar,
    done: Condvar,
    /// Counts jobs; read without the lock by helpers that wait for the next.
    generation: AtomicU64,
    next: AtomicUsize,
    panicked: AtomicBool,
}

struct State {
    job: Option<Job>,
    running: usize,
    stop: bool,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

// SAFETY: the pointee is `Sync`, and `Pool::run` does not return before every helper has let go of it.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `threads` threads, the caller among them.
    pub(super) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { job: None, running: 0, stop: false }),
            start: Condvar::new(),
            done: Condvar::new(),
            generation: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
        });
        let helpers = (1..threads.max(1))
            .map(|worker| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || help(&shared, worker))
            })
            .collect();
        Self { shared, helpers }
    }

    /// Number of workers.
    pub(super) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `task` for each of `0 .. tasks`, in any order, and waits for all. `alone`: on this thread only, in order.
    pub(super) fn run(&self, tasks: usize, alone: bool, task: &Task<'_>) {
        if alone || tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(|index| task(index, 0));
            return;
        }
        // SAFETY: only the lifetime changes; the job is taken back before this returns.
        let task: &Task<'static> = unsafe { std::mem::transmute(task) };
        {
            let mut state = self.shared.lock();
            state.job = Some(Job { task, tasks });
            self.shared.next.store(0, Ordering::Relaxed);
            self.shared.generation.fetch_add(1, Ordering::Release);
        }
        self.shared.start.notify_all();
        let mine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.shared.work(task, tasks, 0)));
        let mut state = self.shared.lock();
        state.job = None;
        while state.running > 0 {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        if let Err(panic) = mine {
            std::panic::resume_unwind(panic);
        }
        assert!(!self.shared.panicked.swap(false, Ordering::Relaxed), "a task of a kernel panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.start.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, task: &Task<'_>, tasks: usize, worker: usize) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            task(index, worker);
        }
    }
}

fn help(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.generation.load(Ordering::Acquire) == seen && spins < SPINS {
            std::hint::spin_loop();
            spins += 1;
        }
        let mut state = shared.lock();
        while shared.generation.load(Ordering::Acquire) == seen && !state.stop {
            state = shared.start.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        seen = shared.generation.load(Ordering::Acquire);
        // None when the caller has done everything already.
        let Some(job) = state.job else { continue };
        state.running += 1;
        drop(state);
        // SAFETY: `Pool::run` waits until `running` is 0 before the closure goes out of scope.
        let task = unsafe { &*job.task };
        let run = std::panic::AssertUnwindSafe(|| shared.work(task, job.tasks, worker));
        if std::panic::catch_unwind(run).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        let mut state = shared.lock();
        state.running -= 1;
        if state.running == 0 {
            shared.done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        let pool = Pool::new(3);
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, false, &|task, worker| {
                assert!(worker < 3);
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panicking_task_panics_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(2);
        let run = || pool.run(100, false, &|task, _| assert!(task != 50, "planted"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, false, &|task, _| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}
