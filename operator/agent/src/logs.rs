//! The output of a rank: the newest bytes in two files, its last lines in memory.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of the output's end that are kept for messages.
const TAIL: usize = 2048;

/// The log of one rank while it runs.
#[derive(Debug)]
pub(crate) struct Log {
    tail: Arc<Mutex<Vec<u8>>>,
    writer: JoinHandle<()>,
}

impl Log {
    /// Reads `output` until all writers have closed it. `path` takes `limit` bytes, then becomes `path.1`.
    pub(crate) fn start(output: PipeReader, path: PathBuf, limit: u64) -> io::Result<Self> {
        let tail = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&tail);
        let file = File::create(&path)?;
        let copy = move || copy(output, Rotating { file: Some(file), path, limit, written: 0 }, &shared);
        let writer = std::thread::Builder::new().name("pawl-log".into()).spawn(copy)?;
        Ok(Self { tail, writer })
    }

    /// The last lines in one, once the output has ended or a moment has passed: a helper of the rank may hold it open.
    pub(crate) async fn last_words(&self) -> String {
        let deadline = Instant::now() + Duration::from_millis(200);
        while !self.writer.is_finished() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail);
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.chars().map(printable).collect::<String>().trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

/// A file that is begun anew when it is full.
struct Rotating {
    file: Option<File>,
    path: PathBuf,
    limit: u64,
    written: u64,
}

impl Rotating {
    fn write(&mut self, chunk: &[u8]) {
        if self.written > 0 && self.written + chunk.len() as u64 > self.limit {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            let renamed = std::fs::rename(&self.path, old);
            self.file = renamed.and_then(|()| File::create(&self.path)).ok();
            self.written = 0;
        }
        // A full disk ends the log, not the rank: what it prints is still taken off its hands.
        if let Some(file) = &mut self.file
            && file.write_all(chunk).is_err()
        {
            self.file = None;
        }
        self.written += chunk.len() as u64;
    }
}

fn copy(mut output: PipeReader, mut log: Rotating, tail: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 16 << 10];
    loop {
        match output.read(&mut chunk) {
            Ok(0) => return,
            Ok(count) => {
                log.write(&chunk[..count]);
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(&chunk[..count]);
                let surplus = tail.len().saturating_sub(TAIL);
                tail.drain(..surplus);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keeps_the_newest_bytes_and_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        let (reader, mut writer) = io::pipe().unwrap();
        let log = Log::start(reader, path.clone(), 100_000).unwrap();
        for number in 0..100_000 {
            writeln!(writer, "line {number}").unwrap();
        }
        write!(writer, "error: \x1b[1mdied\n\n").unwrap();
        drop(writer);
        assert_eq!(log.last_words().await, "line 99998 | line 99999 | error:  [1mdied");
        let newest = std::fs::read_to_string(&path).unwrap();
        let older = std::fs::read_to_string(dir.path().join("rank-0.log.1")).unwrap();
        assert!(newest.len() <= 100_000 && older.len() <= 100_000 && older.len() > 80_000);
        assert!((older + &newest).contains("line 99000\n") && newest.ends_with("died\n\n"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
