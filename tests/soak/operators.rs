//! Two replicas of the operator, of which one leads.

use crate::clock::Clock;
use crate::processes::{memory, open_files};
use pawl_e2e::Scene;
use pawl_e2e::operator::{Operator, Program};
use pawl_e2e::soak::memory::Samples;
use rustix::process::{Signal, kill_process};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A replica.
pub struct Replica<'a> {
    scene: &'a Scene,
    /// Its clock, when it can jump.
    pub clock: Option<Clock>,
    process: Mutex<Option<Operator>>,
    usage: Mutex<Lives>,
    /// Held while something is wrong with it.
    pub trouble: tokio::sync::Mutex<()>,
}

/// Memory in bytes and open files of a process.
#[derive(Clone, Default)]
pub struct Usage {
    /// Its resident memory.
    pub memory: Samples,
    /// Its open files.
    pub files: Samples,
}

/// A process that leads or follows, and since when.
type Life = Option<(bool, Instant)>;

/// The usage of the present life, and that of the one before it that was sampled for the longest time.
#[derive(Default)]
struct Lives {
    current: Usage,
    life: Life,
    longest: Usage,
}

impl Lives {
    /// Another life begins.
    fn begin(&mut self, life: Life) {
        let ended = std::mem::take(&mut self.current);
        if ended.memory.span() > self.longest.memory.span() {
            self.longest = ended;
        }
        self.life = life;
    }
}

impl<'a> Replica<'a> {
    /// Starts a replica.
    pub fn start(scene: &'a Scene, clock: Option<Clock>) -> Self {
        let (process, usage, trouble) = Default::default();
        let replica = Self { scene, clock, process, usage, trouble };
        replica.replace();
        replica
    }

    /// Starts its process.
    pub fn replace(&self) {
        let program = self.clock.as_ref().map_or_else(Program::built, Clock::program);
        let operator = Operator::spawn_program(self.scene, &program);
        *self.process.lock().unwrap() = Some(operator);
        self.usage.lock().unwrap().begin(None);
    }

    /// Kills its process with SIGKILL.
    pub fn kill(&self) {
        if let Some(operator) = self.process.lock().unwrap().take() {
            operator.kill();
        }
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        if let Some(operator) = &*self.process.lock().unwrap() {
            // It may have ended, which `has_ended` tells.
            let _ = kill_process(operator.process(), signal);
        }
    }

    /// Whether its process ended by itself, which no operator may.
    pub fn has_ended(&self) -> bool {
        self.process.lock().unwrap().as_mut().is_some_and(Operator::has_ended)
    }

    /// Where it serves metrics.
    pub fn http(&self) -> Option<std::net::SocketAddr> {
        self.process.lock().unwrap().as_ref().map(|operator| operator.http)
    }

    /// Takes a sample of its memory and its open files while it leads, or does not: a leader needs more of both, and its allocator keeps them.
    pub fn sample(&self, leads: bool) {
        let Some(pid) = self.process.lock().unwrap().as_ref().map(Operator::process) else { return };
        let pid = pid.as_raw_nonzero().get();
        let mut lives = self.usage.lock().unwrap();
        if lives.life.is_none_or(|(led, _)| led != leads) {
            lives.begin(Some((leads, Instant::now())));
        }
        let age = lives.life.map_or(Duration::ZERO, |(_, since)| since.elapsed());
        if let (Some(bytes), Some(files)) = (memory(pid), open_files(pid)) {
            lives.current.memory.add(age, bytes as f64);
            lives.current.files.add(age, files as f64);
        }
    }

    /// Memory and open files of the life that was sampled for the longest time.
    pub fn usage(&self) -> Usage {
        let Lives { current, longest, .. } = &*self.usage.lock().unwrap();
        if current.memory.span() < longest.memory.span() { longest.clone() } else { current.clone() }
    }
}

/// How often memory is sampled.
pub const SAMPLE: Duration = Duration::from_secs(5);
