//! Asks a program within limits of time and output.

use rustix::process::{Pid, Signal, kill_process_group, setpriority_process};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What is kept of its output, bytes.
const MAX_OUTPUT: u64 = 64 << 10;
/// Time between two looks at whether it is still waited for.
const SLICE: Duration = Duration::from_millis(50);
/// Time between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Its priority, the lowest: it is not to disturb what is measured.
const NICE: i32 = 19;

/// The beginning of the standard output of a program that succeeds within `patience` and before `ended` is set; else it
/// is killed, with all that it has started, and its end is not waited for.
pub(super) fn output(mut command: Command, patience: Duration, ended: &AtomicBool) -> Option<String> {
    let deadline = Instant::now() + patience;
    let over = || ended.load(Ordering::Relaxed) || Instant::now() >= deadline;
    if over() {
        return None;
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().ok()?;
    // Without it, the program runs all the same.
    let _ = setpriority_process(Some(Pid::from_child(&child)), NICE);
    let written = child.stdout.take()?;
    let (sender, read) = channel();
    // What it has started may hold its output open: nobody waits for this thread.
    thread::spawn(move || {
        // The receiver is gone when this took too long.
        let _ = sender.send(beginning(written));
    });
    let text = loop {
        match read.recv_timeout(SLICE) {
            Err(RecvTimeoutError::Timeout) if !over() => {}
            text => break text,
        }
    };
    let status = end(child, over);
    let text = text.ok()?.ok()?;
    status.filter(ExitStatus::success).map(|_| String::from_utf8_lossy(&text).into_owned())
}

/// The beginning of what a program writes. The rest is read as well: a program that cannot write fails.
fn beginning(mut written: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    written.by_ref().take(MAX_OUTPUT).read_to_end(&mut text)?;
    io::copy(&mut written, &mut io::sink())?;
    Ok(text)
}

/// How the program ended before it is `over`; `None` if it did not.
fn end(mut child: Child, over: impl Fn() -> bool) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if !over() => thread::sleep(LOOK),
            Ok(None) => break,
            // Another thread has waited for it.
            Err(_) => return None,
        }
    }
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    // Inside a driver that does not answer, it stays alive: nobody waits for this thread.
    thread::spawn(move || child.wait());
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_writes_more_than_is_kept_succeeds() {
        // Far more than a pipe holds.
        let text = output(shell("exec head -c 1000000 /dev/zero"), LONG, &AtomicBool::new(false)).unwrap();
        assert_eq!(text.len() as u64, MAX_OUTPUT);
    }

    #[test]
    fn an_inquiry_that_is_ended_is_not_waited_for() {
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let asked = Instant::now();
        thread::spawn(move || {
            thread::sleep(SLICE);
            flag.store(true, Ordering::Relaxed);
        });
        assert_eq!(output(shell("echo 1; exec sleep 600"), LONG, &ended), None);
        assert!(asked.elapsed() < LONG);
        assert_eq!(output(shell("echo 1"), LONG, &ended), None, "nor is another one asked");
    }
}
