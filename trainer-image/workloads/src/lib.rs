//! The systems Pawl trains and their data.
//!
//! A [`Workload`] is found by name in the [`registry`], makes a [`Job`] of a configuration, and the job's [`Data`] make the batches that
//! a [`Loader`] prepares ahead. New systems add a module and a line to the registry; the trainer knows only the traits.

pub mod layered;
pub mod loader;
pub mod random;
pub mod sampling;
pub mod slm;
pub mod store;
pub mod ups;
mod workload;

pub use loader::Loader;
pub use workload::{
    At, Batch, Data, Job, Optimization, Programs, RateDecay, Regions, Request, Schedule, Workload, WorkloadError,
};

/// All workloads.
pub fn registry() -> &'static [&'static dyn Workload] {
    &[&ups::Ups, &slm::Slm]
}

/// The workload called `name`.
///
/// # Errors
/// [`WorkloadError::UnknownWorkload`], naming those there are.
pub fn workload(name: &str) -> Result<&'static dyn Workload, WorkloadError> {
    registry().iter().copied().find(|workload| workload.name() == name).ok_or_else(|| {
        let known: Vec<_> = registry().iter().map(|workload| workload.name()).collect();
        WorkloadError::UnknownWorkload { name: name.to_owned(), known: known.join(", ") }
    })
}
