//! Memory, CPU time and open files of this process, from `/proc`.

use super::exposition::Exposition;
use super::exposition::Kind::{Counter, Gauge};
use rustix::param::{clock_ticks_per_second, page_size};
use std::fs;

/// Writes the values that can be read; without `/proc`, none.
pub(super) fn write(out: &mut Exposition) {
    if let Some((processor, resident)) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(stat) {
        out.family("process_cpu_seconds_total", Counter, "CPU time, user and system.");
        out.series(&[], processor);
        out.family("process_resident_memory_bytes", Gauge, "Resident memory.");
        out.series(&[], resident);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        out.family("process_open_fds", Gauge, "Open files.");
        out.series(&[], files.count() as f64);
    }
}

/// CPU seconds and resident bytes from `/proc/self/stat`, see proc_pid_stat(5).
fn stat(line: &str) -> Option<(f64, f64)> {
    // The second field is the program's name in parentheses, and may contain any character.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some(((number(14)? + number(15)?) / clock_ticks_per_second() as f64, number(24)? * page_size() as f64))
}
