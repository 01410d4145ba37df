//! The mean of the gradients over the gang.

use crate::error::Result;
#[cfg(feature = "cuda")]
use crate::nccl::Nccl;
use candle_core::{DType, Tensor};
use pawl_graph::collective::Collective as _;
use pawl_graph::executor::ExecError;
use pawl_launch::collective::Gang;
use pawl_launch::ending::Ending;
use std::sync::Arc;
use std::time::Duration;

/// How the ranks of a gang sum their gradients.
pub(crate) enum Average {
    /// Over TCP, in rank order: N ranks agree with one rank that accumulates.
    Tcp(Arc<Gang>),
    /// With NCCL, between GPUs.
    #[cfg(feature = "cuda")]
    Nccl(Nccl),
}

impl Average {
    /// The mean over the gang of each of `gradients`, which ranks exchange as float32: also those in float64. Those of
    /// one rank are unchanged.
    pub fn of(&self, gradients: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let (Some(first), false) = (gradients.first(), self.world() == 1) else { return Ok(gradients) };
        let device = first.device();
        let flat: Vec<Tensor> = gradients
            .iter()
            .map(|gradient| gradient.flatten_all()?.to_dtype(DType::F32))
            .collect::<candle_core::Result<_>>()?;
        let all = Tensor::cat(&flat, 0)?;
        let sum = match self {
            Self::Tcp(gang) => {
                let mut values: Vec<f32> = all.to_vec1()?;
                gang.all_reduce(&mut values).map_err(|error| -> Ending {
                    gang.failure().map_or_else(|| ExecError::from(error).into(), Into::into)
                })?;
                let count = values.len();
                Tensor::from_vec(values, count, device)?
            }
            #[cfg(feature = "cuda")]
            Self::Nccl(nccl) => nccl.sum(&all)?,
        };
        let mean = (sum * (1.0 / self.world() as f64))?;
        let mut start = 0;
        gradients
            .iter()
            .map(|gradient| {
                let count = gradient.elem_count();
                let part = mean.narrow(0, start, count)?.reshape(gradient.shape())?.to_dtype(gradient.dtype())?;
                start += count;
                Ok(part)
            })
            .collect()
    }

    fn world(&self) -> usize {
        match self {
            Self::Tcp(gang) => gang.world(),
            #[cfg(feature = "cuda")]
            Self::Nccl(nccl) => nccl.world(),
        }
    }

    /// Time that collectives between devices took so far; those over TCP are counted by the gang. The device must be
    /// synchronized.
    pub fn waited(&self) -> Duration {
        match self {
            Self::Tcp(_) => Duration::ZERO,
            #[cfg(feature = "cuda")]
            Self::Nccl(nccl) => nccl.waited(),
        }
    }
}
