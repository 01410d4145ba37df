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
    process: Mutex<Option<(Operator, Instant)>>,
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

/// The process that lives, and the one that was sampled for the longest time before it.
#[derive(Default)]
struct Lives {
    current: Usage,
    longest: Usage,
    /// Whether the process leads, and since when.
    role: Option<(bool, Instant)>,
}

impl Lives {
    /// Another process begins.
    fn end(&mut self) {
        let ended = std::mem::take(&mut self.current);
        self.role = None;
        if ended.memory.span() > self.longest.memory.span() {
            self.longest = ended;
        }
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
        *self.process.lock().unwrap() = Some((operator, Instant::now()));
        self.usage.lock().unwrap().end();
    }

    /// Kills its process with SIGKILL.
    pub fn kill(&self) {
        if let Some((operator, _)) = self.process.lock().unwrap().take() {
            operator.kill();
        }
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        if let Some((operator, _)) = &*self.process.lock().unwrap() {
            // It may have ended, which `has_ended` tells.
            let _ = kill_process(operator.process(), signal);
        }
    }

    /// Whether its process ended by itself, which no operator may.
    pub fn has_ended(&self) -> bool {
        self.process.lock().unwrap().as_mut().is_some_and(|(operator, _)| operator.has_ended())
    }

    /// Where it serves metrics.
    pub fn http(&self) -> Option<std::net::SocketAddr> {
        self.process.lock().unwrap().as_ref().map(|(operator, _)| operator.http)
    }

    /// Takes a sample of its memory and its open files while it leads or does not: a leader needs more, and its
    /// allocator keeps it.
    pub fn sample(&self, leads: bool) {
        let pid_and_age = |(operator, born): &(Operator, Instant)| (operator.process(), born.elapsed());
        let Some((pid, age)) = self.process.lock().unwrap().as_ref().map(pid_and_age) else { return };
        let pid = pid.as_raw_nonzero().get();
        if let (Some(bytes), Some(files)) = (memory(pid), open_files(pid)) {
            let Lives { current, role, .. } = &mut *self.usage.lock().unwrap();
            if role.is_none_or(|(led, _)| led != leads) {
                *role = Some((leads, Instant::now()));
                current.memory.turn();
                current.files.turn();
            }
            let since = role.map_or(Duration::ZERO, |(_, since)| since.elapsed());
            current.memory.add(age, since, bytes as f64);
            current.files.add(age, since, files as f64);
        }
    }

    /// Memory and open files of the process that was sampled for the longest time.
    pub fn usage(&self) -> Usage {
        let Lives { current, longest, .. } = &*self.usage.lock().unwrap();
        if current.memory.span() < longest.memory.span() { longest.clone() } else { current.clone() }
    }
}

/// How often memory is sampled.
pub const SAMPLE: Duration = Duration::from_secs(5);
