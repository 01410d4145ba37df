//! The standard normal distribution, by functions that return the same bits on every system.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Natural logarithm of the square root of 2 pi.
pub(crate) const LOG_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

/// Density at `x`.
pub(crate) fn pdf(x: f64) -> f64 {
    libm::exp(-0.5 * x * x - LOG_SQRT_2PI)
}

/// Probability of a value of at most `x`.
pub(crate) fn cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

/// Logarithm of [`cdf`], also where that underflows.
pub(crate) fn log_cdf(x: f64) -> f64 {
    if x > -30.0 {
        return libm::log(cdf(x));
    }
    // The asymptotic series of the tail: its next term is below 1e-8 here.
    let square = 1.0 / (x * x);
    -0.5 * x * x - LOG_SQRT_2PI - libm::log(-x) + libm::log1p(-square + 3.0 * square * square)
}

/// Logarithm of the probability of a value between `low` and `high`, `low < high`.
pub(crate) fn log_mass(low: f64, high: f64) -> f64 {
    if low > 0.0 {
        return log_mass(-high, -low);
    }
    if high <= 0.0 {
        let (below, above) = (log_cdf(low), log_cdf(high));
        return above + libm::log1p(-libm::exp(below - above));
    }
    libm::log1p(-cdf(low) - cdf(-high))
}

/// The value below which the probability is `p`, 0 < p < 1: Acklam's approximation and one step of Halley's method.
pub(crate) fn quantile(p: f64) -> f64 {
    if p > 0.5 {
        return -quantile(1.0 - p);
    }
    let start = approximate_quantile(p);
    let error = cdf(start) - p;
    let step = error * libm::sqrt(2.0 * PI) * libm::exp(0.5 * start * start);
    if step.is_finite() { start - step / (1.0 + 0.5 * start * step) } else { start }
}

/// Acklam's rational approximations for `p` of at most 0.5; relative error below 1.2e-9.
fn approximate_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 5] = [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    let horner = |coefficients: &[f64], x: f64| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    if p < 0.02425 {
        let q = libm::sqrt(-2.0 * libm::log(p));
        return horner(&C, q) / horner(&D, q);
    }
    let q = p - 0.5;
    horner(&A, q * q) * q / horner(&B, q * q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use statrs::distribution::{ContinuousCDF, Normal};

    #[test]
    fn agrees_with_statrs() {
        let normal = Normal::new(0.0, 1.0).unwrap();
        for step in 1..2000 {
            let p = f64::from(step) / 2000.0;
            assert!((quantile(p) - normal.inverse_cdf(p)).abs() < 1e-8, "{p}: {}", quantile(p));
            let x = (p - 0.5) * 12.0;
            assert!((cdf(x) - normal.cdf(x)).abs() < 1e-10, "{x}");
        }
    }

    #[test]
    fn tails_are_smooth_and_finite() {
        assert!((log_cdf(-29.999_999) - log_cdf(-30.000_001)).abs() < 1e-4);
        assert!((cdf(quantile(1e-12)) / 1e-12 - 1.0).abs() < 1e-6);
        for (low, high) in [(-1.0, 2.0), (-3.0, -2.0), (2.0, 3.0), (0.1, 0.2)] {
            assert!((log_mass(low, high) - libm::log(cdf(high) - cdf(low))).abs() < 1e-9, "{low} to {high}");
        }
        assert!(log_mass(40.0, 41.0).is_finite() && log_mass(40.0, 41.0) < -800.0);
    }
}
