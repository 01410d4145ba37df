//! Sums over the GPUs of a gang with NCCL, on Candle's stream.

use crate::error::{Error, Result};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDevice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Shape, Tensor};
use cudarc::driver::sys::{CUevent_flags, CUmemPool_attribute, cuDeviceGetDefaultMemPool, cuMemPoolGetAttribute};
use cudarc::driver::{CudaEvent, CudaStream};
use cudarc::nccl::{Comm, Id, ReduceOp};
use pawl_launch::collective::Exchange;
use pawl_launch::ending::Ending;
use pawl_launch::launch::Launch;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

/// The communicator of a gang of GPUs, and the time that its kernels took.
pub(crate) struct Nccl {
    comm: Comm,
    stream: Arc<CudaStream>,
    world: usize,
    /// Events around each sum since the last call of [`Nccl::waited`].
    open: RefCell<Vec<(CudaEvent, CudaEvent)>>,
    waited: Cell<Duration>,
}

impl Nccl {
    /// Meets the other ranks: rank 0 makes the id of the communicator.
    pub fn connect(
        device: &CudaDevice,
        launch: &Launch,
        exchange: &mut dyn Exchange,
        deadline: Duration,
    ) -> std::result::Result<Self, Ending> {
        const KEY: &str = "candle/nccl";
        let lost = |problem: String| Ending::LostPeer(format!("cannot connect to the other GPUs: {problem}"));
        let failed = |call: &str, error: &dyn std::fmt::Debug| Ending::Failed(format!("NCCL, {call}: {error:?}"));
        if launch.rank == 0 {
            let id = Id::new().map_err(|e| failed("ncclGetUniqueId", &e))?;
            let bytes: Vec<u8> = id.internal().iter().map(|byte| *byte as u8).collect();
            exchange.put(KEY, &bytes).map_err(lost)?;
        }
        let bytes = exchange.get(KEY, deadline).map_err(lost)?;
        let internal = bytes.get(..128).ok_or_else(|| lost("the id of the communicator is too short".to_owned()))?;
        let id = Id::uninit(std::array::from_fn(|i| internal[i] as std::ffi::c_char));
        let stream = device.cuda_stream();
        let (rank, world) = (launch.rank as usize, launch.world_size as usize);
        let comm = Comm::from_rank(Arc::clone(&stream), rank, world, id).map_err(|e| failed("ncclCommInitRank", &e))?;
        Ok(Self { comm, stream, world, open: RefCell::default(), waited: Cell::default() })
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The sum of `values`, a contiguous vector of float32, over the gang.
    pub fn sum(&self, values: &Tensor) -> Result<Tensor> {
        let event = || {
            let event = self.stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
            event.record(&self.stream)?;
            Ok(event)
        };
        let event = || event().map_err(|e: cudarc::driver::DriverError| Error::Program(e.into()));
        let start = event()?;
        let sum = values.apply_op1_no_bwd(&Sum(&self.comm))?;
        self.open.borrow_mut().push((start, event()?));
        Ok(sum)
    }

    /// Time on the device from the start of each sum, when this rank was ready, to its end, when all ranks were; up to
    /// the newest sum that has ended.
    pub fn waited(&self) -> Duration {
        self.open.borrow_mut().retain(|(start, end)| {
            // Asking for the time between two events waits for both.
            if !end.try_is_complete().unwrap_or(false) {
                return true;
            }
            let milliseconds = start.elapsed_ms(end).unwrap_or(0.0).max(0.0);
            self.waited.set(self.waited.get() + Duration::from_secs_f64(f64::from(milliseconds) / 1e3));
            false
        });
        self.waited.get()
    }
}

/// The sum over the gang as an operation of Candle.
struct Sum<'a>(&'a Comm);

// SAFETY: a communicator may be used from any thread, one call at a time: calls are made by the thread that trains.
unsafe impl Send for Sum<'_> {}
// SAFETY: as above.
unsafe impl Sync for Sum<'_> {}

impl CustomOp1 for Sum<'_> {
    fn name(&self) -> &'static str {
        "nccl-sum"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        candle_core::bail!("NCCL sums tensors on GPUs only")
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        let device = storage.device().clone();
        let values = storage.as_cuda_slice::<f32>()?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("NCCL sums contiguous tensors only")
        };
        // SAFETY: every element is written by the sum before it is read, on the same stream.
        let mut sum = unsafe { device.alloc::<f32>(end - start) }?;
        let sent = self.0.all_reduce(&values.slice(start..end), &mut sum, &ReduceOp::Sum);
        sent.map_err(|error| candle_core::Error::msg(format!("NCCL, ncclAllReduce: {error:?}")))?;
        Ok((CudaStorage::wrap_cuda_slice(sum, device), layout.shape().clone()))
    }
}

/// Peak bytes in use of the memory pool from which Candle allocates.
pub(crate) fn peak_memory(device: &CudaDevice) -> Option<u64> {
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().ok()?;
    let mut pool = std::ptr::null_mut();
    let mut bytes = 0u64;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    // SAFETY: the context is current; `pool` and `bytes` are valid places, and the attribute is a 64-bit number.
    unsafe {
        cuDeviceGetDefaultMemPool(&mut pool, stream.context().cu_device()).result().ok()?;
        cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).result().ok()?;
    }
    Some(bytes)
}
