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
    /// The exit status that shells use for the signal: 128 plus its number.
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

/// Handlers of both signals, which then no longer terminate the process.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    received: Option<Signal>,
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
            received: None,
        })
    }

    /// Waits for a signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        let signal = tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        };
        self.received = Some(signal);
        signal
    }

    /// Whether a signal was received that [`Self::next`] has not returned; [`Self::received`] returns it.
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

    /// The newest signal received.
    pub fn received(&self) -> Option<Signal> {
        self.received
    }
}
