//! Features of a panel: what is known of each stock on each date.
//!
//! The eight informative ones come first, so that few features keep them; then 55 of prices and volumes, 9 of the
//! market, and noise.

use super::panel::{Panel, autoregressive, scored};
use crate::random::Stream;

/// Days of the trailing windows.
const WINDOWS: [usize; 6] = [3, 5, 10, 20, 40, 60];
/// Days over which the market's features are standardized.
const MARKET_WINDOW: usize = 60;
/// Largest score of a feature of the market.
const LIMIT: f32 = 5.0;
/// Days after which the decoy shows the signal.
const DELAY: usize = 40;

/// A feature.
#[derive(Clone, Copy, Debug)]
enum Feature {
    /// A latent series with noise of this standard deviation.
    Noisy {
        series: usize,
        noise: f64,
        copy: usize,
    },
    Decoy,
    /// The return of some days ago.
    Lag(usize),
    /// Statistics over trailing windows.
    MeanReturn(usize),
    Volatility(usize),
    PriceScore(usize),
    RelativeStrength(usize),
    Turnover(usize),
    Illiquidity(usize),
    SectorReturn(usize),
    Beta,
    Momentum,
    /// Of the market, equal for all stocks.
    Market(usize),
    /// A series that predicts nothing.
    Noise(usize),
}

/// The feature with this number.
fn feature(number: usize) -> Feature {
    let noisy = |series, noise, copy| Feature::Noisy { series, noise, copy };
    let window = |of: fn(usize) -> Feature, place: usize| of(WINDOWS[place]);
    match number {
        0..3 => noisy(0, 0.7, number),
        3..5 => noisy(1, 0.7, number - 3),
        5 | 6 => noisy(number - 3, 0.5, 0),
        7 => Feature::Decoy,
        8..18 => Feature::Lag(number - 8),
        18..24 => window(Feature::MeanReturn, number - 18),
        24..30 => window(Feature::Volatility, number - 24),
        30..36 => window(Feature::PriceScore, number - 30),
        36..42 => window(Feature::RelativeStrength, number - 36),
        42..48 => window(Feature::Turnover, number - 42),
        48..54 => window(Feature::Illiquidity, number - 48),
        54 => Feature::Beta,
        55 => Feature::Volatility(60),
        56 => Feature::Momentum,
        57..63 => window(Feature::SectorReturn, number - 57),
        63..72 => Feature::Market(number - 63),
        _ => Feature::Noise(number - 72),
    }
}

/// Feature `number` of every stock on every date: (days, stocks), standardized and limited to 5 standard deviations.
pub fn column(panel: &Panel, number: usize) -> Vec<f32> {
    let stocks = panel.stocks;
    let raw = match feature(number) {
        Feature::Noisy { series, noise, copy } => {
            let stream = stream(panel, &format!("noise.{series}")).fork(copy as u64);
            let noisy = |(i, value): (usize, &f32)| (f64::from(*value) + noise * stream.normal(i as u64)) as f32;
            panel.latent[series].iter().enumerate().map(noisy).collect()
        }
        Feature::Decoy => lagged(&panel.signal, DELAY * stocks),
        Feature::Lag(days) => lagged(&panel.returns, days * stocks),
        Feature::MeanReturn(window) => means(&panel.returns, stocks, window),
        Feature::Volatility(window) => volatility(panel, window),
        Feature::PriceScore(window) => price_score(panel, window),
        Feature::RelativeStrength(window) => {
            let gains = mapped(&panel.returns, |value| value.max(0.0));
            let moves = means(&mapped(&panel.returns, f32::abs), stocks, window);
            both(&means(&gains, stocks, window), &moves, |gains, moves| gains / (moves + 1e-8))
        }
        Feature::Turnover(window) => {
            both(&panel.turnover, &means(&panel.turnover, stocks, window), |value, mean| value - mean)
        }
        Feature::Illiquidity(window) => {
            let ratio = both(&panel.returns, &panel.turnover, |value, turnover| value.abs() * libm::expf(-turnover));
            means(&ratio, stocks, window)
        }
        Feature::SectorReturn(window) => means(&panel.sector_means(&panel.returns), stocks, window),
        Feature::Beta => beta(panel),
        Feature::Momentum => {
            let [long, short] = [60, 20].map(|window| means(&panel.returns, stocks, window));
            both(&long, &short, |long, short| long - short)
        }
        Feature::Market(which) => {
            let of_market = of_market(&panel.market, which);
            return of_market.into_iter().flat_map(|value| std::iter::repeat_n(value, stocks)).collect();
        }
        Feature::Noise(which) => {
            let stream = stream(panel, "characteristic").fork(which as u64);
            autoregressive(stream.fork(0), 0.8 + 0.19 * stream.uniform(0), panel.days, stocks)
        }
    };
    scored(raw, stocks)
}

