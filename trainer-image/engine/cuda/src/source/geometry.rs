//! How threads share the elements of a fused kernel.

use super::index::Walk;
use pawl_lower::{Access, Buffer, Class, Fused};

/// Threads of a block, about.
const THREADS: usize = 256;
/// The same for threads that need more than [`ROOM`] registers: smaller blocks leave fewer of them unused.
const FEW_THREADS: usize = 128;
/// Registers of a thread that leave enough threads for memory to be kept busy.
const ROOM: usize = 128;
/// Columns' values (of 4 bytes) that a thread keeps through all rows; beyond that they are read again for each.
const KEPT: usize = 64;
/// Elements that one thread has at once, at most (unless rows are very long).
const ELEMENTS: usize = 24;
/// Bytes that surely stay in the first-level cache.
const CACHED: usize = 16 << 10;
/// Fewest threads along a row where there is a choice: what they read together should be longer than a sector of 32
/// bytes.
const NEIGHBOURS: usize = 4;
/// Longest row that one warp holds in registers.
const WARP: usize = 32;

/// Order in which threads process elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Traversal {
    /// Vectors of consecutive elements, regardless of rows.
    Flat,
    /// Row by row; a thread keeps its columns.
    Rows,
}

/// The mapping of threads to elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Geometry {
    pub traversal: Traversal,
    /// Elements of a vector.
    pub vector: usize,
    /// Threads along a row.
    pub lanes: usize,
    /// Vectors of a row that a thread has.
    pub held: usize,
    /// Rows (or runs) that a block works on side by side.
    pub groups: usize,
    /// Rows (or vectors) that a thread has at once.
    pub unroll: usize,
    /// Blocks side by side that share a row.
    pub tiles: usize,
    /// Whether the next rows are prefetched while the current ones are processed: accumulators of columns take the
    /// registers of other threads that would otherwise keep memory busy.
    pub ahead: bool,
}

impl Geometry {
    pub(super) fn new(kernel: &Fused, buffers: &[Buffer]) -> Self {
        let vector = vector(kernel, buffers);
        let usual = Self::of(kernel, vector, ELEMENTS, THREADS);
        if !usual.ahead || usual.registers(kernel, buffers) <= ROOM {
            return usual;
        }
        let halved = Self::of(kernel, vector.div_ceil(2), ELEMENTS / 2, FEW_THREADS);
        if halved.lanes <= WARP { halved } else { Self::of(kernel, vector, ELEMENTS, FEW_THREADS) }
    }

    /// With vectors of `vector` elements, at most `elements` at once (unless rows are very long), and about `threads`
    /// threads.
    fn of(kernel: &Fused, vector: usize, elements: usize, threads: usize) -> Self {
        let by_column = kernel.folds.iter().any(|fold| fold.per_column);
        let vectors = kernel.cols / vector;
        if kernel.needs_whole_rows() {
            let (lanes, held) = along_row(vectors, elements / vector);
            // What more than a warp holds is reduced over the block.
            let groups = if lanes > WARP { 1 } else { threads / lanes };
            // Short rows leave a thread little to wait for: several at once.
            let unroll = (8 / (held * vector)).clamp(1, 4).min(kernel.rows.div_ceil(groups));
            return Self {
                traversal: Traversal::Rows,
                vector,
                lanes,
                held,
                groups,
                unroll,
                tiles: 1,
                ahead: by_column,
            };
        }
        let unroll = |room: usize| (room / vector).clamp(1, 4);
        if by_column {
            let tiles = vectors.div_ceil(threads);
            let lanes = vectors.div_ceil(tiles);
            let groups = (threads / lanes).max(1);
            let unroll = unroll(16).min(kernel.rows.div_ceil(kernel.segments * groups)).max(1);
            return Self { traversal: Traversal::Rows, vector, lanes, held: 1, groups, unroll, tiles, ahead: true };
        }
        let all = kernel.rows * vectors / kernel.segments;
        let unroll = unroll(16).min(all.div_ceil(threads)).max(1);
        Self { traversal: Traversal::Flat, vector, lanes: 1, held: 1, groups: threads, unroll, tiles: 1, ahead: false }
    }

    /// Whether columns' values are read where they are used: a row that fills a block leaves no registers to keep them
    /// in.
    pub(super) fn reads_columns_late(&self, kernel: &Fused) -> bool {
        self.traversal == Traversal::Rows && self.lanes > WARP && kernel.folds.is_empty()
    }

    /// Whether columns' values are read once, before all rows.
    pub(super) fn hoists(&self, kernel: &Fused) -> bool {
        if self.reads_columns_late(kernel) {
            return false;
        }
        let columns = kernel.values[..kernel.loads.len()].iter().filter(|(_, class)| *class == Class::Col);
        let words: usize = columns.map(|(dtype, _)| dtype.bytes() * self.held * self.vector).sum::<usize>() / 4;
        self.traversal == Traversal::Rows && words <= KEPT
    }

