//! Operators at their edges (odd sizes, strided views, broadcasts, integers), each with the bound within which
//! executors agree.

use pawl_graph::{
    array::{Array, Data},
    autodiff::gradients,
    graph::{AttentionSpec, Builder, DType, GraphError, Init, Op, Role, StateDecl, Var, concat, float8::Scaled},
};

use crate::Case;

/// A case for operators, and how it is compared.
#[derive(Debug, Clone)]
pub struct OperatorCase {
    /// Operators and sizes, for messages.
    pub name: String,
    /// The program and its inputs.
    pub case: Case,
    /// Number of runs.
    pub runs: usize,
    /// Largest [`Outcome::distance`](crate::Outcome::distance) from the eager executor.
    pub bound: f64,
}

impl OperatorCase {
    /// One run, with inputs drawn from `seed`.
    fn new(name: impl Into<String>, b: Builder, seed: u64, bound: f64) -> Result<Self, GraphError> {
        Ok(Self { name: name.into(), case: Case::new(b.finish()?, seed), runs: 1, bound })
    }
}

/// All cases of this module.
///
/// # Errors
/// Never: the programs are well formed.
pub fn operator_cases() -> Result<Vec<OperatorCase>, GraphError> {
    let lists = [
        products()?,
        scaled_products()?,
        reductions()?,
        norms()?,
        attention()?,
        convolutions()?,
        segments()?,
        recurrences()?,
    ];
    let singles = [integers()?, indices()?, updates()?, table()?];
    Ok(lists.into_iter().flatten().chain(singles).collect())
}

/// Gradients of `loss`, times 100, as outputs of these names.
fn output_gradients(b: &Builder, loss: Var<'_>, named: &[(&str, Var<'_>)]) {
    b.output("loss", loss);
    let values: Vec<Var<'_>> = named.iter().map(|&(_, value)| value).collect();
    for ((name, _), gradient) in named.iter().zip(gradients(loss, &values)) {
        if let Some(gradient) = gradient {
            b.output(name, gradient * 100.0);
        }
    }
}

/// Convolutions over odd sizes, and their gradients.
///
/// # Errors
/// Never: the programs are well formed.
pub fn convolutions() -> Result<Vec<OperatorCase>, GraphError> {
    let case = |(batch, length, inputs, outputs): (usize, usize, usize, usize)| {
        let b = Builder::new("convolutions");
        let x = b.input("x", DType::F32, [batch, length, inputs]);
        let w = b.input("w", DType::F32, [outputs, inputs, 3]);
        let up = b.input("up", DType::F32, [outputs, inputs, 4]);
        let kernel = b.input("kernel", DType::F32, [inputs, length]);
        let small = 0.3 / (inputs as f64).sqrt();
        let down = x.conv1d(w * small, 2, 1);
        let back = down.tanh().conv_transpose1d(up * small, 2, 1).tanh();
        let filtered = x.permute([2, 0, 1]).causal_conv(kernel * (1.0 / length as f64), 16);
        let loss = back.square().mean_all() + filtered.square().mean_all();
        output_gradients(&b, loss, &[("dx", x), ("dw", w), ("dup", up), ("dkernel", kernel)]);
        OperatorCase::new(format!("convolutions {batch}x{length}x{inputs}->{outputs}"), b, 17, 1e-5)
    };
    [(2, 64, 7, 16), (3, 37, 5, 9), (1, 16, 33, 12)].into_iter().map(case).collect()
}

/// Every matmul form over odd sizes and views, around the edges of tiles and blocks.
///
/// # Errors
/// Never: the programs are well formed.
pub fn products() -> Result<Vec<OperatorCase>, GraphError> {
    let sizes = [(1, 1, 1), (13, 33, 385), (97, 5, 64), (48, 64, 800), (5, 129, 3), (200, 96, 40)];
    let case = |(m, n, k): (usize, usize, usize)| {
        let b = Builder::new("products");
        let (x, w) = (b.input("x", DType::F32, [m, k]), b.input("w", DType::F32, [n, k]));
        let heads = b.input("heads", DType::F32, [3, m, 2, k]);
        let keys = b.input("keys", DType::F32, [3, n, 2, k]);
        b.output("nt", x.matmul_t(w));
        b.output("nn", x.matmul(w.transpose()));
        b.output("tn", x.transpose().t_matmul(w.transpose()));
        let scores = heads.permute([0, 2, 1, 3]).matmul_t(keys.permute([0, 2, 1, 3]));
        b.output("batched", scores);
        b.output("part", (scores.permute([0, 2, 1, 3]) + 1.0).slice(2, 1, 1));
        let [half, weight] = [x, w].map(|of| of.cast(DType::BF16));
        b.output("half", half.matmul_t(weight).cast(DType::F32));
        let add = |transpose_a, transpose_b, operands: [Var<'_>; 3]| {
            b.push(Op::MatMulAdd { transpose_a, transpose_b, factor: -0.5 }, &operands).cast(DType::F32)
        };
        let wider = b.input("c", DType::F32, [m, n + 3]);
        let c = wider.slice(1, 2, n);
        b.output("added", add(false, true, [x, w, c]));
        b.output("added half", add(false, true, [half, weight, c.cast(DType::BF16)]));
        b.output(
            "added turned",
            add(true, false, [weight.transpose(), half.transpose(), c.cast(DType::BF16).transpose()]),
        );
        let bound = 5e-5 * (k as f64).sqrt().max(8.0) * 20.0;
        OperatorCase::new(format!("products {m} {n} {k}"), b, 1, bound)
    };
    sizes.into_iter().map(case).collect()
}

