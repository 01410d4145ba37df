//! Sums over rows: each block's, and the kernel that joins them.

use std::fmt::Write;

use super::{Emitter, argument};
use crate::source::{Finish, geometry::Geometry, types};
use pawl_lower::Fold;

impl Emitter<'_> {
    /// Whether one block sees all rows of a segment: what it has added up is the result.
    pub(super) fn alone(&self) -> bool {
        self.most == 1 && (self.geometry.tiles == 1 || self.kernel.folds.iter().all(|fold| fold.per_column))
    }

    pub(super) fn partials(&self) -> Vec<Partials> {
        let mut offset = 0;
        let place = |fold: &Fold| {
            let width = if fold.per_column { self.kernel.cols } else { 1 };
            // Sums of everything have one partial result for each block, tiles included.
            let tiles = if fold.per_column { 1 } else { self.geometry.tiles };
            let (_, size) = types::accumulator(self.kernel.values[fold.value].0);
            let bytes = (self.kernel.segments * self.most * width * tiles * size).next_multiple_of(256);
            let own = Partials { offset, bytes, width, tiles };
            offset += bytes;
            own
        };
        self.kernel.folds.iter().map(place).collect()
    }

    /// What the block has added up, to memory.
    pub(super) fn sums(&mut self, partials: &[Partials]) {
        let Geometry { vector, lanes, held, groups, tiles, .. } = self.geometry.clone();
        for (index, (fold, place)) in self.kernel.folds.iter().zip(partials).enumerate() {
            let (acc, _) = types::accumulator(self.kernel.values[fold.value].0);
            let op = types::reduction(fold.op);
            self.open("{");
            self.put(index, acc, place);
            if !fold.per_column {
                let threads = self.geometry.threads();
                let warps = threads.div_ceil(32);
                self.line(format!("__shared__ {acc} table[{threads}];"));
                self.line(format!("table[threadIdx.x] = f{index};"));
                self.line("__syncthreads();");
                self.open("if (threadIdx.x < 32) {");
                self.line(format!("{acc} sum = {op}::identity<{acc}>();"));
                self.line(format!("UNROLL for (u32 w = 0; w < {warps}u; w++) if (threadIdx.x + w * 32 < {threads}u) sum = {op}::join(sum, table[threadIdx.x + w * 32]);"));
                self.line(format!("sum = over_lanes<{op}, 32>(sum);"));
                let tile = if tiles > 1 { "blockIdx.y" } else { "0" };
                self.line(format!("if (threadIdx.x == 0) put({tile}, sum);"));
                self.close();
            } else if groups == 1 {
                self.vectors(|e| {
                    e.line(format!("UNROLL for (int j = 0; j < V; j++) put(column(i) * V + j, f{index}[i][j]);"));
                });
            } else {
                // Groups add up in turn: a fixed order.
                let width = lanes * held * vector;
                self.line(format!("__shared__ {acc} table[{width}];"));
                self.open(format!("for (u32 g = 0; g < {groups}u; g++) {{"));
                self.line("__syncthreads();");
                self.line(format!("if (group == g) UNROLL for (int i = 0; i < H; i++) UNROLL for (int j = 0; j < V; j++) {{ {acc}& x = table[(lane + i * {lanes}u) * V + j]; x = g ? {op}::join(x, f{index}[i][j]) : f{index}[i][j]; }}"));
                self.close();
                self.line("__syncthreads();");
                let tile = if tiles > 1 { format!("blockIdx.y * {width}u + ") } else { String::new() };
                self.line(format!(
                    "for (u32 c = threadIdx.x; c < {width}u; c += {}u) if ({tile}c < {}u) put({tile}c, table[c]);",
                    self.geometry.threads(),
                    self.kernel.cols
                ));
            }
            self.close();
        }
    }

    /// Writes a function that puts a sum of the block where it belongs.
    fn put(&mut self, index: usize, acc: &str, place: &Partials) {
        let (segment, width) = (self.segment(), place.width);
        if self.alone() {
            let tag = types::tag(self.buffers[self.kernel.folds[index].to.buffer].dtype);
            self.open(format!("auto put = [&](u32 at, {acc} sum) {{"));
            self.line(format!("const {tag}::value one[1] = {{({tag}::value)sum}};"));
            self.line(format!(
                "store(c{index} + ((u64){segment} * {width}u + at) * {tag}::bytes, pack<{tag}, 1>(one));"
            ));
            self.close_with("};");
        } else {
            self.line(format!(
                "{acc}* to = ({acc}*)(partials + {}ull) + ((u64){segment} * {}u + block) * {}u;",
                place.offset,
                self.most,
                width * place.tiles
            ));
            self.line(format!("auto put = [&](u32 at, {acc} sum) {{ to[at] = sum; }};"));
        }
    }

    /// The kernel that joins the sums of blocks; gives how it is launched.
    pub(super) fn finish(&self, text: &mut String, partials: &[Partials]) -> Finish {
        let kernel = self.kernel;
        let columns = partials.iter().map(|p| p.width.div_ceil(32)).max().unwrap_or(1);
        let targets: Vec<String> = (0..kernel.folds.len()).map(|index| format!("u8* c{index}")).collect();
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void __launch_bounds__(1024) finish_kernel(const u8* partials, u32 blocks, {}) {{\n    \
             const u32 first = blockIdx.x % {columns}u * 32, segment = blockIdx.x / {columns}u;",
            targets.join(", ")
        );
        for (index, (fold, place)) in kernel.folds.iter().zip(partials).enumerate() {
            let (acc, _) = types::accumulator(kernel.values[fold.value].0);
            let tag = types::tag(self.buffers[fold.to.buffer].dtype);
            let op = types::reduction(fold.op);
            let Partials { offset, width, tiles, .. } = *place;
            let row = width * tiles;
            let _ = writeln!(
                text,
                "    if (blockIdx.y == {index} && first < {width}u) {{\n        \
                 const {acc}* part = (const {acc}*)(partials + {offset}ull) + (u64)segment * {}u * {row}u;\n        \
                 const {acc} sum = over_partials<{op}>(part, blocks * {tiles}u, {width}u, first);\n        \
                 const {tag}::value one[1] = {{({tag}::value)sum}};\n        \
                 if (threadIdx.x < 32 && first + threadIdx.x < {width}u)\n            \
                 store(c{index} + ((u64)segment * {width}u + first + threadIdx.x) * {tag}::bytes, pack<{tag}, 1>(one));\n    }}",
                self.most
            );
        }
        text.push_str("}\n");
        let arguments = kernel.folds.iter().map(|fold| argument(&fold.to, self.buffers)).collect();
        Finish { arguments, grid: [(columns * kernel.segments) as u32, kernel.folds.len() as u32, 1] }
    }
}

/// Where the partial results of a fold lie.
pub(super) struct Partials {
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Columns of the result.
    width: usize,
    /// Partial results of a block for each.
    tiles: usize,
}
