//! A full mesh of TCP connections among the ranks.
//!
//! An all-reduce is a direct reduce-scatter followed by an all-gather: as many bytes as a ring transfers, in two rounds
//! instead of `2 (n - 1)`, and the owner of a part can sum it in rank order.

use super::dial::dial;
use super::exchange::{Peer, Transfer, round};
use super::welcome::{SECRET, Welcome};
use super::{CollectiveError, part};
use std::io::Read;
use std::net::{IpAddr, TcpListener};
use std::time::{Duration, Instant};

/// Buffers of at most this many elements are summed by every rank itself: one round instead of two.
const DIRECT_LIMIT: usize = 2048;
/// Largest message of [`TcpMesh::gather_bytes`]; real ones have a few kilobytes.
const MAX_GATHERED: u64 = 64 << 20;
/// Bytes of such a message that are received before memory for the next ones is allocated.
const CHUNK: usize = 64 << 10;

/// Key-value exchange among the ranks of a launch: the gang's rendezvous.
pub trait Exchange {
    /// Stores `value` under `key`, once.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String>;
    /// The value under `key`, as soon as a rank has stored it.
    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, String>;
}

/// The gang over TCP; see the module's documentation.
#[derive(Debug)]
pub struct TcpMesh {
    rank: u32,
    peers: Vec<Peer>,
    deadline: Duration,
    sequence: u64,
    /// Values received from the peers for a sum, one row each.
    rows: Vec<f32>,
    /// The sum of this rank's part.
    sum: Vec<f32>,
    waited: Duration,
}

impl TcpMesh {
    /// The mesh of one rank.
    pub fn alone() -> Self {
        Self::among(0, Vec::new(), Duration::MAX)
    }

    fn among(rank: u32, peers: Vec<Peer>, deadline: Duration) -> Self {
        Self { rank, peers, deadline, sequence: 0, rows: Vec::new(), sum: Vec::new(), waited: Duration::ZERO }
    }

    /// Connects this rank to all others, whose addresses (and proofs) it finds through `exchange`.
    ///
    /// `host` is the address of this rank that the others can reach. `deadline` is the timeout of connecting, and of a
    /// collective without any byte from a peer ([`Self::with_deadline`] changes that): it must exceed the longest time
    /// by which ranks may drift apart, such as rank 0 waiting for a checkpoint.
    pub fn connect(
        rank: u32,
        world_size: u32,
        host: IpAddr,
        exchange: &mut dyn Exchange,
        deadline: Duration,
    ) -> Result<Self, CollectiveError> {
        let end = Instant::now() + deadline;
        let own = |reason: String| CollectiveError::LostPeer { rank, reason };
        let listener = TcpListener::bind((host, 0)).map_err(|e| own(format!("cannot listen on {host}: {e}")))?;
        let address = listener.local_addr().map_err(|e| own(format!("cannot listen on {host}: {e}")))?;
        let secret = secret().map_err(|e| own(format!("no random numbers: {e}")))?;
        let offer = [&secret[..], address.to_string().as_bytes()].concat();
        exchange.put(&format!("mesh/{rank}"), &offer).map_err(|e| own(format!("rendezvous: {e}")))?;

        let mut peers = Vec::with_capacity(world_size as usize - 1);
        for other in 0..rank {
            let lost = |reason: String| CollectiveError::LostPeer { rank: other, reason };
            let limit = end.saturating_duration_since(Instant::now());
            let offer = exchange.get(&format!("mesh/{other}"), limit).map_err(|e| lost(format!("rendezvous: {e}")))?;
            let stream = dial(&offer, rank, end).map_err(|e| lost(format!("cannot connect: {e}")))?;
            peers.push(Peer { rank: other, stream });
        }
        let mut welcome = Welcome::new(&listener, &secret).map_err(|e| own(format!("cannot listen on {host}: {e}")))?;
        while peers.len() + 1 < world_size as usize {
            match welcome.next(end) {
                Ok(arrived) => {
                    for peer in arrived.into_iter().filter(|peer| peer.rank > rank && peer.rank < world_size) {
                        if peers.iter().all(|known| known.rank != peer.rank) {
                            peers.push(peer);
                        }
                    }
                }
                Err(error) => {
                    let missing = (rank + 1..world_size).find(|r| peers.iter().all(|known| known.rank != *r));
                    let reason = format!("it did not connect: {error}");
                    return Err(CollectiveError::LostPeer { rank: missing.unwrap_or(rank), reason });
                }
            }
        }
        peers.sort_by_key(|peer| peer.rank);
        for peer in &peers {
            let ready = peer.stream.set_nodelay(true).and_then(|()| peer.stream.set_nonblocking(true));
            ready.map_err(|e| CollectiveError::LostPeer { rank: peer.rank, reason: e.to_string() })?;
        }
        Ok(Self::among(rank, peers, deadline))
    }

