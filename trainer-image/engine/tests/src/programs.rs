//! Programs that have something of everything.

use pawl_graph::{
    array::{Array, Data},
    autodiff::gradients,
    graph::{AttentionSpec, Builder, DType, GraphError, Init, Program, Role, StateDecl, Var, concat},
    random,
};

use crate::Case;

/// A random float32 program with about `size` operators, its gradients, and an SGD update of its parameters: every
/// operator but collectives turns up over the seeds, with odd shapes, values used several times, and dead ones. Values
/// stay near 1 (well conditioned), and comparisons look at inputs only, so that executors that round differently agree.
pub fn random_case(seed: u64, size: usize) -> Case {
    let b = Builder::new(format!("random {seed}"));
    let mut rng = Rng { stream: random::stream(seed, "random case"), index: 0 };
    let [m, n] = [1 + rng.below(5), 1 + rng.below(37)];
    let x = b.input("x", DType::F32, [m, n]);
    let y = b.input("y", DType::F32, [n]);
    let rows = b.input("rows", DType::U32, [1 + rng.below(4)]);
    let counter = b.input("counter", DType::U32, []);
    let w = b.parameter("w", [m, n], Init::Uniform { bound: 1.0 });
    let v = b.parameter("v", [n, n], Init::Uniform { bound: 1.0 / (n as f64).sqrt() });
    let table = b.parameter("table", [3, n], Init::Normal { deviation: 0.5 });
    // All values have shape [rows, n] for some number of rows.
    let mut pool = vec![x, w, x + y, table.gather(0, rows)];
    for i in 0..size {
        let a = pool[rng.below(pool.len())];
        let other = pool[rng.below(pool.len())];
        let mate = if other.shape() == a.shape() { other } else { other.mean([0]) };
        let operands = Operands { a, other, mate, x, y, v, counter };
        let next = b.scope(&format!("node.{}", i % 3), || operands.operator(rng.below(37), i));
        // Long columns of concatenations would only be slow.
        pool.push(if next.dim(0) > 40 { next.slice(0, 0, 7) } else { next });
    }
    let last = pool.len().saturating_sub(3);
    let loss = pool[last..].iter().map(|p| p.tanh().mean_all()).reduce(|sum, part| sum + part);
    let loss = loss.unwrap_or_else(|| x.mean_all());
    b.output("loss", loss);
    b.output("last", *pool.last().unwrap_or(&x));
    for (parameter, gradient) in [w, v, table].into_iter().zip(gradients(loss, &[w, v, table])) {
        if let Some(gradient) = gradient {
            b.update(parameter, parameter - gradient * 0.1);
        }
    }
    Case::new(b.finish().expect("random programs are well formed"), seed)
}

/// Operands of one operator of a random program.
struct Operands<'b> {
    a: Var<'b>,
    other: Var<'b>,
    /// `other`, in a shape that broadcasts to that of `a`.
    mate: Var<'b>,
    x: Var<'b>,
    y: Var<'b>,
    v: Var<'b>,
    counter: Var<'b>,
}

