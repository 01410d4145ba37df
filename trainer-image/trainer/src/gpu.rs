//! The GPU of a rank.

use crate::collective::Exchange;
use crate::ending::Ending;
use crate::executors;
use crate::nvml::BusyTime;
use pawl_contract::settings::{Compile, OptimizerOffload, Precision, Settings};
use pawl_cuda::{Choices, CudaGraph, Launching, cudnn::Cudnn, device::Device, nccl::Nccl};
use pawl_graph::executor::{ExecError, MemoryReport};
use pawl_graph::graph::Program;
use pawl_lower::LowerOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Key of the gang's exchange under which rank 0 leaves NCCL's meeting point.
const MEETING: &str = "nccl";

/// An opened GPU.
pub struct Gpu {
    device: Arc<Device>,
    cudnn: Option<Arc<Cudnn>>,
    nccl: Option<Arc<Nccl>>,
    busy: Option<BusyTime>,
}

impl Gpu {
    /// Opens visible GPU `number`. Compiled kernels and tuned products are kept in `cache`.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] when there is no such GPU, or driver or a library are missing or too old.
    pub fn open(number: usize, cache: &Path) -> Result<Self, Ending> {
        let device = Device::open(number, Some(cache.to_owned())).map_err(|error| match error {
            // No work has begun: whatever is wrong, it is this machine that cannot do what is asked.
            ExecError::Device(message) => Ending::Unsupported(format!("GPU {number}: {message}")),
            other => Ending::from(other),
        })?;
        let (name, memory) = (device.name(), device.memory() >> 20);
        tracing::info!(gpu = name, mebibytes = memory, cache = %cache.display(), "using");
        let cudnn = match Cudnn::open(&device) {
            Ok(cudnn) => {
                tracing::info!(version = cudnn.version(), "cuDNN is there for attention of long sequences");
                Some(cudnn)
            }
            Err(error) => {
                tracing::warn!(%error, "no cuDNN: attention of long sequences is left to generated kernels, which are slower");
                None
            }
        };
        let uuid = device.context().uuid().ok().map(|uuid| uuid.bytes.map(|byte| byte as u8));
        let busy = uuid.and_then(BusyTime::watch);
        if busy.is_none() {
            tracing::warn!("the driver's management library is not there: reports will not say how busy the GPU is");
        }
        Ok(Self { device, cudnn, nccl: None, busy })
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// For how long the GPU has been busy; `None` when nobody says.
    pub fn busy_time(&self) -> Option<Duration> {
        self.busy.as_ref().map(BusyTime::so_far)
    }

    /// Bytes of device memory that are free now.
    pub fn free_memory(&self) -> Option<usize> {
        self.device.free_memory().ok()
    }

    /// Meets the other ranks' GPUs.
    ///
    /// # Errors
    /// [`Ending::LostPeer`] when not all came within `deadline`; [`Ending::Unsupported`] when there is no NCCL.
    pub fn meet(
        &mut self,
        rank: u32,
        world_size: u32,
        exchange: &mut dyn Exchange,
        deadline: Duration,
    ) -> Result<(), Ending> {
        let lost = |problem: String| Ending::LostPeer(format!("cannot meet the other ranks' GPUs: {problem}"));
        let id = if rank == 0 {
            let id = Nccl::id()?;
            exchange.put(MEETING, &id).map_err(lost)?;
            id
        } else {
            let id = exchange.get(MEETING, deadline).map_err(lost)?;
            id.try_into().map_err(|_| lost("rank 0's meeting point is malformed".to_owned()))?
        };
        let nccl = Nccl::connect(&self.device, id, rank as usize, world_size as usize, deadline)?;
        tracing::info!(version = Nccl::version()?, rank, world_size, "met by NCCL");
        self.nccl = Some(nccl);
        Ok(())
    }

    /// The executor that `settings` ask for. `compile: None` queues a kernel for each operator, `Fuse` fused kernels, `Graph` all of a program at
    /// once as a CUDA graph. With `deterministic`, algorithms of products are not chosen by timing, which may come out differently from run to run,
    /// and cuDNN's attention is told to give the same bits; all else does in any case.
    pub fn executor(&self, settings: &Settings) -> CudaGraph {
        let device = Arc::clone(&self.device);
        let base = match settings.compile.unwrap_or_default() {
            Compile::None => CudaGraph::unfused(device),
            Compile::Fuse => CudaGraph { launching: Launching::Streamed, ..CudaGraph::new(device) },
            Compile::Graph => CudaGraph::new(device),
        };
        CudaGraph {
            lowering: lowering(settings),
            tf32: rounds_to_tf32(settings),
            tune: base.tune && settings.deterministic != Some(true),
            offload: offloads(settings),
            deterministic: settings.deterministic == Some(true),
            pinned: settings.loader_pinned == Some(true),
            cudnn: self.cudnn.clone(),
            gang: self.nccl.clone(),
            ..base
        }
    }
}

/// Bytes that `programs` will take on a GPU with `settings`, found without one.
///
/// # Errors
/// When no kernel computes something.
pub fn predict(programs: &[Program], settings: &Settings) -> Result<MemoryReport, ExecError> {
    let (tf32, offload) = (rounds_to_tf32(settings), offloads(settings));
    pawl_cuda::predict(programs, Choices { lowering: &lowering(settings), tf32, offload })
}

/// `compile: None` fuses nothing at all.
fn lowering(settings: &Settings) -> LowerOptions {
    let mut lowering = executors::lowering(settings);
    if settings.compile.unwrap_or_default() == Compile::None {
        lowering.unfused.push(LowerOptions::EVERYTHING.into());
    }
    lowering
}

fn rounds_to_tf32(settings: &Settings) -> bool {
    settings.precision == Some(Precision::Tf32)
}

fn offloads(settings: &Settings) -> bool {
    settings.optimizer_offload == Some(OptimizerOffload::Cpu)
}
