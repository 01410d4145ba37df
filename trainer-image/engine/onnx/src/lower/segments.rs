//! Segments of rows. Each row gets the number of its segment; rows of none get the number after the last.

use pawl_graph::graph::{DType, Node, NodeId};

use super::{Lowering, int, ops::INFERRED};
use crate::extents::Extent;

impl Lowering<'_> {
    pub(super) fn segment_sum(&mut self, node: &Node, extents: &[Extent]) -> String {
        let mut x = self.value(node.operands[0]);
        let mut rows = self.extents[node.operands[0].index()][0];
        if let Some(&order) = node.operands.get(2) {
            let indices = self.value(order);
            x = self.gathered(&x, &indices, 0);
            rows = self.extents[order.index()][0];
        }
        let numbers = self.segment_numbers(node.operands[1], rows);
        let indices = self.of_columns(&numbers, &x, extents.len());
        let zeros = self.fill(0.0, node.meta.dtype, &one_more(extents, extents[0]));
        let sums = self.scattered(&zeros, &indices, &x, 0, "add");
        self.sliced(&sums, 0, 0, extents[0])
    }

    pub(super) fn segment_repeat(&mut self, node: &Node, extents: &[Extent]) -> String {
        let x = self.value(node.operands[0]);
        let mut row = extents.to_vec();
        row[0] = Extent::fixed(1);
        let zero = self.fill(0.0, node.meta.dtype, &row);
        let all = self.apply_with("Concat", &[&x, &zero], vec![int("axis", 0)]);
        let numbers = self.segment_numbers(node.operands[1], extents[0]);
        self.gathered(&all, &numbers, 0)
    }

    pub(super) fn segment_softmax(&mut self, node: &Node, extents: &[Extent]) -> String {
        let dtype = node.meta.dtype;
        let (scores, offsets) = (self.value(node.operands[0]), node.operands[1]);
        let count = self.extents[offsets.index()][0].plus(-1);
        let numbers = self.segment_numbers(offsets, extents[0]);
        let indices = self.of_columns(&numbers, &scores, extents.len());
        let segments = one_more(extents, count);
        let lowest = self.fill(f64::NEG_INFINITY, dtype, &segments);
        let largest = self.scattered(&lowest, &indices, &scores, 0, "max");
        let largest = self.gathered(&largest, &numbers, 0);
        // Where all scores are minus infinity, they remain so instead of becoming NaN.
        let least = self.scalar(f32::MIN.into(), dtype);
        let largest = self.apply("Max", &[&largest, &least]);
        let shifted = self.apply("Sub", &[&scores, &largest]);
        let weights = self.apply("Exp", &[&shifted]);
        let zeros = self.fill(0.0, dtype, &segments);
        let sums = self.scattered(&zeros, &indices, &weights, 0, "add");
        let sums = self.gathered(&sums, &numbers, 0);
        // A sum is at least 1, the weight of the largest score, or 0 where all weights are.
        let tiny = self.scalar(f32::MIN_POSITIVE.into(), dtype);
        let sums = self.apply("Max", &[&sums, &tiny]);
        let shares = self.apply("Div", &[&weights, &sums]);
        let (count, zero) = (self.shape(&[count]), self.scalar(0.0, dtype));
        let held = self.apply("Less", &[&indices, &count]);
        self.apply("Where", &[&held, &shares, &zero])
    }

    /// The number of each row's segment (rows): how many segments end at the row or before it.
    fn segment_numbers(&mut self, offsets: NodeId, rows: Extent) -> String {
        let count = self.extents[offsets.index()][0].plus(-1);
        let offsets = self.value(offsets);
        let first = self.sliced(&offsets, 0, 0, Extent::fixed(1));
        let ends = self.sliced(&offsets, 0, 1, count);
        let none = self.fill(0.0, DType::U32, &[rows.plus(1)]);
        let ones = self.fill(1.0, DType::U32, &[count]);
        let ended = self.scattered(&none, &ends, &ones, 0, "add");
        let ended = self.sliced(&ended, 0, 0, rows);
        let axis = self.integer(0);
        let numbers = self.apply("CumSum", &[&ended, &axis]);
        let (counting, after) = (self.range(rows), self.shape(&[count]));
        let before = self.apply("Less", &[&counting, &first]);
        self.apply("Where", &[&before, &after, &numbers])
    }

    /// Numbers of rows, repeated for each column of `x`, which has `rank` axes.
    fn of_columns(&mut self, numbers: &str, x: &str, rank: usize) -> String {
        let mut column = vec![Extent::fixed(1); rank];
        column[0] = INFERRED;
        let column = self.shape(&column);
        let column = self.apply("Reshape", &[numbers, &column]);
        self.expanded_like(&column, x)
    }
}

/// Rows for `count` segments and one for the rows of none.
fn one_more(extents: &[Extent], count: Extent) -> Vec<Extent> {
    let mut all = extents.to_vec();
    all[0] = count.plus(1);
    all
}
