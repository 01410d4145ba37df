//! Collective operations among the ranks of a gang.
//!
//! Sums are computed **in rank order**, element by element, regardless of the transport and of the buckets of a buffer:
//! `((x0 + x1) + x2) + ...`. Two ranks that each add one micro-step are therefore bitwise equal to one rank that
//! accumulates the same two micro-steps. With accumulation on several ranks the grouping differs (`(a + b) + (c + d)`
//! instead of `((a + b) + c) + d`), so that results agree to within rounding only: the relative difference of an
//! element is at most `2^-24 * (terms - 1)` of the sum of magnitudes.

mod dial;
mod exchange;
mod mesh;
mod welcome;

pub use mesh::{Exchange, TcpMesh};

use parking_lot::Mutex;
use pawl_graph::collective as engine;
use std::time::Duration;

/// A collective could not be completed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CollectiveError {
    /// A rank was lost, or sent no data until the deadline.
    #[error("lost rank {rank}: {reason}")]
    LostPeer {
        /// The rank that is missing.
        rank: u32,
        /// The observed error.
        reason: String,
    },
    /// The ranks run different programs: a bug or a mismatched plan, which a retry cannot fix.
    #[error("rank {rank} is at another operation: {reason}; all ranks must run the same plan and the same image")]
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
        self.mesh.lock().broadcast(root, data)
    }

    /// Every rank's `mine`, by rank. For small data: each rank receives all of it. Lengths may differ.
    pub fn gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.mesh.lock().gather_bytes(mine)
    }

    /// Every rank's `mine`, by rank, serialized as JSON, which cannot represent NaN and infinity: use [`Option`].
    pub fn gather<T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        mine: &T,
    ) -> Result<Vec<T>, CollectiveError> {
        let garbled = |rank: usize, error: serde_json::Error| CollectiveError::Disagreement {
            rank: rank as u32,
            reason: format!("malformed message: {error}"),
        };
        let bytes = serde_json::to_vec(mine).map_err(|e| garbled(self.rank as usize, e))?;
        let all = self.gather_bytes(&bytes)?;
        all.iter().enumerate().map(|(rank, b)| serde_json::from_slice(b).map_err(|e| garbled(rank, e))).collect()
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.mesh.lock().barrier()
    }

    /// Time spent inside collectives so far.
    pub fn waited(&self) -> Duration {
        self.mesh.lock().waited()
    }

    /// The error of a collective that the executor ran; the executor's own error only has the rank.
    pub fn failure(&self) -> Option<CollectiveError> {
        self.failure.lock().clone()
    }

    fn told(&self, result: Result<(), CollectiveError>) -> Result<(), engine::CollectiveError> {
        result.map_err(|error| {
            let short = match &error {
                CollectiveError::LostPeer { rank, .. } => engine::CollectiveError::PeerLost { rank: *rank as usize },
                CollectiveError::Disagreement { .. } => engine::CollectiveError::Transport(error.to_string()),
            };
            *self.failure.lock() = Some(error);
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
        self.told(self.mesh.lock().all_reduce_sum(buffer))
    }

    fn reduce_scatter(&self, input: &[f32], output: &mut [f32]) -> Result<(), engine::CollectiveError> {
        self.told(self.mesh.lock().reduce_scatter_sum(input, output))
    }

    fn all_gather(&self, input: &[f32], output: &mut [f32]) -> Result<(), engine::CollectiveError> {
        self.told(self.mesh.lock().all_gather(input, output))
    }
}

/// Part `index` of `length` elements cut into `parts`: sizes differ by at most one.
pub fn part(length: usize, index: usize, parts: usize) -> std::ops::Range<usize> {
    length * index / parts..length * (index + 1) / parts
}