impl<'b> Operands<'b> {
    /// Expression `which` of 37, as operator `i` of the program.
    fn operator(&self, which: usize, i: usize) -> Var<'b> {
        let Self { a, other, mate, x, y, v, counter } = *self;
        let (b, h, n) = (a.builder(), a.dim(0), a.dim(1));
        match which {
            0 => a.tanh(),
            1 => a.sigmoid() - mate,
            2 => (a.tanh() * 0.5).exp(),
            3 => (a.square() + 1.0).log(),
            4 => (a.square() + 0.5).sqrt(),
            5 => (a.square() + 0.5).rsqrt() * mate.tanh(),
            6 => (a.abs() + 1.0).recip(),
            7 => a.erf() + mate.sin(),
            8 => a.cos() * mate,
            9 => a + mate,
            10 => (a - mate) * 0.5,
            11 => a / (mate.square() + 1.0),
            12 => a.tanh().maximum(y),
            13 => a.minimum(mate * 1.5 + 0.123),
            14 => x.greater(0.1).select(x * 2.0, y).mean([0]) + a,
            15 => a.tanh().matmul(v),
            16 => a.tanh().matmul_t(v),
            17 => a.t_matmul(a).tanh().slice(0, 0, 1.max(n / 2)),
            18 => a.sum([1]) * (1.0 / n as f64) + a,
            19 => a.max([1]).tanh() - a * 0.5,
            20 => a.reshape([n, h]).tanh().reshape([h, n]),
            21 => a.transpose().softmax().transpose(),
            22 => concat(&[a, other], 0),
            23 => a.slice(0, h / 2, h - h / 2).pad(0, 1, 0),
            24 => a.layer_norm(1e-3),
            25 => a.rms_norm(1e-3) * y,
            26 => a.gelu(),
            27 => a.gather(1, b.iota(0, [n])).softmax(),
            28 => {
                let [q, kv] = [a, other].map(|v| v.tanh().reshape([1, 1, v.dim(0), n]));
                let spec = AttentionSpec { scale: 0.3, causal: h <= other.dim(0) && i.is_multiple_of(2) };
                q.attention(kv, kv * 0.5, spec).reshape([h, n])
            }
            29 => (a * b.random(&format!("draw {i}"), counter, [h, n])).silu(),
            34 => a.elu() - mate * 0.5,
            35 => a.cumulative_sum(0) * (1.0 / h as f64),
            30 => a.tanh().segment_sum(segments(b, h)) * 0.5,
            31 => a.segment_softmax(segments(b, h)) - mate,
            32 => a.segment_sum(segments(b, h)).tanh().segment_repeat(segments(b, h), h) + a,
            33 => {
                // Row i of the result is row n - 1 - i: the transposed index is the same.
                let back = indices(b, (0..h as u32).rev());
                a.gather_by(back, back, indices(b, 0..h as u32 + 1)).cos() * 0.5
            }
            _ => a.cast(DType::BF16).cast(DType::F32) * 0.0 + a.stop_gradient() * 0.25,
        }
    }
}

/// An empty segment, one of a third of the rows, one row, and the others but the last.
fn segments(b: &Builder, rows: usize) -> Var<'_> {
    let (rows, third) = (rows as u32, rows as u32 / 3);
    let ends = [0, 0, third, (third + 1).min(rows), (third + 1).max(rows - 1).min(rows)];
    indices(b, ends.into_iter())
}

fn indices(b: &Builder, numbers: impl Iterator<Item = u32>) -> Var<'_> {
    let numbers: Vec<u32> = numbers.collect();
    b.constant(Array::new([numbers.len()], Data::U32(numbers)).expect("as many numbers as elements"))
}

