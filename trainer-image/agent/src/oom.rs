//! Detects kills by the kernel's OOM killer.

use crate::cgroup;
use std::fmt;
use std::path::PathBuf;

/// A counter of OOM kills, read before and after a launch.
#[derive(Clone, Debug)]
pub(crate) struct OomCounter {
    /// `memory.events` of this process's cgroup, or `/proc/vmstat`; `None` when neither can be read.
    file: Option<PathBuf>,
}

/// Whose memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RanOut {
    /// The machine's.
    Host,
    /// That of the container, which has this limit, bytes.
    Container(u64),
}

impl fmt::Display for RanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host's memory ran out"),
            Self::Container(limit) => {
                let mebibytes = limit / (1 << 20);
                write!(f, "the memory limit of its container, {mebibytes} MiB, was reached: raise it")
            }
        }
    }
}

impl OomCounter {
    /// The most specific counter available: the cgroup's, else the machine's.
    pub(crate) fn find() -> Self {
        let others = ["/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"].map(PathBuf::from);
        Self::first_of(cgroup::files("memory.events").chain(others))
    }

    fn first_of(candidates: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { file: candidates.into_iter().find(|file| Self { file: Some(file.clone()) }.kills().is_some()) }
    }

    /// OOM kills so far.
    pub(crate) fn kills(&self) -> Option<Kills> {
        let text = std::fs::read_to_string(self.file.as_ref()?).ok()?;
        let count = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Some(Kills { all: count("oom_kill ")?, limit_reached: count("oom ") })
    }

    /// Whose memory ran out, if there were kills since `before`.
    pub(crate) fn killed_since(&self, before: Option<Kills>) -> Option<RanOut> {
        let (before, now) = (before?, self.kills()?);
        // The machine's OOM killer is counted in `all` too.
        let by_limit = before.limit_reached.is_none_or(|before| now.limit_reached.is_some_and(|now| now > before));
        let limit = || self.limit().filter(|_| by_limit);
        (now.all > before.all).then(|| limit().map_or(RanOut::Host, RanOut::Container))
    }

    /// The memory limit of the cgroup whose kills are counted, bytes. In version 1, one that has none has the largest
    /// number.
    fn limit(&self) -> Option<u64> {
        let file = self.file.as_ref()?;
        let read = |name: &str| std::fs::read_to_string(file.with_file_name(name)).ok()?.trim().parse().ok();
        read("memory.max").or_else(|| read("memory.limit_in_bytes")).filter(|limit| *limit < 1 << 60)
    }
}

/// Numbers of a cgroup, or of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kills {
    /// Processes that were killed.
    all: u64,
    /// Times that its memory limit was reached; `None` where that is not counted.
    limit_reached: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_kills_of_the_first_readable_file() {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("memory.events");
        let write = |reached: u32, kills: u32| {
            std::fs::write(&events, format!("low 0\noom {reached}\noom_kill {kills}\noom_group_kill 0\n")).unwrap();
        };
        write(9, 3);
        let counter = OomCounter::first_of([dir.path().join("none"), events.clone()]);
        let before = counter.kills();
        assert_eq!(before, Some(Kills { all: 3, limit_reached: Some(9) }));
        assert_eq!(counter.killed_since(before), None);
        write(10, 4);
        assert_eq!(counter.killed_since(before), Some(RanOut::Host));
        for (limit, expected) in [("max", RanOut::Host), ("134217728", RanOut::Container(128 << 20))] {
            std::fs::write(dir.path().join("memory.max"), limit).unwrap();
            assert_eq!(counter.killed_since(before), Some(expected));
        }
        write(9, 4);
        assert_eq!(counter.killed_since(before), Some(RanOut::Host), "its limit was not reached");
        let first = dir.path().join("memory.oom_control");
        std::fs::write(&first, "under_oom 0\noom_kill 1\n").unwrap();
        assert!(OomCounter::first_of([first]).kills().is_some_and(|kills| kills.limit_reached.is_none()));
        assert!(RanOut::Container(128 << 20).to_string().contains("128 MiB"));
        let none = OomCounter::first_of([dir.path().join("none")]);
        assert_eq!(none.killed_since(none.kills()), None);
    }
}
