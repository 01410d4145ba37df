//! Matrix products with any strides and dtypes: for what cuBLASLt does not take. Right, not fast.

use super::{Argument, Generated, Grid, PRELUDE, types};
use crate::compile::Source;
use pawl_lower::{Access, Buffer, MatMul};

/// Edge of a tile.
const TILE: usize = 16;

/// Bytes from the first element to that of batch `batch` at `[row, col]`.
fn offset(access: &Access, buffers: &[Buffer], row: &str, col: &str) -> String {
    let rank = access.dims.len();
    let mut terms = vec![
        format!("(u64)({row}) * {}ull", access.strides[rank - 2]),
        format!("(u64)({col}) * {}ull", access.strides[rank - 1]),
    ];
    let mut inner = 1;
    for axis in (0..rank - 2).rev() {
        let (extent, stride) = (access.dims[axis], access.strides[axis]);
        if stride > 0 && extent > 1 {
            terms.push(format!("(u64)(batch / {inner}u % {extent}u) * {stride}ull"));
        }
        inner *= extent;
    }
    format!("({}) * {}", terms.join(" + "), buffers[access.buffer].dtype.bytes())
}

/// A tile of 16 x 16 results a block, through shared memory.
pub fn product(kernel: &MatMul, buffers: &[Buffer]) -> Generated {
    let (batch, m, n, k) = kernel.extents();
    let [a, b, c] = [&kernel.a, &kernel.b, &kernel.c].map(|access| types::tag(buffers[access.buffer].dtype));
    let (sum, _) = types::accumulator(buffers[kernel.a.buffer].dtype);
    let (rows, cols) = (m.div_ceil(TILE), n.div_ceil(TILE));
    let text = format!(
        "#define FAST 0\n{PRELUDE}
extern \"C\" __global__ void __launch_bounds__(256) main_kernel(const u8* a, const u8* b, u8* c) {{
    __shared__ {sum} left[16][17], right[16][17];
    const u32 x = threadIdx.x % 16, y = threadIdx.x / 16;
    const u32 col = blockIdx.x % {cols}u * 16 + x, row = blockIdx.x / {cols}u % {rows}u * 16 + y;
    const u32 batch = blockIdx.x / {tiles}u;
    {sum} sum = 0;
    for (u32 p = 0; p < {k}u; p += 16) {{
        __syncthreads();
        left[y][x] = row < {m}u && p + x < {k}u ? ({sum})get<{a}>(load_shared<{a}::bytes>(a + {at_a}), 0) : ({sum})0;
        right[y][x] = col < {n}u && p + y < {k}u ? ({sum})get<{b}>(load_shared<{b}::bytes>(b + {at_b}), 0) : ({sum})0;
        __syncthreads();
        for (u32 q = 0; q < 16; q++) sum += left[y][q] * right[q][x];
    }}
    const {c}::value one[1] = {{({c}::value)sum}};
    if (row < {m}u && col < {n}u) store(c + {at_c}, pack<{c}, 1>(one));
}}
",
        tiles = rows * cols,
        at_a = offset(&kernel.a, buffers, "row", "p + x"),
        at_b = offset(&kernel.b, buffers, "p + y", "col"),
        at_c = offset(&kernel.c, buffers, "row", "col"),
    );
    let arguments = [&kernel.a, &kernel.b, &kernel.c]
        .map(|access| Argument::Buffer {
            buffer: access.buffer,
            offset: access.offset * buffers[access.buffer].dtype.bytes(),
        })
        .to_vec();
    Generated {
        source: Source { name: format!("product_{m}x{n}x{k}"), text, options: Vec::new() },
        threads: 256,
        grid: Grid { blocks: batch * rows * cols, beside: 1, tiles: 1, persistent: false },
        arguments,
        finish: None,
        workspace: 0,
    }
}
