//! The operator's HTTP: metrics, liveness, readiness.
