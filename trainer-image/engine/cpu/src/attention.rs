//! Attention and its gradient: one task for each batch and head of the keys, blocks of queries at a time.
//!
//! The scores of a block of queries against all keys stay in second-level cache, so no running maximum is needed; the
//! gradient computes them again from the kept log-sum-exp. Sums over query heads and blocks are taken in order: results
//! do not depend on threads.

use super::{
    fused::Memory,
    gemm::{Matrix, serial, serial_scratch},
    lanes::{Features, fold, larger},
    math::{self, Arithmetic},
    pool::Pool,
};
use pawl_graph::graph::{AttentionSpec, DType};
use pawl_lower::{Access, Attention, AttentionGrad, Buffer, aligned};

/// Bytes of scores that a block of queries may fill.
const SCORES: usize = 256 * 1024;

/// A view `[b, h, t, d]`.
#[derive(Debug, Clone)]
struct Heads {
    buffer: usize,
    dtype: DType,
    offset: usize,
    strides: [usize; 4],
}

impl Heads {
    fn new(access: &Access, buffers: &[Buffer]) -> Self {
        let strides = [access.strides[0], access.strides[1], access.strides[2], access.strides[3]];
        Self { buffer: access.buffer, dtype: buffers[access.buffer].dtype, offset: access.offset, strides }
    }

    /// The matrix `[t, d]` of one batch and head.
    fn head(&self, memory: &Memory<'_>, batch: usize, head: usize) -> Matrix {
        let at = self.offset + batch * self.strides[0] + head * self.strides[1];
        let start = memory.bases[self.buffer].wrapping_add(at * self.dtype.bytes());
        Matrix { start, dtype: self.dtype, row: self.strides[2], col: self.strides[3] }
    }
}

/// Attention, or its gradient, ready to run.
pub(super) struct CpuAttention {
    spec: AttentionSpec,
    /// Batch, query heads, key heads.
    heads: (usize, usize, usize),
    /// Queries, keys, width of a head.
    extents: (usize, usize, usize),
    block: usize,
    q: Heads,
    k: Heads,
    v: Heads,
    o: Heads,
    lse: Option<Heads>,
    grad: Option<Gradients>,
}

struct Gradients {
    o: Heads,
    q: Heads,
    k: Heads,
    v: Heads,
}

impl CpuAttention {
    pub(super) fn forward(kernel: &Attention, buffers: &[Buffer]) -> Self {
        let (q, k) = (&kernel.q.dims, &kernel.k.dims);
        let heads = |access: &Access| Heads::new(access, buffers);
        Self {
            spec: kernel.spec,
            heads: (q[0], q[1], k[1]),
            extents: (q[2], k[2], q[3]),
            block: (SCORES / (4 * k[2].max(1))).clamp(16, 128).min(q[2].max(1)),
            q: heads(&kernel.q),
            k: heads(&kernel.k),
            v: heads(&kernel.v),
            o: heads(&kernel.o),
            lse: kernel.lse.as_ref().map(heads),
            grad: None,
        }
    }

    pub(super) fn backward(kernel: &AttentionGrad, buffers: &[Buffer]) -> Self {
        let heads = |access: &Access| Heads::new(access, buffers);
        let grad =
            Gradients { o: heads(&kernel.grad), q: heads(&kernel.dq), k: heads(&kernel.dk), v: heads(&kernel.dv) };
        Self { grad: Some(grad), ..Self::forward(&kernel.forward, buffers) }
    }

    /// Offsets of the parts of a worker's scratch, in bytes, and their sum: two score blocks, a block of rows, two sums
    /// over keys, products.
    fn parts(&self, features: Features) -> [usize; 6] {
        let (_, keys, width) = self.extents;
        let scores = aligned(self.block * keys * 4);
        let rows = aligned(self.block * width * 4);
        let sums = if self.grad.is_some() { aligned(keys * width * 4) } else { 0 };
        let second = if self.grad.is_some() { scores } else { 0 };
        let products = [(self.block, keys, width), (self.block, width, keys), (keys, width, self.block)];
        let products = products.map(|e| serial_scratch::<f32>(features, e)).into_iter().max().unwrap_or(0);
        let sizes = [scores, second, rows, sums, sums, products];
        let mut end = 0;
        sizes.map(|size| {
            end += size;
            end
        })
    }

    /// Bytes of scratch each worker needs.
    pub(super) fn scratch(&self, features: Features) -> usize {
        self.parts(features)[5]
    }

    pub(super) fn run(&self, features: Features, pool: &Pool, memory: Memory<'_>) {
        let (batch, heads, groups) = self.heads;
        let (queries, keys, width) = self.extents;
        let alone = batch * heads * queries * keys * width < 100_000;
        if self.grad.is_some() {
            pool.run(batch * groups, alone, &|task, worker| {
                self.backward_group(features, &memory, (task / groups, task % groups), worker);
            });
        } else {
            pool.run(batch * heads, alone, &|task, worker| {
                self.forward_head(features, &memory, (task / heads, task % heads), worker);
            });
        }
    }

