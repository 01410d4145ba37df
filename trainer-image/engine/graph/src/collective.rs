//! Collectives over ranks: the implementation of [`Op::AllReduce`](crate::graph::Op::AllReduce), `ReduceScatter` and
//! `AllGather`.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A failed collective: a peer is gone, or ranks disagree about the number of elements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A peer left; the gang has to be started again.
    #[error("rank {rank} of the gang is gone")]
    PeerLost {
        /// The rank that left.
        rank: usize,
    },
    /// Ranks gave buffers of different lengths: they do not run the same program.
    #[error("ranks disagree: rank {rank} gave {got} elements, rank 0 gave {expected}")]
    Disagree {
        /// The rank that differs.
        rank: usize,
        /// Its number of elements.
        got: usize,
        /// Rank 0's.
        expected: usize,
    },
    /// No rank made progress within the hang timeout: one is gone, or hangs.
    #[error("no progress of the gang for {seconds} s: a rank is gone or hangs")]
    Timeout {
        /// The hang timeout, in seconds.
        seconds: u64,
    },
    /// The transport failed.
    #[error("collective transport: {0}")]
    Transport(String),
}

/// The collectives of one rank of a gang, over float32 buffers. All ranks call the same operations in the same order.
///
/// Sums are taken **in rank order** (`((r0 + r1) + r2) + ..`) and are bit-equal on every rank, so that N ranks give
/// exactly the same sum as one rank that adds N micro-steps.
pub trait Collective: Send + Sync {
    /// Number of ranks.
    fn world(&self) -> usize;

    /// This rank, below [`Collective::world`].
    fn rank(&self) -> usize;

    /// Replaces `buffer` by its elementwise sum over all ranks.
    ///
    /// # Errors
    /// When a rank is gone, ranks disagree, or the transport fails.
    fn all_reduce(&self, buffer: &mut [f32]) -> Result<(), CollectiveError>;

    /// Sets `output` to this rank's part of the sum of `input` over all ranks: elements `rank * output.len() ..`, where
    /// `input.len() = world * output.len()`.
    ///
    /// # Errors
    /// When a rank is gone, ranks disagree, or the transport fails.
    fn reduce_scatter(&self, input: &[f32], output: &mut [f32]) -> Result<(), CollectiveError> {
        let mut sum = input.to_vec();
        self.all_reduce(&mut sum)?;
        let start = self.rank() * output.len();
        output.copy_from_slice(&sum[start..start + output.len()]);
        Ok(())
    }

    /// Sets `output` to the `input` of all ranks, concatenated in rank order: `output.len() = world * input.len()`.
    ///
    /// # Errors
    /// When a rank is gone, ranks disagree, or the transport fails.
    fn all_gather(&self, input: &[f32], output: &mut [f32]) -> Result<(), CollectiveError>;
}

/// A gang of one.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleRank;

impl Collective for SingleRank {
    fn world(&self) -> usize {
        1
    }

    fn rank(&self) -> usize {
        0
    }

    fn all_reduce(&self, _buffer: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&self, input: &[f32], output: &mut [f32]) -> Result<(), CollectiveError> {
        output.copy_from_slice(input);
        Ok(())
    }
}

/// One rank of a gang of threads in this process. Dropping a rank makes the collectives of its peers fail.
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    meeting: Arc<Meeting>,
}

#[derive(Debug)]
struct Meeting {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug)]
struct Table {
    parts: Vec<Option<Vec<f32>>>,
    taken: usize,
    gone: Option<usize>,
}

/// A gang of `world` ranks in this process, one per thread.
pub fn threads(world: usize) -> Vec<ThreadRank> {
    let table = Table { parts: vec![None; world], taken: 0, gone: None };
    let meeting = Arc::new(Meeting { table: Mutex::new(table), changed: Condvar::new() });
    (0..world).map(|rank| ThreadRank { rank, meeting: Arc::clone(&meeting) }).collect()
}

impl ThreadRank {
    /// Contributes `mine`, waits for the parts of all ranks, and calls `take` with them.
    fn meet(&self, mine: &[f32], take: impl FnOnce(&[Option<Vec<f32>>])) -> Result<(), CollectiveError> {
        let mut table = self.wait(|t| t.parts[self.rank].is_none())?;
        table.parts[self.rank] = Some(mine.to_vec());
        self.meeting.changed.notify_all();
        drop(table);
        let mut table = self.wait(|t| t.parts.iter().all(Option::is_some))?;
        let lengths = || table.parts.iter().map(|p| p.as_ref().map_or(0, Vec::len));
        let disagree = lengths().enumerate().find(|&(_, len)| Some(len) != lengths().next());
        if let Some((rank, got)) = disagree {
            return Err(CollectiveError::Disagree { rank, got, expected: lengths().next().unwrap_or(0) });
        }
        take(&table.parts);
        table.taken += 1;
        if table.taken == table.parts.len() {
            table.taken = 0;
            table.parts.fill(None);
            self.meeting.changed.notify_all();
        } else {
            // No rank may contribute its next part before all have read this one.
            drop(self.meeting.changed.wait_while(table, |t| t.parts[self.rank].is_some() && t.gone.is_none()));
        }
        Ok(())
    }

    fn wait(&self, ready: impl Fn(&Table) -> bool) -> Result<MutexGuard<'_, Table>, CollectiveError> {
        let table = self.meeting.table.lock().unwrap_or_else(PoisonError::into_inner);
        let table = self
            .meeting
            .changed
            .wait_while(table, |t| !ready(t) && t.gone.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        match table.gone {
            Some(rank) if !ready(&table) => Err(CollectiveError::PeerLost { rank }),
            _ => Ok(table),
        }
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        let mut table = self.meeting.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.gone.get_or_insert(self.rank);
        self.meeting.changed.notify_all();
    }
}

impl Collective for ThreadRank {
    fn world(&self) -> usize {
        self.meeting.table.lock().unwrap_or_else(PoisonError::into_inner).parts.len()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn all_reduce(&self, buffer: &mut [f32]) -> Result<(), CollectiveError> {
        let mine = buffer.to_vec();
        self.meet(&mine, |parts| {
            for (rank, part) in parts.iter().flatten().enumerate() {
                for (sum, &x) in buffer.iter_mut().zip(part) {
                    *sum = if rank == 0 { x } else { *sum + x };
                }
            }
        })
    }

    fn all_gather(&self, input: &[f32], output: &mut [f32]) -> Result<(), CollectiveError> {
        self.meet(input, |parts| {
            for (part, place) in parts.iter().flatten().zip(output.chunks_mut(input.len().max(1))) {
                place.copy_from_slice(part);
            }
        })
    }
}
