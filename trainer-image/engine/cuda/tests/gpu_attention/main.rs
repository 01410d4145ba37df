//! The attention kernels on a GPU against float64, at sizes and views that match no tile.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod case;
mod reference;

use std::sync::Arc;

use case::{Case, RESULTS, launch};
use pawl_cuda::{
    Card,
    attention::{self, Family},
    cudnn::{self, Cudnn},
    device::{Device, Memory},
};
use pawl_graph::{executor::ExecError, graph::DType};
use pawl_lower::{AttentionGrad, Buffer};
use reference::Expected;

type Launched = Result<(), ExecError>;

fn device() -> Arc<Device> {
    Device::open(0, None).expect("the feature gpu is tested where there is a GPU")
}

/// Root mean square of the error over that of the reference, at most.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 8e-3,
        DType::F16 => 1.2e-3,
        DType::F32 => 2e-6,
        _ => 1e-13,
    }
}

/// Both passes by generated kernels, which are to be of `family`.
fn generated(device: &Arc<Device>, family: Family) -> impl Fn(&AttentionGrad, &[Buffer], &[Memory]) -> Launched {
    let card = Card::H200;
    move |kernel, buffers, memory| {
        let forward = attention::forward(&kernel.forward, buffers, card)?;
        for plan in [forward, attention::backward(kernel, buffers, card)?] {
            assert_eq!(plan.family, family);
            launch(device, &plan, memory)?;
        }
        Ok(())
    }
}

/// Both passes by cuDNN.
fn by_cudnn(device: &Arc<Device>) -> impl Fn(&AttentionGrad, &[Buffer], &[Memory]) -> Launched {
    let cudnn = Cudnn::open(device).expect("cuDNN and libpawl_cudnn.so are on the machine");
    move |kernel, buffers, memory| {
        let mut plans = cudnn::CudnnPlans::new(Some(Arc::clone(&cudnn)), true);
        let addresses: Vec<u64> = memory.iter().map(Memory::address).collect();
        for plan in [plans.forward(&kernel.forward, buffers), plans.backward(kernel, buffers)] {
            let plan = plan.expect("cuDNN takes it");
            let workspace = device.allocate(plan.workspace())?;
            // SAFETY: memory and workspace live until the stream is idle.
            unsafe { plan.enqueue(&addresses, workspace.address()) }?;
            device.synchronize()?;
        }
        Ok(())
    }
}

fn check(device: &Arc<Device>, launches: impl Fn(&AttentionGrad, &[Buffer], &[Memory]) -> Launched, cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let run = case.run(device, &launches).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        for ((what, _), (got, expected)) in RESULTS.iter().zip(run.values.iter().zip(&case.reference(&run.values[0]))) {
            // Where a value that goes in is rounded the other way, the sum over all of a row moves a little.
            let of_sum = if case.normed { 1e-4 } else { 1e-5 };
            let limit = if *what == "lse" { bound(case.dtype).min(of_sum) } else { bound(case.dtype) };
            let error = relative(got, expected);
            println!("{case:?} {what}: {error:.1e}");
            if error.is_nan() || error > limit {
                wrong.push(format!("{case:?}: {what} is wrong by {error:.2e} (bound {limit:.0e})"));
            }
        }
        assert_eq!(run.touched_outside, 0, "{case:?}: bytes outside of the views were written");
        assert_eq!(case.run(device, &launches).unwrap().values, run.values, "{case:?}: a second run differs");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn relative(got: &[f64], expected: &Expected) -> f64 {
    assert_eq!(got.len(), expected.values.len());
    let (mut error, mut size) = (0.0, 0.0);
    for ((g, e), s) in got.iter().zip(&expected.values).zip(&expected.sizes).filter(|((g, e), _)| g != e) {
        error += (g - e) * (g - e);
        size += s * s;
    }
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}

const B: DType = DType::BF16;
const H: DType = DType::F16;
const F: DType = DType::F32;

#[test]
fn one_tile() {
    let device = device();
    check(
        &device,
        generated(&device, Family::Tile),
        &[
            Case::new(B, [3, 8, 8, 128, 128, 48], false).packed(),
            Case::new(H, [2, 4, 4, 128, 128, 64], false).packed(),
            Case::new(B, [2, 4, 4, 128, 128, 64], true).packed(),
            Case::new(B, [2, 3, 3, 100, 77, 32], false),
            Case::new(B, [2, 4, 2, 60, 90, 48], true),
            Case::new(H, [1, 6, 2, 17, 128, 16], false).packed(),
            Case::new(B, [1, 2, 1, 128, 128, 128], true),
            Case::new(B, [5, 2, 2, 1, 5, 80], false),
            Case::new(B, [1, 2, 2, 70, 33, 64], true),
            Case::new(B, [2, 2, 2, 1, 1, 16], true),
        ],
    );
}

#[test]
fn any_length() {
    let device = device();
    check(
        &device,
        generated(&device, Family::Flash),
        &[
            Case::new(B, [1, 4, 2, 300, 300, 64], true).packed(),
            Case::new(H, [2, 3, 3, 129, 257, 48], false),
            Case::new(B, [1, 4, 1, 320, 320, 128], true).packed(),
            Case::new(B, [1, 2, 2, 200, 150, 64], true),
            Case::new(B, [1, 2, 1, 7, 700, 96], false),
            Case::new(B, [1, 2, 1, 700, 7, 16], false),
            Case::new(H, [1, 2, 2, 65, 1000, 128], true),
        ],
    );
}

#[test]
fn without_tensor_cores() {
    let device = device();
    check(
        &device,
        generated(&device, Family::Plain),
        &[
            Case::new(F, [2, 4, 2, 100, 77, 48], false).packed(),
            Case::new(F, [1, 4, 4, 128, 128, 64], true),
            Case::new(F, [1, 2, 2, 33, 65, 20], true),
            Case::new(F, [1, 2, 1, 70, 33, 5], true),
            Case::new(B, [1, 2, 2, 33, 65, 20], true),
            Case::new(H, [1, 2, 1, 33, 65, 200], false),
            Case::new(DType::F64, [1, 2, 1, 40, 50, 24], true),
        ],
    );
}

#[test]
fn over_normalised_heads() {
    let device = device();
    check(
        &device,
        generated(&device, Family::Tile),
        &[
            Case::new(B, [3, 8, 8, 128, 128, 48], false).packed().normed(),
            Case::new(H, [2, 3, 3, 128, 128, 64], true).packed().normed(),
            Case::new(B, [2, 3, 3, 100, 77, 32], false).normed(),
            Case::new(H, [1, 4, 4, 37, 37, 16], true).normed(),
            Case::new(H, [5, 2, 2, 1, 5, 80], false).normed(),
            Case::new(B, [1, 2, 2, 128, 128, 128], false).normed(),
        ],
    );
}

#[test]
fn by_cudnn_where_it_is_faster() {
    let device = device();
    check(
        &device,
        by_cudnn(&device),
        &[
            Case::new(B, [1, 4, 2, 300, 300, 64], true).packed(),
            Case::new(H, [2, 3, 3, 129, 257, 48], false),
            Case::new(B, [1, 4, 1, 320, 320, 128], true).packed(),
            Case::new(B, [2, 12, 4, 1024, 1024, 64], true).packed(),
            Case::new(H, [1, 2, 2, 7, 700, 96], false),
        ],
    );
}
