//! The shell on an API server in memory, with scripted trainers.

mod api;
mod cluster;
mod crash;
mod operator;
