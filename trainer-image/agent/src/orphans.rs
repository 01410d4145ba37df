//! Processes that a launch has left behind: they have left the process group of their rank and outlived it, as daemons,
//! workers of `torchrun` or anything started with `start_new_session` do. They would disturb the measurements that
//! follow.
//!
//! The agent adopts them as their subreaper (and as PID 1 of a container does anyway), so that they are its
//! descendants.

use crate::processes::{Descendant, descendants, zombies_of};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval of scans for zombies. The agent waits for a dead rank long before.
const PERIOD: Duration = Duration::from_secs(10);
/// Time that a killed process may take to exit.
const DEATH: Duration = Duration::from_secs(5);
/// Interval at which processes that were asked to end are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The descendants that this process had when it began to adopt others: a shell that starts something and then executes
/// `pawl` leaves it some. All that came later are ranks, or adopted.
static FOUND: OnceLock<BTreeSet<i32>> = OnceLock::new();
/// Launches that run in this process: several agents may.
static LAUNCHES: AtomicUsize = AtomicUsize::new(0);

/// Makes orphaned descendants children of this process.
#[cfg(target_os = "linux")]
fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

/// Only Linux can.
#[cfg(not(target_os = "linux"))]
fn become_subreaper() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// From now on, orphaned descendants become children of this process, are ended with the launch that they belong to,
/// and reaped. Only for a program that starts no other children than ranks, and those whose plan is of no attempt
/// ([`mod@crate::provenance`]).
///
/// # Errors
/// The thread that reaps them cannot be started.
pub fn adopt_orphans() -> io::Result<()> {
    if let Err(error) = become_subreaper()
        && getpid() != Pid::INIT
    {
        tracing::warn!(%error, "processes that leave the session of their rank cannot be ended with its launch");
        return Ok(());
    }
    FOUND.get_or_init(|| descendants(&BTreeSet::new()).iter().map(|found| found.pid.as_raw_nonzero().get()).collect());
    let look_for_ever = || {
        let mut seen = BTreeSet::new();
        loop {
            std::thread::sleep(PERIOD);
            reap(&mut seen);
        }
    };
    std::thread::Builder::new().name("pawl-orphans".into()).spawn(look_for_ever).map(drop)
}

