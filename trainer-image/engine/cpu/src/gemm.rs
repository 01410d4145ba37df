//! Matrix products: packed panels, tiles in registers (after Goto and van de Geijn, "Anatomy of high-performance matrix
//! multiplication", 2008).
//!
//! Own rather than the `gemm` crate, which allocates on every call, and reads and writes one dtype: packing here widens
//! 16-bit floats, takes any strides, and its memory is part of the plan. Each element of C is summed in blocks of k in
//! order, whoever computes it: results do not depend on threads.

use half::f16;

use super::{
    fused::Memory,
    lanes::Features,
    math::bits_bf16,
    microkernel::{Element, Tile},
    pool::Pool,
};
use pawl_graph::{
    float8::{E4M3, E5M2},
    graph::DType,
};
use pawl_lower::aligned;

/// Depth of a block: a panel of B of this depth fills first-level cache.
const DEPTH: usize = 384;
/// Rows of a task.
const ROWS: usize = 48;
/// Columns of packed B at most.
const COLS: usize = 4096;
/// Multiplications below which one thread does all.
const ALONE: usize = 200_000;

/// A matrix in memory: element (i, j) at `start + i * row + j * col` (strides in elements).
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub start: *mut u8,
    pub dtype: DType,
    pub row: usize,
    pub col: usize,
}

// SAFETY: an address and strides; its users prevent data races.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// The same without its first rows and columns.
    pub(super) fn from(self, row: usize, col: usize) -> Self {
        let offset = (row * self.row + col * self.col) * self.dtype.bytes();
        Self { start: self.start.wrapping_add(offset), ..self }
    }

    /// The first element as float32, for any narrower float.
    ///
    /// # Safety
    /// It may be read.
    unsafe fn get(self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::BF16 => f32::from_bits(u32::from(*self.start.cast::<u16>()) << 16),
                DType::F16 => f16::from_bits(*self.start.cast::<u16>()).to_f32(),
                _ => *self.start.cast::<f32>(),
            }
        }
    }

    /// Rows as columns.
    pub(super) fn transposed(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }

    /// float32, rows contiguous.
    pub(super) fn rows(start: *mut f32, cols: usize) -> Self {
        Self { start: start.cast(), dtype: DType::F32, row: cols, col: 1 }
    }
}

/// Extents `(m, n, k)`.
pub(super) type Extents = (usize, usize, usize);

/// Depth of each block of k: equal, so that none is thin.
fn depth(k: usize) -> usize {
    k.div_ceil(k.div_ceil(DEPTH).max(1)).max(1)
}

/// Whether the result is first summed in the accumulator's dtype: it is rounded once, at the end.
fn needs_sums(dtype: DType, accumulator: DType, k: usize) -> bool {
    dtype != accumulator && k > DEPTH
}

/// Scratch of a worker for products up to these extents in [`serial`], in bytes.
pub(super) fn serial_scratch<E: Element>(features: Features, (_, n, k): Extents) -> usize {
    let tile = E::tile(features);
    let elements = depth(k) * (n.min(serial_cols(k)).next_multiple_of(tile.cols) + ROWS.next_multiple_of(tile.rows));
    aligned((elements + tile.rows * tile.cols) * size_of::<E>())
}

/// Columns that [`serial`] packs at once: a quarter of a megabyte.
fn serial_cols(k: usize) -> usize {
    (65_536 / depth(k)).next_multiple_of(32).max(64)
}

/// `c = a b` (`c += a b` when `add`) on this thread. `c` is of the accumulator's dtype, or k is at most [`DEPTH`].
///
/// # Safety
/// Matrices lie in memory that may be read and written; `scratch` is as large as [`serial_scratch`] says.
pub(super) unsafe fn serial<E: Element>(
    features: Features,
    (m, n, k): Extents,
    [a, b, c]: [Matrix; 3],
    add: bool,
    scratch: *mut u8,
) {
    let tile = E::tile(features);
    let (kc, nc) = (depth(k), n.min(serial_cols(k)));
    let packed_b = scratch.cast::<E>();
    // SAFETY: the caller's promise, here and below.
    let packed_a = unsafe { packed_b.add(kc * nc.next_multiple_of(tile.cols)) };
    for col in (0..n).step_by(nc.max(1)) {
        let cols = nc.min(n - col);
        for at in (0..k.max(1)).step_by(kc) {
            let deep = kc.min(k - at.min(k));
            // SAFETY: as above.
            unsafe { pack(b.from(at, col).transposed(), (cols, deep), tile.cols, packed_b) };
            for row in (0..m).step_by(ROWS) {
                let rows = ROWS.min(m - row);
                // SAFETY: as above.
                unsafe {
                    pack(a.from(row, at), (rows, deep), tile.rows, packed_a);
                    block(
                        tile,
                        (rows, cols, deep),
                        packed_a,
                        packed_b,
                        c.from(row, col),
                        add || at > 0,
                        spare(tile, packed_a, kc),
                    );
                }
            }
        }
    }
}