/// A forward program like the workloads': two transformer blocks with normed queries and keys, stochastic depth, a
/// spectral and a pointwise loss. Inputs `x` and `target` `[batch, 6, 8]`, `counter`; output `loss`. Scopes
/// `blocks.N/attn`, `blocks.N/mlp`, `loss/spectral`.
pub fn transformer(batch: usize) -> Program {
    let (tokens, width, heads) = (6, 8, 2);
    let b = Builder::new("transformer");
    let x = b.input("x", DType::F32, [batch, tokens, width]);
    let target = b.input("target", DType::F32, [batch, tokens, width]);
    let counter = b.input("counter", DType::U32, []);
    let mut h = linear("inp", x, width);
    for block in 0..2 {
        h = b.scope(&format!("blocks.{block}"), || {
            let attended = b.scope("attn", || {
                let qkv = linear(&format!("blocks.{block}.qkv"), norm(&format!("blocks.{block}.ln1"), h), 3 * width);
                let [q, k, v] = [0, 1, 2].map(|part| {
                    let rows = qkv.slice(2, part * width, width).reshape([batch, tokens, heads, width / heads]);
                    rows.permute([0, 2, 1, 3])
                });
                let spec = AttentionSpec { scale: 0.5, causal: false };
                let out = q.rms_norm(1e-6).attention(k.rms_norm(1e-6), v, spec);
                let rows = out.permute([0, 2, 1, 3]).reshape([batch, tokens, width]);
                linear(&format!("blocks.{block}.proj"), rows, width)
            });
            let keep =
                b.random(&format!("drop {block}"), counter, [batch, 1, 1]).less(0.9).cast(DType::F32) * (1.0 / 0.9);
            let h = h + attended * keep;
            b.scope("mlp", || {
                let wide = linear(&format!("blocks.{block}.fc1"), norm(&format!("blocks.{block}.ln2"), h), 4 * width);
                h + linear(&format!("blocks.{block}.fc2"), wide.gelu(), width)
            })
        });
    }
    let out = linear("out", h, width) + x;
    let loss = b.scope("loss", || {
        let spectral = b.scope("spectral", || {
            let basis = b.state(StateDecl::f32("basis", [width, 10], Role::Frozen, Init::Uniform { bound: 1.0 }));
            let [mine, theirs] = [out, target].map(|x| {
                let z = x.matmul(basis);
                (z.slice(2, 0, 5).square() + z.slice(2, 5, 5).square() + 1e-12).sqrt()
            });
            (mine - theirs).square().mean_all()
        });
        (out - target).square().mean_all() + spectral * 0.05
    });
    b.output("loss", loss);
    b.finish().expect("the model is well formed")
}

fn linear<'b>(name: &str, x: Var<'b>, out: usize) -> Var<'b> {
    let fan_in = x.dim(x.shape().rank() - 1);
    let init = Init::Uniform { bound: 1.0 / (fan_in as f64).sqrt() };
    let w = x.builder().parameter(&format!("{name}.weight"), [out, fan_in], init.clone());
    x.matmul_t(w) + x.builder().parameter(&format!("{name}.bias"), [out], init)
}

fn norm<'b>(name: &str, x: Var<'b>) -> Var<'b> {
    let width = x.dim(x.shape().rank() - 1);
    x.layer_norm(1e-5) * x.builder().parameter(&format!("{name}.gain"), [width], Init::Fill(1.0))
}

struct Rng {
    stream: u64,
    index: u64,
}

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.index += 1;
        (random::bits(self.stream, self.index) % n as u64) as usize
    }
}

/// Attention over normalised heads of a projection, as models write it. Input `x` (batch, rows, 24), output `loss`;
/// parameters `weight`, `bias`, `gain_q`, `gain_k`.
///
/// # Errors
/// Never: the shapes fit.
pub fn normed_heads([batch, heads, rows, width]: [usize; 4], causal: bool) -> Result<Program, GraphError> {
    let b = Builder::new("normed heads");
    let x = b.input("x", DType::F32, [batch, rows, 24]);
    let uniform = |name: &str, shape: &[usize], bound: f64| b.parameter(name, shape, Init::Uniform { bound });
    let product = x.matmul_t(uniform("weight", &[3 * heads * width, 24], 1.0));
    let split = (product + uniform("bias", &[3 * heads * width], 1.0)).reshape([batch, rows, 3, heads, width]);
    let split = split.permute([2, 0, 3, 1, 4]);
    let part = |part: usize| split.slice(0, part, 1).reshape([batch, heads, rows, width]);
    let [q, k] =
        [(0, "gain_q"), (1, "gain_k")].map(|(at, gain)| part(at).rms_norm(1e-3) * uniform(gain, &[width], 2.0));
    let mixed = q.attention(k, part(2), AttentionSpec { scale: 0.2, causal });
    let joined = mixed.permute([0, 2, 1, 3]).reshape([batch, rows, heads * width]);
    // Not symmetric, so that no gradient vanishes.
    b.output("loss", (joined.square() * 0.5 + joined * 0.3).sum_all() * 0.1);
    b.finish()
}
