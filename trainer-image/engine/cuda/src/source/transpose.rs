//! Matrices of bytes with rows and columns exchanged: operands of products over 8-bit floats, which tensor cores take
//! in one order only.

use super::{Argument, Generated, Grid, PRELUDE};
use crate::compile::Source;
use pawl_lower::{Access, Buffer, Fused};

/// Edge of a tile in elements: a warp reads and writes lines of this many bytes.
const TILE: usize = 128;
/// Elements in a word.
const WORD: usize = 4;

/// The kernel of a copy that exchanges rows and columns of one-byte elements; `None` for all other kernels.
pub(super) fn bytes(kernel: &Fused, buffers: &[Buffer]) -> Option<Generated> {
    let ([load], [store], []) = (&kernel.loads[..], &kernel.stores[..], &kernel.folds[..]) else { return None };
    let (from, to) = (&load.from, &store.to);
    let single = |access: &Access| buffers[access.buffer].dtype.bytes() == 1;
    (kernel.code.is_empty() && single(from) && single(to) && to.is_contiguous()).then_some(())?;
    let &[(cols, 1), (rows, leading)] = from.collapsed().as_slice() else { return None };
    let whole = [cols, rows, leading, from.offset, to.offset].iter().all(|extent| extent.is_multiple_of(WORD));
    let narrow = cols.max(rows) <= u32::MAX as usize;
    (whole && narrow).then_some(())?;
    let tiles = [rows.div_ceil(TILE), cols.div_ceil(TILE)];
    let text = format!(
        "#define FAST 0\n{PRELUDE}
// Tiles of 128 x 128 bytes as words of four. A thread turns 4 x 4 bytes; words are rotated in their line, so that
// neighbours lie in different banks.
extern \"C\" __global__ void __launch_bounds__(256) main_kernel(const u8* a0, u8* b0) {{
    __shared__ u32 table[128][32];
    const u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    const u32 col = blockIdx.x % {across}u * 128, row = blockIdx.x / {across}u * 128;
    UNROLL for (u32 s = 0; s < 4; s++) {{
        const u32 group = y + s * 8;
        u32 w[4];
        UNROLL for (u32 k = 0; k < 4; k++) {{
            const u32 r = row + group * 4 + k, c = col + x * 4;
            w[k] = r < {rows}u && c < {cols}u ? load_once<4>(a0 + (u64)r * {leading}ull + c).w[0] : 0u;
        }}
        const u32 low[2] = {{__byte_perm(w[0], w[1], 0x5140), __byte_perm(w[2], w[3], 0x5140)}};
        const u32 high[2] = {{__byte_perm(w[0], w[1], 0x7362), __byte_perm(w[2], w[3], 0x7362)}};
        table[x * 4][(group + x) % 32] = __byte_perm(low[0], low[1], 0x5410);
        table[x * 4 + 1][(group + x) % 32] = __byte_perm(low[0], low[1], 0x7632);
        table[x * 4 + 2][(group + x) % 32] = __byte_perm(high[0], high[1], 0x5410);
        table[x * 4 + 3][(group + x) % 32] = __byte_perm(high[0], high[1], 0x7632);
    }}
    __syncthreads();
    UNROLL for (u32 s = 0; s < 16; s++) {{
        const u32 line = y + s * 8, c = col + line, r = row + x * 4;
        if (c < {cols}u && r < {rows}u) *(u32*)(b0 + (u64)c * {rows}ull + r) = table[line][(x + line / 4) % 32];
    }}
}}
",
        across = tiles[1],
    );
    let argument = |access: &Access| Argument::Buffer { buffer: access.buffer, offset: access.offset };
    Some(Generated {
        source: Source { name: format!("transpose_{rows}x{cols}"), text, options: Vec::new() },
        threads: 256,
        grid: Grid { blocks: tiles[0] * tiles[1], beside: 1, tiles: 1, persistent: false },
        arguments: vec![argument(from), argument(to)],
        finish: None,
        workspace: 0,
    })
}
