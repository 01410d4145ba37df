//! Files of the cgroup of this process.

use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Where the file `name` of the cgroup of this process may be, in version 2.
pub(crate) fn files(name: &str) -> impl Iterator<Item = PathBuf> {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let unified = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let unified = unified.map(|path| Path::new(ROOT).join(path).join(name));
    // In a container the cgroup path may be that of the host, while its files are at the root.
    unified.into_iter().chain([Path::new(ROOT).join(name)])
}
