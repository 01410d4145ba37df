//! Affine views of a buffer.

use pawl_graph::graph::{Op, Shape};

/// An array over elements of a buffer: element `(i0, i1, ..)` is element `offset + sum(i * stride)` of the buffer.
/// A stride of 0 repeats an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Access {
    /// Index of the buffer in [`Lowered::buffers`](super::Lowered::buffers) (while fusing: the node that is the root).
    pub buffer: usize,
    /// Index of the first element in the buffer.
    pub offset: usize,
    /// Extents, outermost first.
    pub dims: Vec<usize>,
    /// Distance in elements between neighbours along each axis.
    pub strides: Vec<usize>,
}

/// How a value varies over the iteration space `rows x cols` of a fused kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// One value for each element.
    Full,
    /// One value for each row.
    Row,
    /// One value for each column.
    Col,
    /// One value.
    Scalar,
}

/// A view as nested loops: `(extent, stride)` over rows, then over columns, neighbours merged where they can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nest {
    /// Loops that make a row number.
    pub outer: Vec<(usize, usize)>,
    /// Loops that make a column number.
    pub inner: Vec<(usize, usize)>,
}

impl Access {
    /// The whole of `buffer`, row-major.
    pub fn contiguous(buffer: usize, shape: &[usize]) -> Self {
        let strides = Shape::from(shape).strides();
        Self { buffer, offset: 0, dims: shape.to_vec(), strides }
    }

    /// Number of elements of the view.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Loops as `(extent, stride)`, without extents of 1, and with contiguous neighbours merged.
    pub fn collapsed(&self) -> Vec<(usize, usize)> {
        let mut loops: Vec<(usize, usize)> = Vec::with_capacity(self.dims.len());
        for (&extent, &stride) in self.dims.iter().zip(&self.strides).filter(|&(&e, _)| e != 1) {
            match loops.last_mut() {
                Some(last) if last.1 == extent * stride => *last = (last.0 * extent, stride),
                _ => loops.push((extent, stride)),
            }
        }
        loops
    }

    /// Whether the elements are contiguous and in order.
    pub fn is_contiguous(&self) -> bool {
        matches!(self.collapsed()[..], [] | [(_, 1)])
    }

    /// Whether the view starts at the first element of the buffer and is contiguous.
    pub fn is_identity(&self) -> bool {
        self.offset == 0 && self.is_contiguous()
    }

    /// The loops split into rows of `cols` elements; `None` when no loop can be split there.
    pub fn nest(&self, cols: usize) -> Option<Nest> {
        let mut outer = self.collapsed();
        let mut inner = Vec::new();
        let mut rest = cols;
        while rest > 1 {
            let (extent, stride) = outer.pop()?;
            if extent <= rest {
                rest.is_multiple_of(extent).then_some(())?;
                rest /= extent;
                inner.insert(0, (extent, stride));
            } else {
                extent.is_multiple_of(rest).then_some(())?;
                inner.insert(0, (rest, stride));
                outer.push((extent / rest, rest * stride));
                rest = 1;
            }
        }
        Some(Nest { outer, inner })
    }

    /// How the view varies over rows of `cols` elements; `None` when it has no such rows.
    pub fn class(&self, cols: usize) -> Option<Class> {
        let nest = self.nest(cols)?;
        let still = |loops: &[(usize, usize)]| loops.iter().all(|&(_, stride)| stride == 0);
        Some(match (still(&nest.outer), still(&nest.inner)) {
            (true, true) => Class::Scalar,
            (false, true) => Class::Row,
            (true, false) => Class::Col,
            (false, false) => Class::Full,
        })
    }

    /// Whether all elements of row r of `rows x cols` are element r of the buffer.
    pub fn is_row_identity(&self, rows: usize, cols: usize) -> bool {
        self.offset == 0
            && self.elements() == rows * cols
            && self
                .nest(cols)
                .is_some_and(|nest| nest.inner.iter().all(|&(_, s)| s == 0) && (rows == 1 || nest.outer == [(rows, 1)]))
    }

