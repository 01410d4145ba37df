//! Fused kernels on the CPU.
//!
//! Without a compiler at hand, a kernel's code is interpreted, a chunk of about a thousand elements at a time: each
//! instruction is one tight vectorised loop over registers in first-level cache, so that what goes through memory is
//! only what the kernel loads and stores. Contiguous loads and stores need no copy: the instruction works on the buffer
//! itself.
//!
//! Tasks are runs of chunks, cut by shape alone; folds give a partial result for each task, added up in the order of
//! tasks.

mod planner;

use super::{
    lanes::{self, Chunk, Features, Lane, Step},
    math::Arithmetic,
    pool::Pool,
    transfer::{Walk, immediate, lane_bytes},
};
use pawl_graph::graph::{DType, ReduceOp};
use pawl_lower::{Buffer, Fused, aligned};

/// Elements of a chunk, about.
const CHUNK: usize = 1024;
/// Chunks of a task, about.
const TASK: usize = 16;
/// Most partial results of a fold, in elements.
const PARTIALS: usize = 1 << 20;
/// Steps times elements below which one thread does all: waking another costs as much.
const ALONE: usize = 200_000;

/// A fused kernel, ready to run.
pub(super) struct CpuFused {
    rows: usize,
    cols: usize,
    /// Rows and columns of a chunk.
    chunk: (usize, usize),
    segments: usize,
    /// Tasks of a segment: parts of its rows, parts of its columns.
    parts: (usize, usize),
    alone: bool,
    /// Where each slot is.
    slots: Vec<Slot>,
    loads: Vec<(usize, Walk)>,
    code: Vec<Step>,
    stores: Vec<(usize, Walk, bool)>,
    folds: Vec<CpuFold>,
    /// Numbers, filled in once.
    numbers: Vec<(usize, DType, f64)>,
    /// Bytes of registers.
    registers: usize,
}

enum Slot {
    /// Offset into the registers.
    Register(usize),
    /// In the buffer itself; `per_row` walks have one element a row.
    Direct(Walk, bool),
    Unused,
}

struct CpuFold {
    slot: usize,
    lane: Lane,
    op: ReduceOp,
    per_column: bool,
    to: Walk,
    /// Offset of the partial results in the workspace, and their number for a segment.
    partials: usize,
    count: usize,
}

/// Base addresses and memory of a run.
#[derive(Clone, Copy)]
pub(super) struct Memory<'m> {
    /// First byte of each buffer.
    pub bases: &'m [*mut u8],
    /// Scratch memory, one part for each worker.
    pub scratch: *mut u8,
    /// Bytes of a worker's scratch.
    pub stride: usize,
    /// Memory that all workers share.
    pub workspace: *mut u8,
}

// SAFETY: kernels hand out disjoint elements to tasks, and each worker has its own scratch.
unsafe impl Sync for Memory<'_> {}

impl Memory<'_> {
    /// A worker's scratch.
    pub(super) fn scratch(&self, worker: usize) -> *mut u8 {
        // SAFETY: there is a part for each worker.
        unsafe { self.scratch.add(worker * self.stride) }
    }
}

impl CpuFused {
    pub(super) fn new(kernel: &Fused, buffers: &[Buffer]) -> Self {
        planner::Planner::new(kernel, buffers).plan()
    }

    /// Bytes of scratch each worker needs.
    pub(super) fn scratch(&self) -> usize {
        self.registers + aligned(self.slots.len() * size_of::<*mut u8>())
    }

    /// Bytes of shared memory it needs.
    pub(super) fn workspace(&self) -> usize {
        let end =
            |fold: &CpuFold| fold.partials + self.segments * fold.count * self.width(fold) * lane_bytes(fold.lane);
        self.folds.iter().map(end).max().unwrap_or(0)
    }

    fn width(&self, fold: &CpuFold) -> usize {
        if fold.per_column { self.cols } else { 1 }
    }

    pub(super) fn run(&self, features: Features, pool: &Pool, memory: Memory<'_>) {
        let tasks = self.segments * self.parts.0 * self.parts.1;
        pool.run(tasks, self.alone, &|task, worker| self.task(features, &memory, task, worker));
        for fold in &self.folds {
            match fold.lane {
                Lane::F32 => self.finish(fold, &memory, |a: f32, b: f32| a + b, lanes::larger),
                Lane::F64 => self.finish(
                    fold,
                    &memory,
                    |a: f64, b: f64| a + b,
                    |a: f64, b| if a > b || a.is_nan() { a } else { b },
                ),
                Lane::U32 => self.finish(fold, &memory, u32::wrapping_add, |a: u32, b| a.max(b)),
            }
        }
    }

