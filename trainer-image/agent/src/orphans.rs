//! Reaps orphaned processes as PID 1: in a container, they become children of the agent.

use crate::processes::zombies_of;
use rustix::process::{Pid, WaitOptions, getpid, waitpid};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// Interval of scans. The agent waits for a dead rank long before.
const PERIOD: Duration = Duration::from_secs(10);

/// Starts to reap orphaned processes, if this is PID 1; zombies would fill the process table of the pod.
///
/// # Errors
/// The thread cannot be started.
pub fn reap_orphans() -> io::Result<()> {
    if getpid() != Pid::INIT {
        return Ok(());
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

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
