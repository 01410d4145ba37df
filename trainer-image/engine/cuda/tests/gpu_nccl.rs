//! Sums across two GPUs, one per thread.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use cudarc::driver::{result, sys};
use pawl_cuda::{
    Check as _, CudaGraph, Launching,
    device::{Device, Memory},
    nccl::Nccl,
};
use pawl_graph::{
    array::View,
    executor::{ExecError, ExecOptions, Executable as _},
    graph::{Builder, DType, Program},
};
use pawl_lower::CollectOp;

const ELEMENTS: usize = 1 << 20;

struct Rank {
    device: Arc<Device>,
    nccl: Arc<Nccl>,
}

impl Rank {
    fn memory(&self, values: &[f32]) -> Memory {
        let memory = self.device.allocate(4 * values.len()).unwrap();
        // SAFETY: as many bytes were allocated.
        unsafe { result::memcpy_htod_sync(memory.address(), values) }.unwrap();
        memory
    }

    fn values(&self, memory: &Memory) -> Vec<f32> {
        let mut values = vec![0.0; memory.len() / 4];
        // SAFETY: as many bytes were allocated.
        unsafe { result::memcpy_dtoh_sync(&mut values, memory.address()) }.unwrap();
        values
    }

    /// Sums `memory` over the ranks, in place, after the work queued in the stream.
    fn sum(&self, memory: &Memory) -> Result<(), ExecError> {
        let stream = self.device.stream();
        // SAFETY: the memory holds that many numbers, and lives until the caller has waited.
        let done = unsafe {
            self.nccl.start(CollectOp::AllReduce, memory.address(), memory.address(), memory.len() / 4, stream)
        }?;
        stream.wait(&done).check()
    }
}

/// Runs `body` as both ranks of a gang with this deadline.
fn both(deadline: Duration, body: impl Fn(&Rank) + Sync) {
    let id = Nccl::id().expect("the feature gpu is tested where there is NCCL");
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let body = &body;
            scope.spawn(move || {
                let device = Device::open(rank, None).expect("these tests need two GPUs");
                device.context().bind_to_thread().unwrap();
                let nccl = Nccl::connect(&device, id, rank, 2, deadline).unwrap();
                body(&Rank { device, nccl });
            });
        }
    });
}

#[test]
fn sums_are_the_same_everywhere_also_from_a_captured_graph() {
    both(Duration::from_secs(60), |rank| {
        let own: Vec<f32> = (0..ELEMENTS).map(|i| (i % 97 + 1) as f32 * (rank.nccl.rank() + 1) as f32).collect();
        let expected: Vec<f32> = (0..ELEMENTS).map(|i| (i % 97 + 1) as f32 * 3.0).collect();
        let memory = rank.memory(&own);
        rank.sum(&memory).unwrap();
        rank.nccl.wait(rank.device.stream()).unwrap();
        assert!(rank.values(&memory) == expected, "queued");

        let stream = rank.device.stream();
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        rank.sum(&memory).unwrap();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).unwrap().expect("something was captured");
        for times in [2.0, 4.0] {
            graph.launch().unwrap();
            rank.nccl.wait(stream).unwrap();
            let doubled: Vec<f32> = expected.iter().map(|x| x * times).collect();
            assert!(rank.values(&memory) == doubled, "captured, {times} times");
        }
    });
}

/// A program that doubles the sum of its input over the ranks.
fn summing() -> Program {
    let b = Builder::new("sum");
    let sum = b.input("x", DType::F32, [ELEMENTS]).all_reduce();
    b.output("y", sum + sum);
    b.finish().unwrap()
}

#[test]
fn the_rank_that_comes_first_waits_on_its_device_for_the_one_that_comes_late() {
    const LATE: Duration = Duration::from_millis(200);
    const RUNS: u32 = 4;
    let barrier = Barrier::new(2);
    for launching in [Launching::Streamed, Launching::Captured] {
        both(Duration::from_secs(60), |rank| {
            let gang = Some(Arc::clone(&rank.nccl));
            let executor = CudaGraph { launching, gang, ..CudaGraph::new(Arc::clone(&rank.device)) };
            let mut executable = executor.build(&[summing()], &ExecOptions::default()).unwrap();
            let mine = vec![1.0; ELEMENTS];
            let mut run = || {
                executable.run(0, &[View::F32(&mine)]).unwrap();
                assert_eq!(executable.output(0, 0).unwrap().to_f64()[0], 4.0);
                executable.collective_wait()
            };
            // The first runs compile, connect and capture.
            for _ in 0..3 {
                run();
            }
            let (start, mut waited) = (run(), Duration::ZERO);
            for _ in 0..RUNS {
                barrier.wait();
                if rank.nccl.rank() == 1 {
                    std::thread::sleep(LATE);
                }
                waited = run() - start;
            }
            match rank.nccl.rank() {
                0 => assert!(waited > (LATE * RUNS).mul_f64(0.9), "{launching:?}: waited {waited:?}"),
                _ => assert!(waited < LATE * RUNS / 10, "{launching:?}: waited {waited:?}"),
            }
        });
    }
}

#[test]
fn a_peer_that_stays_away_ends_the_wait_at_the_deadline() {
    let deadline = Duration::from_secs(3);
    let over = Barrier::new(2);
    both(deadline, |rank| {
        let memory = rank.memory(&[1.0; 1024]);
        rank.sum(&memory).unwrap();
        rank.nccl.wait(rank.device.stream()).unwrap();
        if rank.nccl.rank() == 0 {
            rank.sum(&memory).unwrap();
            let start = Instant::now();
            let error = rank.nccl.wait(rank.device.stream()).unwrap_err().to_string();
            assert!(error.contains("silent for 3 s"), "{error}");
            assert!(start.elapsed() < deadline + Duration::from_secs(2), "{:?}", start.elapsed());
            let again = rank.nccl.wait(rank.device.stream());
            assert!(again.is_err(), "a broken gang stays broken");
        }
        over.wait();
    });
}
