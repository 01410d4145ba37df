//! Products over 8-bit floats on a GPU: codes beside those of the host, sums beside float64, and which of them the
//! library computes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_cuda::{CudaExecutable, CudaGraph, device::Device};
use pawl_graph::{
    array::{Array, Data, View},
    executor::{ExecOptions, Executable},
    float8::E4M3,
    graph::{Builder, DType, Program, float8::Scaled},
    optim::{AdamW, Optimizer},
    passes::{Float8, Pattern, Scaling},
    random,
    recipe::{Precision, Recipe},
};
use pawl_lower::Body;

/// Rows, outputs and inputs.
const EXTENTS: [usize; 3] = [256, 384, 1024];

fn build(program: &Program) -> CudaExecutable {
    let device = Device::open(0, None).expect("the feature gpu is tested where there is a GPU");
    CudaGraph::new(device).build(std::slice::from_ref(program), &ExecOptions::default()).unwrap()
}

fn draw(name: &str, elements: usize) -> Vec<f32> {
    let stream = random::stream(7, name);
    (0..elements as u64).map(|i| random::normal_f64(stream, i) as f32).collect()
}

fn codes(array: &Array) -> &[E4M3] {
    let Data::E4M3(codes) = array.data() else { panic!("codes are {}", array.dtype()) };
    codes
}

/// Forward, and the gradient of the input, whose weight is transposed on the way.
#[test]
fn products_are_those_of_the_codes_and_the_library_computes_them() {
    let [m, n, k] = EXTENTS;
    let b = Builder::new("products");
    let [x, w] = [b.input("x", DType::F32, [m, k]), b.input("w", DType::F32, [n, k])];
    let (rows, weight) = (Scaled::new(x, &[1], DType::E4M3), Scaled::new(w, &[1], DType::E4M3));
    let y = rows.codes.scaled_matmul_t(weight.codes, [rows.scale, weight.scale.reshape([1, n])], DType::BF16);
    let gradient = Scaled::new(y.cast(DType::F32), &[1], DType::E4M3);
    let turned = weight.codes.transpose();
    let ones = b.constant(Array::new([1, k], Data::F32(vec![1.0; k])).unwrap());
    let back = gradient.codes.scaled_matmul_t(turned, [gradient.scale, ones], DType::F32);
    for (name, value) in [("rows", rows), ("weight", weight), ("gradient", gradient)] {
        b.output(name, value.codes);
        b.output(&format!("{name} scale"), value.scale);
    }
    b.output("y", y);
    b.output("back", back);
    let program = b.finish().unwrap();
    let (xs, ws) = (draw("x", m * k), draw("w", n * k));
    let mut exe = build(&program);
    exe.run(0, &[View::F32(&xs), View::F32(&ws)]).unwrap();
    let outputs: Vec<Array> = (0..8).map(|at| exe.output(0, at).unwrap()).collect();

    // In float32 the GPU computes as the host does, to the last bit.
    for (values, at) in [(&xs, 0), (&ws, 2)] {
        let scales = outputs[at + 1].to_f64();
        for (i, (&value, &code)) in values.iter().zip(codes(&outputs[at])).enumerate() {
            assert_eq!(code, E4M3::from_f32(value * (1.0 / scales[i / k] as f32)), "element {i}: {value}");
        }
    }
    let wide = |at: usize| codes(&outputs[at]).iter().map(|code| code.to_f64()).collect::<Vec<_>>();
    let (rows, weight, gradient) = (wide(0), wide(2), wide(4));
    let [row_scales, weight_scales, gradient_scales] = [1, 3, 5].map(|at| outputs[at].to_f64());
    let forward = |i: usize, j: usize| {
        let sum: f64 = (0..k).map(|p| rows[i * k + p] * weight[j * k + p]).sum();
        sum * row_scales[i] * weight_scales[j]
    };
    let backward = |i: usize, j: usize| {
        let sum: f64 = (0..n).map(|p| gradient[i * n + p] * weight[p * k + j]).sum();
        sum * gradient_scales[i]
    };
    for (at, cols, exact) in [(6, n, &forward as &dyn Fn(usize, usize) -> f64), (7, k, &backward)] {
        let exact: Vec<f64> = (0..m * cols).map(|i| exact(i / cols, i % cols)).collect();
        let largest = exact.iter().fold(0f64, |max, x| max.max(x.abs()));
        // One rounding to bfloat16, and sums that tensor cores keep in fewer bits than float32 has.
        let worst = outputs[at].to_f64().iter().zip(&exact).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max);
        assert!(worst < 6e-3, "output {at} differs by {worst:e}");
    }
    let lowered = exe.lowered().next().unwrap();
    let products = lowered.kernels.iter().enumerate().filter(|(_, kernel)| matches!(kernel.body, Body::MatMul(_)));
    let by_library = products.filter(|&(index, _)| exe.registers(0, index).is_none()).count();
    assert_eq!(by_library, 2, "cuBLASLt {} has algorithms for both", exe.blas_version());
}

/// A layer trains with every choice of scales and formats, and its loss falls beside that of bfloat16.
#[test]
fn a_layer_trains_beside_bfloat16() {
    let [m, n, k] = EXTENTS;
    let b = Builder::new("layer");
    let x = b.input("x", DType::F32, [m, k]);
    let weight =
        |name: &str, shape: [usize; 2]| b.parameter(name, shape, pawl_graph::graph::Init::Normal { deviation: 0.03 });
    let h = b.scope("up", || x.matmul_t(weight("up", [n, k]))).silu();
    let y = b.scope("down", || h.matmul_t(weight("down", [k, n])));
    b.output("loss", (y - x).square().mean_all());
    let forward = b.finish().unwrap();
    let losses = |precision, float8| -> Vec<f64> {
        let scopes = ["up", "down"].map(Pattern::new).to_vec();
        let adamw = Optimizer { matrices: None, others: AdamW::default() };
        let recipe = Recipe { precision, float8, float8_scopes: scopes, ..Recipe::new(adamw) };
        let mut exe = build(&recipe.step(&forward).unwrap());
        let data = draw("data", m * k);
        (0..50)
            .map(|_| {
                exe.run(0, &[View::F32(&data), View::F32(&[1e-3])]).unwrap();
                exe.output(0, 0).unwrap().item()
            })
            .collect()
    };
    let bfloat = losses(Precision::BF16, Float8::default());
    assert!(bfloat[49] < 0.9 * bfloat[0], "{bfloat:?}");
    for (scaling, gradients) in [
        (Scaling::Row, DType::E4M3),
        (Scaling::Row, DType::E5M2),
        (Scaling::Tensor, DType::E4M3),
        (Scaling::Tensor, DType::E5M2),
        (Scaling::Delayed, DType::E4M3),
        (Scaling::Delayed, DType::E5M2),
    ] {
        let eight = losses(Precision::FP8, Float8 { scaling, gradients });
        // Rounding leaves noise that does not fall with the loss: the bound is a part of the first loss.
        let near = eight.iter().zip(&bfloat).all(|(a, b)| (a - b).abs() < 0.02 * bfloat[0]);
        assert!(near && eight != bfloat, "{scaling:?} {gradients:?}: {eight:?} beside {bfloat:?}");
    }
}
