//! When a gang is asked within the interval.

use std::time::Duration;

/// The offset of a job in the interval: a hash of its name (FNV-1a), so that it is the same in every process and many
/// jobs spread evenly.
pub(super) fn slot((namespace, job): &(String, String), interval: Duration) -> Duration {
    let bytes = namespace.bytes().chain([b'/']).chain(job.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // The high bits are the well mixed ones.
    let share = (hash >> 32) as f64 / f64::from(u32::MAX);
    interval.mul_f64(share)
}
