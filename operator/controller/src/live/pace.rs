//! When a gang is polled within the interval.

use crate::key::Key;
use std::time::Duration;

/// The offset of a job in the interval: a hash of its name, so that it is the same in every process and many jobs
/// spread evenly.
pub(super) fn slot(key: &Key, interval: Duration) -> Duration {
    let bytes = key.namespace.bytes().chain([b'/']).chain(key.name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let share = (mixed(hash) >> 32) as f64 / f64::from(u32::MAX);
    interval.mul_f64(share)
}

/// FNV-1a leaves names that differ in their last digit close together; the finalizer of MurmurHash3 does not.
const fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
