//! Detects kills by the kernel's OOM killer.

use std::path::PathBuf;

/// A counter of OOM kills, read before and after a launch.
#[derive(Clone, Debug)]
pub(crate) struct OomCounter {
    /// `memory.events` of this process's cgroup, or `/proc/vmstat`; `None` when neither can be read.
    file: Option<PathBuf>,
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

    /// Whether there were kills since `before`.
    pub(crate) fn killed_since(&self, before: Option<u64>) -> bool {
        matches!((before, self.kills()), (Some(before), Some(now)) if now > before)
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
        assert!(!counter.killed_since(before));
        write(4);
        assert!(counter.killed_since(before));
        let none = OomCounter::first_of([dir.path().join("none")]);
        assert!(!none.killed_since(none.kills()));
    }
}
