//! Accepts the connections of the other ranks, beside those of strangers.

use super::exchange::Peer;
use pawl_rendezvous::strangers::{Limits, Strangers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of the secret that proves a connection comes from the gang.
pub(super) const SECRET: usize = 16;
/// First bytes of a connection.
pub(super) const MAGIC: &[u8; 8] = b"pawlmsh1";
/// Bytes that a rank sends first: magic, secret, its rank.
const HELLO: usize = MAGIC.len() + SECRET + 4;
/// Timeout for a connection to authenticate.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of connections accepted before those that are there are read again.
const BATCH: usize = 64;
/// A pod has at most 64 ranks, each with one connection. A rank sends its hello at once, so that the oldest connection
/// of an address is not one of the gang.
const LIMITS: Limits = Limits { total: 256, per_address: 128, grace: Duration::ZERO };

/// The listener of a rank, and the connections that have not authenticated.
pub(super) struct Welcome<'a> {
    listener: &'a TcpListener,
    secret: &'a [u8; SECRET],
    callers: Strangers<Caller>,
}

/// A connection, and what it has sent so far.
struct Caller {
    stream: Option<TcpStream>,
    hello: [u8; HELLO],
    received: usize,
    until: Instant,
}

impl<'a> Welcome<'a> {
    /// Listens for connections that prove `secret`.
    ///
    /// # Errors
    /// The listener cannot be made non-blocking.
    pub(super) fn new(listener: &'a TcpListener, secret: &'a [u8; SECRET]) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, secret, callers: Strangers::new(LIMITS) })
    }

    /// The next connections of the gang, at least one, non-blocking.
    ///
    /// # Errors
    /// None authenticates until `end`, or the listener fails.
    pub(super) fn next(&mut self, end: Instant) -> io::Result<Vec<Peer>> {
        loop {
            self.wait(end)?;
            self.accept()?;
            let mut peers = Vec::new();
            let (secret, now) = (self.secret, Instant::now());
            self.callers.retain(|caller| {
                let stays = caller.read(secret, &mut peers);
                stays && caller.until > now
            });
            if !peers.is_empty() {
                return Ok(peers);
            }
        }
    }

    /// Waits until there is something to accept or to read, or a connection is overdue.
    fn wait(&self, end: Instant) -> io::Result<()> {
        let now = Instant::now();
        if now >= end {
            return Err(io::Error::new(ErrorKind::TimedOut, "the deadline passed"));
        }
        let until = self.callers.iter().map(|caller| caller.until).fold(end, Instant::min);
        let left = until.saturating_duration_since(now);
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let callers = self.callers.iter().filter_map(|caller| caller.stream.as_ref());
        let mut fds: Vec<_> = callers.map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
        fds.push(PollFd::new(self.listener, PollFlags::IN));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..BATCH {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The caller is gone already.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            let now = Instant::now();
            // The connection that is replaced is closed here.
            if self.callers.make_room(from.ip(), now).is_ok() {
                let caller = Caller { stream: Some(stream), hello: [0; HELLO], received: 0, until: now + HELLO_LIMIT };
                self.callers.enter(from.ip(), now, caller);
            }
        }
        Ok(())
    }
}

impl Caller {
    /// Reads what has arrived. Returns whether more may follow; a rank of the gang is added to `peers`.
    fn read(&mut self, secret: &[u8; SECRET], peers: &mut Vec<Peer>) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        while self.received < HELLO {
            match stream.read(&mut self.hello[self.received..]) {
                Ok(0) => return false,
                Ok(count) => self.received += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        let (magic, rest) = self.hello.split_at(MAGIC.len());
        let (proof, rank) = rest.split_at(SECRET);
        // The comparison takes the same time wherever the bytes differ.
        let differs = proof.iter().zip(secret).fold(0, |acc, (a, b)| acc | (a ^ b));
        if magic == MAGIC && differs == 0 {
            let rank = u32::from_le_bytes(std::array::from_fn(|i| rank[i]));
            peers.extend(self.stream.take().map(|stream| Peer { rank, stream }));
        }
        false
    }
}
