//! Information about processes from `/proc`.

use pawl_contract::env;
use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Every other process that holds `path` open.
pub(crate) fn holders_of(path: &Path) -> Vec<Pid> {
    let Ok(file) = std::fs::metadata(path) else { return Vec::new() };
    let own = std::process::id() as i32;
    let holds = |pid: i32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        // The metadata of the link's target: no file is opened.
        descriptors
            .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
            .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    };
    pids().filter(|&pid| pid != own && holds(pid)).filter_map(Pid::from_raw).collect()
}

/// The fields of `/proc/PID/stat` after the name: state, parent, process group, ...
fn stat(path: &str) -> Option<(String, Vec<String>)> {
    let text = std::fs::read_to_string(path).ok()?;
    // The name is in parentheses and may hold any character.
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    Some((name, after.split_whitespace().map(str::to_owned).collect()))
}

/// CPU time of a process so far, or of one of its threads, in clock ticks.
fn ticks(stat_file: &str) -> Option<u64> {
    let (_, fields) = stat(stat_file)?;
    // In user space and in the kernel.
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// CPU time so far, in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Of a process.
    pub(crate) process: u64,
    /// Of its first thread.
    pub(crate) main_thread: u64,
}

/// That of a process which has not ended.
pub(crate) fn ticks_of(pid: Pid) -> Option<Ticks> {
    let pid = pid.as_raw_nonzero();
    let process = ticks(&format!("/proc/{pid}/stat"))?;
    Some(Ticks { process, main_thread: ticks(&format!("/proc/{pid}/task/{pid}/stat"))? })
}

/// Time of all CPUs of the machine since its start, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineTicks {
    /// In which they were busy. What virtual machines beside this one took is part of it.
    pub(crate) busy: u64,
    /// As `busy`, without interrupts, which no process is charged with.
    pub(crate) programs: u64,
    /// Idle time included.
    pub(crate) all: u64,
}

impl MachineTicks {
    /// Until now; `None` where that cannot be read, or where this process may use some of the CPUs only: others do not
    /// disturb it.
    pub(crate) fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let cpus = stat.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1);
        let usable = std::thread::available_parallelism().ok()?.get();
        if usable == cpus { Self::parse(&stat) } else { None }
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(stat: &str) -> Option<Self> {
        let first = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Option<Vec<u64>> = first.split_ascii_whitespace().take(8).map(|ticks| ticks.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() == 8)?;
        let sum = |places: &[usize]| places.iter().map(|place| ticks[*place]).sum::<u64>();
        let programs = sum(&[0, 1, 2, 7]);
        Some(Self { busy: programs + sum(&[5, 6]), programs, all: ticks.iter().sum() })
    }
}

/// CPU time so far of this process and of all that it has started or adopted, directly or not, in clock ticks: also of
/// those that have ended, if their parent has waited for them.
pub(crate) fn ticks_of_tree() -> u64 {
    let of = |pid: i32| {
        let (_, fields) = stat(&format!("/proc/{pid}/stat"))?;
        // In user space and in the kernel; of the process, and of children that have ended.
        let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
        Some((pid, (fields.get(1)?.parse::<i32>().ok()?, ticks)))
    };
    let all: BTreeMap<i32, (i32, u64)> = pids().filter_map(of).collect();
    let parents = all.iter().map(|(pid, (parent, _))| (*pid, *parent)).collect();
    family(&parents).iter().filter_map(|pid| Some(all.get(pid)?.1)).sum()
}

/// The zombie children of a process.
pub(crate) fn zombies_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let of_parent = |pid: &i32| {
        stat(&format!("/proc/{pid}/stat")).is_some_and(|(_, fields)| {
            fields.first().is_some_and(|state| state == "Z") && fields.get(1) == Some(&parent)
        })
    };
    pids().filter(of_parent).filter_map(Pid::from_raw).collect()
}

/// In the environment of a process that is to outlive its launch, until the attempt ends: the interpreter of
/// `pawl_launch.warm`.
const SERVES_ATTEMPT: &str = "PAWL_SERVES_ATTEMPT";

/// In the environment of a worker: how often `torchrun`, or `accelerate launch` by it, has started the workers again.
const RESTARTS: &str = "TORCHELASTIC_RESTART_COUNT";

/// A process that this one has started or adopted, directly or not.
#[derive(Debug)]
pub(crate) struct Descendant {
    pub(crate) pid: Pid,
    /// The plan in the environment with which its program was started: that of its launch.
    pub(crate) plan: Option<PathBuf>,
    /// Whether it is to outlive its launch, but not the attempt.
    pub(crate) serves_attempt: bool,
    /// Whether its program is that of this process.
    pub(crate) own_program: bool,
    /// How often its launcher, such as `torchrun`, had started workers again before it.
    pub(crate) restarts: u32,
}