    /// Registers of a thread, about: what is read, what is kept for a second pass over a row, and sums of columns.
    pub(super) fn registers(&self, kernel: &Fused, buffers: &[Buffer]) -> usize {
        let elements = self.unroll * self.held * self.vector;
        let hoisted = self.hoists(kernel);
        let (mut loads, mut columns) = (0, 0);
        for (load, &(_, class)) in kernel.loads.iter().zip(&kernel.values) {
            let words = elements * buffers[load.from.buffer].dtype.bytes() / 4;
            match class {
                Class::Full => loads += words,
                Class::Col if hoisted => columns += words / self.unroll,
                _ => columns += 2,
            }
        }
        let sums = kernel.folds.iter().filter(|fold| fold.per_column).count() * self.held * self.vector;
        // Rows that are worked on give way to the next as they are used up.
        let (own, rows) = match (self.ahead, kernel.needs_whole_rows()) {
            (true, _) => (24, 2 * loads),
            (false, true) => (48, loads + elements),
            (false, false) => (48, loads),
        };
        (own + rows + columns + sums).next_multiple_of(8)
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> usize {
        self.lanes * self.groups
    }

    /// Rows (or vectors, for [`Traversal::Flat`]) that a block works on at once.
    pub(super) fn step(&self) -> usize {
        self.groups * self.unroll
    }
}

/// Elements that one access moves: 16 bytes of the widest array, as far as rows and views allow.
fn vector(kernel: &Fused, buffers: &[Buffer]) -> usize {
    let loads = kernel.loads.iter().zip(&kernel.values).map(|(load, &(_, class))| (&load.from, class));
    let stores = kernel.stores.iter().filter(|store| !store.per_row).map(|store| (&store.to, Class::Full));
    let arrays: Vec<&Access> =
        loads.chain(stores).filter(|&(_, class)| class == Class::Full).map(|(access, _)| access).collect();
    let large = arrays.iter().filter(|access| !is_small(access, buffers));
    let widest = large.map(|access| buffers[access.buffer].dtype.bytes()).max().unwrap_or(4);
    let mut count = (16 / widest).min(8);
    while count > 1 {
        let fits = |access: &&Access| {
            let walk = Walk::new(access, kernel.cols, buffers);
            // An array that lies across is read element by element in any case.
            walk.is_some_and(|walk| !walk.is_dense() || walk.moves(access, count))
        };
        if kernel.cols.is_multiple_of(count) && arrays.iter().all(fits) {
            break;
        }
        count /= 2;
    }
    count
}

/// Whether a view repeats so few elements that they stay in the first-level cache.
pub(super) fn is_small(access: &Access, buffers: &[Buffer]) -> bool {
    let loops = access.dims.iter().zip(&access.strides).filter(|&(_, &stride)| stride > 0);
    let distinct: usize = loops.map(|(&extent, _)| extent).product();
    distinct * 8 <= access.elements() && distinct * buffers[access.buffer].dtype.bytes() <= CACHED
}

/// Threads along a row (a power of two), and vectors for each: at most `most` (unless rows are very long).
fn along_row(vectors: usize, most: usize) -> (usize, usize) {
    let most = most.max(1);
    let choices = (0..=10).map(|power| 1usize << power).filter(|&lanes| lanes <= WARP || vectors > WARP * most);
    let held = |lanes: usize| vectors.div_ceil(lanes);
    // Fewest idle lanes first; then as many vectors a thread as there is room for.
    let cost = |lanes: usize| {
        let held = held(lanes);
        let idle = (lanes * held - vectors) * 100 / vectors;
        (held > most, idle, lanes < NEIGHBOURS, most.abs_diff(held), lanes)
    };
    let lanes = choices.min_by_key(|&lanes| cost(lanes)).unwrap_or(WARP);
    (lanes, held(lanes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_without_idle_lanes_where_that_is_possible() {
        // Width of a row in elements, elements of a vector: threads, vectors for each.
        for (cols, vector, expected) in [
            (384, 8, (16, 3)),
            (768, 8, (32, 3)),
            (384, 4, (16, 6)),
            (48, 8, (2, 3)),
            (48, 4, (4, 3)),
            (128, 4, (8, 4)),
            (8, 8, (1, 1)),
            (1, 1, (1, 1)),
            (16_384, 4, (1024, 4)),
        ] {
            assert_eq!(along_row(cols / vector, ELEMENTS / vector), expected, "{cols} in vectors of {vector}");
        }
        for vectors in 1..2000 {
            let (lanes, held) = along_row(vectors, ELEMENTS);
            assert!(lanes * held >= vectors && lanes <= 1024 && lanes.is_power_of_two());
        }
    }
}
