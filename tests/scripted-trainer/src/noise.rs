//! Noise that depends only on names and seeds.

/// A finalizer that spreads every bit (splitmix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A uniform number in (0, 1).
fn uniform(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// A standard normal number that is a function of `seed` and `name`.
pub(crate) fn normal(seed: u64, name: &str) -> f64 {
    // FNV-1a, then mixed: names that differ in one letter are independent.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let state = mix(hash ^ mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    let (radius, angle) = (uniform(mix(state ^ 1)), uniform(mix(state ^ 2)));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_standard_normal_over_names_and_over_seeds() {
        for draw in [|i: u64| normal(7, &format!("job-p1-b{i}")), |i: u64| normal(i, "job-p1-b0")] {
            let draws: Vec<f64> = (0..20_000).map(draw).collect();
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
            let beyond = draws.iter().filter(|x| x.abs() > 1.96).count() as f64 / 20_000.0;
            assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04 && (beyond - 0.05).abs() < 0.006);
        }
        assert_eq!(normal(1, "a"), normal(1, "a"));
    }
}
