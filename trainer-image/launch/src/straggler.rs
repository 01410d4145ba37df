//! A rank that is slower than the others.

/// Ratio to the fastest rank's time over a window above which a rank counts as a straggler.
const STRAGGLER: f64 = 1.3;

/// Names the slowest rank of a window, if it stands out; starts the next window. `busy` is the time in which each rank did not
/// wait for others, in seconds, by rank.
pub fn straggler(busy: &mut [f64]) -> Option<String> {
    let fastest = busy.iter().copied().fold(f64::INFINITY, f64::min);
    let (rank, slowest) = busy.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let found = (busy.len() > 1 && slowest > STRAGGLER * fastest)
        .then(|| format!("rank {rank} takes {:.2} times as long as the fastest rank", slowest / fastest));
    busy.fill(0.0);
    found
}
