//! Rank of the target among all tokens, for a few positions: their logits are small enough to be materialized.

use super::loss::Head;
use pawl_graph::graph::{DType, Var};

/// Ranking of each requested position; both (positions, 1), float32, integers.
pub struct Ranking<'b> {
    /// Number of tokens that are more likely than the target.
    pub rank: Var<'b>,
    /// The most likely token; the first one in a tie.
    pub likeliest: Var<'b>,
}

impl<'b> Head<'b> {
    /// The ranking at `positions`, U32 (positions), rows of the hidden states. Where the target is ignored the rank is
    /// that of no token.
    #[track_caller]
    pub fn ranking(self, positions: Var<'b>) -> Ranking<'b> {
        let b = self.hidden.builder();
        let (count, vocabulary) = (positions.dim(0), self.matrix.dim(0));
        let hidden = self.hidden.gather(0, positions).cast(self.stream).cast(DType::F32);
        let logits = hidden.matmul_t(self.matrix.cast(DType::F32));
        let id = b.iota(0, [vocabulary]).reshape([1, vocabulary]).broadcast([count, vocabulary]);
        let target = self.targets.gather(0, positions).reshape([count, 1]).broadcast([count, vocabulary]);
        let score = id.equal(target).select(logits, 0.0).sum([1]);
        let rank = logits.greater(score).cast(DType::F32).sum([1]);
        // The smallest id with the largest logit, as the largest distance from the vocabulary's end. Ids are exact in
        // float32.
        let distance = -id.cast(DType::F32) + vocabulary as f64;
        let farthest = logits.equal(logits.max([1])).select(distance, 0.0).max([1]);
        Ranking { rank, likeliest: -farthest + vocabulary as f64 }
    }
}
