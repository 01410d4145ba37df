//! Bars of prices: simulated, or of files, and joined to those of longer timeframes.

use crate::random::Stream;
use std::f64::consts::TAU;
use std::ops::Range;

/// Price before the first bar.
const START: f64 = 1.10;
/// Standard deviation of a log return of five minutes.
const SIGMA: f64 = 2.2e-4;
/// Probability that a regime continues with the next bar.
const STAY: f64 = 0.995;
/// GARCH(1,1): weights of the last squared shock and of the last variance; the long-run variance is 1.
const GARCH: [f64; 2] = [0.05, 0.93];
/// Degrees of freedom of the shocks.
const FREEDOM: u64 = 5;
/// Steps of the price within a bar.
const STEPS: u64 = 10;
/// Minutes of a bar, of a day, and days of a week.
pub(super) const MINUTES: usize = 5;
const DAY: usize = 1440;
const WEEK: usize = 5;

/// Drift of a regime in units of the local deviation, and its factor of the volatility: calm, upward, downward,
/// turbulent.
const REGIMES: [(f64, f64); 4] = [(0.0, 0.7), (0.15, 1.0), (-0.15, 1.0), (0.0, 2.0)];
/// Pull to the moving average (of log prices, span 64) in the calm regime.
const PULL: f64 = -0.03;
const AVERAGE_SPAN: f64 = 64.0;

/// Bars of one timeframe, one element per bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// First price.
    pub open: Vec<f64>,
    /// Highest price.
    pub high: Vec<f64>,
    /// Lowest price.
    pub low: Vec<f64>,
    /// Last price.
    pub close: Vec<f64>,
    /// Traded volume.
    pub volume: Vec<f64>,
    /// Minute of the day, 0 to 1435.
    pub minute: Vec<f64>,
    /// Day of the week, 0 to 4.
    pub day: Vec<f64>,
}

impl Bars {
    /// Number of bars.
    pub fn len(&self) -> usize {
        self.close.len()
    }

    /// Whether there are no bars.
    pub fn is_empty(&self) -> bool {
        self.close.is_empty()
    }

    /// Open, high, low, close and volume of a bar.
    pub(super) fn at(&self, bar: usize) -> [f64; 5] {
        [&self.open, &self.high, &self.low, &self.close, &self.volume].map(|values| values[bar])
    }

    /// Adds a bar: open, high, low, close and volume, minute of the day and day of the week.
    pub(super) fn push(&mut self, bar: [f64; 5], (minute, day): (f64, f64)) {
        let columns = [&mut self.open, &mut self.high, &mut self.low, &mut self.close, &mut self.volume];
        columns.into_iter().zip(bar).for_each(|(values, value)| values.push(value));
        self.minute.push(minute);
        self.day.push(day);
    }

    /// A part of the bars.
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        let [open, high, low, close, volume, minute, day] =
            [&self.open, &self.high, &self.low, &self.close, &self.volume, &self.minute, &self.day]
                .map(|values| values[range.clone()].to_vec());
        Self { open, high, low, close, volume, minute, day }
    }

    /// Adds the time of five-minute bars that follow each other without gaps.
    #[must_use]
    pub fn timed(mut self) -> Self {
        let minutes = (0..self.len()).map(|bar| bar * MINUTES);
        (self.minute, self.day) = minutes.map(|at| ((at % DAY) as f64, (at / DAY % WEEK) as f64)).unzip();
        self
    }

    /// `count` simulated five-minute bars: Markov regimes, GARCH volatility, Student-t shocks, and humps of activity in
    /// the sessions of London and New York.
    pub fn simulated(count: usize, seed: u64) -> Self {
        let draws = Draws::new(seed);
        let mut bars = Self::default();
        let (mut variance, mut shock, mut regime) = (1.0, 0.0, 0);
        let (mut log_price, mut average) = (0.0, 0.0);
        for bar in 0..count as u64 {
            if draws.switch.uniform(bar) > STAY {
                regime = (regime + 1 + draws.regime.below(bar, 3) as usize) % REGIMES.len();
            }
            variance = (1.0 - GARCH[0] - GARCH[1]) + GARCH[0] * shock * shock + GARCH[1] * variance;
            shock = libm::sqrt(variance) * draws.shock(bar);
            let (drift, volatility) = REGIMES[regime];
            let deviation = SIGMA * season((bar as usize * MINUTES % DAY) as f64 / 60.0) * volatility;
            let pull = if regime == 0 { PULL * (log_price - average) } else { 0.0 };
            let open = log_price;
            log_price += deviation * (shock + drift) + pull;
            average += (log_price - average) * (2.0 / (AVERAGE_SPAN + 1.0));
            let local = deviation * libm::sqrt(variance);
            let (low, high) = draws.range(bar, log_price - open, local);
            let price = |log: f64| START * libm::exp(log);
            bars.open.push(price(open));
            bars.close.push(price(log_price));
            bars.high.push(price(open + high).max(price(open)).max(price(log_price)));
            bars.low.push(price(open + low).min(price(open)).min(price(log_price)));
            bars.volume.push(libm::exp(6.0 + 0.9 * libm::log(local / SIGMA) + 0.4 * normal(draws.volume, bar)));
        }
        bars.timed()
    }

    /// Bars of `factor` of these bars each; those left over at the end are dropped.
    #[must_use]
    pub fn joined(&self, factor: usize) -> Self {
        let each = |values: &[f64], join: &dyn Fn(&[f64]) -> f64| values.chunks_exact(factor).map(join).collect();
        Self {
            open: each(&self.open, &|part| part[0]),
            high: each(&self.high, &|part| part.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            low: each(&self.low, &|part| part.iter().copied().fold(f64::INFINITY, f64::min)),
            close: each(&self.close, &|part| part[factor - 1]),
            volume: each(&self.volume, &|part| part.iter().sum()),
            minute: each(&self.minute, &|part| part[factor - 1]),
            day: each(&self.day, &|part| part[factor - 1]),
        }
    }
}