    /// This mesh with another timeout of a collective without any byte from a peer.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// One round with every peer; counts the time.
    fn round(
        peers: &[Peer],
        sequence: &mut u64,
        waited: &mut Duration,
        deadline: Duration,
        transfers: Vec<Transfer<'_>>,
    ) -> Result<(), CollectiveError> {
        let start = Instant::now();
        *sequence += 1;
        let result = round(peers, transfers, *sequence, deadline);
        *waited += start.elapsed();
        result
    }

    /// Sends `mine` to every peer and receives each peer's values into its part of `all`; the caller fills this rank's
    /// part.
    fn spread(&mut self, mine: &[f32], all: Vec<&mut [f32]>) -> Result<(), CollectiveError> {
        let transfers = all
            .into_iter()
            .enumerate()
            .filter(|(rank, _)| *rank != self.rank as usize)
            .map(|(_, values)| Transfer {
                send: Some(bytemuck::cast_slice(mine)),
                receive: Some(bytemuck::cast_slice_mut(values)),
            })
            .collect();
        Self::round(&self.peers, &mut self.sequence, &mut self.waited, self.deadline, transfers)
    }

    /// The sum, in rank order, of `own` and the peers' scratch rows; row `i` belongs to peer `i`.
    fn add_up(&self, own: &[f32], rows: &[f32], sum: &mut [f32]) {
        let width = own.len();
        let row = |rank: usize| match rank.cmp(&(self.rank as usize)) {
            std::cmp::Ordering::Less => &rows[rank * width..(rank + 1) * width],
            std::cmp::Ordering::Equal => own,
            std::cmp::Ordering::Greater => &rows[(rank - 1) * width..rank * width],
        };
        sum.copy_from_slice(row(0));
        for rank in 1..=self.peers.len() {
            for (total, value) in sum.iter_mut().zip(row(rank)) {
                *total += value;
            }
        }
    }

    /// Receives every peer's values for this rank's part of `data` and adds them up into `sum`.
    fn reduce_part(&mut self, data: &[f32], sum: &mut [f32]) -> Result<(), CollectiveError> {
        let world = self.peers.len() + 1;
        let mine = part(data.len(), self.rank as usize, world);
        let mut rows = std::mem::take(&mut self.rows);
        rows.resize((world - 1) * mine.len(), 0.0);
        let mut left = rows.as_mut_slice();
        let mut transfers = Vec::with_capacity(world - 1);
        for peer in &self.peers {
            let (row, rest) = left.split_at_mut(mine.len());
            left = rest;
            transfers.push(Transfer {
                send: Some(bytemuck::cast_slice(&data[part(data.len(), peer.rank as usize, world)])),
                receive: Some(bytemuck::cast_slice_mut(row)),
            });
        }
        let done = Self::round(&self.peers, &mut self.sequence, &mut self.waited, self.deadline, transfers);
        if done.is_ok() {
            self.add_up(&data[mine], &rows, sum);
        }
        self.rows = rows;
        done
    }

    /// This rank, `0..world_size`.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks, at least 1.
    pub fn world_size(&self) -> u32 {
        self.peers.len() as u32 + 1
    }

