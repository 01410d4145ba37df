//! Gathers and scatters of contiguous rows.

use super::{Argument, Generated, Grid, PRELUDE, types};
use crate::{
    cuda::compile::Source,
    graph::DType,
    lower::{Access, Buffer, Lookup},
};

const THREADS: usize = 256;

fn arguments(accesses: [&Access; 3], buffers: &[Buffer]) -> Vec<Argument> {
    let argument = |access: &Access| Argument::Buffer {
        buffer: access.buffer,
        offset: access.offset * buffers[access.buffer].dtype.bytes(),
    };
    accesses.map(argument).to_vec()
}

/// `to[outer, i, inner] = from[outer, indices[i], inner]`: a thread for each vector. Indices beyond the extent read its last row.
pub(super) fn gather(kernel: &Lookup, buffers: &[Buffer]) -> Generated {
    let size = buffers[kernel.to.buffer].dtype.bytes();
    let (extent, inner, count) = (kernel.from.dims[1], kernel.from.dims[2], kernel.indices.elements());
    let row = inner * size;
    let aligned = |bytes: &usize| {
        row.is_multiple_of(*bytes)
            && (kernel.from.offset * size).is_multiple_of(*bytes)
            && (kernel.to.offset * size).is_multiple_of(*bytes)
    };
    let width = [16, 8, 4, 2].into_iter().find(aligned).unwrap_or(1);
    let vectors = row / width;
    let all = kernel.from.dims[0] * count * vectors;
    let text = format!(
        "#define FAST 0\n{PRELUDE}
extern \"C\" __global__ void __launch_bounds__({THREADS}) main_kernel(const u8* from, const u32* indices, u8* to) {{
    const u64 at = (u64)blockIdx.x * {THREADS}u + threadIdx.x;
    if (at >= {all}ull) return;
    const u64 row = at / {vectors}ull, outer = row / {count}ull;
    const u32 index = min_(indices[row % {count}ull], {last}u), vector = (u32)(at % {vectors}ull);
    store(to + at * {width}, load_shared<{width}>(from + ((outer * {extent}ull + index) * {vectors}ull + vector) * {width}));
}}
",
        last = extent - 1,
    );
    Generated {
        source: Source { name: format!("gather_{count}x{inner}"), text, options: Vec::new() },
        threads: THREADS,
        grid: Grid { blocks: all.div_ceil(THREADS), beside: 1, tiles: 1, persistent: false },
        arguments: arguments([&kernel.from, &kernel.indices, &kernel.to], buffers),
        finish: None,
        workspace: 0,
    }
}

/// `to` zeroed, then `to[outer, indices[i], inner] += from[outer, i, inner]` in order of i, each sum rounded. A block owns some of the
/// destinations: it finds the updates for them in order, a few hundred at a time, and each thread adds up its own columns. No atomics.
pub(super) fn scatter_add(kernel: &Lookup, buffers: &[Buffer]) -> Generated {
    let dtype = buffers[kernel.to.buffer].dtype;
    let (outer, extent, inner) = (kernel.to.dims[0], kernel.to.dims[1], kernel.to.dims[2]);
    let count = kernel.indices.elements();
    // About two thousand blocks, each of which looks at every index.
    let owned = extent.div_ceil((2048 / outer).max(1));
    let blocks = extent.div_ceil(owned);
    let tag = types::tag(dtype);
    let sum = match dtype {
        DType::Bool => "a || b".to_owned(),
        _ => types::rounded("(a + b)", dtype),
    };
    let value = types::value(dtype);
    let text = format!(
        "#define FAST 0\n{PRELUDE}
extern \"C\" __global__ void __launch_bounds__({THREADS}) main_kernel(const u8* from, const u32* indices, u8* to) {{
    __shared__ u32 found[{THREADS}], rows[{THREADS}], counts[{THREADS} / 32];
    const u32 outer = blockIdx.x / {blocks}u, first = blockIdx.x % {blocks}u * {owned}u;
    const u32 end = min_(first + {owned}u, {extent}u), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    from += (u64)outer * {count}ull * {inner}ull * {tag}::bytes;
    to += (u64)outer * {extent}ull * {inner}ull * {tag}::bytes;
    const {value} zero[1] = {{{value}(0)}};
    for (u32 c = threadIdx.x; c < {inner}u; c += {THREADS})
        for (u32 row = first; row < end; row++) store(to + ((u64)row * {inner}u + c) * {tag}::bytes, pack<{tag}, 1>(zero));
    for (u32 base = 0; base < {count}u; base += {THREADS}) {{
        const u32 at = base + threadIdx.x;
        const u32 index = at < {count}u ? __ldg(indices + at) : 0xffffffffu;
        const bool mine = index >= first && index < end;
        const u32 ballot = __ballot_sync(0xffffffffu, mine);
        __syncthreads();
        if (lane == 0) counts[warp] = __popc(ballot);
        __syncthreads();
        u32 place = __popc(ballot & ((1u << lane) - 1u)), all = 0;
        for (u32 w = 0; w < {THREADS} / 32; w++) {{ place += w < warp ? counts[w] : 0; all += counts[w]; }}
        if (mine) {{ found[place] = at; rows[place] = index; }}
        __syncthreads();
        for (u32 c = threadIdx.x; c < {inner}u; c += {THREADS})
            for (u32 k = 0; k < all; k++) {{
                u8* place = to + ((u64)rows[k] * {inner}u + c) * {tag}::bytes;
                const {value} a = get<{tag}>(load_written<{tag}::bytes>(place), 0);
                const {value} b = get<{tag}>(load_shared<{tag}::bytes>(from + ((u64)found[k] * {inner}u + c) * {tag}::bytes), 0);
                const {value} one[1] = {{{sum}}};
                store(place, pack<{tag}, 1>(one));
            }}
    }}
}}
"
    );
    Generated {
        source: Source { name: format!("scatter_add_{count}x{inner}"), text, options: Vec::new() },
        threads: THREADS,
        grid: Grid { blocks: blocks * outer, beside: 1, tiles: 1, persistent: false },
        arguments: arguments([&kernel.from, &kernel.indices, &kernel.to], buffers),
        finish: None,
        workspace: 0,
    }
}
