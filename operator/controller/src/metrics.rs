//! What the operator shows to Prometheus.
