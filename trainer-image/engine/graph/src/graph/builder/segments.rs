//! Segments: rows that belong together, such as the edges that end at one node of a graph.

use super::Var;
use crate::graph::Op;

/// Rows `offsets[i] .. offsets[i + 1]` of an array are segment i. Offsets are U32 `[n + 1]`, ascending; rows after the
/// last offset are padding, so that a program of static shapes takes any number of rows up to the extent. Sums are in
/// the order of rows and without atomics: equal on every run.
///
/// Attention over the incoming edges of each node, edges sorted by destination:
///
/// ```
/// use pawl_graph::graph::{Builder, DType};
/// let b = Builder::new("graph attention");
/// let (nodes, edges) = (100, 700);
/// let h = b.input("h", DType::F32, [nodes, 16]);
/// let scores = b.input("scores", DType::F32, [edges, 1]);
/// let offsets = b.input("offsets", DType::U32, [nodes + 1]);
/// // Edges by source: the index transposed, for the gradient of the lookup.
/// let source = b.input("source", DType::U32, [edges]);
/// let [order, starts] = [("order", edges), ("starts", nodes + 1)].map(|(name, len)| b.input(name, DType::U32, [len]));
/// let messages = h.gather_by(source, order, starts) * scores.segment_softmax(offsets);
/// assert_eq!(messages.segment_sum(offsets).shape().dims(), [nodes, 16]);
/// b.finish()?;
/// # Ok::<(), pawl_graph::graph::GraphError>(())
/// ```
impl<'b> Var<'b> {
    /// Sum over each segment: `[e, ..]` to `[n, ..]`. See [`Op::SegmentSum`].
    #[track_caller]
    pub fn segment_sum(self, offsets: Var<'b>) -> Self {
        self.builder.push(Op::SegmentSum, &[self, offsets])
    }

    /// Sum over segments of the rows `order[0], order[1], ..`: `[e, ..]` to `[n, ..]`. See [`Op::SegmentSum`].
    #[track_caller]
    pub fn segment_sum_of(self, order: Var<'b>, offsets: Var<'b>) -> Self {
        self.builder.push(Op::SegmentSum, &[self, offsets, order])
    }

    /// Row i for each row of segment i, and zeros in the padding: `[n, ..]` to `[rows, ..]`. The transpose of
    /// [`Var::segment_sum`].
    #[track_caller]
    pub fn segment_repeat(self, offsets: Var<'b>, rows: usize) -> Self {
        self.builder.push(Op::SegmentRepeat { rows }, &[self, offsets])
    }

    /// Softmax over each segment, of each column for itself: `[e, ..]` to `[e, ..]`. See [`Op::SegmentSoftmax`].
    #[track_caller]
    pub fn segment_softmax(self, offsets: Var<'b>) -> Self {
        self.builder.push(Op::SegmentSoftmax, &[self, offsets])
    }

    /// Rows `indices` (U32 `[e]`): `[n, ..]` to `[e, ..]`, as [`Var::gather`] along axis 0, with a gradient that is a
    /// segment sum instead of a scatter. `order` (U32 `[m]`) names the rows of the result by ascending index, and rows
    /// `order[offsets[i]] .. order[offsets[i + 1]]` (offsets U32 `[n + 1]`) are those with index i. Padding that
    /// `order` leaves out, after the last offset, has no gradient.
    #[track_caller]
    pub fn gather_by(self, indices: Var<'b>, order: Var<'b>, offsets: Var<'b>) -> Self {
        self.builder.push(Op::Gather { axis: 0 }, &[self, indices, order, offsets])
    }
}
