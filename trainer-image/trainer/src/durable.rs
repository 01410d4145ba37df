//! Atomically replaced files: progress, metrics and reports.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// As [`write()`], of `value` as JSON.
///
/// # Errors
/// An I/O error that names the file.
pub fn write_json<T: serde::Serialize>(path: &Path, value: &T, sync: bool) -> io::Result<()> {
    write(path, &serde_json::to_vec_pretty(value)?, sync)
}

/// Writes `bytes` to a temporary file beside `path` and renames it. With `sync`, it survives a power failure.
///
/// # Errors
/// An I/O error that names the file.
pub fn write(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        if sync { file.sync_all() } else { Ok(()) }
    });
    let result = written.and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    if let (Ok(()), true, Some(parent)) = (&result, sync, path.parent().filter(|p| !p.as_os_str().is_empty())) {
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(named)?;
    }
    result.map_err(named)
}