fn stream(panel: &Panel, name: &str) -> Stream {
    Stream::named(panel.seed, &format!("atft.feature.{name}"))
}

fn mapped(values: &[f32], map: impl Fn(f32) -> f32) -> Vec<f32> {
    values.iter().map(|value| map(*value)).collect()
}

fn both(a: &[f32], b: &[f32], join: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| join(*a, *b)).collect()
}

/// The values of some rows ago; 0 at the beginning.
fn lagged(values: &[f32], by: usize) -> Vec<f32> {
    std::iter::repeat_n(0.0, by.min(values.len())).chain(values.iter().copied()).take(values.len()).collect()
}

/// Means of each stock over the last `window` days, fewer at the beginning.
pub fn means(values: &[f32], stocks: usize, window: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f64; stocks];
    let mut all = Vec::with_capacity(values.len());
    for (day, row) in values.chunks_exact(stocks).enumerate() {
        let gone = day.checked_sub(window).map(|day| &values[day * stocks..(day + 1) * stocks]);
        for (stock, value) in row.iter().enumerate() {
            // The difference of float32 numbers in float64 is exact but for the last bits.
            sums[stock] += f64::from(*value) - gone.map_or(0.0, |row| f64::from(row[stock]));
            all.push((sums[stock] / (day + 1).min(window) as f64) as f32);
        }
    }
    all
}

/// Variances of each stock over the last `window` days.
fn variances(values: &[f32], stocks: usize, window: usize) -> Vec<f32> {
    let squares = means(&mapped(values, |value| value * value), stocks, window);
    both(&squares, &means(values, stocks, window), |square, mean| (square - mean * mean).max(0.0))
}

fn volatility(panel: &Panel, window: usize) -> Vec<f32> {
    mapped(&variances(&panel.returns, panel.stocks, window), |variance| (variance + 1e-10).sqrt())
}

/// The logarithm of the price less its trailing mean, in units of the volatility of the window.
fn price_score(panel: &Panel, window: usize) -> Vec<f32> {
    let mut price = vec![0.0_f64; panel.stocks];
    let step = |(i, value): (usize, &f32)| {
        let price = &mut price[i % panel.stocks];
        *price += f64::from(*value);
        *price as f32
    };
    let prices: Vec<f32> = panel.returns.iter().enumerate().map(step).collect();
    let distance = both(&prices, &means(&prices, panel.stocks, window), |price, mean| price - mean);
    let root = (window as f32).sqrt();
    both(&distance, &volatility(panel, window), |distance, volatility| distance / (volatility * root))
}

/// Covariance with the market over its variance, of 60 days.
fn beta(panel: &Panel) -> Vec<f32> {
    let (stocks, window) = (panel.stocks, MARKET_WINDOW);
    let market: Vec<f32> = panel.market.iter().flat_map(|value| std::iter::repeat_n(*value, stocks)).collect();
    let joint = means(&both(&panel.returns, &market, |a, b| a * b), stocks, window);
    let product = both(&means(&panel.returns, stocks, window), &means(&market, stocks, window), |a, b| a * b);
    let covariance = both(&joint, &product, |joint, product| joint - product);
    both(&covariance, &variances(&market, stocks, window), |covariance, variance| covariance / (variance + 1e-8))
}

/// Feature `which` of the market: its mean return over each window, its absolute return, its mean square of 20 days,
/// its mean of 60; as scores of the last 60 days.
fn of_market(market: &[f32], which: usize) -> Vec<f32> {
    let values = match which {
        0..6 => means(market, 1, WINDOWS[which]),
        6 => mapped(market, f32::abs),
        7 => means(&mapped(market, |value| value * value), 1, 20),
        _ => means(market, 1, 60),
    };
    let distance = both(&values, &means(&values, 1, MARKET_WINDOW), |value, mean| value - mean);
    let deviations = variances(&values, 1, MARKET_WINDOW);
    both(&distance, &deviations, |distance, variance| (distance / (variance.sqrt() + 1e-8)).clamp(-LIMIT, LIMIT))
}
