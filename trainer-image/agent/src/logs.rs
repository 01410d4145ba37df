//! The output of a rank: the newest bytes in two files, the last lines in memory, and in a pod also on the pod's
//! output.

use crate::last_words::LastWords;
use crate::script::Tap;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of the end of the output that are kept for messages.
const TAIL: usize = 2048;
/// Maximum length of a line that is echoed in one piece, in bytes: container runtimes split longer ones themselves.
const MAX_LINE: usize = 8 << 10;

/// The log of one rank while it runs.
#[derive(Debug)]
pub(crate) struct Log {
    tail: Arc<Mutex<Vec<u8>>>,
    writer: JoinHandle<()>,
}

impl Log {
    /// Reads `output` until all writers have closed it. `path` is rotated to `path.1` after `limit` bytes; `echo` and
    /// `tap` receive every line.
    pub(crate) fn start(
        output: PipeReader,
        path: PathBuf,
        limit: u64,
        echo: Option<Echo>,
        tap: Option<Tap>,
    ) -> io::Result<Self> {
        let tail = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&tail);
        let file = File::create(&path)?;
        let copy = move || copy(output, Rotating { file: Some(file), path, limit, written: 0 }, echo, tap, &shared);
        let writer = std::thread::Builder::new().name("pawl-log".into()).spawn(copy)?;
        Ok(Self { tail, writer })
    }

    /// The last lines, once the output has ended or after a short wait: a child process of the rank may hold it open.
    pub(crate) async fn last_words(&self) -> LastWords {
        let deadline = Instant::now() + Duration::from_millis(200);
        while !self.writer.is_finished() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        LastWords::of(&String::from_utf8_lossy(&self.tail.lock()))
    }
}

/// A file that is rotated when it is full.
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
        // A full disk ends the log, not the rank: its output is still read.
        if let Some(file) = &mut self.file
            && file.write_all(chunk).is_err()
        {
            self.file = None;
        }
        self.written += chunk.len() as u64;
    }
}

/// Writes the lines of a rank to this process's standard output, each prefixed with the rank.
#[derive(Debug)]
pub(crate) struct Echo {
    prefix: String,
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
}

impl Echo {
    pub(crate) fn of_rank(rank: u32) -> Self {
        Self { prefix: format!("[rank {rank}] "), begun: Vec::new() }
    }

    /// All lines that `chunk` completes.
    fn lines(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut lines = Vec::with_capacity(chunk.len() + 64);
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= MAX_LINE {
                self.end_line(&mut lines);
            }
        }
        lines
    }

    fn end_line(&mut self, lines: &mut Vec<u8>) {
        if !self.begun.is_empty() {
            lines.extend_from_slice(self.prefix.as_bytes());
            lines.append(&mut self.begun);
            if !lines.ends_with(b"\n") {
                lines.push(b'\n');
            }
        }
    }

    fn write(lines: &[u8]) {
        // In one call, so that lines of several ranks are not interleaved. An error cannot be reported anywhere.
        let mut out = io::stdout().lock();
        let _ = out.write_all(lines).and_then(|()| out.flush());
    }
}

fn copy(
    mut output: PipeReader,
    mut log: Rotating,
    mut echo: Option<Echo>,
    mut tap: Option<Tap>,
    tail: &Mutex<Vec<u8>>,
) {
    let mut chunk = [0; 16 << 10];
    loop {
        match output.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                // First: it takes the time.
                if let Some(tap) = &mut tap {
                    tap.take(&chunk[..count]);
                }
                log.write(&chunk[..count]);
                if let Some(echo) = &mut echo {
                    Echo::write(&echo.lines(&chunk[..count]));
                }
                let mut tail = tail.lock();
                tail.extend_from_slice(&chunk[..count]);
                let surplus = tail.len().saturating_sub(TAIL);
                tail.drain(..surplus);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if let Some(tap) = &mut tap {
        tap.end();
    }
    if let Some(mut echo) = echo {
        let mut last = Vec::new();
        echo.end_line(&mut last);
        Echo::write(&last);
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
        let log = Log::start(reader, path.clone(), 100_000, None, None).unwrap();
        for number in 0..100_000 {
            writeln!(writer, "line {number}").unwrap();
        }
        write!(writer, "error: \x1b[1mdied\n\n").unwrap();
        drop(writer);
        assert_eq!(log.last_words().await.text, "line 99998 | line 99999 | error:  [1mdied");
        let newest = std::fs::read_to_string(&path).unwrap();
        let older = std::fs::read_to_string(dir.path().join("rank-0.log.1")).unwrap();
        assert!(newest.len() <= 100_000 && older.len() <= 100_000 && older.len() > 80_000);
        assert!((older + &newest).contains("line 99000\n") && newest.ends_with("died\n\n"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn echoed_lines_are_whole_and_named() {
        let mut echo = Echo::of_rank(3);
        assert_eq!(echo.lines(b"one\ntw"), b"[rank 3] one\n");
        assert_eq!(echo.lines(b""), b"");
        assert_eq!(echo.lines(b"o\n\nthree\n"), b"[rank 3] two\n[rank 3] \n[rank 3] three\n");
        let long = echo.lines(&[b'x'; MAX_LINE + 1]);
        assert!(long.starts_with(b"[rank 3] xx") && long.ends_with(b"x\n"));
        let mut last = Vec::new();
        echo.lines(b"unended");
        echo.end_line(&mut last);
        echo.end_line(&mut last);
        assert_eq!(last, b"[rank 3] unended\n");
    }
}
