//! SIGINT, SIGTERM and SIGHUP, and the end of the time that a run may take.

use std::fmt;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;

/// What ends a run before its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal was closed, or the connection to it was lost.
    Hangup,
    /// No signal: the time that the run may take is over.
    Deadline,
}

impl Signal {
    /// The exit status that shells use for the signal: 128 plus its number. Of a deadline, that of a run without its
    /// goal.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
            Self::Deadline => 3,
        }
    }

    /// Whether a repetition asks for an immediate end: a closed terminal sends SIGHUP more than once, from the kernel
    /// and from the shell.
    pub const fn is_urgent_when_repeated(self) -> bool {
        match self {
            Self::Interrupt | Self::Terminate => true,
            Self::Hangup | Self::Deadline => false,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
            Self::Deadline => "the end of its time",
        })
    }
}

/// Handlers of the signals, which then no longer terminate the process.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    /// Absent under `nohup`, whose point is to survive the terminal.
    hangup: Option<unix::Signal>,
    received: Option<Signal>,
    /// Until it has passed.
    deadline: Option<Instant>,
}

impl Interrupts {
    /// Installs the handlers. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hangup: if ignores_hangup() { None } else { Some(unix::signal(SignalKind::hangup())?) },
            received: None,
            deadline: None,
        })
    }

    /// With a deadline, `limit` from now.
    pub fn within(self, limit: Option<Duration>) -> Self {
        Self { deadline: limit.and_then(|limit| Instant::now().checked_add(limit)), ..self }
    }

    /// Waits for a signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        let signal = tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            () = received(&mut self.hangup) => Signal::Hangup,
            () = passed(self.deadline) => Signal::Deadline,
        };
        // It ends a run once.
        self.deadline = self.deadline.filter(|_| signal != Signal::Deadline);
        self.received = Some(signal);
        signal
    }

    /// Whether a signal was received that [`Self::next`] has not returned; [`Self::received`] returns it.
    pub fn pending(&mut self) -> bool {
        use std::task::{Context, Poll, Waker};
        let mut context = Context::from_waker(Waker::noop());
        let signals = [(&mut self.interrupt, Signal::Interrupt), (&mut self.terminate, Signal::Terminate)];
        let hangup = self.hangup.iter_mut().map(|source| (source, Signal::Hangup));
        for (source, signal) in signals.into_iter().chain(hangup) {
            if let Poll::Ready(Some(())) = source.poll_recv(&mut context) {
                self.received = Some(signal);
                return true;
            }
        }
        let is_over = self.deadline.take_if(|deadline| *deadline <= Instant::now()).is_some();
        self.received = if is_over { Some(Signal::Deadline) } else { self.received };
        is_over
    }

    /// The newest signal received.
    pub fn received(&self) -> Option<Signal> {
        self.received
    }
}

async fn received(signal: &mut Option<unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Whether this process was started with SIGHUP ignored, as by `nohup`.
fn ignores_hangup() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignored(&status, SignalKind::hangup()))
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignored(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal.as_raw_value() - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tpawl\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(ignored(status, SignalKind::hangup()) && ignored(status, SignalKind::pipe()));
        assert!(!ignored(status, SignalKind::terminate()) && !ignored("", SignalKind::hangup()));
    }

    #[tokio::test]
    async fn a_deadline_ends_a_run_once() {
        let limit = Duration::from_millis(20);
        let mut interrupts = Interrupts::listen().unwrap().within(Some(limit));
        assert!(!interrupts.pending());
        assert_eq!(interrupts.next().await, Signal::Deadline);
        assert!(tokio::time::timeout(limit * 3, interrupts.next()).await.is_err(), "it has passed");
        let mut passed = Interrupts::listen().unwrap().within(Some(Duration::ZERO));
        assert!(passed.pending() && !passed.pending());
        assert_eq!(passed.received(), Some(Signal::Deadline));
    }
}
