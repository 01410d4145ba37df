//! Every operator's gradient against central differences in float64.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_eager::Eager;
use pawl_graph::{
    array::{Array, Data},
    autodiff::gradients,
    executor::{ExecOptions, Executable, Executor},
    graph::{AttentionSpec, Builder, DType, GraphError, Init, Meta, Op, Program, Role, StateDecl, Var, concat},
    optim::{AdamW, Optimizer},
    recipe::{Precision, Recipe},
};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 2e-7;

/// A float64 state of normal values.
fn leaf<'b>(b: &'b Builder, name: &str, shape: &[usize]) -> Var<'b> {
    let meta = Meta::new(DType::F64, shape);
    b.state(StateDecl { name: name.into(), meta, role: Role::Parameter, init: Init::Normal { deviation: 1.0 } })
}

/// Indices 0, 2, 1, 2, .. below `extent`: with repetitions.
fn indices<'b>(b: &'b Builder, shape: &[usize], extent: usize) -> Var<'b> {
    let len: usize = shape.iter().product();
    let data = (0..len).map(|i| ((i * 2 + i / 3) % extent) as u32).collect();
    b.constant(Array::new(shape, Data::U32(data)).unwrap())
}

fn numbers<'b>(b: &'b Builder, list: &[u32]) -> Var<'b> {
    b.constant(Array::new([list.len()], Data::U32(list.to_vec())).unwrap())
}

