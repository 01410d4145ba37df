//! Optimisers against their definitions, written as loops.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use half::bf16;
use pawl_eager::Eager;
use pawl_graph::{
    array::{Array, Data},
    executor::{ExecOptions, Executable, Executor},
    graph::{Builder, DType, Init, Meta, Program, Role, StateDecl},
    optim::{AdamW, Muon, Optimizer, OptimizerKernel, initial_share},
    recipe::Recipe,
};

/// A program whose gradient is the input `g`: the loss is `sum(p * g)`.
fn linear(shapes: &[(&str, [usize; 2])]) -> Program {
    let b = Builder::new("linear");
    let parts = shapes.iter().map(|(name, shape)| {
        let dims: Vec<usize> = if shape[0] == 0 { vec![shape[1]] } else { shape.to_vec() };
        let meta = Meta::new(DType::F32, dims.clone());
        let init = Init::Normal { deviation: 1.0 };
        let p = b.state(StateDecl { name: (*name).into(), meta, role: Role::Parameter, init });
        (p * b.input(&format!("g.{name}"), DType::F32, dims)).sum_all()
    });
    let loss = parts.reduce(|sum, part| sum + part).unwrap();
    b.output("loss", loss);
    b.finish().unwrap()
}

/// Gradient of step `t`, element `i`.
fn gradient(t: usize, i: usize) -> f32 {
    ((i * 7 + t * 13) % 11) as f32 / 11.0 - 0.45
}

fn step(exe: &mut dyn Executable, program: &Program, t: usize, lr: f32) {
    let inputs: Vec<Array> = program
        .inputs
        .iter()
        .map(|decl| match decl.name.as_str() {
            "learning_rate" => Array::scalar(lr),
            _ => {
                let values = (0..decl.meta.shape.elements()).map(|i| gradient(t, i)).collect();
                Array::new(&decl.meta.shape, Data::F32(values)).unwrap()
            }
        })
        .collect();
    exe.run(0, &inputs.iter().map(Array::view).collect::<Vec<_>>()).unwrap();
}

fn parameter(exe: &mut dyn Executable, name: &str) -> Vec<f64> {
    let named = pawl_graph::executor::read_named(exe).unwrap();
    named.into_iter().find(|(n, _)| n == name).unwrap().1.to_f64()
}

/// In float64, from the weights after each step: the share of the first ones is summed up beside the average.
#[test]
fn an_average_warms_up_and_has_hardly_any_initial_weights_left_after_six_updates() {
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let recipe = Recipe {
            average: Some(0.999),
            kernel,
            groups: vec!["head.".into()],
            ..Recipe::new(Optimizer { matrices: None, others: AdamW::default() })
        };
        let program = recipe.step(&linear(&[("p", [3, 4]), ("head.p", [0, 5])])).unwrap();
        let mut exe = Eager::cpu()
            .compile(std::slice::from_ref(&program), &ExecOptions { seed: 3, ..Default::default() })
            .unwrap();
        let mut references: Vec<_> =
            ["p", "head.p"].map(|name| (name, parameter(exe.as_mut(), name))).into_iter().collect();
        let mut share = 1.0;
        for t in 0..101 {
            step(exe.as_mut(), &program, t, 0.1);
            let decay = (0.999f64).min((1.0 + t as f64) / (10.0 + t as f64));
            share *= decay;
            for (name, reference) in &mut references {
                let weights = parameter(exe.as_mut(), name);
                reference.iter_mut().zip(&weights).for_each(|(mean, w)| *mean = decay * *mean + (1.0 - decay) * w);
                let found = parameter(exe.as_mut(), &format!("average/{name}"));
                for (a, b) in found.iter().zip(reference.iter()) {
                    assert!((a - b).abs() < 1e-5, "{name}, step {t}: {a} {b}");
                }
            }
            let known = initial_share(0.999, t as u64 + 1);
            assert!((known - share).abs() < 1e-12, "step {t}: {known} {share}");
            if [6, 25, 101].contains(&(t + 1)) {
                assert!(share < 0.01, "{share} of the average is initial after {} updates", t + 1);
            }
        }
    }
    let late = initial_share(0.5, 8);
    assert!(late > 0.0 && late < 0.5f64.powi(8), "a shorter average is no longer for it: {late}");
}

#[test]
fn adamw_follows_its_definition() {
    use OptimizerKernel::{Fused, PerTensor};
    let (all, not_p): (&'static [&'static str], &'static [&'static str]) = (&[], &["p"]);
    for (kernel, decay_vectors, undecayed) in [
        (PerTensor, true, all),
        (Fused, true, all),
        (PerTensor, false, all),
        (Fused, false, all),
        (PerTensor, true, not_p),
        (Fused, true, not_p),
    ] {
        let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.03, decay_vectors, undecayed };
        let recipe = Recipe { kernel, ..Recipe::new(Optimizer { matrices: None, others: adamw }) };
        let program = recipe.step(&linear(&[("p", [3, 4]), ("q", [0, 5])])).unwrap();
        let mut exe = Eager::cpu().compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        for name in ["p", "q"] {
            let mut expected = parameter(exe.as_mut(), name);
            let (mut m, mut v) = (vec![0.0; expected.len()], vec![0.0; expected.len()]);
            let lr = f64::from(1.4e-3f32);
            let mut fresh = Eager::cpu().compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
            for t in 1..=20 {
                step(fresh.as_mut(), &program, t, 1.4e-3);
                for (i, p) in expected.iter_mut().enumerate() {
                    let g = f64::from(gradient(t, i));
                    m[i] = 0.9 * m[i] + 0.1 * g;
                    v[i] = 0.999 * v[i] + 0.001 * g * g;
                    let (m_hat, v_hat) = (m[i] / (1.0 - 0.9f64.powi(t as i32)), v[i] / (1.0 - 0.999f64.powi(t as i32)));
                    let decays = (name == "p" || decay_vectors) && !undecayed.contains(&name);
                    *p -= if decays { lr * 0.03 * *p } else { 0.0 };
                    *p -= lr * m_hat / (v_hat.sqrt() + 1e-8);
                }
            }
            let got = parameter(fresh.as_mut(), name);
            for (a, b) in got.iter().zip(&expected) {
                assert!((a - b).abs() < 2e-6 * (1.0 + b.abs()), "{kernel:?} {name}: {a} is not {b}");
            }
        }
    }
}