/// Products over 8-bit floats, which are quantized here: every order of operands, each format of the first, scales of
/// rows and of whole matrices; of sizes that tensor cores take and others.
///
/// # Errors
/// Never: the programs are well formed.
pub fn scaled_products() -> Result<Vec<OperatorCase>, GraphError> {
    let case = |(m, n, k): (usize, usize, usize)| {
        let b = Builder::new("scaled products");
        let (x, w) = (b.input("x", DType::F32, [m, k]), b.input("w", DType::F32, [n, k]));
        let y = b.input("y", DType::F32, [m, n]);
        let product = |transpose_a, transpose_b, output, [left, right]: [Scaled<'_>; 2], scales: [Var<'_>; 2]| {
            let op = Op::ScaledMatMul { transpose_a, transpose_b, output };
            b.push(op, &[left.codes, right.codes, scales[0], scales[1]])
        };
        let (rows, weight) = (Scaled::new(x, &[1], DType::E4M3), Scaled::new(w, &[1], DType::E4M3));
        let outputs = weight.scale.reshape([1, n]);
        b.output("codes", rows.codes.cast(DType::F32) * (1.0 / 448.0));
        b.output("near", rows.value());
        b.output("nt", product(false, true, DType::BF16, [rows, weight], [rows.scale, outputs]).cast(DType::F32));
        // As the gradient of x: scales of what is summed over go into the other operand.
        let ones = b.constant(Array::new([1, k], Data::F32(vec![1.0; k]))?);
        for (name, dtype) in [("nn", DType::E5M2), ("nn, e4m3", DType::E4M3)] {
            let folded = Scaled::new(y * outputs, &[1], dtype);
            b.output(name, product(false, false, DType::F32, [folded, weight], [folded.scale, ones]));
        }
        // As the gradient of w.
        let [left, right] = [y, x].map(|of| Scaled::new(of, &[0], DType::E4M3));
        let scales = [left.scale.reshape([n, 1]), right.scale];
        b.output("tn", product(true, false, DType::F32, [left, right], scales));
        let [left, right] = [x, w].map(|of| Scaled::new(of, &[0, 1], DType::E4M3));
        b.output("whole", product(false, true, DType::F32, [left, right], [left.scale, right.scale]));
        OperatorCase::new(format!("scaled products {m} {n} {k}"), b, 31, 1e-2)
    };
    [(16, 16, 16), (48, 160, 400), (7, 33, 5), (128, 32, 1024)].into_iter().map(case).collect()
}

/// Reductions over every choice of axes, of short and long, narrow and wide arrays.
///
/// # Errors
/// Never: the programs are well formed.
pub fn reductions() -> Result<Vec<OperatorCase>, GraphError> {
    let mut cases = Vec::new();
    for axes in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
        for shape in [[3, 4, 5], [1, 70, 33], [40, 1, 2100], [2, 3, 20_000], [2000, 3, 48], [700, 2, 384]] {
            let b = Builder::new("reductions");
            let x = b.input("x", DType::F32, shape);
            let e = (x * 0.5).exp();
            b.output("sum", e.sum(&axes));
            b.output("max", x.max(&axes));
            b.output("centred", (e - e.mean(&axes)).square().mean_all());
            b.output("halves", x.cast(DType::BF16).cast(DType::F32).sum(&axes));
            cases.push(OperatorCase::new(format!("reduction of {shape:?} over {axes:?}"), b, 4, 3e-5)?);
        }
    }
    Ok(cases)
}

