//! What the graph executor says about memory is what it takes; and a run takes none.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use pawl_cpu::{Buffers, GraphCpu};
use pawl_engine_tests::{Case, transformer};
use pawl_graph::{
    array::{Array, View},
    executor::{ExecError, ExecOptions, Executor},
    optim::{AdamW, Muon, Optimizer},
    recipe::{AttentionKernel, Recipe},
};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(size: usize) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    let now = NOW.fetch_add(size, Ordering::SeqCst) + size;
    PEAK.fetch_max(now, Ordering::SeqCst);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn case(attention: AttentionKernel, batch: usize) -> Case {
    let muon = Muon { weight_decay: 0.03, ..Muon::default() };
    let recipe = Recipe { attention, ..Recipe::new(Optimizer { matrices: Some(muon), others: AdamW::default() }) };
    let mut case = Case::new(recipe.step(&transformer(batch)).unwrap(), 1);
    *case.inputs.last_mut().unwrap() = Array::scalar(1e-3);
    case
}

/// One test, since the counters are the process's.
#[test]
fn runs_allocate_nothing_and_the_predicted_peak_is_the_measured_one() {
    what_does_not_fit_is_refused_before_it_is_allocated();
    for attention in [AttentionKernel::Math, AttentionKernel::Flash] {
        let case = case(attention, 20_000);
        let views: Vec<View<'_>> = case.inputs.iter().map(Array::view).collect();
        for buffers in [Buffers::Planned, Buffers::Pooled] {
            let before = NOW.load(Ordering::SeqCst);
            let executor = GraphCpu { threads: 2, buffers, ..GraphCpu::default() };
            let mut exe = executor.compile(std::slice::from_ref(&case.program), &ExecOptions::default()).unwrap();
            PEAK.store(NOW.load(Ordering::SeqCst), Ordering::SeqCst);
            exe.run(0, &views).unwrap();
            let calls = CALLS.load(Ordering::SeqCst);
            for _ in 0..3 {
                exe.run(0, &views).unwrap();
            }
            if buffers == Buffers::Planned {
                assert_eq!(CALLS.load(Ordering::SeqCst), calls, "a run allocated");
            }
            let report = exe.memory();
            let off = |x: usize, y: usize| (x as f64 / y as f64 - 1.0).abs();
            assert!(off(report.peak, report.planned) <= 0.02, "{buffers:?}: {report:?}");
            // What the process took, tables and code of kernels (2 MB, whatever the batch) included.
            let taken = PEAK.load(Ordering::SeqCst) - before;
            assert!(off(taken, report.planned) <= 0.02, "{buffers:?}: {taken} of {report:?}");
        }
    }
}

fn what_does_not_fit_is_refused_before_it_is_allocated() {
    let case = case(AttentionKernel::Math, 4);
    let options = ExecOptions { memory_limit: Some(10_000), ..ExecOptions::default() };
    let error = GraphCpu::default().compile(&[case.program], &options).map(|_| ()).unwrap_err();
    assert!(matches!(error, ExecError::OutOfMemory { needed, limit: 10_000 } if needed > 10_000), "{error}");
}