/// Row-major product of `[n, k]` and `[k, m]`, in float32.
fn product(a: &[f32], b: &[f32], n: usize, k: usize, m: usize) -> Vec<f32> {
    let mut out = vec![0.0; n * m];
    for i in 0..n {
        for j in 0..m {
            out[i * m + j] = (0..k).map(|l| a[i * k + l] * b[l * m + j]).sum();
        }
    }
    out
}

fn transposed(a: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|j| (0..rows).map(move |i| a[i * columns + j])).collect()
}

fn rounded(values: impl IntoIterator<Item = f32>) -> Vec<f32> {
    values.into_iter().map(|x| bf16::from_f32(x).to_f32()).collect()
}

/// The specification's Muon, step by step.
fn muon_direction(u: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let tall = rows > columns;
    let (n, k) = if tall { (columns, rows) } else { (rows, columns) };
    let mut x = rounded(if tall { transposed(u, rows, columns) } else { u.to_vec() });
    let norm = bf16::from_f32(x.iter().map(|v| v * v).sum::<f32>().sqrt()).to_f32().max(1e-7);
    x = rounded(x.iter().map(|v| v / norm));
    for _ in 0..5 {
        let a = rounded(product(&x, &transposed(&x, n, k), n, k, n));
        let aa = product(&a, &a, n, n, n);
        let b = rounded(a.iter().zip(&aa).map(|(a, aa)| -4.7750 * a + 2.0315 * aa));
        let bx = product(&b, &x, n, n, k);
        x = rounded(x.iter().zip(&bx).map(|(x, bx)| 3.4445 * x + bx));
    }
    if tall { transposed(&x, n, k) } else { x }
}

#[test]
fn muon_follows_the_specification_for_wide_and_tall_matrices() {
    let shapes = [("wide", [3usize, 8usize]), ("tall", [8, 3]), ("wide2", [3, 8]), ("vector", [0, 4])];
    let lr = 1.4e-3f32;
    for kernel in [OptimizerKernel::PerTensor, OptimizerKernel::Fused] {
        let muon = Muon { weight_decay: 0.03, ..Muon::default() };
        let optimizer = Optimizer { matrices: Some(muon), others: AdamW::default() };
        let recipe = Recipe { kernel, ..Recipe::new(optimizer) };
        let program = recipe.step(&linear(&shapes)).unwrap();
        let mut exe = Eager::cpu().compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
        let start: Vec<Vec<f64>> = shapes.iter().map(|(name, _)| parameter(exe.as_mut(), name)).collect();
        for t in 1..=3 {
            step(exe.as_mut(), &program, t, lr);
        }
        for ((name, [rows, columns]), start) in shapes.iter().zip(start).filter(|((_, s), _)| s[0] > 0) {
            let mut p: Vec<f32> = start.iter().map(|&x| x as f32).collect();
            let mut m = vec![0.0f32; p.len()];
            for t in 1..=3 {
                let u: Vec<f32> = (0..p.len())
                    .map(|i| {
                        let g = gradient(t, i);
                        m[i] = 0.95 * m[i] + 0.05 * g;
                        0.05 * g + 0.95 * m[i]
                    })
                    .collect();
                let x = muon_direction(&u, *rows, *columns);
                let factor = lr * (*rows as f32 / *columns as f32).max(1.0).sqrt();
                for (p, x) in p.iter_mut().zip(x) {
                    *p = *p * (1.0 - lr * 0.03) - factor * x;
                }
            }
            // One unit in bfloat16's last place of a direction, where float32 sums were ordered differently.
            for (got, expected) in parameter(exe.as_mut(), name).iter().zip(p) {
                assert!((got - f64::from(expected)).abs() < 1.5e-5, "{kernel:?} {name}: {got} is not {expected}");
            }
        }
    }
}

#[test]
fn the_step_counter_survives_a_checkpoint() {
    let recipe = Recipe::new(Optimizer { matrices: None, others: AdamW::default() });
    let program = recipe.step(&linear(&[("p", [0, 3])])).unwrap();
    let programs = std::slice::from_ref(&program);
    let mut whole = Eager::cpu().compile(programs, &ExecOptions::default()).unwrap();
    step(whole.as_mut(), &program, 1, 1e-2);
    let checkpoint = pawl_graph::executor::read_named(whole.as_mut()).unwrap();
    step(whole.as_mut(), &program, 2, 1e-2);
    let mut resumed = Eager::cpu().compile(programs, &ExecOptions { seed: 5, ..ExecOptions::default() }).unwrap();
    assert!(pawl_graph::executor::write_named(resumed.as_mut(), &checkpoint).unwrap().is_empty());
    step(resumed.as_mut(), &program, 2, 1e-2);
    assert_eq!(parameter(whole.as_mut(), "p"), parameter(resumed.as_mut(), "p"));
}
