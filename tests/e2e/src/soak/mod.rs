//! Of the soak (`tests/soak`), what needs no cluster: which faults happen when, what they cost, and whether memory
//! grows.

pub mod faults;
pub mod goodput;
pub mod memory;
pub mod segments;
