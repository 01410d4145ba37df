//! Public test functions of black-box optimization, and the loop that runs a sampler on them.

pub mod functions;
pub mod minimize;
