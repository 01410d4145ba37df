//! What goes wrong, on a real Kubernetes: `tests/run faults`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
