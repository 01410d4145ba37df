//! Where elements lie, as expressions; and how many of them one access may move.

use pawl_lower::{Access, Buffer};

/// A view as the kernel's loops see it.
pub(super) struct Walk {
    /// Loops that make a row number, outermost first: extent, stride.
    outer: Vec<(usize, usize)>,
    /// Loops that make a column number.
    inner: Vec<(usize, usize)>,
    /// Whether offsets need 64 bits.
    wide: bool,
    /// Bytes of an element.
    size: usize,
}

impl Walk {
    /// Of a view over `rows x cols`, or of one element a row with `cols` 1; `None` when no loops end where rows do.
    pub(super) fn new(access: &Access, cols: usize, buffers: &[Buffer]) -> Option<Self> {
        let nest = access.nest(cols)?;
        let buffer = &buffers[access.buffer];
        let wide = buffer.elements > u32::MAX as usize;
        Some(Self { outer: nest.outer, inner: nest.inner, wide, size: buffer.dtype.bytes() })
    }

    /// Bytes from the view's first element to that at a row and a column.
    pub(super) fn offset(&self, row: &str, col: &str) -> String {
        let (row, col) = (self.along(&self.outer, row), self.along(&self.inner, col));
        let sum = match (row, col) {
            (None, None) => return "0".into(),
            (Some(one), None) | (None, Some(one)) => one,
            (Some(row), Some(col)) => format!("{row} + {col}"),
        };
        format!("(u64)({sum}) * {}", self.size)
    }

    fn along(&self, loops: &[(usize, usize)], index: &str) -> Option<String> {
        let mut terms = Vec::new();
        let mut inner = 1usize;
        for (position, &(extent, stride)) in loops.iter().enumerate().rev() {
            if stride > 0 {
                let mut term = if inner > 1 { format!("{index} / {inner}u") } else { index.to_owned() };
                if position > 0 {
                    term = format!("({term}) % {extent}u");
                }
                if self.wide {
                    term = format!("(u64)({term})");
                }
                terms.push(if stride > 1 { format!("({term}) * {stride}u") } else { format!("({term})") });
            }
            inner *= extent;
        }
        (!terms.is_empty()).then(|| terms.join(" + "))
    }

    /// Whether `count` neighbouring columns (from a multiple of `count` on) lie side by side, aligned to their size.
    pub(super) fn moves(&self, access: &Access, count: usize) -> bool {
        let bytes = (count * self.size).min(16);
        let whole = |stride: usize| (stride * self.size).is_multiple_of(bytes);
        let side_by_side = match self.inner.last() {
            Some(&(extent, stride)) => stride == 1 && extent.is_multiple_of(count),
            None => count == 1,
        };
        let others = &self.inner[..self.inner.len().saturating_sub(1)];
        side_by_side && whole(access.offset) && self.outer.iter().chain(others).all(|&(_, stride)| whole(stride))
    }

    /// Whether neighbouring columns lie side by side (but perhaps not aligned).
    pub(super) fn is_dense(&self) -> bool {
        self.inner.last().is_some_and(|&(_, stride)| stride == 1)
    }
}
