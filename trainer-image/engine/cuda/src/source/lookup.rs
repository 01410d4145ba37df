//! Gathers of contiguous rows.

use super::{Argument, Generated, Grid, PRELUDE};
use crate::compile::Source;
use pawl_lower::{Access, Buffer, Lookup};

const THREADS: usize = 256;

pub(super) fn arguments(accesses: [&Access; 3], buffers: &[Buffer]) -> Vec<Argument> {
    let argument = |access: &Access| Argument::Buffer {
        buffer: access.buffer,
        offset: access.offset * buffers[access.buffer].dtype.bytes(),
    };
    accesses.map(argument).to_vec()
}

/// `to[outer, i, inner] = from[outer, indices[i], inner]`: a thread for each vector. Indices beyond the extent read its
/// last row.
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
