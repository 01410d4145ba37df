//! Cross-entropy of the next token, chunk by chunk: the full logits are never materialized, forward or backward.
//!
//! The gradient of a chunk is computed while its logits are in memory (and passed to differentiation, see
//! [`with_gradients`](pawl_graph::graph::Var::with_gradients)), so no logits are stored or recomputed.

use pawl_graph::graph::{DType, Var, concat};

/// Target of positions that are excluded from the loss.
pub const IGNORED: u32 = u32::MAX;

/// Default bytes of 16-bit logits in a chunk.
const CHUNK_BYTES: usize = 512 << 20;

/// Rows of a chunk: as configured, or as many as fit in [`CHUNK_BYTES`]; chunks are of equal size as far as possible.
pub fn chunk_rows(asked: usize, rows: usize, vocabulary: usize) -> usize {
    let most = if asked > 0 { asked } else { (CHUNK_BYTES / 2 / vocabulary).max(1) };
    rows.div_ceil(rows.div_ceil(most))
}

/// Sum of the losses of all targets that count, and their number; both float32 scalars.
pub struct CrossEntropy<'b> {
    /// Sum in nats; its gradients are given.
    pub sum: Var<'b>,
    /// Number of targets that count.
    pub count: Var<'b>,
}

/// Inputs of the loss.
#[derive(Clone, Copy)]
pub struct Head<'b> {
    /// Normalised hidden states, (rows, width), float32.
    pub hidden: Var<'b>,
    /// The output matrix, (vocabulary, width), in any float dtype.
    pub matrix: Var<'b>,
    /// (rows, 1), U32; [`IGNORED`] for excluded positions.
    pub targets: Var<'b>,
    /// Dtype of the hidden states in the matrix product.
    pub stream: DType,
    /// Whether the output matrix is trainable.
    pub learns: bool,
}

impl<'b> Head<'b> {
    /// The logits, (rows, vocabulary), float32.
    #[track_caller]
    pub fn logits(self) -> Var<'b> {
        self.hidden.cast(self.stream).cast(DType::F32).matmul_t(self.matrix.cast(DType::F32))
    }

    /// The loss in chunks of `chunk` rows.
    #[track_caller]
    pub fn cross_entropy(self, chunk: usize) -> CrossEntropy<'b> {
        let Self { hidden, matrix, targets, stream, learns } = self;
        let b = hidden.builder();
        let (rows, vocabulary) = (hidden.dim(0), matrix.dim(0));
        let (narrow, wide) = (hidden.cast(stream), matrix.cast(DType::F32));
        let counts = targets.not_equal(b.scalar(f64::from(IGNORED), DType::U32));
        let mut matrix_gradient: Option<Var<'b>> = None;
        // Summed at the end: with a running sum, the gradient of the first chunk would wait for the logits of the last.
        let (mut losses, mut hidden_gradients) = (Vec::new(), Vec::new());
        for (number, first) in (0..rows).step_by(chunk.max(1)).enumerate() {
            let len = chunk.min(rows - first);
            let x = narrow.slice(0, first, len).cast(DType::F32);
            let counts = counts.slice(0, first, len).cast(DType::F32);
            let logits = x.matmul_t(wide);
            let target = targets.slice(0, first, len).broadcast([len, vocabulary]);
            // A separate index per chunk, made distinct by axes of extent 1: a shared index would be computed by one
            // kernel, which would then fuse all chunks and materialize all logits at once.
            let shape = [vec![1; number], vec![len, vocabulary]].concat();
            let hit = b.iota(number + 1, shape).reshape([len, vocabulary]).equal(target);
            let max = logits.max([1]);
            let log_sum = (logits - max).exp().sum([1]).log() + max;
            losses.push((log_sum - hit.select(logits, 0.0).sum([1])) * counts);
            // d(-log p)/d(logit) = p - 1 at the target, p elsewhere. Not yet divided by the number of tokens: it would
            // vanish in 16 bits.
            let gradient = ((logits - log_sum).exp() - hit.cast(DType::F32)) * counts;
            hidden_gradients.push(gradient.matmul(wide));
            if learns {
                let part = gradient.t_matmul(x);
                matrix_gradient = Some(matrix_gradient.map_or(part, |sum| sum + part));
            }
        }
        let sum = if losses.is_empty() { b.scalar(0.0, DType::F32) } else { concat(&losses, 0).sum_all() };
        let mut given = vec![(hidden, concat(&hidden_gradients, 0))];
        given.extend(matrix_gradient.map(|gradient| (matrix, gradient)));
        CrossEntropy { sum: sum.with_gradients(&given), count: counts.cast(DType::F32).sum_all() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_equal_as_can_be() {
        assert_eq!(chunk_rows(0, 32_768, 32_000), 8192);
        assert_eq!(chunk_rows(0, 512, 512), 512);
        assert_eq!(chunk_rows(100, 250, 512), 84);
        assert_eq!(chunk_rows(1000, 250, 512), 250);
    }
}