/// Room for a tile behind the packed A.
unsafe fn spare<E: Element>(tile: Tile<E>, packed_a: *mut E, kc: usize) -> *mut E {
    // SAFETY: part of the scratch of whoever calls.
    unsafe { packed_a.add(kc * ROWS.next_multiple_of(tile.rows)) }
}

/// Scales of rows or columns of a result: element i at `start + i * stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub start: *const f32,
    pub stride: usize,
}

// SAFETY: an address that is only read.
unsafe impl Sync for Scale {}

impl Scale {
    /// # Safety
    /// There are more than `index` scales.
    unsafe fn at(self, index: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { *self.start.add(index * self.stride) }
    }
}

/// What is done with a sum before it is rounded.
#[derive(Debug, Clone, Copy)]
pub(super) enum Finish {
    /// It is multiplied by the scales of its row and its column.
    Scale([Scale; 2]),
    /// It is multiplied by a factor, and the element of a matrix is added.
    Add(Matrix, f32),
}

/// A product spread over threads.
pub(super) struct Product {
    extents: Extents,
    batch: usize,
    accumulator: DType,
    finished: bool,
}

impl Product {
    /// `batch` products with these extents, summed in `accumulator` (float32 or float64); a single one if it has a
    /// [`Finish`].
    pub(super) fn new(extents: Extents, batch: usize, accumulator: DType, finished: bool) -> Self {
        debug_assert!(!finished || batch == 1, "scaled products and sums are of matrices");
        Self { extents, batch, accumulator, finished }
    }

    /// Whether the result is first summed elsewhere.
    fn sums(&self, c: DType) -> bool {
        self.finished || needs_sums(c, self.accumulator, self.extents.2)
    }

    /// Whether each product is one task.
    fn by_batch(&self) -> bool {
        let (m, n, k) = self.extents;
        self.batch > 1 && (self.batch >= 16 || m * n * k <= 1 << 22)
    }

    /// Scratch of a worker, in bytes.
    pub(super) fn scratch(&self, features: Features) -> usize {
        match self.accumulator {
            DType::F64 => self.scratch_of::<f64>(features),
            _ => self.scratch_of::<f32>(features),
        }
    }

    fn scratch_of<E: Element>(&self, features: Features) -> usize {
        let (m, n, k) = self.extents;
        let sums = if self.by_batch() { aligned(m * n * size_of::<E>()) } else { 0 };
        serial_scratch::<E>(features, (m, n, k)) + sums
    }

    /// Bytes of memory that all workers share, for a result of dtype `c`.
    pub(super) fn workspace(&self, features: Features, c: DType) -> usize {
        match self.accumulator {
            DType::F64 => self.workspace_of::<f64>(features, c),
            _ => self.workspace_of::<f32>(features, c),
        }
    }

    fn workspace_of<E: Element>(&self, features: Features, c: DType) -> usize {
        if self.by_batch() {
            return 0;
        }
        let (m, n, k) = self.extents;
        let tile = E::tile(features);
        let sums = if self.sums(c) { aligned(m * n * size_of::<E>()) } else { 0 };
        sums + aligned(depth(k) * n.min(COLS).next_multiple_of(tile.cols) * size_of::<E>())
    }

    /// Runs the products; `matrices(i)` are a, b and c of product i.
    pub(super) fn run(
        &self,
        features: Features,
        pool: &Pool,
        memory: Memory<'_>,
        matrices: &(dyn Fn(usize) -> [Matrix; 3] + Sync),
        finish: Option<Finish>,
    ) {
        match self.accumulator {
            DType::F64 => self.run_of::<f64>(features, pool, memory, matrices, finish),
            _ => self.run_of::<f32>(features, pool, memory, matrices, finish),
        }
    }