    /// Replaces `data` by the sum over the ranks, taken in rank order.
    pub fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        let world = self.peers.len() + 1;
        if world == 1 {
            return Ok(());
        }
        if data.len() <= DIRECT_LIMIT {
            let mut rows = vec![0.0; data.len() * world];
            self.spread(data, rows.chunks_exact_mut(data.len().max(1)).collect())?;
            let own = self.rank as usize * data.len();
            rows.drain(own..own + data.len());
            let own = data.to_vec();
            self.add_up(&own, &rows, data);
            return Ok(());
        }
        let mine = part(data.len(), self.rank as usize, world);
        let mut sum = std::mem::take(&mut self.sum);
        sum.resize(mine.len(), 0.0);
        self.reduce_part(data, &mut sum)?;
        data[mine].copy_from_slice(&sum);
        self.spread(&sum, parts_mut(data, world))?;
        self.sum = sum;
        Ok(())
    }

    /// The sum over the ranks of their `data`, of which rank `r` gets part `r` as [`part`] cuts it.
    pub fn reduce_scatter_sum(&mut self, data: &[f32], mine: &mut [f32]) -> Result<(), CollectiveError> {
        self.reduce_part(data, mine)
    }

    /// Every rank's `mine`, laid one after the other as [`part`] cuts `all`.
    pub fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        let world = self.peers.len() + 1;
        let own = part(all.len(), self.rank as usize, world);
        all[own].copy_from_slice(mine);
        self.spread(mine, parts_mut(all, world))
    }

    /// Replaces `data` by that of rank `root`.
    pub fn broadcast(&mut self, root: u32, data: &mut [f32]) -> Result<(), CollectiveError> {
        let transfers: Vec<Transfer<'_>> = if self.rank == root {
            let payload: &[u8] = bytemuck::cast_slice(data);
            self.peers.iter().map(|_| Transfer { send: Some(payload), receive: None }).collect()
        } else {
            let mut target = Some(bytemuck::cast_slice_mut(data));
            let from = |peer: &Peer| if peer.rank == root { target.take() } else { None };
            self.peers.iter().map(from).map(|receive| Transfer { send: None, receive }).collect()
        };
        Self::round(&self.peers, &mut self.sequence, &mut self.waited, self.deadline, transfers)
    }

    /// Every rank's `mine`, at most 64 MiB, by rank; lengths may differ.
    pub fn gather_bytes(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let length = (mine.len() as u64).to_le_bytes();
        let mut lengths = vec![[0u8; 8]; self.peers.len()];
        let transfers =
            lengths.iter_mut().map(|l| Transfer { send: Some(&length), receive: Some(&mut l[..]) }).collect();
        Self::round(&self.peers, &mut self.sequence, &mut self.waited, self.deadline, transfers)?;
        let lengths: Vec<u64> = lengths.into_iter().map(u64::from_le_bytes).collect();
        if let Some((peer, length)) = self.peers.iter().zip(&lengths).find(|(_, length)| **length > MAX_GATHERED) {
            let reason = format!("it announces a message of {length} bytes, more than {MAX_GATHERED}");
            return Err(CollectiveError::Disagreement { rank: peer.rank, reason });
        }
        let mut values = vec![Vec::new(); self.peers.len()];
        let longest = lengths.iter().map(|length| *length as usize).fold(mine.len(), usize::max);
        for start in (0..longest).step_by(CHUNK) {
            // Memory grows with what was received, not with what was announced.
            let send = (start < mine.len()).then(|| &mine[start..mine.len().min(start + CHUNK)]);
            let transfers = values.iter_mut().zip(&lengths).map(|(value, length)| {
                let length = *length as usize;
                value.resize(length.min(start + CHUNK), 0);
                let receive = if start < length { Some(&mut value[start..]) } else { None };
                Transfer { send, receive }
            });
            let transfers = transfers.collect();
            Self::round(&self.peers, &mut self.sequence, &mut self.waited, self.deadline, transfers)?;
        }
        values.insert(self.rank as usize, mine.to_vec());
        Ok(values)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.gather_bytes(&[]).map(drop)
    }

    /// Time spent inside collectives so far.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

/// `data` cut into the parts of the ranks.
fn parts_mut(mut data: &mut [f32], world: usize) -> Vec<&mut [f32]> {
    let length = data.len();
    (0..world)
        .map(|rank| {
            let (head, tail) = std::mem::take(&mut data).split_at_mut(part(length, rank, world).len());
            data = tail;
            head
        })
        .collect()
}

fn secret() -> std::io::Result<[u8; SECRET]> {
    let mut bytes = [0; SECRET];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
