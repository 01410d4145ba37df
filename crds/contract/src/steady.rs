//! Whether the speed of a measurement window is that of a steady state: one rule for all trainers.
//!
//! The window is divided into [`BLOCKS`] blocks of equal numbers of steps, so that neighboring steps may depend on each
//! other. Its halves must agree within the noise of the blocks, which is estimated from the differences of consecutive
//! ones: a trend hardly changes those. The largest difference does not count, so that a sudden change does not hide
//! itself.
//!
//! A window that is not steady is followed by another one of equal length, which replaces it, up to [`EXTENSIONS`]
//! times: the warm-up ends when the speed no longer changes. The package for PyTorch implements the same rule; both
//! read the file `tests/steady.json`.

/// Number of times that a launch is extended by another window.
pub const EXTENSIONS: u64 = 4;

/// Number of blocks of a window.
pub const BLOCKS: usize = 10;

/// Standard errors by which the halves may differ. Of windows with independent steps, 2.4 % exceed it; where
/// neighboring steps depend on each other strongly (a correlation of 0.95), 45 %, so that 2 % of the launches are not
/// steady after all extensions.
const LIMIT: f64 = 3.5;

/// Relative difference of the halves that does not matter: the speed is wrong by half of it.
const IMMATERIAL: f64 = 0.01;

/// Whether the halves of a window agree. `spans` are consecutive numbers of steps and the seconds that they took
/// together. `None` where there are too few spans to tell.
///
/// ```
/// use pawl_contract::steady::is_steady;
///
/// let slower_and_slower: Vec<(u64, f64)> = (0..50).map(|step| (1, 0.1 + 0.001 * f64::from(step))).collect();
/// assert_eq!(is_steady(&slower_and_slower), Some(false));
/// assert_eq!(is_steady(&[(1, 0.1); 50]), Some(true));
/// assert_eq!(is_steady(&[(25, 2.5); 2]), None);
/// ```
pub fn is_steady(spans: &[(u64, f64)]) -> Option<bool> {
    let blocks = blocks(spans)?;
    let mean = |blocks: &[f64]| blocks.iter().sum::<f64>() / blocks.len() as f64;
    let (first, second) = blocks.split_at(BLOCKS / 2);
    let (first, second) = (mean(first), mean(second));
    let squares = || blocks.windows(2).map(|pair| (pair[1] - pair[0]).powi(2));
    let most = squares().fold(0.0, f64::max);
    let variance = (squares().sum::<f64>() - most).max(0.0) / (2 * (BLOCKS - 2)) as f64;
    let error = (variance * 4.0 / BLOCKS as f64).sqrt();
    let apart = (second - first).abs();
    Some(apart <= LIMIT * error || apart <= IMMATERIAL * (first + second) / 2.0)
}

/// Seconds of a step in each block; a span belongs to the block of its middle. `None` when a block has no span.
fn blocks(spans: &[(u64, f64)]) -> Option<[f64; BLOCKS]> {
    let total: u64 = spans.iter().map(|(steps, _)| steps).sum();
    let (mut done, mut sums) = (0, [(0u64, 0.0); BLOCKS]);
    for (steps, seconds) in spans {
        let middle = (2 * done + steps) as usize * BLOCKS / (2 * total.max(1) as usize);
        let block = &mut sums[middle.min(BLOCKS - 1)];
        (block.0, block.1) = (block.0 + steps, block.1 + seconds);
        done += steps;
    }
    let all = sums.iter().all(|(steps, _)| *steps > 0);
    all.then(|| sums.map(|(steps, seconds)| seconds / steps as f64))
}

/// Whether a queue of prepared batches has been drained in a window, from its lengths at the start and at the end: the
/// steps were faster than the loaders are.
///
/// ```
/// use pawl_contract::steady::is_drained;
///
/// assert!(is_drained(64, 40, 50), "24 of 50 batches were made before");
/// assert!(!is_drained(64, 62, 50) && !is_drained(3, 5, 50));
/// ```
pub fn is_drained(before: u64, after: u64, used: u64) -> bool {
    // The loaders deliver in bursts, and 2 % of the batches do not decide.
    before.saturating_sub(after) > (used / 50).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        spans: Vec<(u64, f64)>,
        steady: Option<bool>,
    }

    #[test]
    fn windows_are_judged_as_by_the_package_for_pytorch() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../tests/steady.json")).unwrap();
        assert!(cases.len() > 8);
        for Case { name, spans, steady } in cases {
            assert_eq!(is_steady(&spans), steady, "{name}");
        }
    }

    /// Uniform numbers between 0 and 1: SplitMix64.
    fn uniform(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(state: &mut u64) -> f64 {
        let radius = (-2.0 * (1.0 - uniform(state)).ln()).sqrt();
        radius * (std::f64::consts::TAU * uniform(state)).cos()
    }

    /// Share of windows of 50 steps that are not steady. Steps have 10 % noise with a correlation `rho` of neighbors;
    /// before the window they were slower by a factor that decays within 20 steps.
    fn unsteady(rho: f64, noise: f64, slower: f64) -> f64 {
        const SAMPLES: usize = 4_000;
        let mut random = 11;
        let sample = |_: &usize| {
            let mut state = normal(&mut random);
            let spans = (0..50).map(|step| {
                state = rho * state + (1.0 - rho * rho).sqrt() * normal(&mut random);
                (1, (noise * state).exp() * (1.0 + slower * (-f64::from(step) / 20.0).exp()))
            });
            is_steady(&spans.collect::<Vec<_>>()) == Some(false)
        };
        let share = (0..SAMPLES).filter(sample).count() as f64 / SAMPLES as f64;
        println!("correlation {rho}, noise {noise}, slower by {slower}: {:.1} % are not steady", share * 100.0);
        share
    }

    #[test]
    fn noise_is_steady_and_a_warm_up_is_not() {
        assert!(unsteady(0.0, 0.1, 0.0) <= 0.03, "independent steps");
        assert!(unsteady(0.8, 0.1, 0.0) <= 0.2, "dependent steps");
        assert!(
            unsteady(0.95, 0.1, 0.0).powi(1 + EXTENSIONS as i32) <= 0.025,
            "launches with strongly dependent steps"
        );
        assert!(unsteady(0.0, 0.1, 0.37) >= 0.88, "a warm-up in noise");
        assert!(unsteady(0.0, 0.02, 0.37) >= 0.999, "a warm-up");
        assert!(unsteady(0.0, 0.02, 0.005) <= 0.05, "less than what matters");
    }
}
