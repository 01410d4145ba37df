//! What users do, on a real Kubernetes: `tests/run cluster`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod manifests;
