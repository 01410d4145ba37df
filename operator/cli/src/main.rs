//! The `pawl` command line.

fn main() {}
