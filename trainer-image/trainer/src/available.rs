//! Memory that this process may still allocate.

use std::fs;

/// The minimum of the machine's free memory, the remaining limit of the cgroup, and the remaining address space limit,
/// in bytes; `None` when unknown.
pub fn memory() -> Option<usize> {
    [machine(), cgroup(), address_space()].into_iter().flatten().min()
}

fn machine() -> Option<usize> {
    kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

fn cgroup() -> Option<usize> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let v2 = number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current"));
    let v1 = || {
        let dir = "/sys/fs/cgroup/memory";
        number(&format!("{dir}/memory.limit_in_bytes")).zip(number(&format!("{dir}/memory.usage_in_bytes")))
    };
    v2.or_else(v1).map(|(limit, used)| limit.saturating_sub(used))
}

fn address_space() -> Option<usize> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current? as usize;
    let used = kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")?;
    Some(limit.saturating_sub(used))
}

fn kilobytes(text: &str, field: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().trim_end_matches(" kB").parse::<usize>().ok().map(|kilobytes| kilobytes << 10)
}
