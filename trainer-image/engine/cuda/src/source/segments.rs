//! Sums, copies and softmax over segments of rows, without atomics: results never depend on timing.

use super::{Argument, Generated, Grid, PRELUDE, types};
use crate::compile::Source;
use pawl_lower::{Access, Buffer, SegmentOp, Segments};

const THREADS: usize = 256;
/// Rows that are loaded at once.
const AHEAD: usize = 4;

/// A thread computes a few neighbouring columns of one segment, of as many bytes as one access may move: the rows of a
/// segment are read one after the other, by neighbouring threads side by side.
pub(super) fn segments(kernel: &Segments, buffers: &[Buffer]) -> Generated {
    let dtype = buffers[kernel.to.buffer].dtype;
    let (count, inner, rows) = (kernel.count(), kernel.inner(), kernel.rows());
    let lengths = [inner, kernel.from.offset, kernel.to.offset];
    let fits = |vector: &usize| lengths.iter().all(|length| length.is_multiple_of(*vector));
    let vector = [8, 4, 2].into_iter().filter(|v| v * dtype.bytes() <= 16).find(fits).unwrap_or(1);
    let blocks = (count * (inner / vector)).div_ceil(THREADS).max(1);
    let (body, name) = match kernel.op {
        SegmentOp::Sum => (sum(kernel.order.is_some()), "sum"),
        SegmentOp::Repeat => (REPEAT.to_owned(), "repeat"),
        SegmentOp::Softmax => (SOFTMAX.to_owned(), "softmax"),
    };
    let order = if kernel.order.is_some() { "const u32* order, " } else { "" };
    let text = format!(
        "#define FAST 0\n{PRELUDE}
constexpr int V = {vector};
typedef {tag} T;
typedef {accumulator} A;
constexpr u32 COUNT = {count}u, VECTORS = {vectors}u, ROWS = {rows}u, AHEAD = {AHEAD}u;
typedef Raw<T::bytes * V> Vector;
DEV u64 place(u64 row, u32 vector) {{ return (row * VECTORS + vector) * (T::bytes * V); }}
DEV void put(u8* to, const A (&all)[V]) {{
    T::value narrow[V];
    UNROLL for (int j = 0; j < V; j++) narrow[j] = all[j];
    store(to, pack<T, V>(narrow));
}}
// Rows of no segment are zero.
DEV void clear(const u32* offsets, u8* to, u64 thread) {{
    const u32 first = min_(__ldg(offsets), ROWS), last = min_(__ldg(offsets + COUNT), ROWS);
    const A zero[V] = {{}};
    for (u64 i = thread; i < (u64)(ROWS - (last - first)) * VECTORS; i += (u64)gridDim.x * {THREADS}u) {{
        const u64 row = i / VECTORS;
        put(to + place(row < first ? row : row + (last - first), (u32)(i % VECTORS)), zero);
    }}
}}
extern \"C\" __global__ void __launch_bounds__({THREADS}) main_kernel(const u8* from, const u32* offsets, {order}u8* to) {{
    const u64 thread = (u64)blockIdx.x * {THREADS}u + threadIdx.x;
    const u64 segment = thread / VECTORS;
    const u32 vector = (u32)(thread % VECTORS);
    {clear}if (segment >= COUNT) return;
    const u32 start = min_(__ldg(offsets + segment), ROWS), end = min_(__ldg(offsets + segment + 1), ROWS);
{body}}}
",
        tag = types::tag(dtype),
        accumulator = types::accumulator(dtype).0,
        vectors = inner / vector,
        clear = if kernel.op == SegmentOp::Sum { "" } else { "clear(offsets, to, thread);\n    " },
    );
    let argument = |access: &Access| {
        let offset = access.offset * buffers[access.buffer].dtype.bytes();
        Argument::Buffer { buffer: access.buffer, offset }
    };
    let accesses = [&kernel.from, &kernel.offsets].into_iter().chain(&kernel.order).chain([&kernel.to]);
    Generated {
        source: Source { name: format!("segment_{name}_{count}x{inner}"), text, options: Vec::new() },
        threads: THREADS,
        grid: Grid { blocks, beside: 1, tiles: 1, persistent: false },
        arguments: accesses.map(argument).collect(),
        finish: None,
        workspace: 0,
    }
}

/// Rows are added in order; a few are on their way at any time. An order beyond the rows of x is the caller's mistake.
fn sum(ordered: bool) -> String {
    let row = if ordered { "__ldg(order + k + n)" } else { "k + n" };
    format!(
        "    A sums[V] = {{}};
    for (u32 k = start; k < end; k += AHEAD) {{
        Vector come[AHEAD];
        UNROLL for (int n = 0; n < AHEAD; n++)
            if (k + n < end) come[n] = load_shared<T::bytes * V>(from + place({row}, vector));
        UNROLL for (int n = 0; n < AHEAD; n++)
            if (k + n < end) UNROLL for (int j = 0; j < V; j++) sums[j] += get<T>(come[n], j);
    }}
    put(to + place(segment, vector), sums);
"
    )
}

const REPEAT: &str = "    const Vector row = load_shared<T::bytes * V>(from + place(segment, vector));
    for (u32 k = start; k < end; k++) store(to + place(k, vector), row);
";

/// Three passes: what they read again is in cache.
const SOFTMAX: &str = "    A max[V], sums[V];
    UNROLL for (int j = 0; j < V; j++) { max[j] = Max::identity<A>(); sums[j] = 0; }
    for (u32 k = start; k < end; k++) {
        const Vector row = load_shared<T::bytes * V>(from + place(k, vector));
        // A NaN stays: `fmax` would drop it.
        UNROLL for (int j = 0; j < V; j++) { const A x = get<T>(row, j); if (x > max[j] || x != x) max[j] = x; }
    }
    for (u32 k = start; k < end; k++) {
        const Vector row = load_shared<T::bytes * V>(from + place(k, vector));
        UNROLL for (int j = 0; j < V; j++) if (max[j] != Max::identity<A>()) sums[j] += exp_((A)get<T>(row, j) - max[j]);
    }
    for (u32 k = start; k < end; k++) {
        const Vector row = load_shared<T::bytes * V>(from + place(k, vector));
        A shares[V];
        UNROLL for (int j = 0; j < V; j++) shares[j] = sums[j] == A(0) ? A(0) : exp_((A)get<T>(row, j) - max[j]) / sums[j];
        put(to + place(k, vector), shares);
    }
";
