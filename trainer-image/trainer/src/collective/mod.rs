//! Collectives: what the ranks of a gang do together.
//!
//! Sums are taken **in rank order**, element by element, whatever the transport and however a buffer is cut into
//! buckets: `((x0 + x1) + x2) + ...`. Two ranks that each add one micro-step therefore give bit for bit what one rank
//! gives that accumulates the same two micro-steps. With accumulation on several ranks the grouping differs
//! (`(a + b) + (c + d)` instead of `((a + b) + c) + d`), so that results agree to within rounding only: the relative
//! difference of an element is at most `2^-24 * (terms - 1)` of the sum of magnitudes.

mod exchange;
mod mesh;

pub use mesh::{Exchange, TcpMesh};

use std::time::Duration;

/// A collective could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A rank went away, or said nothing for the whole deadline.
    #[error("lost rank {rank}: {reason}")]
    LostPeer {
        /// The rank that is missing.
        rank: u32,
        /// What was seen of it.
        reason: String,
    },
    /// The ranks are not in the same program: a bug or a mismatched plan, never repaired by a retry.
    #[error(
        "rank {rank} disagrees about what comes next: {reason}; all ranks must run the same plan and the same image"
    )]
    Disagreement {
        /// The other rank.
        rank: u32,
        /// What each side expected.
        reason: String,
    },
}

/// The collectives of a gang. Every rank calls the same methods with the same lengths in the same order.
pub trait Collective: Send {
    /// This rank, `0..world_size`.
    fn rank(&self) -> u32;

    /// Number of ranks in the gang, at least 1.
    fn world_size(&self) -> u32;

    /// Replaces `data` by the sum over the ranks, taken in rank order.
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError>;

    /// The sum over the ranks of their `data`, of which rank `r` gets part `r` as [`part`] cuts it.
    fn reduce_scatter_sum(&mut self, data: &[f32], mine: &mut [f32]) -> Result<(), CollectiveError>;

    /// Every rank's `mine`, laid one after the other as [`part`] cuts `all`.
    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError>;

    /// Replaces `data` by that of rank `root`.
    fn broadcast(&mut self, root: u32, data: &mut [f32]) -> Result<(), CollectiveError>;

    /// Every rank's `mine`, by rank. Meant for what is small: each rank gets all of it. Lengths may differ.
    fn gather_bytes(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Returns when every rank has called it.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.gather_bytes(&[]).map(drop)
    }

    /// Time spent inside collectives so far.
    fn waited(&self) -> Duration;
}

/// Part `index` of `length` elements cut into `parts`: sizes differ by at most one.
pub fn part(length: usize, index: usize, parts: usize) -> std::ops::Range<usize> {
    length * index / parts..length * (index + 1) / parts
}

/// The gang of one rank.
#[derive(Debug, Default)]
pub struct Alone;

impl Collective for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn world_size(&self) -> u32 {
        1
    }

    fn all_reduce_sum(&mut self, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn reduce_scatter_sum(&mut self, data: &[f32], mine: &mut [f32]) -> Result<(), CollectiveError> {
        mine.copy_from_slice(data);
        Ok(())
    }

    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        all.copy_from_slice(mine);
        Ok(())
    }

    fn broadcast(&mut self, _: u32, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn gather_bytes(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![mine.to_vec()])
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}
