//! SIGINT and SIGTERM.

use std::fmt;
use std::io;
use tokio::signal::unix::{self, SignalKind};

/// A signal that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// The exit status by which shells know it: 128 and its number.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Both signals, heard instead of ending the process.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    received: Option<Signal>,
}

impl Interrupts {
    /// Begins to listen. Inside a tokio runtime only.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            received: None,
        })
    }

    /// Waits for a signal. Safe to cancel.
    pub async fn next(&mut self) -> Signal {
        let signal = tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        };
        self.received = Some(signal);
        signal
    }

    /// Whether a signal came that nobody waited for.
    pub fn pending(&mut self) -> bool {
        use std::task::{Context, Poll, Waker};
        let mut context = Context::from_waker(Waker::noop());
        let signals = [(&mut self.interrupt, Signal::Interrupt), (&mut self.terminate, Signal::Terminate)];
        for (source, signal) in signals {
            if let Poll::Ready(Some(())) = source.poll_recv(&mut context) {
                self.received = Some(signal);
                return true;
            }
        }
        false
    }

    /// The newest signal.
    pub fn received(&self) -> Option<Signal> {
        self.received
    }
}