    /// Keys that a block of queries ending before `end` sees.
    fn seen(&self, end: usize) -> usize {
        let (queries, keys, _) = self.extents;
        if self.spec.causal { (end + keys).saturating_sub(queries).min(keys) } else { keys }
    }

    fn softmax(&self, features: Features, scores: &mut [f32], keys: usize, first: usize, statistics: Statistics) {
        match features {
            // SAFETY: `Features::detect` found these.
            #[cfg(target_arch = "x86_64")]
            Features::Avx512 => unsafe { softmax_avx512(self, scores, keys, first, statistics) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Features::Avx2 => unsafe { softmax_avx2(self, scores, keys, first, statistics) },
            #[cfg(target_arch = "aarch64")]
            Features::Portable => softmax::<math::OneRounding>(self, scores, keys, first, statistics),
            #[cfg(not(target_arch = "aarch64"))]
            Features::Portable => softmax::<math::TwoRoundings>(self, scores, keys, first, statistics),
        }
    }

    fn forward_head(&self, features: Features, memory: &Memory<'_>, (batch, head): (usize, usize), worker: usize) {
        let (queries, _, width) = self.extents;
        let scratch = memory.scratch(worker);
        let [_, rows_at, _, _, products_at, _] = self.parts(features);
        let group = head / (self.heads.1 / self.heads.2);
        let (q, o) = (self.q.head(memory, batch, head), self.o.head(memory, batch, head));
        let (k, v) = (self.k.head(memory, batch, group), self.v.head(memory, batch, group));
        let lse = self.lse.as_ref().map(|lse| lse.head(memory, batch, head));
        for first in (0..queries).step_by(self.block) {
            let count = self.block.min(queries - first);
            let keys = self.seen(first + count);
            // SAFETY: scratch has the parts that `parts` counts; views lie in their buffers; no other task writes these
            // rows.
            unsafe {
                let products = scratch.add(products_at);
                let scores = Matrix::rows(scratch.cast(), keys);
                serial::<f32>(
                    features,
                    (count, keys, width),
                    [q.from(first, 0), k.transposed(), scores],
                    false,
                    products,
                );
                let all = std::slice::from_raw_parts_mut(scratch.cast::<f32>(), count * keys);
                self.softmax(features, all, keys, first, Statistics::Make(lse.map(|l| l.from(first, 0))));
                let rows = Matrix::rows(scratch.add(rows_at).cast(), width);
                serial::<f32>(features, (count, width, keys), [scores, v, rows], false, products);
                copy_out(rows, o.from(first, 0), (count, width));
            }
        }
    }

    fn backward_group(&self, features: Features, memory: &Memory<'_>, (batch, group): (usize, usize), worker: usize) {
        let Some(grad) = &self.grad else { return };
        let (queries, keys, width) = self.extents;
        let scratch = memory.scratch(worker);
        let [second, rows_at, dk_at, dv_at, products_at, _] = self.parts(features);
        let per_group = self.heads.1 / self.heads.2;
        let (k, v) = (self.k.head(memory, batch, group), self.v.head(memory, batch, group));
        // SAFETY: as in `forward_head`.
        unsafe {
            let products = scratch.add(products_at);
            let (dk, dv) =
                (Matrix::rows(scratch.add(dk_at).cast(), width), Matrix::rows(scratch.add(dv_at).cast(), width));
            for sum in [dk, dv] {
                std::slice::from_raw_parts_mut(sum.start.cast::<f32>(), keys * width).fill(0.0);
            }
            for head in group * per_group..(group + 1) * per_group {
                let [q, o, from, dq] = [&self.q, &self.o, &grad.o, &grad.q].map(|h| h.head(memory, batch, head));
                let lse = self.lse.as_ref().map(|lse| lse.head(memory, batch, head));
                for first in (0..queries).step_by(self.block) {
                    let count = self.block.min(queries - first);
                    let seen = self.seen(first + count);
                    let [q, o, from, dq] = [q, o, from, dq].map(|m| m.from(first, 0));
                    let weights = Matrix::rows(scratch.cast(), seen);
                    let slopes = Matrix::rows(scratch.add(second).cast(), seen);
                    let run = |extents, matrices, add| serial::<f32>(features, extents, matrices, add, products);
                    run((count, seen, width), [q, k.transposed(), weights], false);
                    let all = std::slice::from_raw_parts_mut(scratch.cast::<f32>(), count * seen);
                    if let Some(lse) = lse {
                        self.softmax(features, all, seen, first, Statistics::Given(lse.from(first, 0)));
                    }
                    run((seen, width, count), [weights.transposed(), from, dv], true);
                    run((count, seen, width), [from, v.transposed(), slopes], false);
                    let slope = std::slice::from_raw_parts_mut(scratch.add(second).cast::<f32>(), count * seen);
                    for row in 0..count {
                        let delta = dot(o.from(row, 0), from.from(row, 0), width);
                        let range = row * seen..(row + 1) * seen;
                        let scale = self.spec.scale as f32;
                        for (slope, &weight) in slope[range.clone()].iter_mut().zip(&all[range]) {
                            *slope = weight * (*slope - delta) * scale;
                        }
                    }
                    run((seen, width, count), [slopes.transposed(), q, dk], true);
                    let rows = Matrix::rows(scratch.add(rows_at).cast(), width);
                    run((count, width, seen), [slopes, k, rows], false);
                    copy_out(rows, dq, (count, width));
                }
            }
            copy_out(dk, grad.k.head(memory, batch, group), (keys, width));
            copy_out(dv, grad.v.head(memory, batch, group), (keys, width));
        }
    }
}

/// The log-sum-exp of each row.
enum Statistics {
    /// Is computed and, when there is a place, kept.
    Make(Option<Matrix>),
    /// Was kept.
    Given(Matrix),
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn softmax_avx512(kernel: &CpuAttention, scores: &mut [f32], keys: usize, first: usize, statistics: Statistics) {
    softmax::<math::OneRounding>(kernel, scores, keys, first, statistics);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn softmax_avx2(kernel: &CpuAttention, scores: &mut [f32], keys: usize, first: usize, statistics: Statistics) {
    softmax::<math::OneRounding>(kernel, scores, keys, first, statistics);
}

/// Turns rows of products into weights.
#[inline(always)]
fn softmax<A: Arithmetic>(
    kernel: &CpuAttention,
    scores: &mut [f32],
    keys: usize,
    first: usize,
    statistics: Statistics,
) {
    let scale = kernel.spec.scale as f32;
    for (row, scores) in scores.chunks_exact_mut(keys.max(1)).enumerate() {
        let seen = kernel.seen(first + row + 1).min(keys);
        let (scores, hidden) = scores.split_at_mut(seen);
        hidden.fill(0.0);
        match &statistics {
            Statistics::Given(lse) => {
                // SAFETY: there is one for each row, float32.
                let lse = unsafe { *lse.from(row, 0).start.cast::<f32>() };
                scores.iter_mut().for_each(|x| *x = math::exp::<A>(*x * scale - lse));
            }
            Statistics::Make(place) => {
                let most = fold(scores, f32::NEG_INFINITY, larger) * scale;
                let most = if most == f32::NEG_INFINITY { 0.0 } else { most };
                scores.iter_mut().for_each(|x| *x = math::exp::<A>(*x * scale - most));
                let sum = fold(scores, 0.0, |a: f32, b: f32| a + b);
                let factor = 1.0 / sum;
                scores.iter_mut().for_each(|x| *x *= factor);
                if let Some(place) = place {
                    // SAFETY: as above.
                    unsafe { *place.from(row, 0).start.cast::<f32>() = most + sum.ln() };
                }
            }
        }
    }
}

/// # Safety
/// Both may be read or written.
unsafe fn copy_out(from: Matrix, to: Matrix, (rows, cols): (usize, usize)) {
    for row in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, to) = (from.from(row, 0).start.cast::<f32>(), to.from(row, 0));
            if to.dtype == DType::F32 && to.col == 1 {
                to.start.cast::<f32>().copy_from_nonoverlapping(from, cols);
                continue;
            }
            for col in 0..cols {
                let (x, at) = (*from.add(col), to.from(0, col).start);
                match to.dtype {
                    DType::BF16 => *at.cast::<u16>() = math::bits_bf16(x),
                    DType::F16 => *at.cast::<u16>() = half::f16::from_f32(x).to_bits(),
                    _ => *at.cast::<f32>() = x,
                }
            }
        }
    }
}

/// Product of two rows.
///
/// # Safety
/// Both have `count` elements.
unsafe fn dot(a: Matrix, b: Matrix, count: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        if a.dtype == DType::F32 && a.col == 1 && b.col == 1 {
            let a = std::slice::from_raw_parts(a.start.cast::<f32>(), count);
            let b = std::slice::from_raw_parts(b.start.cast::<f32>(), count);
            return a.iter().zip(b).map(|(a, b)| a * b).sum();
        }
        let element = |m: Matrix, i: usize| super::transfer::element(m.dtype, m.from(0, i).start) as f32;
        (0..count).map(|i| element(a, i) * element(b, i)).sum()
    }
}
