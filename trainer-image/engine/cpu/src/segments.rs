//! Sums, copies and softmax over segments of rows. A task is a few segments, so that results do not depend on the
//! number of threads.

use half::{bf16, f16};

use super::{fused::Memory, pool::Pool};
use pawl_graph::{
    executor::{ExecError, check_offsets},
    graph::DType,
};
use pawl_lower::{Access, Buffer, SegmentOp, Segments};

/// Columns whose sums are kept at once.
const COLUMNS: usize = 32;
/// Elements of a task, about.
const TASK: usize = 32 * 1024;

/// A kernel over segments, ready to run.
pub(super) struct CpuSegments {
    kernel: Segments,
    dtype: DType,
    /// Segments of a task.
    block: usize,
}

/// Elements that are computed in another type.
trait Element: Copy {
    type Wide: Number;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// The types in which sums are kept.
trait Number:
    Copy + Default + PartialEq + std::ops::AddAssign + std::ops::Sub<Output = Self> + std::ops::Div<Output = Self>
{
    const LOWEST: Self;
    fn exp(self) -> Self;
    fn larger(self, other: Self) -> Self;
}

macro_rules! number {
    ($ty:ty) => {
        impl Number for $ty {
            const LOWEST: Self = <$ty>::NEG_INFINITY;
            fn exp(self) -> Self {
                self.exp()
            }
            fn larger(self, other: Self) -> Self {
                // A NaN stays: `max` would drop it.
                if other > self || other.is_nan() { other } else { self }
            }
        }

        impl Element for $ty {
            type Wide = $ty;
            fn widen(self) -> $ty {
                self
            }
            fn narrow(wide: $ty) -> $ty {
                wide
            }
        }
    };
}

number!(f32);
number!(f64);

macro_rules! half {
    ($ty:ty) => {
        impl Element for $ty {
            type Wide = f32;
            fn widen(self) -> f32 {
                self.to_f32()
            }
            fn narrow(wide: f32) -> $ty {
                <$ty>::from_f32(wide)
            }
        }
    };
}

half!(bf16);
half!(f16);

impl CpuSegments {
    pub(super) fn new(kernel: &Segments, buffers: &[Buffer]) -> Self {
        let elements = kernel.rows().max(kernel.count()) * kernel.inner();
        let tasks = elements.div_ceil(TASK).max(1);
        let dtype = buffers[kernel.to.buffer].dtype;
        Self { kernel: kernel.clone(), dtype, block: kernel.count().div_ceil(tasks).max(1) }
    }

    pub(super) fn run(&self, pool: &Pool, memory: Memory<'_>) -> Result<(), ExecError> {
        let name = || {
            let op = self.kernel.op;
            format!("segment_{op:?}").to_lowercase()
        };
        let offsets = numbers(&memory, &self.kernel.offsets);
        let order = self.kernel.order.as_ref().map(|order| numbers(&memory, order));
        check_offsets(&name(), offsets, self.kernel.rows())?;
        let extent = self.kernel.from.dims[0];
        if let Some(&index) = order.iter().copied().flatten().find(|&&row| row as usize >= extent) {
            return Err(ExecError::Index { op: name(), index, extent });
        }
        match self.dtype {
            DType::F64 => self.compute::<f64>(pool, &memory, offsets, order),
            DType::F32 => self.compute::<f32>(pool, &memory, offsets, order),
            DType::BF16 => self.compute::<bf16>(pool, &memory, offsets, order),
            DType::F16 => self.compute::<f16>(pool, &memory, offsets, order),
            DType::E4M3 | DType::E5M2 | DType::U32 | DType::Bool => unreachable!("segment operators take floats"),
        }
        Ok(())
    }

