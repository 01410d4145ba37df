//! Convolutions equal their definitions, written as loops in float64.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use pawl_eager::Eager;
use pawl_graph::{
    array::{Array, Data},
    executor::{ExecOptions, Executor},
    graph::{Builder, DType, Init, Meta, Role, StateDecl, Var},
};

fn leaf<'b>(b: &'b Builder, name: &str, shape: &[usize]) -> Var<'b> {
    let meta = Meta::new(DType::F64, shape);
    b.state(StateDecl { name: name.into(), meta, role: Role::Parameter, init: Init::Normal { deviation: 1.0 } })
}

/// The elements of two states of these shapes, and of the value made of them.
fn evaluated(
    shapes: [&[usize]; 2],
    case: impl for<'b> Fn(Var<'b>, Var<'b>) -> Var<'b>,
) -> (Vec<f64>, Vec<f64>, Vec<usize>, Vec<f64>) {
    let b = Builder::new("case");
    let (x, w) = (leaf(&b, "x", shapes[0]), leaf(&b, "w", shapes[1]));
    b.output("y", case(x, w));
    let program = b.finish().unwrap();
    let mut exe = Eager::cpu().compile(&[program], &ExecOptions { seed: 5, ..ExecOptions::default() }).unwrap();
    exe.run(0, &[]).unwrap();
    let y = exe.output(0, 0).unwrap();
    let mut state = |name: &str| exe.read_state(name).unwrap().to_f64();
    (state("x"), state("w"), y.shape().dims().to_vec(), y.to_f64())
}

fn assert_near(got: &[f64], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len());
    assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?} is not {wanted:?}");
}

#[test]
fn convolutions_equal_their_definition() {
    let (batch, inputs, outputs) = (2, 3, 5);
    for (length, taps, stride, padding) in
        [(7, 3, 1, 1), (7, 3, 2, 1), (8, 3, 2, 1), (9, 4, 3, 0), (5, 2, 4, 3), (1, 1, 1, 0)]
    {
        let (x, w, shape, y) =
            evaluated([&[batch, length, inputs], &[outputs, inputs, taps]], |x, w| x.conv1d(w, stride, padding));
        let steps = (length + 2 * padding - taps) / stride + 1;
        assert_eq!(shape, [batch, steps, outputs]);
        let mut wanted = vec![0.0; y.len()];
        for (at, value) in wanted.iter_mut().enumerate() {
            let (row, i, o) = (at / outputs / steps, at / outputs % steps, at % outputs);
            for (k, c) in (0..taps).flat_map(|k| (0..inputs).map(move |c| (k, c))) {
                let from = (i * stride + k).checked_sub(padding).filter(|from| *from < length);
                *value +=
                    from.map_or(0.0, |from| x[(row * length + from) * inputs + c] * w[(o * inputs + c) * taps + k]);
            }
        }
        assert_near(&y, &wanted);
    }
}

#[test]
fn transposed_convolutions_equal_their_definition() {
    let (batch, inputs, outputs) = (2, 3, 5);
    for (length, taps, stride, padding) in
        [(8, 4, 2, 1), (5, 3, 1, 1), (4, 2, 3, 0), (5, 5, 3, 3), (3, 7, 2, 2), (1, 4, 2, 1)]
    {
        let (x, w, shape, y) = evaluated([&[batch, length, inputs], &[inputs, outputs, taps]], |x, w| {
            x.conv_transpose1d(w, stride, padding)
        });
        let produced = (length - 1) * stride + taps - 2 * padding;
        assert_eq!(shape, [batch, produced, outputs]);
        let mut wanted = vec![0.0; y.len()];
        for (row, i, k) in (0..batch * length * taps).map(|n| (n / taps / length, n / taps % length, n % taps)) {
            let Some(to) = (i * stride + k).checked_sub(padding).filter(|to| *to < produced) else { continue };
            for (c, o) in (0..inputs).flat_map(|c| (0..outputs).map(move |o| (c, o))) {
                wanted[(row * produced + to) * outputs + o] +=
                    x[(row * length + i) * inputs + c] * w[(c * outputs + o) * taps + k];
            }
        }
        assert_near(&y, &wanted);
    }
}

#[test]
fn causal_convolutions_equal_their_definition_with_any_block() {
    let (channels, batch, length) = (3, 2, 11);
    for block in [1, 2, 4, 5, 11, 64] {
        let (x, kernel, shape, y) =
            evaluated([&[channels, batch, length], &[channels, length]], |x, k| x.causal_conv(k, block));
        assert_eq!(shape, [channels, batch, length]);
        let mut wanted = vec![0.0; y.len()];
        for (at, value) in wanted.iter_mut().enumerate() {
            let (channel, row, t) = (at / length / batch, at / length, at % length);
            *value = (0..=t).map(|s| kernel[channel * length + t - s] * x[row * length + s]).sum();
        }
        assert_near(&y, &wanted);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_the_rule() {
    let refused = |case: &dyn for<'b> Fn(Var<'b>, Var<'b>) -> Var<'b>, shapes: [&[usize]; 2]| {
        let b = Builder::new("case");
        case(leaf(&b, "x", shapes[0]), leaf(&b, "w", shapes[1]));
        b.finish().unwrap_err().to_string()
    };
    let other_inputs = refused(&|x, w| x.conv1d(w, 1, 1), [&[2, 7, 3], &[5, 4, 3]]);
    assert!(other_inputs.contains("conv1d") && other_inputs.contains("[out, in, taps]"), "{other_inputs}");
    let too_short = refused(&|x, w| x.conv1d(w, 1, 0), [&[2, 2, 3], &[5, 3, 3]]);
    assert!(too_short.contains("taps <= length"), "{too_short}");
    let nothing_left = refused(&|x, w| x.conv_transpose1d(w, 1, 1), [&[2, 1, 3], &[3, 5, 2]]);
    assert!(nothing_left.contains("not empty"), "{nothing_left}");
    let other_length = refused(&|x, w| x.causal_conv(w, 4), [&[3, 2, 7], &[3, 6]]);
    assert!(other_length.contains("causal_conv"), "{other_length}");
}

#[test]
fn normal_draws_are_standard_and_differ_by_counter() {
    let b = Builder::new("draws");
    let counter = b.input("counter", DType::U32, []);
    b.output("draws", b.normal("noise", counter, [101, 201]));
    let program = b.finish().unwrap();
    let mut exe = Eager::cpu().compile(&[program], &ExecOptions::default()).unwrap();
    let mut draw = |counter: u32| {
        exe.run(0, &[Array::new([], Data::U32(vec![counter])).unwrap().view()]).unwrap();
        exe.output(0, 0).unwrap().to_f64()
    };
    let (first, second) = (draw(1), draw(2));
    let mean = |values: &[f64], power: i32| values.iter().map(|v| v.powi(power)).sum::<f64>() / values.len() as f64;
    for draws in [&first, &second] {
        assert!(draws.iter().all(|v| v.is_finite()));
        // Standard errors: 0.007, 0.010, 0.07.
        assert!(
            mean(draws, 1).abs() < 0.03 && (mean(draws, 2) - 1.0).abs() < 0.04 && (mean(draws, 4) - 3.0).abs() < 0.3
        );
    }
    let products: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a * b).collect();
    assert!(mean(&products, 1).abs() < 0.03, "draws of different counters are independent");
    assert_eq!(first, draw(1), "the same counter gives the same draws");
}
