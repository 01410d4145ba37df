//! Collectives across GPUs with NCCL, queued on their own stream, so that they overlap the rest of a step.
//!
//! Sums are reproducible from run to run on the same machines, but not computed in rank order as those of
//! [`Collective`](pawl_graph::collective::Collective): N ranks agree with one rank that accumulates up to rounding.
//!
//! NCCL does not report a lost peer: its kernels wait forever. Therefore executables with a gang do not wait for the
//! device directly, but through [`Nccl::wait`], which gives up after the deadline and aborts NCCL's kernels.

use std::{
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use cudarc::{
    driver::{CudaEvent, CudaStream},
    nccl::{
        result::{self, NcclError},
        sys,
    },
};

use super::{
    device::Device,
    error::{Check as _, missing},
};
use pawl_graph::{collective::CollectiveError, executor::ExecError};
use pawl_lower::CollectOp;

/// Size in bytes of the id under which ranks meet.
pub const ID: usize = 128;
/// Time that a wait spins before it sleeps between polls.
const SPIN: Duration = Duration::from_micros(200);
/// Time between polls of the device.
const LOOK: Duration = Duration::from_micros(50);
/// Time between polls of NCCL's state.
const HEALTH: Duration = Duration::from_millis(100);

/// One rank of a gang of GPUs.
pub struct Nccl {
    comm: Comm,
    /// Collectives run here.
    stream: Arc<CudaStream>,
    rank: usize,
    world: usize,
    deadline: Duration,
    broken: AtomicBool,
    device: Arc<Device>,
}

struct Comm(sys::ncclComm_t);

// SAFETY: NCCL allows a communicator to be used from any thread, one call at a time; calls are made by the one thread
// that runs programs, and `ncclCommAbort` and `ncclCommGetAsyncError` may come at any time.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Nccl {
    /// A new id of a communicator (`ncclUniqueId`): rank 0 creates it and sends it to the other ranks.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] when there is no NCCL.
    pub fn id() -> Result<[u8; ID], ExecError> {
        present()?;
        let id = result::get_uniqueid().map_err(|e| failed("ncclGetUniqueId", &e))?;
        Ok(id.internal.map(|byte| byte as u8))
    }

    /// NCCL's version: `2.28.9`.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] when there is no NCCL.
    pub fn version() -> Result<String, ExecError> {
        present()?;
        let number = result::get_nccl_version().map_err(|e| failed("ncclGetVersion", &e))?;
        Ok(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
    }

    /// Creates the communicator `id` together with the other ranks of the gang; each rank has its own GPU. `deadline`
    /// bounds this call, and later each [`Nccl::wait`].
    ///
    /// # Errors
    /// [`CollectiveError::Timeout`] when not all ranks joined in time; [`ExecError::Device`] when NCCL fails.
    pub fn connect(
        device: &Arc<Device>,
        id: [u8; ID],
        rank: usize,
        world: usize,
        deadline: Duration,
    ) -> Result<Arc<Self>, ExecError> {
        present()?;
        let stream = device.context().new_stream().check()?;
        let (done, meeting) = mpsc::channel();
        let context = Arc::clone(device.context());
        // NCCL's own meeting has no deadline. If it fails to return, the thread stays behind until the process ends,
        // which is at once.
        std::thread::spawn(move || {
            let mut comm = Comm(std::ptr::null_mut());
            let id = sys::ncclUniqueId { internal: id.map(|byte| byte as std::ffi::c_char) };
            let met = context.bind_to_thread().check().and_then(|()| {
                // SAFETY: `comm` is a valid place; the context is current.
                unsafe { result::comm_init_rank(&mut comm.0, world as i32, id, rank as i32) }
                    .map_err(|e| failed("ncclCommInitRank", &e))
            });
            let _ = done.send(met.map(|_| comm));
        });
        let comm = match meeting.recv_timeout(deadline) {
            Ok(comm) => comm?,
            Err(_) => return Err(CollectiveError::Timeout { seconds: deadline.as_secs() }.into()),
        };
        let broken = AtomicBool::new(false);
        Ok(Arc::new(Self { comm, stream, rank, world, deadline, broken, device: Arc::clone(device) }))
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Queues a collective over `elements` float32 values at `from`, to start when the work queued in `after` so far is
    /// done. The returned event is reached when the result is at `to`; a stream that reads `to` or overwrites either
    /// must wait for it. Can be captured.
    ///
    /// # Safety
    /// Until then, `from` must be valid for `elements` values, and `to` for `elements` (all-reduce), `elements / world`
    /// (reduce-scatter) or `elements * world` (all-gather) values.
    ///
    /// # Errors
    /// When NCCL rejects the call.
    pub unsafe fn start(
        &self,
        op: CollectOp,
        from: u64,
        to: u64,
        elements: usize,
        after: &CudaStream,
    ) -> Result<CudaEvent, ExecError> {
        self.stream.wait(&after.record_event(None).check()?).check()?;
        let (source, target) = (from as *const c_void, to as *mut c_void);
        let (float, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
        let stream = self.stream.cu_stream().cast();
        // SAFETY: the caller's promise; the communicator is live.
        unsafe {
            match op {
                CollectOp::AllReduce => result::all_reduce(source, target, elements, float, sum, self.comm.0, stream),
                CollectOp::ReduceScatter => {
                    result::reduce_scatter(source, target, elements / self.world, float, sum, self.comm.0, stream)
                }
                CollectOp::AllGather => result::all_gather(source, target, elements, float, self.comm.0, stream),
            }
        }
        .map_err(|e| failed(&format!("{op:?}"), &e))?;
        self.stream.record_event(None).check()
    }

    /// Waits until everything in `stream` is done.
    ///
    /// # Errors
    /// [`CollectiveError::Timeout`] when that takes longer than the deadline, or when NCCL has lost a peer: the
    /// communicator is aborted and cannot be used again. [`ExecError::Device`] when queued work failed.
    pub fn wait(&self, stream: &CudaStream) -> Result<(), ExecError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(CollectiveError::Timeout { seconds: self.deadline.as_secs() }.into());
        }
        let reached = stream.record_event(None).check()?;
        let start = Instant::now();
        let mut looked = start;
        while !reached.try_is_complete().check()? {
            if start.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(LOOK);
            if start.elapsed() > self.deadline {
                self.abort();
                return Err(CollectiveError::Timeout { seconds: self.deadline.as_secs() }.into());
            }
            if looked.elapsed() > HEALTH {
                looked = Instant::now();
                self.healthy()?;
            }
        }
        Ok(())
    }

    /// The asynchronous error state of NCCL's communicator.
    fn healthy(&self) -> Result<(), ExecError> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is live, `state` a valid place.
        unsafe { sys::ncclCommGetAsyncError(self.comm.0, &mut state) }
            .result()
            .map_err(|e| failed("ncclCommGetAsyncError", &e))?;
        match state {
            sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress => Ok(()),
            sys::ncclResult_t::ncclRemoteError | sys::ncclResult_t::ncclSystemError => {
                self.abort();
                Err(CollectiveError::Transport(format!("NCCL lost a peer ({state:?})")).into())
            }
            other => {
                self.abort();
                Err(ExecError::Device(format!("NCCL: {other:?}")))
            }
        }
    }

    /// Aborts NCCL's kernels.
    fn abort(&self) {
        if !self.broken.swap(true, Ordering::Relaxed) {
            // SAFETY: the communicator is live, and from now on not used.
            let _ = unsafe { result::comm_abort(self.comm.0) };
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // Peers may be gone: an orderly shutdown would wait for them.
        if self.device.context().bind_to_thread().is_ok() {
            self.abort();
        }
    }
}

fn present() -> Result<(), ExecError> {
    // SAFETY: only opens and closes the library.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(missing("libnccl.so", "pip install nvidia-nccl-cu13==2.28.9, and make libnccl.so a link to its libnccl.so.2"))
}

fn failed(call: &str, error: &NcclError) -> ExecError {
    let remedy = match error.0 {
        sys::ncclResult_t::ncclInvalidUsage => "; two ranks may share a GPU: give each its own",
        sys::ncclResult_t::ncclSystemError | sys::ncclResult_t::ncclRemoteError => {
            "; set NCCL_DEBUG=INFO in settings.nccl to see why"
        }
        _ => "",
    };
    ExecError::Device(format!("NCCL, {call}: {:?}{remedy}", error.0))
}
