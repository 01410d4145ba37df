//! The `TrainingJob` API, `pawl.dev/v1alpha1`: types, schema, validation rules.
//!
//! - [`spec`]: what a user writes;
//! - [`status`]: what Pawl believes, and why: the only memory of the decision core;
//! - [`title`]: what a launch is, for people;
//! - [`quantity`] and [`duration`]: the string forms of bytes and times;
//! - [`validate()`]: what must hold beyond the schema;
//! - [`definition()`]: the CustomResourceDefinition, from the types and the rules. The crate `pawl-manifest` prints it as YAML and
//!   reads manifests against it.

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
