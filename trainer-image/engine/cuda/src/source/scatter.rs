//! Scatters of contiguous rows that are added up, without atomics: results never depend on timing.

use super::{Generated, Grid, PRELUDE, lookup, types};
use crate::compile::Source;
use pawl_graph::graph::DType;
use pawl_lower::{Buffer, Lookup};

const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;
/// Indices that a warp examines before their rows are added up.
const LOOK: usize = 512;
/// Rows that are loaded at once.
const AHEAD: usize = 8;
/// Bytes of shared memory for sums.
const SUMS: usize = 24 << 10;

/// `to` zeroed, then `to[outer, indices[i], inner] += from[outer, i, inner]` in order of i, each sum rounded.
///
/// A block owns some destinations, whose sums are in shared memory. Its warps scan the indices in parallel, each a
/// contiguous part, and collect those of the block; then all threads add the rows found, in order, each in its own
/// columns.
#[expect(clippy::too_many_lines, reason = "most of it is the text of the kernel")]
pub(super) fn scatter_add(kernel: &Lookup, buffers: &[Buffer]) -> Generated {
    let dtype = buffers[kernel.to.buffer].dtype;
    let (outer, extent, inner) = (kernel.to.dims[0], kernel.to.dims[1], kernel.to.dims[2]);
    let count = kernel.indices.elements();
    let (tag, value) = (types::tag(dtype), types::value(dtype));
    // Elements of 16 bytes at most, as far as rows and views allow.
    let fits = |vector: &usize| {
        let aligned = |offset: usize| (offset * dtype.bytes()).is_multiple_of(vector * dtype.bytes());
        inner.is_multiple_of(*vector) && aligned(kernel.from.offset) && aligned(kernel.to.offset)
    };
    let vector = [8, 4, 2].into_iter().filter(|v| v * dtype.bytes() <= 16).find(fits).unwrap_or(1);
    let columns = inner.min(THREADS * vector);
    let tiles = inner.div_ceil(columns);
    let size = if dtype == DType::F64 { 8 } else { 4 };
    // About four thousand blocks, as far as there is room for their sums.
    let owned = extent.div_ceil((4096 / outer).max(1)).min(SUMS / (size * columns)).clamp(1, 1 << 8);
    let blocks = extent.div_ceil(owned);
    let sum = match dtype {
        DType::Bool => "a || b".to_owned(),
        _ => types::rounded("(a + b)", dtype),
    };
    let text = format!(
        "#define FAST 0\n{PRELUDE}
constexpr int V = {vector};
extern \"C\" __global__ void __launch_bounds__({THREADS}) main_kernel(const u8* from, const u32* indices, u8* to) {{
    __shared__ {value} sums[{owned}][{columns}];
    __shared__ u32 found[{WARPS}][{LOOK}];
    __shared__ u8 rows[{WARPS}][{LOOK}];
    __shared__ u32 counts[{WARPS}];
    const u32 outer = blockIdx.x / {blocks}u, first = blockIdx.x % {blocks}u * {owned}u;
    const u32 end = min_(first + {owned}u, {extent}u), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 mine = threadIdx.x * V, column = blockIdx.y * {columns}u + mine;
    const bool works = mine < {columns}u && column < {inner}u;
    from += ((u64)outer * {count}ull * {inner}ull + column) * {tag}::bytes;
    to += ((u64)outer * {extent}ull * {inner}ull + column) * {tag}::bytes;
    if (works)
        for (u32 row = 0; row < end - first; row++) UNROLL for (int j = 0; j < V; j++) sums[row][mine + j] = {value}(0);
    for (u32 base = 0; base < {count}u; base += {WARPS} * {LOOK}) {{
        u32 have = 0;
        #pragma unroll 4
        for (u32 look = 0; look < {LOOK}; look += 32) {{
            const u32 at = base + warp * {LOOK} + look + lane;
            const u32 index = at < {count}u ? __ldg(indices + at) : 0xffffffffu;
            const bool own = index >= first && index < end;
            const u32 ballot = __ballot_sync(0xffffffffu, own), place = have + __popc(ballot & ((1u << lane) - 1u));
            if (own) {{ found[warp][place] = at; rows[warp][place] = (u8)(index - first); }}
            have += __popc(ballot);
        }}
        if (lane == 0) counts[warp] = have;
        __syncthreads();
        if (works)
            for (u32 w = 0; w < {WARPS}; w++)
                for (u32 k = 0; k < counts[w]; k += {AHEAD}) {{
                    Raw<{tag}::bytes * V> come[{AHEAD}];
                    UNROLL for (int n = 0; n < {AHEAD}; n++)
                        if (k + n < counts[w]) come[n] = load_once<{tag}::bytes * V>(from + (u64)found[w][k + n] * {inner}ull * {tag}::bytes);
                    UNROLL for (int n = 0; n < {AHEAD}; n++)
                        if (k + n < counts[w]) UNROLL for (int j = 0; j < V; j++) {{
                            const {value} a = sums[rows[w][k + n]][mine + j], b = get<{tag}>(come[n], j);
                            sums[rows[w][k + n]][mine + j] = {sum};
                        }}
                }}
        __syncthreads();
    }}
    if (works)
        for (u32 row = first; row < end; row++) {{
            {value} all[V];
            UNROLL for (int j = 0; j < V; j++) all[j] = sums[row - first][mine + j];
            store(to + (u64)row * {inner}ull * {tag}::bytes, pack<{tag}, V>(all));
        }}
}}
"
    );
    Generated {
        source: Source { name: format!("scatter_add_{count}x{inner}"), text, options: Vec::new() },
        threads: THREADS,
        grid: Grid { blocks: blocks * outer, beside: 1, tiles, persistent: false },
        arguments: lookup::arguments([&kernel.from, &kernel.indices, &kernel.to], buffers),
        finish: None,
        workspace: 0,
    }
}