/// Activity at an hour of the day.
fn season(hour: f64) -> f64 {
    let hump = |centre: f64| libm::exp(-0.5 * libm::pow((hour - centre) / 2.5, 2.0));
    0.6 + 0.7 * hump(8.5) + 0.9 * hump(14.5)
}

/// Standard normal `index` of a stream (Box and Muller).
fn normal(stream: Stream, index: u64) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log1p(-stream.uniform(2 * index)));
    radius * libm::cos(TAU * stream.uniform(2 * index + 1))
}

/// Streams of the simulation.
struct Draws {
    switch: Stream,
    regime: Stream,
    shock: Stream,
    within: Stream,
    volume: Stream,
}

impl Draws {
    fn new(seed: u64) -> Self {
        let of = |name: &str| Stream::named(seed, &format!("forex.{name}"));
        Self {
            switch: of("switch"),
            regime: of("regime"),
            shock: of("shock"),
            within: of("within"),
            volume: of("volume"),
        }
    }

    /// Student-t with unit variance: a normal over the root of an independent chi-squared that is divided by its
    /// degrees of freedom.
    fn shock(&self, bar: u64) -> f64 {
        let draw = |part: u64| normal(self.shock, bar * (FREEDOM + 1) + part);
        let squares: f64 = (1..=FREEDOM).map(|part| draw(part) * draw(part)).sum();
        let freedom = FREEDOM as f64;
        draw(0) / libm::sqrt(squares / freedom) / libm::sqrt(freedom / (freedom - 2.0))
    }

    /// Lowest and highest log price of a bar relative to its open: a Brownian bridge from 0 to `end`.
    fn range(&self, bar: u64, end: f64, deviation: f64) -> (f64, f64) {
        let scale = deviation / libm::sqrt(STEPS as f64);
        let mut steps: [f64; STEPS as usize] = [0.0; STEPS as usize];
        (0..).zip(&mut steps).for_each(|(part, step)| *step = scale * normal(self.within, bar * STEPS + part));
        let correction = (end - steps.iter().sum::<f64>()) / STEPS as f64;
        let (mut at, mut low, mut high) = (0.0, 0.0_f64, 0.0_f64);
        for step in steps {
            at += step + correction;
            (low, high) = (low.min(at), high.max(at));
        }
        (low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_consistent_and_depend_on_the_seed() {
        let bars = Bars::simulated(3000, 7);
        assert_eq!((bars.len(), bars.open[0]), (3000, START));
        for i in 0..bars.len() {
            let (low, high) = (bars.low[i], bars.high[i]);
            assert!(
                low <= bars.open[i].min(bars.close[i])
                    && high >= bars.open[i].max(bars.close[i])
                    && bars.volume[i] > 0.0
            );
        }
        assert!(
            bars.open[1..].iter().zip(&bars.close).all(|(open, close)| open == close),
            "a bar opens where the last one closed"
        );
        assert_eq!((bars.minute[289], bars.day[289], bars.day[5 * 288]), (5.0, 1.0, 0.0));
        assert_eq!(Bars::simulated(100, 7).close, bars.close[..100], "more bars follow the first ones");
        assert_ne!(Bars::simulated(100, 8).close, bars.close[..100]);
    }

    #[test]
    fn returns_have_the_volatility_and_the_tails_of_the_specification() {
        let bars = Bars::simulated(60_000, 42);
        let returns: Vec<f64> = bars.close.windows(2).map(|pair| (pair[1] / pair[0]).ln()).collect();
        let moment = |power: i32| returns.iter().map(|r| r.powi(power)).sum::<f64>() / returns.len() as f64;
        // The mean over the day of the squared season is 1.14, that over the regimes of the squared factor 1.62: about
        // 3e-4.
        let deviation = moment(2).sqrt();
        assert!((2.2e-4..4.5e-4).contains(&deviation), "{deviation}");
        assert!(moment(4) / moment(2).powi(2) > 6.0, "heavy tails");
        let squares: Vec<f64> = returns.iter().map(|r| r * r - moment(2)).collect();
        let clustering =
            squares.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares.iter().map(|s| s * s).sum::<f64>();
        assert!(clustering > 0.02, "volatility clusters: {clustering}");
    }

    #[test]
    fn longer_bars_join_whole_groups() {
        let bars = Bars::simulated(50, 1);
        let joined = bars.joined(12);
        assert_eq!(joined.len(), 4);
        assert_eq!((joined.open[1], joined.close[1]), (bars.open[12], bars.close[23]));
        assert_eq!(joined.high[1], bars.high[12..24].iter().copied().fold(0.0, f64::max));
        assert_eq!(joined.low[1], bars.low[12..24].iter().copied().fold(9.0, f64::min));
        assert_eq!((joined.volume[1], joined.minute[1]), (bars.volume[12..24].iter().sum::<f64>(), bars.minute[23]));
    }
}
