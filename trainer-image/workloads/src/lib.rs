//! The built-in workloads of Pawl and their data.
//!
//! A [`Workload`] is found by name in the [`registry`] and builds a [`Job`] from a configuration; the job's [`Data`]
//! makes the batches that a [`Loader`] prefetches. A new workload adds a module and a line to the registry; the trainer
//! depends only on the traits.

pub mod atft;
pub mod forex;
mod inference;
pub mod layered;
pub mod loader;
pub mod model_file;
mod names;
mod optimization;
mod placement;
pub mod random;
mod rules;
pub mod sampling;
mod schedule;
mod share;
pub mod slm;
mod source;
pub mod store;
pub mod ups;
pub mod vision_bdh;
mod workload;

use pawl_contract::problem::choose;

pub use inference::Inference;
pub use loader::Loader;
pub use schedule::{DecayStart, RateDecay, RatePosition, RateSchedule, Warmup};
pub use source::Source;
pub use workload::{At, Batch, Data, Job, Optimization, Programs, Regions, Request, Schedule, Workload, WorkloadError};

/// All workloads.
pub fn registry() -> &'static [&'static dyn Workload] {
    &[&ups::Ups, &slm::Slm, &vision_bdh::VisionBdh, &forex::Forex, &atft::AtftGatFan]
}

/// The workload called `name`.
///
/// # Errors
/// [`WorkloadError::UnknownWorkload`], with the known names.
pub fn workload(name: &str) -> Result<&'static dyn Workload, WorkloadError> {
    registry().iter().copied().find(|workload| workload.name() == name).ok_or_else(|| {
        let known: Vec<_> = registry().iter().map(|workload| workload.name()).collect();
        WorkloadError::UnknownWorkload { name: name.to_owned(), remedy: choose(name, &known) }
    })
}
