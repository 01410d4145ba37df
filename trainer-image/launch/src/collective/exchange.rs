//! Concurrent message exchange with all peers, over non-blocking sockets.
//!
//! A single `poll` loop moves all bytes in both directions, so that no order of sends and receives can deadlock, no
//! thread per peer is needed, and the death of any peer is detected at once.

use super::CollectiveError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of a frame's header: sequence number and payload length, little-endian `u64` each.
const HEADER: usize = 16;

/// The connection to one other rank.
#[derive(Debug)]
pub(super) struct Peer {
    pub rank: u32,
    pub stream: TcpStream,
}

/// Data to send to and receive from one peer in a round. An absent direction transfers nothing.
pub(super) struct Transfer<'a> {
    pub send: Option<&'a [u8]>,
    pub receive: Option<&'a mut [u8]>,
}

/// Progress of both directions of one peer.
struct State<'a> {
    out_header: [u8; HEADER],
    out: Option<&'a [u8]>,
    sent: usize,
    in_header: [u8; HEADER],
    incoming: Option<&'a mut [u8]>,
    received: usize,
}

impl State<'_> {
    fn out_left(&self) -> usize {
        self.out.map_or(0, |payload| HEADER + payload.len() - self.sent)
    }

    fn in_left(&self) -> usize {
        self.incoming.as_ref().map_or(0, |payload| HEADER + payload.len() - self.received)
    }
}

/// Runs one round: `transfers[i]` belongs to `peers[i]`. Fails when no byte is transferred for `deadline`.
pub(super) fn round(
    peers: &[Peer],
    transfers: Vec<Transfer<'_>>,
    sequence: u64,
    deadline: Duration,
) -> Result<(), CollectiveError> {
    let mut states: Vec<State<'_>> = transfers
        .into_iter()
        .map(|transfer| State {
            out_header: header(sequence, transfer.send.map_or(0, <[u8]>::len)),
            out: transfer.send,
            sent: 0,
            in_header: [0; HEADER],
            incoming: transfer.receive,
            received: 0,
        })
        .collect();
    let mut quiet_since = Instant::now();
    loop {
        let mut moved = false;
        for (peer, state) in peers.iter().zip(&mut states) {
            moved |= send_some(peer, state)?;
            moved |= receive_some(peer, state, sequence)?;
        }
        let Some(pending) = states.iter().position(|s| s.out_left() + s.in_left() > 0) else {
            return Ok(());
        };
        if moved {
            quiet_since = Instant::now();
            continue;
        }
        let left = deadline.saturating_sub(quiet_since.elapsed());
        if left.is_zero() {
            let reason = format!("no data for {:.1} s", deadline.as_secs_f64());
            return Err(CollectiveError::LostPeer { rank: peers[pending].rank, reason });
        }
        wait(peers, &states, left)?;
    }
}

fn header(sequence: u64, length: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&sequence.to_le_bytes());
    bytes[8..].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

fn send_some(peer: &Peer, state: &mut State<'_>) -> Result<bool, CollectiveError> {
    let mut moved = false;
    while state.out_left() > 0 {
        let payload = state.out.unwrap_or_default();
        let chunk = match state.sent.checked_sub(HEADER) {
            None => &state.out_header[state.sent..],
            Some(done) => &payload[done..],
        };
        match (&peer.stream).write(chunk) {
            Ok(0) => return Err(lost(peer, "it closed the connection")),
            Ok(count) => state.sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(lost(peer, &error.to_string())),
        }
        moved = true;
    }
    Ok(moved)
}

fn receive_some(peer: &Peer, state: &mut State<'_>, sequence: u64) -> Result<bool, CollectiveError> {
    let mut moved = false;
    while state.in_left() > 0 {
        let Some(payload) = state.incoming.as_deref_mut() else { break };
        let chunk = match state.received.checked_sub(HEADER) {
            None => &mut state.in_header[state.received..],
            Some(done) => &mut payload[done..],
        };
        match (&peer.stream).read(chunk) {
            Ok(0) => return Err(lost(peer, "it closed the connection")),
            Ok(count) => state.received += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(lost(peer, &error.to_string())),
        }
        moved = true;
        let expected = header(sequence, payload.len());
        if state.received >= HEADER && state.in_header != expected {
            let reason = format!("it is at {}, this rank at {}", words(&state.in_header), words(&expected));
            return Err(CollectiveError::Disagreement { rank: peer.rank, reason });
        }
    }
    Ok(moved)
}

fn words(header: &[u8; HEADER]) -> String {
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    format!("message {} of {} bytes", number(0), number(8))
}

/// Waits until a socket with pending transfers is ready, at most `left`.
fn wait(peers: &[Peer], states: &[State<'_>], left: Duration) -> Result<(), CollectiveError> {
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(peers.len());
    for (peer, state) in peers.iter().zip(states) {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::OUT, state.out_left() > 0);
        interest.set(PollFlags::IN, state.in_left() > 0);
        // A peer that has finished this round may disconnect: it is not polled; an error shows in the next round.
        if !interest.is_empty() {
            fds.push(PollFd::new(&peer.stream, interest));
        }
    }
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(lost(&peers[0], &format!("poll failed: {error}"))),
    }
}

fn lost(peer: &Peer, reason: &str) -> CollectiveError {
    CollectiveError::LostPeer { rank: peer.rank, reason: reason.to_owned() }
}
