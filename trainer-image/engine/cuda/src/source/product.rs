//! Matrix products with any strides and dtypes: for what cuBLASLt does not take. Right, not fast.

use super::{Argument, Generated, Grid, PRELUDE, fused, types};
use crate::compile::Source;
use pawl_graph::graph::{BinaryOp, DType};
use pawl_lower::{Access, Buffer, Class, Fused, Instruction, Load, MatMul, Store};

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

/// What is done with the sum at `[row, col]`, of C type `sum`, before it is rounded, and the parameters that this
/// takes.
fn finish(kernel: &MatMul, buffers: &[Buffer], sum: &str) -> (&'static str, String) {
    let scale = |access: &Access, index: &str| format!("[{index} * {}u]", access.strides[0]);
    match (&kernel.scales, &kernel.add) {
        (Some([rows, cols]), _) => (
            ", const float* scale_a, const float* scale_b",
            format!("sum * scale_a{} * scale_b{}", scale(rows, "row"), scale(cols, "col")),
        ),
        (None, Some((access, factor))) => {
            let tag = types::tag(buffers[access.buffer].dtype);
            let at = offset(access, buffers, "row", "col");
            let added = format!("({sum})get<{tag}>(load_shared<{tag}::bytes>(d + {at}), 0)");
            (", const u8* d", format!("sum * ({sum}){factor:e} + {added}"))
        }
        (None, None) => ("", "sum".to_owned()),
    }
}

/// A tile of 16 x 16 results a block, through shared memory.
pub fn product(kernel: &MatMul, buffers: &[Buffer]) -> Generated {
    let (batch, m, n, k) = kernel.extents();
    let [a, b, c] = [&kernel.a, &kernel.b, &kernel.c].map(|access| types::tag(buffers[access.buffer].dtype));
    let (sum, _) = types::accumulator(buffers[kernel.a.buffer].dtype);
    let (rows, cols) = (m.div_ceil(TILE), n.div_ceil(TILE));
    let (parameters, finished) = finish(kernel, buffers, sum);
    let text = format!(
        "#define FAST 0\n{PRELUDE}
extern \"C\" __global__ void __launch_bounds__(256) main_kernel(const u8* a, const u8* b, u8* c{parameters}) {{
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
    if (row >= {m}u || col >= {n}u) return;
    const {c}::value one[1] = {{({c}::value)({finished})}};
    store(c + {at_c}, pack<{c}, 1>(one));
}}
",
        tiles = rows * cols,
        at_a = offset(&kernel.a, buffers, "row", "p + x"),
        at_b = offset(&kernel.b, buffers, "p + y", "col"),
        at_c = offset(&kernel.c, buffers, "row", "col"),
    );
    let argument = |access: &Access| Argument::Buffer {
        buffer: access.buffer,
        offset: access.offset * buffers[access.buffer].dtype.bytes(),
    };
    let added = kernel.add.iter().map(|(access, _)| access);
    let operands = [&kernel.a, &kernel.b, &kernel.c].into_iter().chain(added);
    let arguments = operands.chain(kernel.scales.iter().flatten()).map(argument).collect();
    Generated {
        source: Source { name: format!("product_{m}x{n}x{k}"), text, options: Vec::new() },
        threads: 256,
        grid: Grid { blocks: batch * rows * cols, beside: 1, tiles: 1, persistent: false },
        arguments,
        finish: None,
        workspace: 0,
    }
}

/// Multiplies the result of a product by the scales of its rows and columns where it stands, for a GPU with that many
/// multiprocessors; `None` for a product without scales.
pub fn scaling(kernel: &MatMul, buffers: &[Buffer], multiprocessors: usize) -> Option<Generated> {
    let ([of_rows, of_cols], c) = (kernel.scales.as_ref()?, &kernel.c);
    let (rows, cols) = (c.dims[0], c.dims[1]);
    let spread = |scale: &Access, strides: [usize; 2]| Access {
        dims: vec![rows, cols],
        strides: strides.to_vec(),
        ..scale.clone()
    };
    let loads = [c.clone(), spread(of_rows, [of_rows.strides[0], 0]), spread(of_cols, [0, of_cols.strides[0]])];
    let class = |access: &Access| access.class(cols).unwrap_or(Class::Full);
    let read = loads.iter().map(|access| (buffers[access.buffer].dtype, class(access)));
    let narrow = buffers[c.buffer].dtype;
    let computed = [DType::F32, DType::F32, DType::F32, narrow].map(|dtype| (dtype, Class::Full));
    let times = |a, b| Instruction::Binary(BinaryOp::Mul, a, b);
    let kernel = Fused {
        rows,
        cols,
        values: read.chain(computed).collect(),
        loads: loads.iter().map(|from| Load { from: from.clone() }).collect(),
        code: vec![Instruction::Cast(0), times(3, 1), times(4, 2), Instruction::Cast(5)],
        stores: vec![Store { value: 6, per_row: false, to: c.clone() }],
        folds: Vec::new(),
        segments: 1,
    };
    Some(fused::fused(&kernel, buffers, multiprocessors))
}