/// Every descendant of this process that has not ended, except for those in `except`, and theirs.
pub(crate) fn descendants(except: &BTreeSet<i32>) -> Vec<Descendant> {
    let parent = |pid: i32| {
        let (_, fields) = stat(&format!("/proc/{pid}/stat"))?;
        fields.first().is_some_and(|state| state != "Z").then(|| fields.get(1)?.parse().ok())?
    };
    let others = pids().filter(|pid| !except.contains(pid));
    let mut known = family(&others.filter_map(|pid| Some((pid, parent(pid)?))).collect());
    known.remove(&(std::process::id() as i32));
    known.into_iter().filter_map(Pid::from_raw).map(descendant).collect()
}

/// How often a launcher has started its workers again, in the launch with this plan.
pub(crate) fn restarts_of(plan: &Path) -> u32 {
    let of_launch = |process: &Descendant| process.plan.as_deref() == Some(plan);
    let all = descendants(&BTreeSet::new()).into_iter().filter(of_launch);
    all.map(|process| process.restarts).max().unwrap_or(0)
}

/// This process and its descendants, by the parents of processes.
fn family(parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let mut known = BTreeSet::from([std::process::id() as i32]);
    loop {
        let more: Vec<i32> = parents.iter().filter(|(_, parent)| known.contains(parent)).map(|(pid, _)| *pid).collect();
        let before = known.len();
        known.extend(more);
        if known.len() == before {
            return known;
        }
    }
}

/// Whether this process is `pid`, or has started or adopted it, directly or not.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn is_descendant(pid: u32) -> bool {
    let parent = |pid: &u32| stat(&format!("/proc/{pid}/stat"))?.1.get(1)?.parse().ok();
    std::iter::successors(Some(pid), parent).take_while(|pid| *pid > 0).any(|pid| pid == std::process::id())
}

fn descendant(pid: Pid) -> Descendant {
    let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let environment = std::fs::read(proc.join("environ")).unwrap_or_default();
    let value = |name: &str| {
        let mut variables = environment.split(|&byte| byte == 0);
        variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    Descendant {
        pid,
        plan: value(env::PLAN).map(|plan| PathBuf::from(OsStr::from_bytes(plan))),
        serves_attempt: value(SERVES_ATTEMPT).is_some(),
        own_program: program(&proc).is_some_and(|own| Some(own) == program(Path::new("/proc/self"))),
        restarts: value(RESTARTS).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok()).unwrap_or(0),
    }
}

fn program(proc: &Path) -> Option<PathBuf> {
    std::fs::read_link(proc.join("exe")).ok()
}

/// State of the processes of a group: threads by name, state, and the kernel function in which they wait.
pub(crate) fn whereabouts(group: Pid) -> String {
    let group = group.as_raw_nonzero().get();
    let in_group = |pid: &i32| {
        stat(&format!("/proc/{pid}/stat")).is_some_and(|(_, fields)| fields.get(2) == Some(&group.to_string()))
    };
    let mut text = String::new();
    for pid in pids().filter(in_group) {
        let mut threads = BTreeMap::<(String, String, String), u32>::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let base = task.path();
            let Some((name, fields)) = stat(&base.join("stat").to_string_lossy()) else { continue };
            let wait = std::fs::read_to_string(base.join("wchan")).unwrap_or_default();
            let wait = if wait.is_empty() || wait == "0" { "user space".to_owned() } else { wait };
            *threads.entry((name, fields[0].clone(), wait)).or_default() += 1;
        }
        for ((name, state, wait), count) in threads {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "pid {pid} {name}: {count} thread(s) in state {state}, {wait}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn the_time_of_the_machine_is_that_of_programs_of_interrupts_and_idle() {
        let text = "cpu  1000 200 30 5000 400 6 7 80 900 90\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let expected = MachineTicks { busy: 1323, programs: 1310, all: 6723 };
        assert_eq!(MachineTicks::parse(text), Some(expected));
        for wrong in ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3 4\n", "cpu  1 2 3 4 5 6 7 -8\n"] {
            assert_eq!(MachineTicks::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_time_of_a_child_counts_while_it_runs_and_after_it() {
        let before = ticks_of_tree();
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read -r line";
        let mut sh = std::process::Command::new("sh");
        let mut child = sh.args(["-c", busy]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ticks_of_tree() < before + 10 {
            assert!(std::time::Instant::now() < deadline, "the child computes");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(is_descendant(child.id()) && is_descendant(std::process::id()));
        assert!(!is_descendant(std::os::unix::process::parent_id()) && !is_descendant(u32::MAX));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(ticks_of_tree() >= before + 10);
    }

    #[test]
    fn finds_a_group_and_the_holder_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(holders_of(file.path()), []);
        let input = std::fs::File::open(file.path()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").stdin(input).process_group(0).spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert_eq!(holders_of(file.path()), [pid]);
        assert!(whereabouts(pid).contains("sleep: 1 thread(s) in state"), "{}", whereabouts(pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
