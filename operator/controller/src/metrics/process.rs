//! Memory, processor time and open files of this process, as `/proc` has them.

use super::exposition::Exposition;
use super::exposition::Kind::{Counter, Gauge};
use rustix::param::{clock_ticks_per_second, page_size};
use std::fs;

/// Writes what can be read; without `/proc` nothing.
pub(super) fn write(out: &mut Exposition) {
    if let Some((processor, resident)) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(stat) {
        out.family("process_cpu_seconds_total", Counter, "Processor time, user and system.");
        out.series(&[], processor);
        out.family("process_resident_memory_bytes", Gauge, "Resident memory.");
        out.series(&[], resident);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        out.family("process_open_fds", Gauge, "Open files.");
        out.series(&[], files.count() as f64);
    }
}

/// Processor seconds and resident bytes out of `/proc/self/stat`, see proc_pid_stat(5).
fn stat(line: &str) -> Option<(f64, f64)> {
    // The second field is the program's name in parentheses, and may hold anything.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some(((number(14)? + number(15)?) / clock_ticks_per_second() as f64, number(24)? * page_size() as f64))
}
