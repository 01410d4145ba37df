//! Static shapes.

use std::{fmt, ops::Deref};

/// Extents of a value, outermost axis first; rank 0 is a scalar. To the graph, values are row-major and contiguous;
/// executors choose the layout in memory.
///
/// ```
/// use pawl_graph::graph::Shape;
/// let shape = Shape::from([2, 3, 4]);
/// assert_eq!((shape.rank(), shape.elements()), (3, 24));
/// assert_eq!(shape.strides(), [12, 4, 1]);
/// assert!(Shape::from([3, 1]).broadcasts_to(&shape));
/// assert_eq!(shape.to_string(), "[2x3x4]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The shape of a rank-0 value.
    pub fn scalar() -> Self {
        Self(Vec::new())
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements (1 for a scalar).
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }

    /// Extents, outermost axis first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Row-major strides, in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.0.len()];
        for axis in (1..self.0.len()).rev() {
            strides[axis - 1] = strides[axis] * self.0[axis];
        }
        strides
    }

    /// Whether a value of this shape can be broadcast to `target`: aligned at the last axis, every extent is equal or
    /// 1.
    pub fn broadcasts_to(&self, target: &Shape) -> bool {
        self.rank() <= target.rank()
            && self.0.iter().rev().zip(target.0.iter().rev()).all(|(&from, &to)| from == to || from == 1)
    }

    /// The smallest shape both broadcast to, if there is one.
    pub fn broadcast_with(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let extent = |shape: &Shape, axis: usize| (axis + shape.rank()).checked_sub(rank).map_or(1, |a| shape.0[a]);
        (0..rank)
            .map(|axis| match (extent(self, axis), extent(other, axis)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape)
    }

    /// This shape with `extent` at `axis`.
    ///
    /// # Panics
    /// When `axis` is not below the rank.
    pub fn with(&self, axis: usize, extent: usize) -> Shape {
        let mut dims = self.0.clone();
        dims[axis] = extent;
        Shape(dims)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Self(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self(dims.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self(dims.to_vec())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (axis, extent) in self.0.iter().enumerate() {
            write!(f, "{}{extent}", if axis == 0 { "" } else { "x" })?;
        }
        write!(f, "]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
