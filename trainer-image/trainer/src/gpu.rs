//! The GPU of a rank.

use crate::collective::Exchange;
use crate::ending::Ending;
use crate::executors;
use pawl_contract::measured::Disturbance;
use pawl_contract::provenance::{Gpu as Model, Provenance};
use pawl_contract::settings::{Compile, OptimizerOffload, Precision, Settings};
use pawl_cuda::device::{self, Device};
use pawl_cuda::{Choices, CudaGraph, Launching, cudnn::Cudnn, nccl::Nccl};
use pawl_graph::executor::{ExecError, MemoryReport};
use pawl_graph::graph::Program;
use pawl_launch::gpu_reading::GpuReading;
use pawl_launch::nvml::GpuWatch;
use pawl_launch::straggler::gpu_uuid;
use pawl_lower::LowerOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Key of the gang's exchange under which rank 0 stores NCCL's unique id.
const MEETING: &str = "nccl";

/// An opened GPU.
pub struct Gpu {
    device: Arc<Device>,
    cudnn: Option<Arc<Cudnn>>,
    nccl: Option<Arc<Nccl>>,
    watch: Option<GpuWatch>,
}

impl Gpu {
    /// Opens visible GPU `number`. Compiled kernels and tuned products are kept in `cache`.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] when there is no such GPU, or the driver or a library is missing or too old.
    pub fn open(number: usize, cache: &Path) -> Result<Self, Ending> {
        let device = Device::open(number, Some(cache)).map_err(|error| match error {
            // Before any work, every error means that this machine is not supported.
            ExecError::Device(message) => Ending::Unsupported(format!("GPU {number}: {message}")),
            other => Ending::from(other),
        })?;
        let (name, memory) = (device.name(), device.memory() >> 20);
        tracing::info!(gpu = name, mebibytes = memory, cache = %cache.display(), "using");
        let cudnn = match Cudnn::open(&device) {
            Ok(cudnn) => {
                tracing::info!(version = cudnn.version(), "using cuDNN for attention of long sequences");
                Some(cudnn)
            }
            Err(error) => {
                tracing::warn!(%error, "cuDNN is missing: attention of long sequences uses generated kernels, which are slower");
                None
            }
        };
        let uuid = device.context().uuid().ok().map(|uuid| uuid.bytes.map(|byte| byte as u8));
        let watch = uuid.ok_or_else(|| "the driver gives no UUID".to_owned()).and_then(GpuWatch::start);
        let watch = watch.inspect_err(|error| tracing::warn!(error, "reports will lack the GPU utilization")).ok();
        Ok(Self { device, cudnn, nccl: None, watch })
    }

    /// The driver's name of the GPU.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// What the driver and the libraries say of themselves.
    pub fn provenance(&self) -> Provenance {
        let (name, memory) = (self.device.name().to_owned(), self.device.memory() as u64);
        let cudnn = self.cudnn.iter().map(|cudnn| ("cudnn".to_owned(), cudnn.version().to_string()));
        Provenance {
            gpu: Some(Model { name: Some(name), memory_bytes: Some(memory), count: None }),
            cuda: Some(format!("{}.{}", device::CUDA / 1000, device::CUDA % 1000 / 10)),
            libraries: cudnn.collect(),
            ..Provenance::default()
        }
    }

    /// UUID of the GPU, as `nvidia-smi -L` lists it: `GPU-` and hexadecimal digits in groups.
    pub fn uuid(&self) -> Option<String> {
        let bytes = self.device.context().uuid().ok()?.bytes;
        Some(gpu_uuid(bytes.map(|byte| byte as u8)))
    }

    /// Time for which the GPU has been busy; `None` when unknown.
    pub fn busy_time(&self) -> Option<Duration> {
        self.watch.as_ref()?.busy_time()
    }

    /// What disturbed the GPU so far.
    pub fn disturbance(&self) -> Disturbance {
        self.watch.as_ref().map(GpuWatch::disturbance).unwrap_or_default()
    }

    /// Clocks, temperature and power of the GPU; `None` when unknown.
    pub fn reading(&self) -> Option<GpuReading> {
        self.watch.as_ref()?.reading()
    }

    /// Free device memory in bytes.
    pub fn free_memory(&self) -> Option<usize> {
        self.device.free_memory().ok()
    }

    /// Initializes NCCL with the GPUs of the other ranks.
    ///
    /// # Errors
    /// [`Ending::LostPeer`] when not all ranks joined within `deadline`; [`Ending::Unsupported`] when NCCL is missing.
    pub fn meet(
        &mut self,
        rank: u32,
        world_size: u32,
        exchange: &mut dyn Exchange,
        deadline: Duration,
    ) -> Result<(), Ending> {
        let lost = |problem: String| Ending::LostPeer(format!("cannot connect to the other ranks' GPUs: {problem}"));
        let id = if rank == 0 {
            let id = Nccl::id()?;
            exchange.put(MEETING, &id).map_err(lost)?;
            id
        } else {
            let id = exchange.get(MEETING, deadline).map_err(lost)?;
            id.try_into().map_err(|_| lost("the NCCL unique id of rank 0 is malformed".to_owned()))?
        };
        let nccl = Nccl::connect(&self.device, id, rank as usize, world_size as usize, deadline)?;
        tracing::info!(version = Nccl::version()?, rank, world_size, "connected by NCCL");
        self.nccl = Some(nccl);
        Ok(())
    }

    /// The executor that `settings` select. `compile: None` launches a kernel per operator, `Fuse` fused kernels,
    /// `Graph` a whole program as a CUDA graph. With `deterministic`, algorithms of matrix products are not chosen by
    /// timing, which may vary between runs, and cuDNN's attention is configured to be deterministic; all other kernels
    /// always are.
    pub fn executor(&self, settings: &Settings) -> CudaGraph {
        let device = Arc::clone(&self.device);
        let base = match settings.compile() {
            Compile::None => CudaGraph::unfused(device),
            Compile::Fuse => CudaGraph { launching: Launching::Streamed, ..CudaGraph::new(device) },
            Compile::Graph => CudaGraph::new(device),
        };
        CudaGraph {
            lowering: lowering(settings),
            tf32: rounds_to_tf32(settings),
            tune: base.tune && !settings.deterministic(),
            offload: offloads(settings),
            deterministic: settings.deterministic(),
            pinned: settings.loader_pinned(),
            cudnn: self.cudnn.clone(),
            gang: self.nccl.clone(),
            ..base
        }
    }
}

/// Memory in bytes that `programs` need on a GPU with `settings`, predicted without a GPU.
///
/// # Errors
/// When an operation has no kernel.
pub fn predict(programs: &[Program], settings: &Settings) -> Result<MemoryReport, ExecError> {
    let (tf32, offload) = (rounds_to_tf32(settings), offloads(settings));
    pawl_cuda::predict(programs, Choices { lowering: &lowering(settings), tf32, offload })
}

/// `compile: None` fuses nothing.
fn lowering(settings: &Settings) -> LowerOptions {
    let mut lowering = executors::lowering(settings);
    if settings.compile() == Compile::None {
        lowering.unfused.push(LowerOptions::EVERYTHING.into());
    }
    lowering
}

fn rounds_to_tf32(settings: &Settings) -> bool {
    settings.precision() == Precision::Tf32
}

fn offloads(settings: &Settings) -> bool {
    settings.optimizer_offload() == OptimizerOffload::Cpu
}
