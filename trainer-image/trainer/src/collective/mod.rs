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

use pawl_graph::collective as engine;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A collective could not be completed.
#[derive(Clone, Debug, thiserror::Error)]
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

/// The gang as one rank sees it: shared by the loop and, for the gradients, by the executor. All ranks call the same
/// methods in the same order.
#[derive(Debug)]
pub struct Gang {
    rank: u32,
    world_size: u32,
    mesh: Mutex<TcpMesh>,
    failure: Mutex<Option<CollectiveError>>,
}

impl Gang {
    /// The gang behind `mesh`.
    pub fn new(mesh: TcpMesh) -> Self {
        let (rank, world_size) = (mesh.rank(), mesh.world_size());
        Self { rank, world_size, mesh: Mutex::new(mesh), failure: Mutex::new(None) }
    }

    /// The gang of one rank.
    pub fn alone() -> Self {
        Self::new(TcpMesh::alone())
    }

    /// This rank, `0..world_size`.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks, at least 1.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Replaces `data` by that of rank `root`.
    pub fn broadcast(&self, root: u32, data: &mut [f32]) -> Result<(), CollectiveError> {
        self.mesh().broadcast(root, data)
    }

    /// Every rank's `mine`, by rank. Meant for what is small: each rank gets all of it. Lengths may differ.
    pub fn gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.mesh().gather_bytes(mine)
    }

    /// Every rank's `mine`, by rank, of a message that serde knows. NaN and infinity do not survive JSON: use
    /// [`Option`].
    pub fn gather<T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        mine: &T,
    ) -> Result<Vec<T>, CollectiveError> {
        let garbled = |rank: usize, error: serde_json::Error| CollectiveError::Disagreement {
            rank: rank as u32,
            reason: format!("its message is not understood: {error}"),
        };
        let bytes = serde_json::to_vec(mine).map_err(|e| garbled(self.rank as usize, e))?;
        let all = self.gather_bytes(&bytes)?;
        all.iter().enumerate().map(|(rank, b)| serde_json::from_slice(b).map_err(|e| garbled(rank, e))).collect()
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.mesh().barrier()
    }

    /// Time spent inside collectives so far.
    pub fn waited(&self) -> Duration {
        self.mesh().waited()
    }

    /// What broke a collective that the executor ran, in this crate's words; its own error only has the rank.
    pub fn failure(&self) -> Option<CollectiveError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn mesh(&self) -> MutexGuard<'_, TcpMesh> {
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self, result: Result<(), CollectiveError>) -> Result<(), engine::CollectiveError> {
        result.map_err(|error| {
            let short = match &error {
                CollectiveError::LostPeer { rank, .. } => engine::CollectiveError::PeerLost { rank: *rank as usize },
                CollectiveError::Disagreement { .. } => engine::CollectiveError::Transport(error.to_string()),
            };
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            short
        })
    }
}

impl engine::Collective for Gang {
    fn world(&self) -> usize {
        self.world_size as usize
    }

    fn rank(&self) -> usize {
        self.rank as usize
    }

    fn all_reduce(&self, buffer: &mut [f32]) -> Result<(), engine::CollectiveError> {
        self.told(self.mesh().all_reduce_sum(buffer))
    }

    fn reduce_scatter(&self, input: &[f32], output: &mut [f32]) -> Result<(), engine::CollectiveError> {
        self.told(self.mesh().reduce_scatter_sum(input, output))
    }

    fn all_gather(&self, input: &[f32], output: &mut [f32]) -> Result<(), engine::CollectiveError> {
        self.told(self.mesh().all_gather(input, output))
    }
}

/// Part `index` of `length` elements cut into `parts`: sizes differ by at most one.
pub fn part(length: usize, index: usize, parts: usize) -> std::ops::Range<usize> {
    length * index / parts..length * (index + 1) / parts
}
