//! The device of a rank: the CPU, or a GPU with Candle's kernels.

use crate::average::Average;
use crate::error::Result;
use candle_core::Device;
use pawl_contract::measured::Disturbance;
use pawl_launch::collective::Exchange;
use pawl_launch::ending::Ending;
use pawl_launch::gpu_reading::GpuReading;
use pawl_launch::launch::Launch;
use pawl_launch::place::Place;
use std::time::Duration;

/// Opens `place`. A preflight of GPU settings without a GPU builds its model on the CPU.
pub(crate) fn open(place: Place, preflight: bool) -> Result<Device> {
    match place {
        Place::Cpu => Ok(Device::Cpu),
        Place::AbsentGpu if preflight => Ok(Device::Cpu),
        Place::AbsentGpu => {
            Err(Ending::InvalidPlan("PAWL_DEVICE: cuda: only a preflight can run without a GPU: set cuda:N".to_owned()).into())
        }
        Place::Cuda(number) if cfg!(feature = "cuda") => Ok(Device::new_cuda(number)?),
        Place::Cuda(_) => Err(Ending::Unsupported(
            "PAWL_DEVICE: cuda: this program is built for the CPU: build it with the feature cuda of pawl-candle, or set \
             spec.trainer.gpusPerReplica to 0"
                .to_owned(),
        )
        .into()),
    }
}

/// Connects the GPU of this rank to those of the others; `None` on the CPU, whose ranks sum over TCP.
pub(crate) fn meet(
    device: &Device,
    launch: &Launch,
    exchange: &mut dyn Exchange,
    deadline: Duration,
) -> std::result::Result<Option<Average>, Ending> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        return Ok(Some(Average::Nccl(crate::nccl::Nccl::connect(gpu, launch, exchange, deadline)?)));
    }
    let _ = (device, launch, exchange, deadline);
    Ok(None)
}

/// Whether work on the device is queued, so that times are exact only after it was synchronized.
pub(crate) fn is_asynchronous(device: &Device) -> bool {
    !device.is_cpu()
}

/// UUID of the GPU, as `nvidia-smi -L` lists it; `None` on the CPU.
pub(crate) fn uuid(device: &Device) -> Option<String> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        let bytes = gpu.cuda_stream().context().uuid().ok()?.bytes;
        return Some(pawl_launch::straggler::gpu_uuid(bytes.map(|byte| byte as u8)));
    }
    let _ = device;
    None
}

/// Watches the GPU of a rank.
#[derive(Debug)]
pub(crate) struct Watch {
    #[cfg(feature = "cuda")]
    gpu: Option<pawl_launch::nvml::GpuWatch>,
}

impl Watch {
    /// Watches `device`; reads nothing on the CPU, or without NVML.
    #[cfg(feature = "cuda")]
    pub fn of(device: &Device) -> Self {
        let Device::Cuda(gpu) = device else { return Self { gpu: None } };
        let uuid = gpu.cuda_stream().context().uuid().ok().map(|uuid| uuid.bytes.map(|byte| byte as u8));
        let watch =
            uuid.ok_or_else(|| "the driver gives no UUID".to_owned()).and_then(pawl_launch::nvml::GpuWatch::start);
        Self { gpu: watch.inspect_err(|error| tracing::warn!(error, "the GPU is not watched")).ok() }
    }

    /// There is no GPU to watch.
    #[cfg(not(feature = "cuda"))]
    pub fn of(_: &Device) -> Self {
        Self {}
    }

    /// What disturbed the GPU so far.
    pub fn disturbance(&self) -> Disturbance {
        #[cfg(feature = "cuda")]
        return self.gpu.as_ref().map(pawl_launch::nvml::GpuWatch::disturbance).unwrap_or_default();
        #[cfg(not(feature = "cuda"))]
        Disturbance::default()
    }

    /// Clocks, temperature and power of the GPU; `None` on the CPU, or when unknown.
    pub fn reading(&self) -> Option<GpuReading> {
        #[cfg(feature = "cuda")]
        return self.gpu.as_ref()?.reading();
        #[cfg(not(feature = "cuda"))]
        None
    }
}

/// Peak memory in bytes: of the process on the CPU, of Candle's memory pool on a GPU; `None` when unknown.
pub(crate) fn peak_memory(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        return crate::nccl::peak_memory(gpu);
    }
    let _ = device;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}
