//! What windows are cut from: normalized bars and the features of every timeframe, by five-minute bar.

use super::bars::Bars;
use super::config::{CHANNELS, CLOSE, Config, DataConfig, HORIZONS, LONGEST, PATCH, TIMEFRAMES, WARM_UP_BARS};
use super::features::features;
use super::rolling;
use crate::store::OnProgress;
use std::f64::consts::TAU;
use std::ops::Range;

/// Bars over which the volatility that prices are divided by is averaged: a day.
const VOLATILITY_SPAN: usize = 288;
/// Root of the bars of a patch.
const VOLATILITY_FACTOR: f64 = 8.0;
/// Share of the windows that is for training.
const TRAINING: f64 = 0.8;
/// Largest score of a volume.
const LIMIT: f64 = 8.0;

/// Numbers that describe a bar in [`Market::table`]: those of its prices, then those of the other channels, then the
/// unit of prices.
pub const ROW: usize = CHANNELS + 1;
/// Prices of a bar: open, high, low and close.
pub const PRICES: usize = 4;
/// The unit of prices.
pub const UNIT: usize = CHANNELS;

/// The market, in memory.
#[derive(Debug)]
pub struct Market {
    /// Logarithms of open, high, low and close, less their mean.
    prices: Vec<[f32; PRICES]>,
    /// The unit of prices in a patch that ends with a bar.
    volatility: Vec<f32>,
    /// Score of the volume, sine and cosine of the time of day.
    others: Vec<[f32; CHANNELS - PRICES]>,
    /// Features of each timeframe: (bars, width).
    features: Vec<Vec<f32>>,
    width: usize,
    lookback: [usize; TIMEFRAMES.len()],
    training: Range<usize>,
    validation: Range<usize>,
}

impl Market {
    /// The market of `bars`; `progress` reports the timeframes whose features are made.
    pub fn new(bars: &Bars, config: &Config, progress: OnProgress<'_>) -> Self {
        let width = config.model.width;
        let timeframes = (0..).zip(&TIMEFRAMES).map(|(done, timeframe)| {
            progress("features", done, TIMEFRAMES.len() as u64);
            features(&bars.joined(timeframe.factor), width)
        });
        let features = timeframes.collect();
        let logs = [&bars.open, &bars.high, &bars.low, &bars.close]
            .map(|prices| prices.iter().map(|p| libm::log(*p)).collect::<Vec<f64>>());
        let close = &logs[CLOSE];
        let squares: Vec<f64> =
            (0..bars.len()).map(|i| libm::pow(close[i] - close[i.saturating_sub(1)], 2.0)).collect();
        let volatility = rolling::averages(&squares, VOLATILITY_SPAN);
        let mean = close.iter().sum::<f64>() / close.len() as f64;
        let volume: Vec<f64> = bars.volume.iter().map(|volume| libm::log1p(*volume)).collect();
        let volume = rolling::scores(&volume, WARM_UP_BARS);
        let [training, validation] = splits(&config.data, bars.len());
        let other = |i: usize| {
            let angle = TAU * bars.minute[i] / 1440.0;
            [volume[i].clamp(-LIMIT, LIMIT), libm::sin(angle), libm::cos(angle)].map(|value| value as f32)
        };
        Self {
            prices: (0..bars.len()).map(|i| [0, 1, 2, 3].map(|channel| (logs[channel][i] - mean) as f32)).collect(),
            volatility: volatility.iter().map(|square| (square.sqrt() * VOLATILITY_FACTOR + 1e-9) as f32).collect(),
            others: (0..bars.len()).map(other).collect(),
            features,
            width,
            lookback: config.data.lookback,
            training,
            validation,
        }
    }

    /// Bars with which training windows end.
    pub fn training(&self) -> Range<usize> {
        self.training.clone()
    }

    /// Bars with which validation windows end: later ones, with an embargo in between.
    pub fn validation(&self) -> Range<usize> {
        self.validation.clone()
    }

    /// Writes the features of timeframe number `timeframe` of the window that ends with `bar`: the last completed bars,
    /// (length, width).
    pub fn write_features(&self, bar: usize, timeframe: usize, out: &mut [f32]) {
        let end = (bar + 1) / TIMEFRAMES[timeframe].factor;
        let start = end - self.lookback[timeframe];
        out.copy_from_slice(&self.features[timeframe][start * self.width..end * self.width]);
    }

    /// Writes the patches of the window that ends with `bar`: the present one and those at the horizons, (1 + horizons,
    /// 64, channels). All prices are relative to the close of `bar`, in units of its volatility.
    pub fn write_patches(&self, bar: usize, out: &mut [f32]) {
        let ends = std::iter::once(bar).chain(HORIZONS.iter().map(|horizon| bar + horizon.bars));
        let rows = ends.flat_map(|end| end + 1 - PATCH..=end);
        let (reference, unit) = (self.prices[bar][CLOSE], self.volatility[bar]);
        for (row, out) in rows.zip(out.chunks_exact_mut(CHANNELS)) {
            for (price, out) in self.prices[row].iter().zip(&mut out[..PRICES]) {
                *out = (price - reference) / unit;
            }
            out[PRICES..].copy_from_slice(&self.others[row]);
        }
    }

    /// All bars, each a row of [`ROW`] numbers, from which windows can be cut.
    pub fn table(&self) -> Vec<f32> {
        let rows = self.prices.iter().zip(&self.others).zip(&self.volatility);
        rows.flat_map(|((prices, others), unit)| prices.iter().chain(others).copied().chain([*unit])).collect()
    }

    /// Number of features of a time step.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The features of timeframe number `timeframe`: (bars, width).
    pub fn features(&self, timeframe: usize) -> &[f32] {
        &self.features[timeframe]
    }

    /// The returns from `bar` to the horizons, in units of its volatility.
    pub fn returns(&self, bar: usize) -> [f64; HORIZONS.len()] {
        let price = |at: usize| self.prices[at][CLOSE];
        HORIZONS.map(|horizon| f64::from((price(bar + horizon.bars) - price(bar)) / self.volatility[bar]))
    }
}

/// The bars with which training and validation windows end: the first 80 % and the rest, so that no training window
/// reaches into validation.
pub fn splits(data: &DataConfig, bars: usize) -> [Range<usize>; 2] {
    let (first, end) = (data.first_bar(), bars - LONGEST - 1);
    let split = first + (TRAINING * (end - first) as f64) as usize;
    [first..split - LONGEST, split..end]
}