/// Layer normalisation with its gradients, over rows of every width that executors treat differently, in two dtypes.
///
/// # Errors
/// Never: the programs are well formed.
pub fn norms() -> Result<Vec<OperatorCase>, GraphError> {
    let mut cases = Vec::new();
    for (dtype, bound) in [(DType::F32, 2e-4), (DType::BF16, 2e-2)] {
        for width in [1, 7, 37, 48, 96, 128, 384, 768, 1000, 1536, 5000] {
            let b = Builder::new("norms");
            let x = b.parameter("x", [301, width], Init::Uniform { bound: 1.0 });
            let g = b.parameter("g", [width], Init::Uniform { bound: 1.0 });
            let y = (x.cast(dtype).cast(DType::F32).layer_norm(1e-3) * g).gelu();
            let loss = (y.cast(dtype).cast(DType::F32) * x).mean_all();
            output_gradients(&b, loss, &[("dx", x), ("dg", g)]);
            cases.push(OperatorCase::new(format!("norms {dtype} {width}"), b, 4, bound)?);
        }
    }
    Ok(cases)
}

/// Attention with grouped heads, masks and odd lengths, and its gradients.
///
/// # Errors
/// Never: the programs are well formed.
pub fn attention() -> Result<Vec<OperatorCase>, GraphError> {
    let shapes = [(5, 5, 4, 2, true), (1, 7, 2, 1, true), (150, 33, 2, 2, false), (130, 130, 3, 1, true)];
    let case = |(t, s, h, g, causal): (usize, usize, usize, usize, bool)| {
        let b = Builder::new("attention");
        let q = b.parameter("q", [2, h, t, 6], Init::Uniform { bound: 1.0 });
        let k = b.parameter("k", [2, g, s, 6], Init::Uniform { bound: 1.0 });
        let v = b.parameter("v", [2, g, s, 6], Init::Uniform { bound: 1.0 });
        let o = q.attention(k, v, AttentionSpec { scale: 0.7, causal });
        let loss = o.permute([0, 2, 1, 3]).reshape([2, t, h * 6]).square().mean_all();
        output_gradients(&b, loss, &[("dq", q), ("dk", k), ("dv", v)]);
        OperatorCase::new(format!("attention {t} {s}"), b, 1, 2e-5)
    };
    shapes.into_iter().map(case).collect()
}

/// Integers, booleans, casts between all dtypes, and random numbers.
///
/// # Errors
/// Never: the program is well formed.
pub fn integers() -> Result<OperatorCase, GraphError> {
    let b = Builder::new("integers");
    let i = b.iota(1, [5, 37]);
    let x = b.input("x", DType::F32, [5, 37]);
    let counter = b.input("counter", DType::U32, []);
    let odd = (i * 3.0 + 4_294_967_290.0).cast(DType::F32);
    b.output("chosen", x.less(0.25).select(odd, x.cast(DType::F16).cast(DType::F32)));
    b.output("boolean", x.greater_equal(0.0));
    b.output("count", x.greater(0.0).cast(DType::U32).sum([0]));
    b.output("draw", b.random("draw", counter, [5, 37]));
    b.output("finite", (x / x.floor()).is_finite());
    b.output("back", (x * 10.0).abs().cast(DType::U32));
    b.output("wide", x.cast(DType::F64).exp().cast(DType::BF16));
    OperatorCase::new("integers", b, 9, 1e-6)
}

/// Indices along each axis, in elementwise code and in reductions.
///
/// # Errors
/// Never: the program is well formed.
pub fn indices() -> Result<OperatorCase, GraphError> {
    let b = Builder::new("indices");
    let x = b.input("x", DType::F32, [6, 50, 48]);
    for axis in 0..3 {
        let index = b.iota(axis, [6, 50, 48]).cast(DType::F32);
        b.output(&format!("axis {axis}"), index + x);
        b.output(&format!("axis {axis} in rows"), (index * x - (index * x).max([2])).sum([2]));
        b.output(&format!("axis {axis} over rows"), (index * x).sum([0, 1]));
        b.output(&format!("axis {axis} in halves of rows"), (index * x).reshape([600, 24]).max([1]));
    }
    OperatorCase::new("indices", b, 2, 1e-5)
}

/// Updates of states that read each other: two are exchanged, one reads, shifted, what another overwrites.
///
/// # Errors
/// Never: the program is well formed.
pub fn updates() -> Result<OperatorCase, GraphError> {
    let state = |name: &str, value: f64| StateDecl::f32(name, [70], Role::Optimizer, Init::Fill(value));
    let b = Builder::new("updates");
    let (p, q, r) = (b.state(state("p", 1.0)), b.state(state("q", 2.0)), b.state(state("r", 3.0)));
    b.update(p, q);
    b.update(q, p);
    let shifted = concat(&[r.slice(0, 1, 69), r.slice(0, 0, 1)], 0);
    b.update(r, shifted + p + b.iota(0, [70]).cast(DType::F32));
    b.output("old", r.sum_all() + p.sum_all());
    b.output("view", q.reshape([7, 10]));
    Ok(OperatorCase { runs: 4, ..OperatorCase::new("updates", b, 1, 1e-5)? })
}

