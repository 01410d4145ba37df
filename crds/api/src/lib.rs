//! The `TrainingJob` API, `pawl.dev/v1alpha1`: types, schema, validation rules.
//!
//! - [`spec`]: the desired state, written by the user;
//! - [`status`]: the observed state: measurements, verdicts and their evidence; the only persistent state of the
//!   decision core;
//! - [`title`]: human-readable titles of launches;
//! - [`search`]: the stage of a search as `pawl-search` knows it, and its trials in the status;
//! - [`quantity`] and [`duration`]: the string forms of bytes and times;
//! - [`validate()`]: validation beyond the schema, and [`warnings()`]; [`Policy`]: what the administrator allows in pod
//!   templates;
//! - [`Unknown`]: what a stored object contains that this version does not know;
//! - [`definition()`]: the CustomResourceDefinition, generated from the types and the rules. The crate `pawl-manifest`
//!   prints it as YAML and reads manifests against it.

#![warn(clippy::missing_errors_doc)]

mod bounds;
mod definition;
pub mod duration;
mod object;
pub mod policy;
mod progress;
pub mod quantity;
mod rules;
pub mod schema;
pub mod search;
pub mod spec;
pub mod status;
pub mod title;
mod unknown;
mod validate;

pub use definition::{definition, documented_definition};
pub use object::TrainingJob;
pub use object::{RESTART, restart_of};
pub use policy::Policy;
pub use rules::numerics;
pub use spec::TrainingJobSpec;
pub use status::TrainingJobStatus;
pub use unknown::Unknown;
pub use validate::{Problem, is_storage_url, validate, warnings};
