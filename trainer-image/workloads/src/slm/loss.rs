//! Cross-entropy of the next token, chunk by chunk: the logits are never whole, forward or backward.
//!
//! The gradient of a chunk is made while its logits are there (and given to differentiation, see
//! [`with_gradients`](pawl_graph::graph::Var::with_gradients)), so no logits are kept and none computed twice.

use pawl_graph::graph::{DType, Var, concat};

/// The target of positions that do not count.
pub const IGNORED: u32 = u32::MAX;

/// Bytes of 16-bit logits in a chunk, unless the configuration says otherwise.
const CHUNK_BYTES: usize = 512 << 20;

/// Rows of a chunk: what is asked for, or as many as fill [`CHUNK_BYTES`]; chunks are as equal as can be.
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

/// What the loss is a function of.
#[derive(Clone, Copy)]
pub struct Head<'b> {
    /// Normalised hidden states, (rows, width), float32.
    pub hidden: Var<'b>,
    /// The output matrix, (vocabulary, width), in any float dtype.
    pub matrix: Var<'b>,
    /// (rows, 1), U32; [`IGNORED`] where nothing is to be predicted.
    pub targets: Var<'b>,
    /// Dtype in which hidden states enter the product.
    pub stream: DType,
    /// Whether the output matrix learns.
    pub learns: bool,
}

impl<'b> Head<'b> {
    /// The loss in chunks of `chunk` rows.
    #[track_caller]
    pub fn cross_entropy(self, chunk: usize) -> CrossEntropy<'b> {
        let Self { hidden, matrix, targets, stream, learns } = self;
        let b = hidden.builder();
        let (rows, vocabulary) = (hidden.dim(0), matrix.dim(0));
        let (narrow, wide) = (hidden.cast(stream), matrix.cast(DType::F32));
        let counts = targets.not_equal(b.scalar(f64::from(IGNORED), DType::U32));
        let mut matrix_gradient: Option<Var<'b>> = None;
        // Added up when all are there: a running sum would let the gradient of the first chunk wait for the logits of the last.
        let (mut losses, mut hidden_gradients) = (Vec::new(), Vec::new());
        for (number, first) in (0..rows).step_by(chunk.max(1)).enumerate() {
            let len = chunk.min(rows - first);
            let x = narrow.slice(0, first, len).cast(DType::F32);
            let counts = counts.slice(0, first, len).cast(DType::F32);
            let logits = x.matmul_t(wide);
            let target = targets.slice(0, first, len).broadcast([len, vocabulary]);
            // An index of its own, told apart by axes of extent 1: one for all chunks would be computed by one kernel, which would then take in all
            // of them, and have all logits at once.
            let shape = [vec![1; number], vec![len, vocabulary]].concat();
            let hit = b.iota(number + 1, shape).reshape([len, vocabulary]).equal(target);
            let max = logits.max([1]);
            let log_sum = (logits - max).exp().sum([1]).log() + max;
            losses.push((log_sum - hit.select(logits, 0.0).sum([1])) * counts);
            // d(-log p)/d(logit) = p - 1 at the target, p elsewhere. Not yet divided by the number of tokens: it would vanish in 16 bits.
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