    fn task(&self, features: Features, memory: &Memory<'_>, task: usize, worker: usize) {
        match features {
            // SAFETY: `Features::detect` found these.
            #[cfg(target_arch = "x86_64")]
            Features::Avx512 => unsafe { self.task_avx512(memory, task, worker) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Features::Avx2 => unsafe { self.task_avx2(memory, task, worker) },
            #[cfg(target_arch = "aarch64")]
            Features::Portable => self.task_with::<super::math::OneRounding>(memory, task, worker),
            #[cfg(not(target_arch = "aarch64"))]
            Features::Portable => self.task_with::<super::math::TwoRoundings>(memory, task, worker),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn task_avx512(&self, memory: &Memory<'_>, task: usize, worker: usize) {
        self.task_with::<super::math::OneRounding>(memory, task, worker);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn task_avx2(&self, memory: &Memory<'_>, task: usize, worker: usize) {
        self.task_with::<super::math::OneRounding>(memory, task, worker);
    }

    #[inline(always)]
    fn task_with<A: Arithmetic>(&self, memory: &Memory<'_>, task: usize, worker: usize) {
        let (row_parts, col_parts) = self.parts;
        let (segment, part) = (task / (row_parts * col_parts), task % (row_parts * col_parts));
        let (row_part, col_part) = (part / col_parts, part % col_parts);
        let segment_rows = self.rows / self.segments;
        let row_chunks = segment_rows.div_ceil(self.chunk.0);
        let col_chunks = self.cols.div_ceil(self.chunk.1);
        let cut = |chunks: usize, parts: usize, part: usize| chunks * part / parts..chunks * (part + 1) / parts;

        let registers = memory.scratch(worker);
        // SAFETY: scratch holds the registers, then the table of slots.
        let slots = unsafe {
            std::slice::from_raw_parts_mut(registers.add(self.registers).cast::<*mut u8>(), self.slots.len())
        };
        for (slot, place) in slots.iter_mut().zip(&self.slots) {
            *slot = match place {
                // SAFETY: registers lie within scratch.
                Slot::Register(offset) => unsafe { registers.add(*offset) },
                _ => std::ptr::null_mut(),
            };
        }
        for &(slot, dtype, number) in &self.numbers {
            // SAFETY: the register has room for a lane.
            unsafe { immediate(dtype, number, slots[slot]) };
        }
        let cols_of = cut(col_chunks, col_parts, col_part);
        for fold in &self.folds {
            self.start(fold, memory, segment, (row_part, col_part), &cols_of);
        }
        for row_chunk in cut(row_chunks, row_parts, row_part) {
            let first = segment * segment_rows + row_chunk * self.chunk.0;
            let rows = first..(first + self.chunk.0).min((segment + 1) * segment_rows);
            for col_chunk in cols_of.clone() {
                let first = col_chunk * self.chunk.1;
                let cols = first..(first + self.chunk.1).min(self.cols);
                self.chunk::<A>(memory, slots, &rows, &cols);
                for fold in &self.folds {
                    self.fold(fold, memory, slots, segment, (row_part, col_part), (&rows, &cols));
                }
            }
        }
    }

    #[inline(always)]
    fn chunk<A: Arithmetic>(
        &self,
        memory: &Memory<'_>,
        slots: &mut [*mut u8],
        rows: &std::ops::Range<usize>,
        cols: &std::ops::Range<usize>,
    ) {
        for (slot, place) in slots.iter_mut().zip(&self.slots) {
            if let Slot::Direct(walk, per_row) = place {
                let (all, col) = if *per_row { (1, 0) } else { (self.cols, cols.start) };
                *slot = walk.direct(memory.bases[walk.buffer], all, rows.start, col).unwrap_or(std::ptr::null_mut());
            }
        }
        for (slot, walk) in &self.loads {
            // SAFETY: the view lies within its buffer, and registers are as large as a chunk.
            unsafe { walk.load(memory.bases[walk.buffer], slots[*slot], rows.clone(), cols.clone()) };
        }
        let chunk = Chunk { slots, rows: rows.len(), cols: cols.len(), first: rows.start * self.cols + cols.start };
        lanes::run::<A>(&self.code, &chunk);
        for (slot, walk, per_row) in &self.stores {
            // SAFETY: as above; no two tasks have an element in common.
            unsafe { walk.store(memory.bases[walk.buffer], slots[*slot], rows.clone(), cols.clone(), *per_row) };
        }
    }

    /// The partial result of a task: one for each part of the rows; sums of everything have one for each part of the
    /// columns too.
    fn partial<T>(&self, fold: &CpuFold, memory: &Memory<'_>, segment: usize, part: (usize, usize)) -> *mut T {
        let index = if fold.per_column { part.0 } else { part.0 * self.parts.1 + part.1 };
        let element = (segment * fold.count + index) * self.width(fold);
        // SAFETY: the workspace is as large as `workspace` says.
        unsafe { memory.workspace.add(fold.partials).cast::<T>().add(element) }
    }

    fn start(
        &self,
        fold: &CpuFold,
        memory: &Memory<'_>,
        segment: usize,
        part: (usize, usize),
        col_chunks: &std::ops::Range<usize>,
    ) {
        let identity = Fused::identity(fold.op);
        let range = if fold.per_column {
            col_chunks.start * self.chunk.1..(col_chunks.end * self.chunk.1).min(self.cols)
        } else {
            0..1
        };
        // SAFETY: no other task has these partial results.
        unsafe {
            match fold.lane {
                Lane::F32 => slice(self.partial::<f32>(fold, memory, segment, part), &range).fill(identity as f32),
                Lane::F64 => slice(self.partial::<f64>(fold, memory, segment, part), &range).fill(identity),
                Lane::U32 => slice(self.partial::<u32>(fold, memory, segment, part), &range).fill(identity as u32),
            }
        }
    }

    #[inline(always)]
    fn fold(
        &self,
        fold: &CpuFold,
        memory: &Memory<'_>,
        slots: &[*mut u8],
        segment: usize,
        part: (usize, usize),
        (rows, cols): (&std::ops::Range<usize>, &std::ops::Range<usize>),
    ) {
        let count = rows.len() * cols.len();
        // SAFETY: the register holds a full chunk, and no other task has these partial results.
        unsafe {
            match fold.lane {
                Lane::F32 => {
                    let x = std::slice::from_raw_parts(slots[fold.slot].cast::<f32>(), count);
                    let to = self.partial::<f32>(fold, memory, segment, part);
                    let op = (fold.op, |a: f32, b: f32| a + b, lanes::larger);
                    accumulate(fold.per_column, to, x, cols, op, Fused::identity(fold.op) as f32);
                }
                Lane::F64 => {
                    let x = std::slice::from_raw_parts(slots[fold.slot].cast::<f64>(), count);
                    let to = self.partial::<f64>(fold, memory, segment, part);
                    let max = |a: f64, b: f64| if a > b || a.is_nan() { a } else { b };
                    let op = (fold.op, |a: f64, b: f64| a + b, max);
                    accumulate(fold.per_column, to, x, cols, op, Fused::identity(fold.op));
                }
                Lane::U32 => {
                    let x = std::slice::from_raw_parts(slots[fold.slot].cast::<u32>(), count);
                    let to = self.partial::<u32>(fold, memory, segment, part);
                    let op = (fold.op, u32::wrapping_add, |a: u32, b: u32| a.max(b));
                    accumulate(fold.per_column, to, x, cols, op, 0);
                }
            }
        }
    }

    fn finish<T: Copy>(&self, fold: &CpuFold, memory: &Memory<'_>, sum: impl Fn(T, T) -> T, max: impl Fn(T, T) -> T) {
        let width = self.width(fold);
        for segment in 0..self.segments {
            let first = self.partial::<T>(fold, memory, segment, (0, 0));
            // SAFETY: all tasks are done: the partial results are this thread's.
            let all = unsafe { std::slice::from_raw_parts_mut(first, width * fold.count) };
            let (total, rest) = all.split_at_mut(width);
            for part in rest.chunks_exact(width) {
                match fold.op {
                    ReduceOp::Sum => total.iter_mut().zip(part).for_each(|(a, &b)| *a = sum(*a, b)),
                    ReduceOp::Max => total.iter_mut().zip(part).for_each(|(a, &b)| *a = max(*a, b)),
                }
            }
            // SAFETY: the result has `width` elements for each segment.
            unsafe {
                let base = memory.bases[fold.to.buffer];
                fold.to.store(base, first.cast(), segment..segment + 1, 0..width, false);
            }
        }
    }
}

/// # Safety
/// `start` is valid for the elements of `range`, and no other thread accesses them.
unsafe fn slice<'s, T>(start: *mut T, range: &std::ops::Range<usize>) -> &'s mut [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) }
}

/// # Safety
/// `to` is valid for writes of the result, and no other thread accesses it.
#[inline(always)]
unsafe fn accumulate<T: Copy>(
    per_column: bool,
    to: *mut T,
    x: &[T],
    cols: &std::ops::Range<usize>,
    (op, sum, max): (ReduceOp, impl Fn(T, T) -> T + Copy, impl Fn(T, T) -> T + Copy),
    identity: T,
) {
    if per_column {
        // SAFETY: the caller's promise.
        let to = unsafe { slice(to, cols) };
        for row in x.chunks_exact(cols.len()) {
            match op {
                ReduceOp::Sum => to.iter_mut().zip(row).for_each(|(to, &x)| *to = sum(*to, x)),
                ReduceOp::Max => to.iter_mut().zip(row).for_each(|(to, &x)| *to = max(*to, x)),
            }
        }
    } else {
        // SAFETY: the caller's promise.
        let to = unsafe { &mut *to };
        *to = match op {
            ReduceOp::Sum => sum(*to, lanes::fold(x, identity, sum)),
            ReduceOp::Max => max(*to, lanes::fold(x, identity, max)),
        };
    }
}
