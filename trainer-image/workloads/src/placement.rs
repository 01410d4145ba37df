//! The memory in which a data set is kept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory in which something is kept or computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Place {
    /// Host memory: the loader's threads.
    Host,
    /// The memory of the device that trains.
    Device,
}
