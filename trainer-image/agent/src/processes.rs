//! Information about processes from `/proc`.

use rustix::process::Pid;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
