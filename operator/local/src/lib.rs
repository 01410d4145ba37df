//! The local shell: pawl run without a cluster.