    fn compute<E: Element>(&self, pool: &Pool, memory: &Memory<'_>, offsets: &[u32], order: Option<&[u32]>) {
        let at = |access: &Access| memory.bases[access.buffer].cast::<E>().wrapping_add(access.offset) as usize;
        let (from, to) = (at(&self.kernel.from), at(&self.kernel.to));
        let [from_len, to_len] = [&self.kernel.from, &self.kernel.to].map(Access::elements);
        let task = |task: usize, _worker: usize| {
            // SAFETY: the views lie in their buffers, which do not overlap; each task writes the rows of its own
            // segments, and the last one those of no segment.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(from as *const E, from_len),
                    Rows { start: to as *mut E, len: to_len, inner: self.kernel.inner() },
                )
            };
            let first = task * self.block;
            let end = (first + self.block).min(self.kernel.count());
            for segment in first..end {
                let range = offsets[segment] as usize..offsets[segment + 1] as usize;
                match self.kernel.op {
                    SegmentOp::Sum => sum(from, &to, segment, range, order),
                    SegmentOp::Repeat => {
                        let row = &from[segment * to.inner..(segment + 1) * to.inner];
                        range.for_each(|at| to.row(at).copy_from_slice(row));
                    }
                    SegmentOp::Softmax => softmax(from, &to, range),
                }
            }
            if end == self.kernel.count() && self.kernel.op != SegmentOp::Sum {
                let (first, last) = (offsets[0] as usize, offsets[offsets.len() - 1] as usize);
                let zero = E::narrow(E::Wide::default());
                (0..first).chain(last..self.kernel.rows()).for_each(|at| to.row(at).fill(zero));
            }
        };
        let tasks = self.kernel.count().div_ceil(self.block).max(1);
        pool.run(tasks, to_len.max(from_len) < TASK, &task);
    }
}

/// Rows that tasks write, each its own.
struct Rows<E> {
    start: *mut E,
    len: usize,
    inner: usize,
}

impl<E> Rows<E> {
    #[expect(clippy::mut_from_ref, reason = "rows are written by one task each, one at a time")]
    fn row(&self, at: usize) -> &mut [E] {
        assert!((at + 1) * self.inner <= self.len, "row {at} is beyond the result");
        // SAFETY: checked above; no other reference to the row exists, see `CpuSegments::compute`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at * self.inner), self.inner) }
    }
}

/// The row of a segment: the sum of the rows in `range`, or of those that `order` names there.
fn sum<E: Element>(from: &[E], to: &Rows<E>, segment: usize, range: std::ops::Range<usize>, order: Option<&[u32]>) {
    let inner = to.inner;
    for (block, out) in to.row(segment).chunks_mut(COLUMNS).enumerate() {
        let mut sums = [E::Wide::default(); COLUMNS];
        for at in range.clone() {
            let row = order.map_or(at, |order| order[at] as usize);
            let start = row * inner + block * COLUMNS;
            sums.iter_mut().zip(&from[start..start + out.len()]).for_each(|(sum, x)| *sum += x.widen());
        }
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = E::narrow(sum));
    }
}

/// Softmax of each column over the rows in `range`.
fn softmax<E: Element>(from: &[E], to: &Rows<E>, range: std::ops::Range<usize>) {
    let (inner, zero) = (to.inner, E::Wide::default());
    for first in (0..inner).step_by(COLUMNS) {
        let columns = first..(first + COLUMNS).min(inner);
        let part = |row: usize| &from[row * inner + columns.start..row * inner + columns.end];
        let (mut max, mut sum) = ([E::Wide::LOWEST; COLUMNS], [zero; COLUMNS]);
        for row in range.clone() {
            max.iter_mut().zip(part(row)).for_each(|(max, x)| *max = max.larger(x.widen()));
        }
        let weight = |x: E, max: E::Wide| if max == E::Wide::LOWEST { zero } else { (x.widen() - max).exp() };
        for row in range.clone() {
            sum.iter_mut().zip(max).zip(part(row)).for_each(|((sum, max), &x)| *sum += weight(x, max));
        }
        for row in range.clone() {
            let out = &mut to.row(row)[columns.clone()];
            for ((out, &x), (max, sum)) in out.iter_mut().zip(part(row)).zip(max.into_iter().zip(sum)) {
                *out = E::narrow(if sum == zero { zero } else { weight(x, max) / sum });
            }
        }
    }
}

/// The numbers of a contiguous U32 view.
fn numbers<'m>(memory: &Memory<'m>, access: &Access) -> &'m [u32] {
    let start = memory.bases[access.buffer].cast::<u32>().wrapping_add(access.offset);
    // SAFETY: the view lies in its buffer, which is not written during the kernel.
    unsafe { std::slice::from_raw_parts(start, access.elements()) }
}
