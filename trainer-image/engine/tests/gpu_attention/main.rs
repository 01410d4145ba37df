//! The attention kernels on a GPU against float64, at sizes and views that fit nothing well.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod case;
mod reference;

use std::sync::Arc;

use case::Case;
use pawl_engine::{
    cuda::{attention::Family, device::Device},
    graph::DType,
};

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

fn check(family: Family, cases: &[Case]) {
    let device = device();
    for case in cases {
        let run = case.run(&device).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        assert_eq!(run.families, [family; 2], "{case:?}");
        let expected = case.reference();
        for (what, (got, expected)) in ["o", "lse", "dq", "dk", "dv"].iter().zip(run.values.iter().zip(&expected)) {
            let limit = if *what == "lse" { bound(case.dtype).min(1e-5) } else { bound(case.dtype) };
            let error = relative(got, expected);
            println!("{case:?} {what}: {error:.1e}");
            assert!(error <= limit, "{case:?}: {what} is wrong by {error:.2e} (bound {limit:.0e})");
        }
        assert_eq!(run.touched_outside, 0, "{case:?}: bytes outside of the views were written");
        assert_eq!(case.run(&device).unwrap().values, run.values, "{case:?}: a second run differs");
    }
}

fn relative(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let (mut error, mut size) = (0.0, 0.0);
    for (g, e) in got.iter().zip(expected).filter(|(g, e)| g != e) {
        error += (g - e) * (g - e);
        size += e * e;
    }
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}

const B: DType = DType::BF16;
const H: DType = DType::F16;
const F: DType = DType::F32;

#[test]
fn one_tile() {
    check(
        Family::Tile,
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
    check(
        Family::Flash,
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
    check(
        Family::Plain,
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