    fn run_of<E: Element>(
        &self,
        features: Features,
        pool: &Pool,
        memory: Memory<'_>,
        matrices: &(dyn Fn(usize) -> [Matrix; 3] + Sync),
        finish: Option<Finish>,
    ) {
        let (m, n, k) = self.extents;
        if !self.by_batch() {
            for index in 0..self.batch {
                // SAFETY: matrices lie in buffers, scratch and workspace have the sizes that this type reports.
                unsafe { self.spread::<E>(features, pool, memory, matrices(index), finish) };
            }
            return;
        }
        let sums_at = serial_scratch::<E>(features, self.extents);
        let alone = self.batch * m * n * k < ALONE;
        pool.run(self.batch, alone, &|index, worker| {
            let [a, b, c] = matrices(index);
            let scratch = memory.scratch(worker);
            // SAFETY: as above.
            unsafe {
                if needs_sums(c.dtype, self.accumulator, k) {
                    let start = scratch.add(sums_at);
                    let sums = Matrix { start, dtype: self.accumulator, row: n, col: 1 };
                    serial::<E>(features, self.extents, [a, b, sums], false, scratch);
                    convert(sums, c, 0..m, n, None);
                } else {
                    serial::<E>(features, self.extents, [a, b, c], false, scratch);
                }
            }
        });
    }

    /// # Safety
    /// As [`serial`]; the workspace is as large as [`Product::workspace`] says.
    unsafe fn spread<E: Element>(
        &self,
        features: Features,
        pool: &Pool,
        memory: Memory<'_>,
        [a, b, c]: [Matrix; 3],
        finish: Option<Finish>,
    ) {
        let (m, n, k) = self.extents;
        let tile = E::tile(features);
        let alone = m * n * k < ALONE;
        let summed = self.sums(c.dtype);
        let target =
            if summed { Matrix { start: memory.workspace, dtype: self.accumulator, row: n, col: 1 } } else { c };
        let sums = if summed { aligned(m * n * size_of::<E>()) } else { 0 };
        let shared = Shared(memory.workspace.wrapping_add(sums));
        let kc = depth(k);
        let row_tasks = m.div_ceil(ROWS);
        for col in (0..n).step_by(COLS) {
            let cols = COLS.min(n - col);
            let panels = cols.div_ceil(tile.cols);
            // Few rows: columns are cut too, into tasks of whole panels.
            let col_tasks = (16usize.div_ceil(row_tasks)).min(panels);
            for at in (0..k).step_by(kc) {
                let deep = kc.min(k - at);
                let pack_tasks = panels.min(if alone { 1 } else { panels.div_ceil(2) });
                pool.run(pack_tasks, alone, &|task, _| {
                    let (first, last) = (panels * task / pack_tasks, panels * (task + 1) / pack_tasks);
                    let (from, to) = (first * tile.cols, (last * tile.cols).min(cols));
                    // SAFETY: the caller's promise; tasks pack different panels.
                    unsafe {
                        let packed = shared.at().cast::<E>().add(from * deep);
                        pack(b.from(at, col + from).transposed(), (to - from, deep), tile.cols, packed);
                    }
                });
                pool.run(row_tasks * col_tasks, alone, &|task, worker| {
                    let (row, part) = (task / col_tasks * ROWS, task % col_tasks);
                    let rows = ROWS.min(m - row);
                    let from = panels * part / col_tasks * tile.cols;
                    let to = (panels * (part + 1) / col_tasks * tile.cols).min(cols);
                    let packed_a = memory.scratch(worker).cast::<E>();
                    // SAFETY: the caller's promise; tasks write different parts of c.
                    unsafe {
                        pack(a.from(row, at), (rows, deep), tile.rows, packed_a);
                        let packed_b = shared.at().cast::<E>().add(from * deep);
                        let c = target.from(row, col + from);
                        block(tile, (rows, to - from, deep), packed_a, packed_b, c, at > 0, spare(tile, packed_a, kc));
                    }
                });
            }
        }
        if summed {
            pool.run(row_tasks, alone, &|task, _| {
                // SAFETY: as above.
                unsafe { convert(target, c, task * ROWS..(task * ROWS + ROWS).min(m), n, finish) };
            });
        }
    }
}

#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: tasks write different parts, and none reads what another writes in the same call.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(self) -> *mut u8 {
        self.0
    }
}

/// Packed panels times packed panels, into `c`.
///
/// # Safety
/// Panels are packed for these extents; `spare` has room for a tile; `c` may be written.
unsafe fn block<E: Element>(
    tile: Tile<E>,
    (m, n, k): Extents,
    a: *const E,
    b: *const E,
    c: Matrix,
    add: bool,
    spare: *mut E,
) {
    let plain = c.col == 1 && c.dtype.bytes() == size_of::<E>();
    for col in (0..n).step_by(tile.cols) {
        for row in (0..m).step_by(tile.rows) {
            // SAFETY: the caller's promise.
            unsafe {
                let (a, b) = (a.add(row * k), b.add(col * k));
                let c = c.from(row, col);
                let (rows, cols) = (tile.rows.min(m - row), tile.cols.min(n - col));
                if plain && rows == tile.rows && cols == tile.cols {
                    (tile.run)(k, a, b, c.start.cast(), c.row, add);
                } else {
                    (tile.run)(k, a, b, spare, tile.cols, false);
                    edge(spare, tile.cols, c, (rows, cols), add);
                }
            }
        }
    }
}

