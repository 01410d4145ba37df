//! The `TrainingJob` API, `pawl.dev/v1alpha1`: types, schema, validation rules.
//!
//! - [`spec`]: what a user writes;
//! - [`status`]: what Pawl believes, and why: the only memory of the decision core;
//! - [`quantity`] and [`duration`]: the string forms of bytes and times;
//! - [`manifest`]: reads manifests from files, with the line of all that is wrong;
//! - [`validate()`]: what must hold beyond the schema;
//! - [`crd()`]: the CustomResourceDefinition. `crds/trainingjobs.yaml` is what `pawl crd` prints; a test fails when they
//!   differ.

mod bounds;
mod crd;
pub mod duration;
pub mod manifest;
mod progress;
pub mod quantity;
mod rules;
mod schema;
pub mod spec;
pub mod status;
mod validate;

pub use crd::crd;
pub use spec::{TrainingJob, TrainingJobSpec};
pub use status::TrainingJobStatus;
pub use validate::{Problem, validate};
