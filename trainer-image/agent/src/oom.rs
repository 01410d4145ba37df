//! Detects kills by the kernel's OOM killer.

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
        let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let unified = group.lines().find_map(|line| line.strip_prefix("0::/"));
        let candidates = unified
            .map(|path| PathBuf::from("/sys/fs/cgroup").join(path).join("memory.events"))
            .into_iter()
            // In a container the cgroup path may be that of the host, while its files are at the root.
            .chain(
                ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"]
                    .map(PathBuf::from),
            );
        Self::first_of(candidates)
    }

    fn first_of(candidates: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { file: candidates.into_iter().find(|file| Self { file: Some(file.clone()) }.kills().is_some()) }
    }

    /// OOM kills so far.
    pub(crate) fn kills(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.file.as_ref()?).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// Whose memory ran out, if there were kills since `before`.
    pub(crate) fn killed_since(&self, before: Option<u64>) -> Option<RanOut> {
        let killed = matches!((before, self.kills()), (Some(before), Some(now)) if now > before);
        killed.then(|| self.limit().map_or(RanOut::Host, RanOut::Container))
    }

    /// The memory limit of the cgroup whose kills are counted, bytes.
    fn limit(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.file.as_ref()?.with_file_name("memory.max")).ok()?;
        text.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_kills_of_the_first_readable_file() {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("memory.events");
        let write = |kills: u32| {
            std::fs::write(&events, format!("low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")).unwrap()
        };
        write(3);
        let counter = OomCounter::first_of([dir.path().join("none"), events.clone()]);
        let before = counter.kills();
        assert_eq!(before, Some(3));
        assert_eq!(counter.killed_since(before), None);
        write(4);
        assert_eq!(counter.killed_since(before), Some(RanOut::Host));
        for (limit, expected) in [("max", RanOut::Host), ("134217728", RanOut::Container(128 << 20))] {
            std::fs::write(dir.path().join("memory.max"), limit).unwrap();
            assert_eq!(counter.killed_since(before), Some(expected));
        }
        assert!(RanOut::Container(128 << 20).to_string().contains("128 MiB"));
        let none = OomCounter::first_of([dir.path().join("none")]);
        assert_eq!(none.killed_since(none.kills()), None);
    }
}