/// Writes a part of a tile, rounded to the dtype of `c`.
///
/// # Safety
/// `from` holds the tile, `c` may be written.
unsafe fn edge<E: Element>(from: *const E, stride: usize, c: Matrix, (rows, cols): (usize, usize), add: bool) {
    for row in 0..rows {
        for col in 0..cols {
            // SAFETY: the caller's promise. Lanes of E are float32 or float64; narrower results come from float32.
            unsafe {
                let x = from.add(row * stride + col);
                let to = c.from(row, col).start;
                match c.dtype {
                    DType::BF16 => *to.cast::<u16>() = bits_bf16(*x.cast::<f32>()),
                    DType::F16 => *to.cast::<u16>() = f16::from_f32(*x.cast::<f32>()).to_bits(),
                    _ if add => *to.cast::<E>() += *x,
                    _ => *to.cast::<E>() = *x,
                }
            }
        }
    }
}

/// Finishes rows of sums (float32, contiguous rows) and rounds them to the dtype of `c`.
///
/// # Safety
/// Both may be read and written.
unsafe fn convert(sums: Matrix, c: Matrix, rows: std::ops::Range<usize>, cols: usize, finish: Option<Finish>) {
    for row in rows {
        // SAFETY: the caller's promise.
        unsafe {
            let line = || std::slice::from_raw_parts_mut(sums.from(row, 0).start.cast::<f32>(), cols);
            match finish {
                Some(Finish::Scale([of_rows, of_cols])) => {
                    let scale = of_rows.at(row);
                    line().iter_mut().enumerate().for_each(|(col, sum)| *sum = *sum * scale * of_cols.at(col));
                }
                Some(Finish::Add(matrix, factor)) => {
                    line()
                        .iter_mut()
                        .enumerate()
                        .for_each(|(col, sum)| *sum = *sum * factor + matrix.from(row, col).get());
                }
                None => {}
            }
            edge::<f32>(sums.from(row, 0).start.cast(), cols, c.from(row, 0), (1, cols), false);
        }
    }
}

/// Packs `count` rows of a matrix of `k` columns into panels of `width` rows, column by column; missing rows are 0.
///
/// # Safety
/// The matrix may be read, and `to` has room for `count` rounded up to `width`, times `k`.
unsafe fn pack<E: Element>(from: Matrix, (count, k): (usize, usize), width: usize, to: *mut E) {
    // SAFETY: the caller's promise; E is float64 only for float64 matrices.
    unsafe {
        match from.dtype {
            DType::BF16 => {
                pack_with::<u16, f32>(from, (count, k), width, to.cast(), |x| f32::from_bits(u32::from(x) << 16))
            }
            DType::F16 => pack_with::<u16, f32>(from, (count, k), width, to.cast(), |x| f16::from_bits(x).to_f32()),
            DType::E4M3 => pack_with::<E4M3, f32>(from, (count, k), width, to.cast(), E4M3::to_f32),
            DType::E5M2 => pack_with::<E5M2, f32>(from, (count, k), width, to.cast(), E5M2::to_f32),
            _ => pack_with::<E, E>(from, (count, k), width, to, |x| x),
        }
    }
}

/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_with<T: Copy, E: Element>(
    from: Matrix,
    (count, k): (usize, usize),
    width: usize,
    to: *mut E,
    widen: impl Fn(T) -> E,
) {
    /// Columns of a panel that are packed together: they stay in cache while rows are interleaved.
    const BLOCK: usize = 64;
    let start = from.start.cast::<T>();
    for first in (0..count).step_by(width) {
        let rows = width.min(count - first);
        // SAFETY: the caller's promise.
        unsafe {
            let (panel, source) = (to.add(first * k), start.add(first * from.row));
            if rows < width {
                panel.write_bytes(0, width * k);
            }
            if from.row == 1 {
                for p in 0..k {
                    let (to, from) = (panel.add(p * width), source.add(p * from.col));
                    for i in 0..rows {
                        *to.add(i) = widen(*from.add(i));
                    }
                }
            } else {
                for block in (0..k).step_by(BLOCK) {
                    let end = (block + BLOCK).min(k);
                    for i in 0..rows {
                        let row = source.add(i * from.row);
                        for p in block..end {
                            *panel.add(p * width + i) = widen(*row.add(p * from.col));
                        }
                    }
                }
            }
        }
    }
}