    /// The view after a layout operator; `None` when `op` is not a layout operator, or when no strides describe the
    /// result.
    pub fn apply(&self, op: &Op) -> Option<Self> {
        match op {
            Op::Reshape(shape) => self.reshape(shape),
            Op::Permute(order) => Some(self.permute(order)),
            Op::Broadcast(shape) => Some(self.broadcast(shape)),
            Op::Slice { axis, start, len } => Some(self.slice(*axis, *start, *len)),
            Op::After | Op::StopGradient | Op::GivenGradient => Some(self.clone()),
            _ => None,
        }
    }

    /// The same elements in another shape; `None` when no strides describe it.
    pub fn reshape(&self, dims: &[usize]) -> Option<Self> {
        let mut strides = vec![0; dims.len()];
        if self.elements() == 0 {
            strides = Shape::from(dims).strides();
        } else {
            let loops = self.collapsed();
            let mut at = loops.len();
            let (mut left, mut stride) = (1, 1);
            for axis in (0..dims.len()).rev() {
                if dims[axis] == 1 {
                    continue;
                }
                if left == 1 {
                    at = at.checked_sub(1)?;
                    (left, stride) = loops[at];
                }
                if !left.is_multiple_of(dims[axis]) {
                    return None;
                }
                strides[axis] = stride;
                stride *= dims[axis];
                left /= dims[axis];
            }
        }
        Some(Self { dims: dims.to_vec(), strides, ..*self })
    }

    /// Permutes axes: axis i of the result is axis `order[i]`.
    pub fn permute(&self, order: &[usize]) -> Self {
        let pick = |of: &[usize]| order.iter().map(|&axis| of[axis]).collect();
        Self { dims: pick(&self.dims), strides: pick(&self.strides), ..*self }
    }

    /// Repeats the view to `dims`, aligned at the last axis.
    pub fn broadcast(&self, dims: &[usize]) -> Self {
        let lead = dims.len() - self.dims.len();
        let strides = (0..dims.len())
            .map(|axis| match axis.checked_sub(lead) {
                Some(own) if self.dims[own] == dims[axis] => self.strides[own],
                _ => 0,
            })
            .collect();
        Self { dims: dims.to_vec(), strides, ..*self }
    }

    /// Elements `start .. start + len` along `axis`.
    pub fn slice(&self, axis: usize, start: usize, len: usize) -> Self {
        let mut view = self.clone();
        view.offset += start * view.strides[axis];
        view.dims[axis] = len;
        view
    }
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "@{}", self.buffer)?;
        if self.offset > 0 {
            write!(f, "+{}", self.offset)?;
        }
        if self.is_contiguous() {
            return write!(f, "{}", Shape::from(&self.dims[..]));
        }
        for (extent, stride) in self.collapsed() {
            write!(f, "[{extent}:{stride}]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_split_and_merged_without_a_copy() {
        // [b, t, 3, h, d] -> q: slice, reshape, permute to [b, h, t, d]
        let packed = Access::contiguous(0, &[2, 5, 3, 4, 6]);
        let q = packed.slice(2, 1, 1).reshape(&[2, 5, 4, 6]).expect("a unit axis goes away");
        assert_eq!((q.offset, &q.strides[..]), (24, &[360, 72, 6, 1][..]));
        let heads = q.permute(&[0, 2, 1, 3]);
        assert_eq!(heads.dims, [2, 4, 5, 6]);
        assert!(heads.reshape(&[2, 20, 6]).is_none(), "heads and tokens do not merge");
        assert_eq!(q.class(6), Some(Class::Full));
    }

    #[test]
    fn classes_follow_broadcasts() {
        let bias = Access::contiguous(0, &[7]).broadcast(&[3, 4, 7]);
        assert_eq!(bias.class(7), Some(Class::Col));
        let mean = Access::contiguous(0, &[3, 4, 1]).broadcast(&[3, 4, 7]);
        assert_eq!(mean.class(7), Some(Class::Row));
        assert!(mean.is_row_identity(12, 7));
        let sample = Access::contiguous(0, &[3, 1, 1]).broadcast(&[3, 4, 7]);
        assert_eq!(sample.class(7), Some(Class::Row));
        assert!(!sample.is_row_identity(12, 7));
        assert_eq!(Access::contiguous(0, &[]).broadcast(&[3, 4]).class(4), Some(Class::Scalar));
        assert_eq!(Access::contiguous(0, &[3, 4]).nest(6), Some(Nest { outer: vec![(2, 6)], inner: vec![(6, 1)] }));
    }
}
