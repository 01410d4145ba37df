//! Which replica of the operator acts: a Lease, a pure evaluation, thin I/O.
