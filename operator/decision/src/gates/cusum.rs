//! Sequential detection of a slow-down: a CUSUM (Page, Biometrika 41, 1954) of the shortfall of each throughput window.
//!
//! The shortfall is the logarithm of expected over measured items per second, at most `-ln(1 - tolerance)`, so that no
//! single window decides. Each window adds its shortfall less an allowance, a fifth of that; the sum is at least 0. It
//! reaches the limit after `windows` windows whose shortfall is the tolerance, and later if it is smaller; below the
//! allowance never.
//!
//! Windows are noisy and resemble their predecessors. So the limit is also at least that of a Brownian motion with the
//! long-run variance of the training's own windows, for which a false alarm takes [`RUN_LENGTH`] windows on average.
//! That variance is estimated from the windows before the sum last left 0: those of the slow-down itself are not part
//! of it.

use pawl_api::status::{CusumStatus, MomentsStatus};
use pawl_contract::decimal::Decimal;

/// Share of the tolerance that never accumulates.
const ALLOWANCE: f64 = 0.2;
/// Mean number of windows until a false alarm: ten times what is promised, because the variance is an estimate.
const RUN_LENGTH: f64 = 1e5;
/// Before the training's own windows are known: independent noise of 3 %, as if from so many windows.
const PRIOR_NOISE: f64 = 0.03;
const PRIOR_COUNT: f64 = 20.0;
/// Of older windows, half is forgotten after so many.
const REMEMBERED: f64 = 1000.0;

/// Sums over windows of the shortfall, its square, and its product with that of the window before.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
    products: f64,
}

/// The detector.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cusum {
    sum: f64,
    newest: Option<f64>,
    /// The windows before the sum last left 0.
    before: Moments,
    /// Those since.
    since: Moments,
    /// Sum of measured over expected items per second of those since: however slow, they count as they are.
    speeds: f64,
}

impl Moments {
    fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            squares: self.squares + other.squares,
            products: self.products + other.products,
        }
    }

    fn halved(self) -> Self {
        let Self { count, sum, squares, products } = self;
        Self { count: count / 2.0, sum: sum / 2.0, squares: squares / 2.0, products: products / 2.0 }
    }

    /// Variance of the mean of many windows, times their number.
    fn long_run_variance(self) -> f64 {
        let count = self.count.max(1.0);
        let mean = self.sum / count;
        let total = self.count + PRIOR_COUNT;
        let variance = (self.squares - count * mean * mean + PRIOR_COUNT * PRIOR_NOISE * PRIOR_NOISE) / total;
        let covariance = (self.products - count * mean * mean) / total;
        let correlation = (covariance / variance).clamp(0.0, 0.98);
        variance * (1.0 + correlation) / (1.0 - correlation)
    }
}

/// The largest shortfall of a window that counts: that of the tolerance.
fn most(tolerance: f64) -> f64 {
    -(1.0 - tolerance.clamp(1e-3, 0.999)).ln()
}

/// The shortfall up to which a window is as fast as expected.
pub(crate) fn allowance(tolerance: f64) -> f64 {
    ALLOWANCE * most(tolerance)
}

impl Cusum {
    /// Adds a window with this shortfall.
    pub fn add(&mut self, shortfall: f64, tolerance: f64) {
        let most = most(tolerance);
        self.speeds += (-shortfall).exp();
        let shortfall = shortfall.clamp(-most, most);
        let products = self.newest.map_or(0.0, |newest| newest * shortfall);
        let window = Moments { count: 1.0, sum: shortfall, squares: shortfall * shortfall, products };
        self.since = self.since.and(window);
        self.newest = Some(shortfall);
        self.sum = (self.sum + shortfall - allowance(tolerance)).max(0.0);
        if self.sum == 0.0 {
            self.before = self.before.and(std::mem::take(&mut self.since));
            self.speeds = 0.0;
        }
        if self.before.count >= REMEMBERED {
            self.before = self.before.halved();
        }
    }

    /// Whether the windows since the sum left 0 show a slow-down.
    pub fn alarms(&self, tolerance: f64, windows: u32) -> bool {
        let (most, allowance) = (most(tolerance), allowance(tolerance));
        let wanted = (f64::from(windows.max(1)) - 0.75) * (most - allowance);
        self.sum >= wanted.max(limit(self.before.long_run_variance(), allowance))
    }

    /// Windows since the sum left 0, and the mean of their measured over expected items per second.
    pub fn since(&self) -> (u32, f64) {
        (self.since.count as u32, self.speeds / self.since.count.max(1.0))
    }

    /// Begins again; the variance stays known. The next window does not follow the newest one.
    pub fn restart(&mut self) {
        *self = Self { before: self.before, ..Self::default() };
    }
}

/// The limit at which a Brownian motion with this variance and a drift of `-allowance`, reflected at 0, arrives after
/// [`RUN_LENGTH`] windows on average: `variance / (2 allowance^2) (e^x - 1 - x)` windows with `x = 2 allowance limit /
/// variance`.
fn limit(variance: f64, allowance: f64) -> f64 {
    let scaled = RUN_LENGTH * 2.0 * allowance * allowance / variance;
    let x = (0..20).fold(1.0, |x: f64, _| (scaled + 1.0 + x).ln());
    variance * x / (2.0 * allowance)
}

impl From<&CusumStatus> for Cusum {
    fn from(status: &CusumStatus) -> Self {
        let number = |number: &Option<Decimal>| number.as_ref().map_or(0.0, Decimal::value);
        let moments = |moments: &MomentsStatus| Moments {
            count: number(&moments.count),
            sum: number(&moments.sum),
            squares: number(&moments.squares),
            products: number(&moments.products),
        };
        let since = moments(&status.since);
        // An earlier version did not record it: as far as the shortfalls that count tell.
        let of_shortfalls = since.count * (-since.sum / since.count.max(1.0)).exp();
        Self {
            sum: number(&status.sum),
            newest: status.newest.as_ref().map(Decimal::value),
            before: moments(&status.before),
            since,
            speeds: status.speeds.as_ref().map_or(of_shortfalls, Decimal::value),
        }
    }
}

impl From<&Cusum> for CusumStatus {
    fn from(cusum: &Cusum) -> Self {
        let number = |number: f64| Decimal::from_f64(number).filter(|_| number != 0.0);
        let moments = |moments: &Moments| MomentsStatus {
            count: number(moments.count),
            sum: number(moments.sum),
            squares: number(moments.squares),
            products: number(moments.products),
        };
        Self {
            sum: number(cusum.sum),
            newest: cusum.newest.and_then(Decimal::from_f64),
            before: moments(&cusum.before),
            since: moments(&cusum.since),
            speeds: number(cusum.speeds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERANCE: f64 = 0.2;
    const WINDOWS: u32 = 5;

    #[test]
    fn a_window_counts_as_much_as_the_tolerance() {
        let mut cusum = Cusum::default();
        for _ in 0..WINDOWS - 1 {
            cusum.add(10.0, TOLERANCE);
            assert!(!cusum.alarms(TOLERANCE, WINDOWS), "{cusum:?}");
        }
        cusum.add(10.0, TOLERANCE);
        assert!(cusum.alarms(TOLERANCE, WINDOWS));
        assert_eq!(cusum.since().0, WINDOWS);
        let status = CusumStatus::from(&cusum);
        assert!(Cusum::from(&status).alarms(TOLERANCE, WINDOWS));
        cusum.restart();
        assert!(!cusum.alarms(TOLERANCE, WINDOWS));
        let few = Cusum::default();
        assert_eq!(serde_json::to_string(&CusumStatus::from(&few)).unwrap(), "{}");
    }
}
