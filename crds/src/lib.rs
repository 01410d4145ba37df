//! The `TrainingJob` API, `pawl.dev/v1alpha1`: types, schema, validation rules.
//!
//! `crds/trainingjobs.yaml` is generated from these types by `pawl crd`; a test fails when they differ.
//!
//! - [`spec`]: what a user writes;
//! - [`status`]: what Pawl believes, and why: the only memory of the decision core;
//! - [`quantity`] and [`duration`]: the string forms of bytes and times.

pub mod duration;
pub mod quantity;
pub mod spec;
pub mod status;

pub use spec::{TrainingJob, TrainingJobSpec};
pub use status::TrainingJobStatus;
