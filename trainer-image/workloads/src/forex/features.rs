//! The features of a timeframe: 200 causal functions of its bars.

use super::bars::Bars;
use super::config::FEATURES;
use super::rolling;
use std::f64::consts::{LN_2, TAU};

/// Bars of the windows of most features.
const WINDOWS: [usize; 10] = [2, 3, 5, 8, 13, 21, 34, 55, 89, 144];
/// Span of the slowest moving average.
const SLOWEST: usize = 233;
/// Bars of the windows of channel distances.
const CHANNEL_WINDOWS: [usize; 5] = [8, 21, 55, 89, 144];
/// Features that are scored against their last 1000 values; the others, of the calendar, are used as they are.
const SCORED: usize = 190;
const SCORED_OVER: usize = 1000;
/// Largest absolute value.
const LIMIT: f64 = 8.0;
const TINY: f64 = 1e-12;

/// The first `width` features of each bar: (bars, width), row by row.
pub fn features(bars: &Bars, width: usize) -> Vec<f32> {
    let mut columns = Columns { length: bars.len(), width, count: 0, out: vec![0.0; bars.len() * width] };
    let series = Series::new(bars);
    // In the order of the features; each adds as many as its comment says.
    let families: [fn(&Series<'_>, &mut Columns); 6] =
        [returns_and_ranges, positions, volumes, moments, shapes, trends_and_calendar];
    for family in families {
        if columns.count < width {
            family(&series, &mut columns);
        }
    }
    debug_assert!(columns.count == FEATURES || columns.count >= width, "{} features", columns.count);
    columns.out
}

/// Series that several features are made of.
struct Series<'a> {
    bars: &'a Bars,
    /// Logarithms of closing prices, and their differences.
    log_close: Vec<f64>,
    returns: Vec<f64>,
    /// Heights of bars.
    range: Vec<f64>,
    log_volume: Vec<f64>,
    true_range: Vec<f64>,
    /// Moving averages of log prices, from the fastest on.
    averages: Vec<Vec<f64>>,
}

fn zip(a: &[f64], b: &[f64], of: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| of(a, b)).collect()
}

fn map(a: &[f64], of: impl Fn(f64) -> f64) -> Vec<f64> {
    a.iter().map(|&a| of(a)).collect()
}

impl<'a> Series<'a> {
    fn new(bars: &'a Bars) -> Self {
        let log_close = map(&bars.close, libm::log);
        let returns: Vec<f64> = (0..bars.len()).map(|i| log_close[i] - log_close[i.saturating_sub(1)]).collect();
        let range = zip(&bars.high, &bars.low, |high, low| (high - low).max(TINY));
        let true_range = (0..bars.len()).map(|i| {
            let (high, low) = (bars.high[i], bars.low[i]);
            let widest = match i.checked_sub(1) {
                Some(last) => (high - low).max((high - bars.close[last]).abs()).max((low - bars.close[last]).abs()),
                None => range[0],
            };
            widest / bars.close[i]
        });
        let true_range = true_range.collect();
        let log_volume = map(&bars.volume, libm::log1p);
        let averages = WINDOWS.into_iter().chain([SLOWEST]).map(|span| rolling::averages(&log_close, span)).collect();
        Self { bars, log_close, returns, range, log_volume, true_range, averages }
    }
}

/// The features made so far.
struct Columns {
    length: usize,
    width: usize,
    count: usize,
    out: Vec<f32>,
}

impl Columns {
    /// Adds a feature, scored and limited; those beyond the width are left out.
    fn add(&mut self, mut values: Vec<f64>) {
        let column = self.count;
        self.count += 1;
        if column >= self.width {
            return;
        }
        values.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
        if column < SCORED {
            let of = rolling::means(&values, SCORED_OVER).into_iter().zip(rolling::deviations(&values, SCORED_OVER));
            let of: Vec<(f64, f64)> = of.collect();
            values
                .iter_mut()
                .zip(of)
                .for_each(|(value, (mean, deviation))| *value = (*value - mean) / (deviation + 1e-8));
        }
        debug_assert_eq!(values.len(), self.length);
        for (row, value) in self.out.chunks_exact_mut(self.width).zip(values) {
            row[column] = value.clamp(-LIMIT, LIMIT) as f32;
        }
    }

    fn each(&mut self, windows: impl IntoIterator<Item = usize>, of: impl Fn(usize) -> Vec<f64>) {
        windows.into_iter().for_each(|window| self.add(of(window)));
    }
}

/// 20 lags of the return; per window: return, volatility of closes and of ranges, score of the close, distance to the
/// moving average (70).
fn returns_and_ranges(s: &Series<'_>, columns: &mut Columns) {
    columns.each(0..20, |lag| rolling::lagged(&s.returns, lag));
    columns.each(WINDOWS, |window| rolling::sums(&s.returns, window));
    columns.each(WINDOWS, |window| rolling::deviations(&s.returns, window));
    let squares = zip(&s.bars.high, &s.bars.low, |high, low| libm::pow(libm::log(high / low), 2.0) / (4.0 * LN_2));
    columns.each(WINDOWS, |window| map(&rolling::means(&squares, window), f64::sqrt));
    columns.each(WINDOWS, |window| rolling::scores(&s.log_close, window));
    columns.each(0..WINDOWS.len(), |span| zip(&s.log_close, &s.averages[span], |log, average| log - average));
}