/// The loss of a case: its value times fixed random weights, summed, so that each element counts differently.
fn program(leaves: &[(&str, &[usize])], case: impl for<'b> Fn(&'b Builder, &[Var<'b>]) -> Var<'b>) -> Program {
    let b = Builder::new("case");
    let vars: Vec<Var<'_>> = leaves.iter().map(|(name, shape)| leaf(&b, name, shape)).collect();
    let value = case(&b, &vars);
    let weights = b.state(StateDecl {
        name: "weights".into(),
        meta: Meta::new(DType::F64, value.shape()),
        role: Role::Frozen,
        init: Init::Uniform { bound: 1.0 },
    });
    let loss = (value.cast(DType::F64) * weights).sum_all();
    let of = gradients(loss, &vars);
    b.output("loss", loss);
    for ((name, _), (var, gradient)) in leaves.iter().zip(vars.iter().zip(of)) {
        let zero = b.fill(0.0, DType::F64, var.shape());
        b.output(name, gradient.unwrap_or(zero));
    }
    b.finish().unwrap()
}

fn loss(exe: &mut dyn Executable) -> f64 {
    exe.run(0, &[]).unwrap();
    exe.output(0, 0).unwrap().item()
}

/// Compares each gradient with central differences.
fn check(leaves: &[(&str, &[usize])], case: impl for<'b> Fn(&'b Builder, &[Var<'b>]) -> Var<'b>) {
    let program = program(leaves, case);
    let options = ExecOptions { seed: 3, ..ExecOptions::default() };
    let mut exe = Eager::cpu().compile(&[program], &options).unwrap();
    loss(exe.as_mut());
    for (output, (name, _)) in (1..).zip(leaves) {
        let analytic = exe.output(0, output).unwrap().to_f64();
        let start = exe.read_state(name).unwrap();
        for (i, got) in analytic.iter().enumerate() {
            let mut at = |offset: f64| {
                let mut values = start.to_f64();
                values[i] += offset;
                exe.write_state(name, &Array::new(start.shape(), Data::F64(values)).unwrap()).unwrap();
                loss(exe.as_mut())
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let bound = TOLERANCE * (1.0 + expected.abs());
            assert!((got - expected).abs() < bound, "d/d{name}[{i}]: {got} is not {expected}");
        }
        exe.write_state(name, &start).unwrap();
        loss(exe.as_mut());
    }
}

macro_rules! cases {
    ($($name:ident($($leaf:ident: $shape:expr),+) |$b:pat_param| $body:expr;)*) => {$(
        #[test]
        fn $name() {
            check(&[$((stringify!($leaf), &$shape)),+], |$b, vars| {
                let [$($leaf),+] = vars else { unreachable!() };
                $(let $leaf = *$leaf;)+
                $body
            });
        }
    )*};
}

cases! {
    neg(x: [3, 5]) |_| -x;
    exp(x: [7]) |_| x.exp();
    log(x: [7]) |_| (x.square() + 0.5).log();
    sqrt(x: [7]) |_| (x.square() + 0.5).sqrt();
    rsqrt(x: [7]) |_| (x.square() + 0.5).rsqrt();
    recip(x: [7]) |_| (x.square() + 0.5).recip();
    erf(x: [7]) |_| x.erf();
    tanh(x: [7]) |_| x.tanh();
    sigmoid(x: [7]) |_| x.sigmoid();
    sin(x: [7]) |_| x.sin();
    cos(x: [7]) |_| x.cos();
    abs(x: [7]) |_| x.abs();
    square(x: [7]) |_| x.square();
    sign_and_floor_have_none(x: [7]) |_| x * x.sign().stop_gradient() + x.sign() + x.floor();
    add_broadcasts_both_sides(x: [3, 1, 5], y: [4, 1]) |_| x + y;
    sub_broadcasts(x: [5], y: [2, 3, 5]) |_| x - y;
    mul_broadcasts(x: [3, 5], y: [3, 1]) |_| x * y;
    div_broadcasts(x: [3, 5], y: [1, 5]) |_| x / (y.square() + 0.7);
    maximum(x: [3, 5], y: [5]) |_| x.maximum(y);
    relu(x: [3, 5]) |_| x.relu();
    product_with_itself(x: [2, 3, 4]) |_| x.matmul_t(x);
    transposed_product_with_itself(x: [2, 3, 4]) |_| x.t_matmul(x);
    softmax_of_a_product_with_itself(x: [2, 3, 4]) |_| x.matmul_t(x).softmax().matmul(x);
    dropout(x: [6, 5]) |b| x.dropout("drop", b.scalar(7.0, DType::U32), 0.4).square() + x;
    minimum(x: [3, 5], y: [5]) |_| x.minimum(y);
    one_value_used_twice(x: [5]) |_| x * x + x.exp() * x;
    select(x: [3, 5], y: [3, 1]) |_| x.greater(0.1).select(x * 2.0, y);
    cast_back_and_forth(x: [5]) |_| x.cast(DType::F64) * 3.0;
    matmul_nn(x: [3, 4], y: [4, 5]) |_| x.matmul(y);
    matmul_nt(x: [2, 3, 4], y: [2, 5, 4]) |_| x.matmul_t(y);
    matmul_tn(x: [2, 4, 3], y: [2, 4, 5]) |_| x.t_matmul(y);
    matmul_tt(x: [4, 3], y: [5, 4]) |b| b.push(Op::MatMul { transpose_a: true, transpose_b: true, output: DType::F64 }, &[x, y]);
    matmul_of_rows_with_one_weight(x: [2, 3, 4], y: [5, 4]) |_| x.matmul_t(y);
    sum_over_a_middle_axis(x: [2, 3, 4]) |_| x.square().sum([1]);
    sum_over_outer_axes(x: [2, 3, 4]) |_| x.square().sum([0, 2]);
    mean(x: [2, 3, 4]) |_| x.square().mean([0, 1, 2]);
    max_over_one_axis(x: [3, 5]) |_| x.max([1]);
    max_over_two_axes(x: [3, 2, 3]) |_| x.max([0, 2]);
    reshape(x: [3, 4]) |_| x.square().reshape([2, 6]);
    permute(x: [2, 3, 4]) |_| x.square().permute([2, 0, 1]);
    transpose(x: [3, 4]) |_| x.square().transpose();
    broadcast_adds_axes(x: [3, 1]) |_| x.square().broadcast([2, 3, 4]);
    slice(x: [3, 7]) |_| x.square().slice(1, 2, 4);
    pad(x: [3, 4]) |_| x.square().pad(0, 1, 2).exp();
    concatenation(x: [3, 2], y: [3, 4]) |_| concat(&[x, y.square(), x], 1);
    gather_rows(x: [4, 3]) |b| x.square().gather(0, indices(b, &[2, 3], 4));
    gather_a_middle_axis(x: [2, 5, 3]) |b| x.square().gather(1, indices(b, &[4], 5));
    scatter_add(x: [2, 3, 4]) |b| x.square().scatter_add(0, 5, indices(b, &[2, 3], 5)).exp();
    segment_sum(x: [7, 3]) |b| x.square().segment_sum(numbers(b, &[0, 2, 2, 3, 6])).exp();
    segment_sum_in_another_order(x: [5, 2, 3]) |b| {
        x.square().segment_sum_of(numbers(b, &[4, 0, 1, 4]), numbers(b, &[0, 3, 3, 4])).exp()
    };
    segment_repeat(x: [3, 5]) |b| x.square().segment_repeat(numbers(b, &[1, 4, 4, 5]), 7).exp();
    segment_softmax(x: [9, 3]) |b| x.segment_softmax(numbers(b, &[0, 0, 1, 5, 8])).square();
    segment_softmax_of_dropped_scores(x: [7, 2]) |b| {
        // The second and fourth rows of a segment, and the only row of another.
        let dropped = numbers(b, &[0, 1, 0, 1, 0, 1, 0]).reshape([7, 1]).broadcast([7, 2]).not_equal(b.scalar(0.0, DType::U32));
        let scores = dropped.select(b.scalar(f64::NEG_INFINITY, DType::F64), x);
        scores.segment_softmax(numbers(b, &[0, 5, 6, 7])) * x
    };
    gather_with_the_index_transposed(x: [4, 3]) |b| {
        let [index, order, starts] = [&[3, 1, 1, 3, 0][..], &[4, 1, 2, 0, 3], &[0, 1, 3, 3, 5]].map(|list| numbers(b, list));
        x.square().gather_by(index, order, starts).exp()
    };
    elu(x: [3, 5]) |_| x.elu();
    leaky_relu(x: [3, 5]) |_| x.leaky_relu(0.2);
    cumulative_sum(x: [2, 5, 3]) |_| x.square().cumulative_sum(1).exp();
    lstm(x: [3, 5, 8], w: [8, 2]) |_| x.lstm(w);
    lstm_of_one_step(x: [3, 1, 4], w: [4, 1]) |_| x.lstm(w);
    lstm_of_a_long_sequence(x: [2, 17, 12], w: [12, 3]) |_| x.lstm(w * 0.3).slice(1, 16, 1);
    after(x: [4], y: [4]) |_| x.square().after(y.exp());
    softmax(x: [3, 5]) |_| x.softmax();
    layer_norm(x: [3, 5]) |_| x.layer_norm(1e-5);
    rms_norm(x: [3, 5]) |_| x.rms_norm(1e-6);
    gelu(x: [7]) |_| x.gelu();
    silu(x: [7]) |_| x.silu();
    attention(q: [2, 2, 3, 4], k: [2, 2, 5, 4], v: [2, 2, 5, 4]) |_| {
        q.attention(k, v, AttentionSpec { scale: 0.5, causal: false })
    };
    attention_causal(q: [1, 2, 3, 4], k: [1, 2, 5, 4], v: [1, 2, 5, 4]) |_| {
        q.attention(k, v, AttentionSpec { scale: 0.7, causal: true })
    };
    attention_with_grouped_queries(q: [2, 4, 3, 2], k: [2, 2, 3, 2], v: [2, 2, 3, 2]) |_| {
        q.attention(k, v, AttentionSpec { scale: 0.7, causal: true })
    };
    attention_from_one_value(x: [1, 2, 3, 4]) |_| {
        x.attention(x * 2.0, x.square(), AttentionSpec { scale: 0.7, causal: false })
    };
    convolution(x: [2, 7, 3], w: [5, 3, 3]) |_| x.conv1d(w, 1, 1);
    convolution_with_stride_2(x: [2, 7, 3], w: [5, 3, 3]) |_| x.conv1d(w, 2, 1);
    convolution_with_stride_3_and_an_even_filter(x: [1, 11, 2], w: [3, 2, 4]) |_| x.conv1d(w, 3, 0);
    transposed_convolution(x: [2, 5, 3], w: [3, 4, 4]) |_| x.conv_transpose1d(w, 2, 1);
    transposed_convolution_with_gaps(x: [2, 3, 2], w: [2, 3, 2]) |_| x.conv_transpose1d(w, 3, 0);
    transposed_convolution_with_padding(x: [1, 5, 2], w: [2, 3, 5]) |_| x.conv_transpose1d(w, 3, 3);
    causal_convolution_in_one_block(x: [3, 2, 7], k: [3, 7]) |_| x.causal_conv(k, 9);
    causal_convolution_in_blocks(x: [3, 2, 7], k: [3, 7]) |_| x.causal_conv(k, 3);
    causal_convolution_of_single_steps(x: [2, 1, 4], k: [2, 4]) |_| x.causal_conv(k, 1);
    spectral_magnitude(x: [3, 4], y: [4, 6]) |_| {
        let z = x.matmul(y);
        (z.slice(1, 0, 3).square() + z.slice(1, 3, 3).square() + 1e-12).sqrt()
    };
}

#[test]
fn one_state_read_twice_is_one_value() {
    let case = |b: &Builder| {
        let decl = leaf(b, "x", &[3]);
        let again = leaf(b, "x", &[3]);
        let loss = (decl.exp() * again).sum_all();
        let both = gradients(loss, &[decl])[0].unwrap();
        b.output("gradient", both);
        b.output("expected", decl.exp() * decl + decl.exp());
    };
    let b = Builder::new("twice");
    case(&b);
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    exe.run(0, &[]).unwrap();
    let (got, expected) = (exe.output(0, 0).unwrap().to_f64(), exe.output(0, 1).unwrap().to_f64());
    assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?} {expected:?}");
}

#[test]
fn ties_share_the_gradient() {
    let b = Builder::new("ties");
    let ones = b.state(StateDecl {
        name: "x".into(),
        meta: Meta::new(DType::F64, [4]),
        role: Role::Parameter,
        init: Init::Fill(1.0),
    });
    let loss = ones.max([0]).sum_all() + ones.maximum(1.0).sum_all();
    b.output("gradient", gradients(loss, &[ones])[0].unwrap());
    let mut exe = Eager::cpu().compile(&[b.finish().unwrap()], &ExecOptions::default()).unwrap();
    exe.run(0, &[]).unwrap();
    assert_eq!(exe.output(0, 0).unwrap().to_f64(), vec![0.25 + 0.5; 4]);
}

#[test]
fn the_gradient_of_a_product_with_itself_is_one_product() {
    let b = Builder::new("gram");
    let x = b.parameter("x", [8, 16], Init::Normal { deviation: 1.0 });
    b.output("loss", x.matmul_t(x).square().mean_all());
    let forward = b.finish().unwrap();
    for precision in [Precision::F32, Precision::BF16] {
        let recipe = Recipe { precision, ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() }) };
        let program = recipe.step(&forward).unwrap();
        let products = program.graph.nodes().iter().filter(|node| matches!(node.op, Op::MatMul { .. })).count();
        assert_eq!(products, 2, "forward and backward in {precision:?}: {program}");
    }
}

#[test]
fn no_gradient_where_there_is_no_dependence() {
    let b = Builder::new("none");
    let (x, y) = (leaf(&b, "x", &[3]), leaf(&b, "y", &[3]));
    let loss = (x.stop_gradient() * 2.0 + x.greater(0.0).cast(DType::F64)).sum_all();
    assert!(gradients(loss, &[x, y]).iter().all(Option::is_none));
}

#[test]
fn a_loss_that_is_no_scalar_is_an_error_with_its_line() {
    let b = Builder::new("vector");
    let x = leaf(&b, "x", &[3]);
    b.scope("head", || gradients(x.exp(), &[x]));
    let error = b.finish().unwrap_err();
    assert!(matches!(error, GraphError::At { .. }));
    let message = error.to_string();
    assert!(message.contains("gradients.rs") && message.contains("scope head"), "{message}");
}
