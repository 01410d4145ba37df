//! Processes of pods: they are processes of this machine.

use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number on this machine.
    pub pid: i32,
    /// Its parent.
    pub parent: i32,
    /// Its program and arguments.
    pub command: Vec<String>,
}

impl Process {
    /// The process with this number; `None` when it has ended.
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let command: Vec<_> = command.split_terminator('\0').map(str::to_owned).collect();
        (state != "Z" && !command.is_empty()).then_some(Self { pid, parent, command })
    }

    fn is_agent(&self) -> bool {
        self.command.get(1).is_some_and(|argument| argument == "agent")
    }

    /// Sends a signal; it may have ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Its resident memory in bytes; `None` when it has ended.
    pub fn memory(&self) -> Option<u64> {
        memory(self.pid)
    }
}

/// Resident memory of a process in bytes; `None` when it has ended.
pub fn memory(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Number of open files of a process; `None` when it has ended.
pub fn open_files(pid: i32) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

fn all() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes of a pod: its cgroup is named after its uid.
fn of_pod(uid: &str) -> Vec<Process> {
    let named = format!("pod{uid}");
    let inside = |pid: &i32| {
        let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        cgroup.contains(&named)
    };
    all().filter(inside).filter_map(Process::read).collect()
}

/// The agent of a pod.
pub fn agent(uid: &str) -> Option<Process> {
    of_pod(uid).into_iter().find(Process::is_agent)
}

/// The ranks of a pod: the children of its agent.
pub fn ranks(uid: &str) -> Vec<Process> {
    let processes = of_pod(uid);
    let Some(agent) = processes.iter().find(|process| process.is_agent()).map(|agent| agent.pid) else {
        return Vec::new();
    };
    processes.into_iter().filter(|process| process.parent == agent).collect()
}

/// The agent and the ranks of a pod.
pub fn trainers(uid: &str) -> Vec<Process> {
    agent(uid).into_iter().chain(ranks(uid)).collect()
}

/// The scripted trainers in the pods of this cluster: all pids whose program has this name and whose cgroup is a pod's.
pub fn scripted_in_pods() -> Vec<i32> {
    let scripted = |pid: &i32| {
        let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let program = Process::read(*pid).map(|process| process.command[0].clone()).unwrap_or_default();
        cgroup.contains("kubepods") && Path::new(&program).file_name().is_some_and(|name| name == "scripted-trainer")
    };
    all().filter(scripted).collect()
}

/// A component of the control plane; `None` when it does not run.
pub fn component(name: &str) -> Option<Process> {
    let state =
        std::env::var_os("PAWL_CLUSTER_STATE").expect("PAWL_CLUSTER_STATE: run this through tests/cluster/with");
    let pid = std::fs::read_to_string(Path::new(&state).join("pid").join(name)).ok()?;
    Process::read(pid.trim().parse().ok()?)
}
