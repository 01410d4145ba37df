//! The device of a rank: the CPU, or one GPU.

use crate::collective::Exchange;
use crate::ending::Ending;
use crate::executors;
use crate::throughput::{Devices, processor_time};
use pawl_contract::env;
use pawl_contract::measured::Disturbance;
use pawl_contract::provenance::Provenance;
use pawl_contract::settings::Settings;
use pawl_graph::executor::{Executor, MemoryReport};
use pawl_graph::graph::Program;
use pawl_launch::gpu_reading::GpuReading;
use std::path::Path;
use std::time::Duration;

pub use pawl_launch::place::Place;

#[cfg(feature = "cuda")]
use crate::gpu::Gpu;

/// An opened [`Place`].
pub enum RankDevice {
    /// The CPU.
    Cpu,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(Gpu),
    /// A GPU with Candle's kernels.
    #[cfg(feature = "candle-cuda")]
    Candle(pawl_eager::Eager),
}

impl RankDevice {
    /// Opens `place`. `cache` is the directory of the persistent kernel cache.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] with the remedy when there is no such GPU, its driver or a library is missing, or this
    /// trainer is built without CUDA: there is no fallback from a GPU to the CPU.
    pub fn open(place: Place, cache: &Path) -> Result<Self, Ending> {
        match place {
            Place::Cpu => Ok(Self::Cpu),
            #[cfg(feature = "cuda")]
            Place::Cuda(number) => Ok(Self::Cuda(Gpu::open(number, cache)?)),
            #[cfg(feature = "candle-cuda")]
            Place::Cuda(number) => {
                let _ = cache;
                pawl_eager::Eager::cuda(number)
                    .map(Self::Candle)
                    .map_err(|error| Ending::Unsupported(error.to_string()))
            }
            #[cfg(not(any(feature = "cuda", feature = "candle-cuda")))]
            Place::Cuda(_) => {
                let _ = cache;
                Err(without_cuda())
            }
            Place::AbsentGpu => Err(Ending::InvalidPlan(format!(
                "{}: cuda: only a preflight can run without a GPU: set cuda:N",
                env::DEVICE
            ))),
        }
    }

    /// The executor that `settings.compile` names.
    pub fn executor(&self, settings: &Settings) -> Box<dyn Executor> {
        match self {
            Self::Cpu => executors::on_cpu(settings),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => Box::new(gpu.executor(settings)),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(eager) => Box::new(eager.clone()),
        }
    }

    /// Connects to the devices of the other ranks, where collectives run directly between devices.
    ///
    /// # Errors
    /// [`Ending::LostPeer`] when not all ranks joined within `deadline`; [`Ending::Unsupported`] when a library is
    /// missing.
    pub fn meet(
        &mut self,
        rank: u32,
        world_size: u32,
        exchange: &mut dyn Exchange,
        deadline: Duration,
    ) -> Result<(), Ending> {
        match self {
            Self::Cpu => {
                let _ = (rank, world_size, exchange, deadline);
                Ok(())
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.meet(rank, world_size, exchange, deadline),
            // Its sums go through host memory and TCP.
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => Ok(()),
        }
    }

    /// UUID of the GPU, as `nvidia-smi -L` lists it; `None` on the CPU, or when the driver gives none.
    pub fn uuid(&self) -> Option<String> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.uuid(),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => None,
        }
    }

    /// What the driver and the libraries of the device say of themselves; `None` on the CPU.
    pub fn provenance(&self) -> Option<Provenance> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => Some(gpu.provenance()),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => None,
        }
    }

    /// Busy time so far, summed over [`RankDevice::devices`].
    pub fn busy_time(&self) -> Duration {
        match self {
            Self::Cpu => processor_time(),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.busy_time().unwrap_or_default(),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => Duration::ZERO,
        }
    }

    /// Clocks, temperature and power of the GPU; `None` on the CPU, or when unknown.
    pub fn reading(&self) -> Option<GpuReading> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.reading(),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => None,
        }
    }

    /// What disturbed the device so far, as far as it says.
    pub fn disturbance(&self) -> Disturbance {
        match self {
            Self::Cpu => Disturbance::default(),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.disturbance(),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => Disturbance::default(),
        }
    }

    /// What [`RankDevice::busy_time`] is of; `None` when unknown.
    pub fn devices(&self) -> Option<Devices> {
        match self {
            Self::Cpu => Some(Devices::Cpus(executors::threads())),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.busy_time().map(|_| Devices::Gpu),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => None,
        }
    }

    /// Peak FLOP/s of matrix products in the precision of `settings`; `None` when unknown.
    pub fn peak(&self, settings: &Settings) -> Option<f64> {
        let _ = settings;
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => crate::model_flops::peak(gpu.name(), settings),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => None,
        }
    }

    /// Memory in bytes available to states and values beside `host` bytes of host memory; `None` when unknown. On a
    /// GPU, too little host memory is only logged: copies are freed between checkpoints.
    pub fn memory_beside(&self, host: usize) -> Option<usize> {
        match self {
            Self::Cpu => self.memory().map(|free| free.saturating_sub(host)),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => {
                if let Some(free) = crate::available::memory().filter(|free| *free < host) {
                    tracing::warn!(free, needed = host, "host memory may not suffice for copies of checkpoints");
                }
                self.memory()
            }
            #[cfg(feature = "candle-cuda")]
            Self::Candle(_) => self.memory(),
        }
    }

    /// Memory in bytes available to states and values; `None` when unknown.
    pub fn memory(&self) -> Option<usize> {
        match self {
            Self::Cpu => crate::available::memory(),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.free_memory(),
            #[cfg(feature = "candle-cuda")]
            Self::Candle(eager) => eager.free_memory(),
        }
    }
}

/// Predicted memory in bytes of `programs` on a GPU that is not present.
///
/// # Errors
/// [`Ending::Unsupported`] when an operation has no kernel, or this trainer is built without CUDA.
#[cfg(feature = "cuda")]
pub fn predict(programs: &[Program], settings: &Settings) -> Result<MemoryReport, Ending> {
    Ok(crate::gpu::predict(programs, settings)?)
}

/// Without CUDA, no prediction is possible.
///
/// # Errors
/// [`Ending::Unsupported`], with the remedy.
#[cfg(not(feature = "cuda"))]
pub fn predict(_: &[Program], _: &Settings) -> Result<MemoryReport, Ending> {
    Err(without_cuda())
}

#[cfg(not(feature = "cuda"))]
fn without_cuda() -> Ending {
    Ending::Unsupported(format!(
        "{}: cuda: this trainer is built for the CPU: set spec.trainer.image to one with CUDA, or spec.trainer.gpusPerReplica to 0",
        env::DEVICE
    ))
}

#[cfg(all(test, not(any(feature = "cuda", feature = "candle-cuda"))))]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_without_cuda_does_not_train_on_the_cpu_in_its_stead() {
        let ending = RankDevice::open(Place::Cuda(0), Path::new("kernels")).err().expect("refused");
        assert_eq!(ending.outcome(), pawl_contract::exit::Outcome::Unsupported);
        assert!(ending.to_string().contains("gpusPerReplica to 0"), "{ending}");
    }
}