/// Recurrences over odd sizes, and activations on both sides of zero, with their gradients.
///
/// # Errors
/// Never: the programs are well formed.
pub fn recurrences() -> Result<Vec<OperatorCase>, GraphError> {
    let case = |(batch, steps, hidden): (usize, usize, usize)| {
        let b = Builder::new("recurrences");
        let gates = b.input("gates", DType::F32, [batch, steps, 4 * hidden]);
        let weight = b.input("weight", DType::F32, [4 * hidden, hidden]);
        let h = (gates * 3.0).elu().lstm(weight * (1.0 / hidden as f64).sqrt());
        let sums = (h * 4.0).leaky_relu(0.2).cumulative_sum(1);
        b.output("h", h);
        b.output("sums", sums);
        let loss = sums.square().mean_all() + h.mean_all();
        output_gradients(&b, loss, &[("dgates", gates), ("dweight", weight)]);
        OperatorCase::new(format!("recurrences {batch}x{steps}x{hidden}"), b, 29, 3e-5)
    };
    [(1, 1, 1), (9, 5, 7), (33, 20, 16)].into_iter().map(case).collect()
}

/// Sums, softmax and lookups over segments of every kind: empty ones, single rows, long ones, padding, scores of minus
/// infinity; of widths that executors treat differently, in two dtypes.
///
/// # Errors
/// Never: the programs are well formed.
pub fn segments() -> Result<Vec<OperatorCase>, GraphError> {
    let (rows, nodes) = (211u32, 7u32);
    // Row i of the edges comes from node `i * i % 7`; the last 11 rows are padding.
    let source = |i: u32| i * i % nodes;
    let mut order: Vec<u32> = (0..rows - 11).collect();
    order.sort_by_key(|&i| source(i));
    let starts = (0..=nodes).map(|node| order.iter().filter(|&&i| source(i) < node).count() as u32).collect();
    let (index, ends) = ((0..rows).map(source).collect(), vec![0, 0, 1, 4, 4, 150, 151, rows - 11]);
    let mut cases = Vec::new();
    for (dtype, bound) in [(DType::F32, 2e-5), (DType::BF16, 2e-2)] {
        for width in [1, 6, 8, 33, 256] {
            let b = Builder::new("segments");
            let constant = |list: &Vec<u32>| -> Result<Var<'_>, GraphError> {
                Ok(b.constant(Array::new([list.len()], Data::U32(list.clone()))?))
            };
            let [index, order, starts, ends] =
                [constant(&index)?, constant(&order)?, constant(&starts)?, constant(&ends)?];
            let x = b.input("x", DType::F32, [nodes as usize, width]);
            let scores = b.input("scores", DType::F32, [rows as usize, width]);
            // Dropped: some rows of each segment, and all of one.
            let dropped = scores.less(-0.5).select(b.scalar(f64::NEG_INFINITY, DType::F32), scores);
            let row = b.iota(0, scores.shape());
            let alone = row.equal(b.scalar(0.0, DType::U32));
            let dropped = alone.select(b.scalar(f64::NEG_INFINITY, DType::F32), dropped);
            let weights = dropped.cast(dtype).segment_softmax(ends).cast(DType::F32);
            let messages = x.cast(dtype).gather_by(index, order, starts).cast(DType::F32) * weights;
            let sums = messages.cast(dtype).segment_sum(ends).cast(DType::F32);
            let back = sums.cast(dtype).segment_repeat(ends, rows as usize).cast(DType::F32);
            for (name, value) in [("weights", weights), ("sums", sums), ("back", back)] {
                b.output(name, value);
            }
            let loss = (sums.square() + sums * x).sum_all() * 0.05 + (back * scores).mean_all();
            output_gradients(&b, loss * 0.01, &[("dx", x), ("dscores", scores)]);
            cases.push(OperatorCase::new(format!("segments {dtype} {width}"), b, 23, bound)?);
        }
    }
    Ok(cases)
}

/// A table of three rows, each looked up hundreds of times, and its gradient.
///
/// # Errors
/// Never: the program is well formed.
pub fn table() -> Result<OperatorCase, GraphError> {
    let b = Builder::new("table");
    let table = b.parameter("table", [3, 384], Init::Normal { deviation: 1.0 });
    let loss = (table.gather(0, b.input("rows", DType::U32, [1000])).square() * 0.5).sum_all();
    b.output("loss", loss * 1e-5);
    if let Some(gradient) = gradients(loss, &[table]).remove(0) {
        b.output("gradient", gradient);
    }
    OperatorCase::new("table", b, 1, 1e-5)
}
