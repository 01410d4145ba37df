//! The `TrainingJob` API, `pawl.dev/v1alpha1`: types, schema, validation rules.
//!
//! - [`spec`]: the desired state, written by the user;
//! - [`status`]: the observed state: measurements, verdicts and their evidence; the only persistent state of the decision
//!   core;
//! - [`title`]: human-readable titles of launches;
//! - [`quantity`] and [`duration`]: the string forms of bytes and times;
//! - [`validate()`]: validation beyond the schema;
//! - [`definition()`]: the CustomResourceDefinition, generated from the types and the rules. The crate `pawl-manifest` prints it as YAML and
//!   reads manifests against it.

#![warn(clippy::missing_errors_doc)]

mod bounds;
mod definition;
pub mod duration;
mod object;
mod progress;
pub mod quantity;
mod rules;
pub mod schema;
pub mod spec;
pub mod status;
pub mod title;
mod validate;

pub use definition::definition;
pub use object::TrainingJob;
pub use spec::TrainingJobSpec;
pub use status::TrainingJobStatus;
pub use validate::{Problem, validate};
