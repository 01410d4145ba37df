//! The crate's behaviour from outside; one binary, so that it links once.

mod batches;
mod configuration;
mod generation;
mod parity;
mod pdebench;
mod store;
