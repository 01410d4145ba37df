//! Asks a program within limits of time and output.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// What is read of its output, bytes.
const MAX_OUTPUT: u64 = 64 << 10;
/// Time between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The beginning of the standard output of a program that succeeds within `patience`; else it is ended, with all that
/// it has started.
pub(super) fn output(mut command: Command, patience: Duration) -> Option<String> {
    let deadline = Instant::now() + patience;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().ok()?;
    let written = child.stdout.take()?;
    let (sender, read) = channel();
    // What it has started may hold its output open: nobody waits for this thread.
    thread::spawn(move || {
        let mut text = Vec::new();
        let complete = written.take(MAX_OUTPUT).read_to_end(&mut text);
        // The receiver is gone when this took too long.
        let _ = sender.send(complete.map(|_| text));
    });
    let text = read.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    let status = end(&mut child, deadline);
    let text = text.ok()?.ok()?;
    status.filter(ExitStatus::success).map(|_| String::from_utf8_lossy(&text).into_owned())
}

/// How the program ended until the deadline; `None` if it did not.
fn end(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
            Ok(None) => break,
            // Another thread has waited for it.
            Err(_) => return None,
        }
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    let _ = child.wait();
    None
}