/// Per window: relative strength, position between low and high, difference of moving averages (30).
fn positions(s: &Series<'_>, columns: &mut Columns) {
    let (up, down) = (map(&s.returns, |r| r.max(0.0)), map(&s.returns, |r| (-r).max(0.0)));
    columns.each(WINDOWS, |window| {
        zip(&rolling::sums(&up, window), &rolling::sums(&down, window), |up, down| 2.0 * up / (up + down + TINY) - 1.0)
    });
    columns.each(WINDOWS, |window| {
        let (low, high) = (rolling::smallest(&s.bars.low, window), rolling::largest(&s.bars.high, window));
        let range = zip(&high, &low, |high, low| (high - low).max(TINY));
        zip(&zip(&s.bars.close, &low, |close, low| close - low), &range, |above, range| above / range)
    });
    columns.each(0..WINDOWS.len(), |span| zip(&s.averages[span], &s.averages[span + 1], |fast, slow| fast - slow));
}

/// Per window: true range, score of the volume, correlation of volume and return (30).
fn volumes(s: &Series<'_>, columns: &mut Columns) {
    columns.each(WINDOWS, |window| rolling::means(&s.true_range, window));
    columns.each(WINDOWS, |window| rolling::scores(&s.log_volume, window));
    columns.each(WINDOWS, |window| correlations(&s.returns, &s.log_volume, window));
}

fn correlations(a: &[f64], b: &[f64], window: usize) -> Vec<f64> {
    let scale = zip(&rolling::deviations(a, window), &rolling::deviations(b, window), |a, b| a * b);
    zip(&rolling::covariances(a, b, window), &scale, |covariance, scale| covariance / scale)
}

/// Per window: autocorrelation and skewness of the return (20).
fn moments(s: &Series<'_>, columns: &mut Columns) {
    let before = rolling::lagged(&s.returns, 1);
    columns.each(WINDOWS, |window| correlations(&s.returns, &before, window));
    let (squares, cubes) = (map(&s.returns, |r| r * r), map(&s.returns, |r| libm::pow(r, 3.0)));
    columns.each(WINDOWS, |window| {
        let (mean, square) = (rolling::means(&s.returns, window), rolling::means(&squares, window));
        let (cube, deviation) = (rolling::means(&cubes, window), rolling::deviations(&s.returns, window));
        let skewed = |i: usize| {
            let m = mean[i];
            (cube[i] - 3.0 * m * square[i] + 2.0 * libm::pow(m, 3.0)) / libm::pow(deviation[i], 3.0)
        };
        (0..mean.len()).map(skewed).collect()
    });
}

/// 10 lags of the close's place in its bar, 10 of the body's share of the bar, 10 distances to the highest and lowest
/// prices (30).
fn shapes(s: &Series<'_>, columns: &mut Columns) {
    let share = |from: &[f64]| {
        let above = zip(&s.bars.close, from, |close, from| close - from);
        zip(&above, &s.range, |above, range| above / range)
    };
    for place in [share(&s.bars.low), share(&s.bars.open)] {
        columns.each(0..10, |lag| rolling::lagged(&place, lag));
    }
    for window in CHANNEL_WINDOWS {
        let log_ratio = |a: f64, b: f64| libm::log(a / b);
        columns.add(zip(&rolling::largest(&s.bars.high, window), &s.bars.close, log_ratio));
        columns.add(zip(&s.bars.close, &rolling::smallest(&s.bars.low, window), log_ratio));
    }
}

/// Per window: slope of the log price by least squares; then the calendar: waves of the day and the week, and two
/// sessions (20).
fn trends_and_calendar(s: &Series<'_>, columns: &mut Columns) {
    let time: Vec<f64> = (0..columns.length).map(|i| i as f64).collect();
    columns.each(WINDOWS, |window| {
        let scale = rolling::covariances(&time, &time, window);
        zip(&rolling::covariances(&time, &s.log_close, window), &scale, |covariance, scale| covariance / (scale + 1e-9))
    });
    let day = |minute: f64| TAU * minute / 1440.0;
    for harmonic in [1.0, 2.0, 3.0] {
        columns.add(map(&s.bars.minute, |minute| libm::sin(harmonic * day(minute))));
        columns.add(map(&s.bars.minute, |minute| libm::cos(harmonic * day(minute))));
    }
    columns.add(map(&s.bars.day, |day| libm::sin(TAU * day / 5.0)));
    columns.add(map(&s.bars.day, |day| libm::cos(TAU * day / 5.0)));
    for session in [7.0..16.0, 13.0..22.0] {
        columns.add(map(&s.bars.minute, |minute| f64::from(u8::from(session.contains(&(minute / 60.0))))));
    }
}