/// Reaps children that were zombies at the previous scan already: no other thread waits for them.
fn reap(seen: &mut BTreeSet<i32>) {
    let dead: BTreeSet<i32> = zombies_of(getpid()).into_iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    for pid in dead.intersection(seen).copied().filter_map(Pid::from_raw) {
        // It may have been reaped in the meantime.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
    *seen = dead;
}

/// A launch that runs in this process.
#[derive(Debug)]
pub(crate) struct Running;

impl Running {
    pub(crate) fn new() -> Self {
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        LAUNCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whose processes are ended.
#[derive(Clone, Debug)]
pub(crate) enum Of {
    /// Those of the launch with this plan, whose ranks are gone. Not those that are to serve its attempt.
    Launch(PathBuf),
    /// Those of all launches of the attempt in this directory.
    Attempt(PathBuf),
}

impl Of {
    /// Whether a process is to be ended. `alone`: no other launch runs, so that a process of unknown origin can only be
    /// a remnant.
    fn includes(&self, process: &Descendant, alone: bool) -> bool {
        match (self, &process.plan) {
            (Self::Launch(_), _) if process.serves_attempt => false,
            (Self::Launch(plan), Some(own)) => own == plan,
            (Self::Attempt(directory), Some(own)) => own.starts_with(directory),
            // It has cleared its environment. A rank has that of this program between its start and its own program.
            (_, None) => alone && !process.own_program,
        }
    }
}

/// Ends the processes that `of` has left behind: SIGTERM, and SIGKILL after `grace`. Blocks until they are gone.
pub(crate) fn end_remnants(of: &Of, grace: Duration) {
    let running = usize::from(matches!(of, Of::Launch(_)));
    let left = || {
        let alone = FOUND.get().is_some() && LAUNCHES.load(Ordering::Relaxed) <= running;
        descendants(FOUND.get().unwrap_or(&BTreeSet::new()))
            .into_iter()
            .filter(move |process| of.includes(process, alone))
            .map(|process| process.pid)
    };
    let mut told = BTreeSet::new();
    for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, DEATH)] {
        let until = Instant::now() + patience;
        loop {
            let alive: Vec<Pid> = left().collect();
            // Each gets a signal once, also those that a dying process has just started.
            for &pid in alive.iter().filter(|&&pid| told.insert((signal.as_raw(), pid.as_raw_nonzero()))) {
                tracing::warn!(pid = pid.as_raw_nonzero(), ?signal, "ending a process that outlived its launch");
                // It may have exited by now, or belong to another user.
                let _ = kill_process(pid, signal);
            }
            if alive.is_empty() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(LOOK);
        }
    }
    for &(_, pid) in &told {
        // Nobody else waits for adopted children.
        let _ = waitpid(Pid::from_raw(pid.get()), WaitOptions::NOHANG);
    }
    for pid in left() {
        tracing::warn!(pid = pid.as_raw_nonzero(), "a process that outlived its launch cannot be ended");
    }
}

/// The remnants of the launch in `dir`.
pub(crate) fn of_launch(dir: &Path) -> Of {
    Of::Launch(dir.join("plan.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn only_remnants_of_the_launch_are_ended() {
        let process = |plan: Option<&str>, serves_attempt, own_program| Descendant {
            pid: getpid(),
            plan: plan.map(PathBuf::from),
            serves_attempt,
            own_program,
            restarts: 0,
        };
        let (launch, attempt) = (of_launch(Path::new("/j-1/a")), Of::Attempt("/j-1".into()));
        for (process, alone, with_launch, with_attempt) in [
            (process(Some("/j-1/a/plan.json"), false, false), false, true, true),
            // Of a launch that runs at the same time; of the same attempt, and of another one.
            (process(Some("/j-1/b/plan.json"), false, false), true, false, true),
            (process(Some("/j-2/a/plan.json"), false, false), true, false, false),
            (process(Some("/j-10/a/plan.json"), false, false), true, false, false),
            (process(Some("/j-1/a/plan.json"), true, false), true, false, true),
            // It asks what the attempt is measured with.
            (process(Some(""), false, false), true, false, false),
            // It has cleared its environment.
            (process(None, false, false), true, true, true),
            (process(None, false, false), false, false, false),
            // A rank of another launch that is about to start.
            (process(None, false, true), true, false, false),
        ] {
            assert_eq!(launch.includes(&process, alone), with_launch, "{process:?}");
            assert_eq!(attempt.includes(&process, alone), with_attempt, "{process:?}");
        }
    }

    #[test]
    fn a_remnant_ends_with_its_launch_even_if_it_ignores_sigterm() {
        let dir = tempfile::tempdir().unwrap();
        let launch = |name: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "trap '' TERM; touch $0; while :; do sleep 0.05; done"]);
            shell.arg(dir.path().join(format!("{name}-up"))).env("PAWL_PLAN", dir.path().join(name).join("plan.json"));
            shell.process_group(0).spawn().unwrap()
        };
        let (mut left, mut other) = (launch("a"), launch("b"));
        while !["a-up", "b-up"].iter().all(|name| dir.path().join(name).exists()) {
            std::thread::sleep(LOOK);
        }
        end_remnants(&of_launch(&dir.path().join("a")), Duration::from_millis(50));
        // It is a child of this test, which the remnants' end has reaped.
        assert!(left.wait().is_err(), "it has not ended");
        assert!(other.try_wait().unwrap().is_none(), "one of another launch was ended");
        end_remnants(&Of::Attempt(dir.path().to_owned()), Duration::ZERO);
        assert!(other.wait().is_err());
    }

    /// In a process of its own: the children of other tests are not orphans.
    #[test]
    fn a_dead_child_is_reaped_at_the_second_look() {
        const ALONE: &str = "PAWL_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "orphans::tests::a_dead_child_is_reaped_at_the_second_look";
            let mut own = Command::new(std::env::current_exe().unwrap());
            assert!(own.args(["--exact", name]).env(ALONE, "1").status().unwrap().success());
            return;
        }
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !zombies_of(getpid()).contains(&pid) {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut seen = BTreeSet::new();
        reap(&mut seen);
        assert!(zombies_of(getpid()).contains(&pid), "its parent may still wait for it");
        reap(&mut seen);
        assert!(!zombies_of(getpid()).contains(&pid));
        assert!(child.wait().is_err(), "it is gone");
    }
}
