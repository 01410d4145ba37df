//! Checks and times kernels on a GPU.
fn main() {}
