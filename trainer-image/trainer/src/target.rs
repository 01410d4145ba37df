//! What a rank computes on: the CPU, or one GPU.

use crate::collective::Exchange;
use crate::ending::Ending;
use crate::executors;
use crate::throughput::processor_time;
use pawl_contract::env;
use pawl_contract::settings::Settings;
use pawl_graph::executor::{Executor, MemoryReport};
use pawl_graph::graph::Program;
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "cuda")]
use crate::gpu::Gpu;

/// What the agent gave this rank to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The CPU.
    Cpu,
    /// The visible GPU of this number.
    Cuda(usize),
    /// A GPU that is not here: a preflight needs none.
    AbsentGpu,
}

impl Place {
    /// Reads `PAWL_DEVICE`.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] naming the variable when it says neither.
    pub fn from_env() -> Result<Self, Ending> {
        Self::parse(std::env::var(env::DEVICE).ok().as_deref())
    }

    fn parse(text: Option<&str>) -> Result<Self, Ending> {
        match text {
            None | Some("" | "cpu") => Ok(Self::Cpu),
            Some("cuda") => Ok(Self::AbsentGpu),
            Some(text) => match text.strip_prefix("cuda:").and_then(|number| number.parse().ok()) {
                Some(number) => Ok(Self::Cuda(number)),
                None => Err(Ending::InvalidPlan(format!("{}: {text}: must be cpu or cuda:N", env::DEVICE))),
            },
        }
    }
}

/// An opened [`Place`].
pub enum Target {
    /// The CPU.
    Cpu,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(Gpu),
}

impl Target {
    /// Opens `place`. What is worth keeping from launch to launch (compiled kernels) goes into `cache`.
    ///
    /// # Errors
    /// [`Ending::Unsupported`] with the remedy when there is no such GPU, its driver or a library is missing, or this trainer is built without
    /// CUDA: what was given a GPU never runs on the CPU in its stead.
    pub fn open(place: Place, cache: &Path) -> Result<Self, Ending> {
        match place {
            Place::Cpu => Ok(Self::Cpu),
            #[cfg(feature = "cuda")]
            Place::Cuda(number) => Ok(Self::Cuda(Gpu::open(number, cache)?)),
            #[cfg(not(feature = "cuda"))]
            Place::Cuda(_) => {
                let _ = cache;
                Err(without_cuda())
            }
            Place::AbsentGpu => Err(Ending::InvalidPlan(format!(
                "{}: cuda: only a preflight does without a GPU: say cuda:N",
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
        }
    }

    /// Meets what the other ranks of the gang compute on, where sums go from one to another directly.
    ///
    /// # Errors
    /// [`Ending::LostPeer`] when not all ranks came within `deadline`; [`Ending::Unsupported`] when a library is missing.
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
        }
    }

    /// For how long it has been busy so far: see [`Target::devices`].
    pub fn busy_time(&self) -> Duration {
        match self {
            Self::Cpu => processor_time(),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.busy_time().unwrap_or_default(),
        }
    }

    /// How many processors (or GPUs) [`Target::busy_time`] adds up; `None` when it is not known.
    pub fn devices(&self) -> Option<usize> {
        match self {
            Self::Cpu => Some(executors::threads()),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.busy_time().map(|_| 1),
        }
    }

    /// Operations a second that products in the precision of `settings` could reach; `None` when nobody knows.
    pub fn peak(&self, settings: &Settings) -> Option<f64> {
        let _ = settings;
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => crate::model_flops::peak(gpu.name(), settings),
        }
    }

    /// Bytes of memory that states and values may take; `None` when the system does not say.
    pub fn memory(&self) -> Option<usize> {
        match self {
            Self::Cpu => crate::available::memory(),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => gpu.free_memory(),
        }
    }
}

/// Bytes that `programs` will take on a GPU, which is not here.
///
/// # Errors
/// [`Ending::Unsupported`] when no kernel computes something, or this trainer is built without CUDA.
#[cfg(feature = "cuda")]
pub fn predict(programs: &[Program], settings: &Settings) -> Result<MemoryReport, Ending> {
    Ok(crate::gpu::predict(programs, settings)?)
}

/// Without CUDA there is nothing to predict.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_names_the_place() {
        assert_eq!(Place::parse(None).unwrap(), Place::Cpu);
        assert_eq!(Place::parse(Some("cpu")).unwrap(), Place::Cpu);
        assert_eq!(Place::parse(Some("cuda:3")).unwrap(), Place::Cuda(3));
        assert_eq!(Place::parse(Some("cuda")).unwrap(), Place::AbsentGpu);
        for wrong in ["gpu", "cuda:", "cuda:-1"] {
            let message = Place::parse(Some(wrong)).unwrap_err().to_string();
            assert!(message.starts_with("PAWL_DEVICE: ") && message.contains("cuda:N"), "{message}");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_trainer_without_cuda_does_not_train_on_the_cpu_in_its_stead() {
        let ending = Target::open(Place::Cuda(0), Path::new("kernels")).err().expect("refused");
        assert_eq!(ending.outcome(), pawl_contract::exit::Outcome::Unsupported);
        assert!(ending.to_string().contains("gpusPerReplica to 0"), "{ending}");
    }
}
