//! Attention, as products and a softmax.

use pawl_graph::graph::{AttentionSpec, DType, Node, NodeId};

use super::{Lowering, int};
use crate::{OnnxError, extents::Extent};

impl Lowering<'_> {
    pub(super) fn attention(&mut self, spec: AttentionSpec, node: &Node) -> Result<String, OnnxError> {
        let [q, k, v] = std::array::from_fn(|i| node.operands[i]);
        let (queries, keys) = (self.extents[q.index()].clone(), self.extents[k.index()].clone());
        if !(queries[1].is_fixed() && keys[1].is_fixed()) {
            return Err(self.unknown(node));
        }
        let repeats = queries[1].fixed / keys[1].fixed.max(1);
        let (q, k, v) = (self.value(q), self.of_all_heads(k, repeats), self.of_all_heads(v, repeats));
        let k = self.transposed(&k, vec![0, 1, 3, 2]);
        let products = self.apply("MatMul", &[&q, &k]);
        let scale = self.scalar(spec.scale, node.meta.dtype);
        let mut scores = self.apply("Mul", &[&products, &scale]);
        if spec.causal {
            if !(queries[2].is_fixed() && keys[2].is_fixed()) {
                return Err(self.unknown(node));
            }
            scores = self.masked(&scores, queries[2].fixed, keys[2].fixed, node.meta.dtype);
        }
        let weights = self.apply_with("Softmax", &[&scores], vec![int("axis", -1)]);
        Ok(self.apply("MatMul", &[&weights, &v]))
    }

    /// The heads of keys or values `[b, g, s, d]`, each as often as queries share it.
    fn of_all_heads(&mut self, id: NodeId, repeats: i64) -> String {
        let x = self.value(id);
        if repeats == 1 {
            return x;
        }
        let extents = self.extents[id.index()].clone();
        let with = |repeats: i64| {
            let mut all = extents.clone();
            all.insert(2, Extent { fixed: repeats, per_batch: 0 });
            all
        };
        let mut joined = extents.clone();
        joined[1].fixed *= repeats;
        let (one, many, joined) = (self.shape(&with(1)), self.shape(&with(repeats)), self.shape(&joined));
        let apart = self.apply("Reshape", &[&x, &one]);
        let repeated = self.apply("Expand", &[&apart, &many]);
        self.apply("Reshape", &[&repeated, &joined])
    }

    /// Scores `[.., t, s]` of which query i keeps those of keys `j <= i + (s - t)`.
    fn masked(&mut self, scores: &str, t: i64, s: i64, dtype: DType) -> String {
        let keys = self.integers(vec![1, s], (0..s).collect());
        let last = self.integers(vec![t, 1], (0..t).map(|i| i + s - t).collect());
        let seen = self.apply("LessOrEqual", &[&keys, &last]);
        let none = self.scalar(f64::NEG_INFINITY, dtype);
        self.apply("Where", &[&seen, scores, &none])
    }
}
