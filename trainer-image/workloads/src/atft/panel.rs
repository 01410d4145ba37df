//! A simulated panel of stocks: a market with regimes, sectors, heavy-tailed idiosyncratic risk, and a signal that
//! predicts the next return.
//!
//! All tables are (days, stocks), row-major.

use crate::random::Stream;
use rayon::prelude::*;

/// Sectors and market segments.
pub const SECTORS: usize = 33;
const SEGMENTS: u64 = 3;
/// Autocorrelation of the latent series.
const PERSISTENCE: f64 = 0.8;
/// Standard deviation of a sector's shock.
const SECTOR_SHOCK: f64 = 0.006;
/// Market: standard deviation of each regime, and the probability that it ends with a day.
const REGIMES: [(f64, f64); 2] = [(0.007, 0.02), (0.022, 0.06)];
/// GARCH(1,1) of the market and of a stock: weights of the last squared shock and of the last variance; the long-run
/// variance is 1.
const MARKET_GARCH: [f64; 2] = [0.10, 0.85];
const STOCK_GARCH: [f64; 2] = [0.08, 0.86];
/// Degrees of freedom of a stock's shocks.
const FREEDOM: u64 = 5;
/// Largest score of a stock within its date.
pub(super) const LIMIT: f32 = 5.0;

/// The panel.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Number of days.
    pub days: usize,
    /// Number of stocks.
    pub stocks: usize,
    /// Seed.
    pub seed: u64,
    /// Sector of each stock.
    pub sectors: Vec<u8>,
    /// Market segment of each stock.
    pub segments: Vec<u8>,
    /// Log returns of a day.
    pub returns: Vec<f32>,
    /// Log returns of the market: (days).
    pub market: Vec<f32>,
    /// Logarithm of the turnover, less its mean.
    pub turnover: Vec<f32>,
    /// The latent series, each with unit variance: u, v, w1 and w2.
    pub latent: [Vec<f32>; 4],
    /// What predicts the next return: u, the sector's mean of v, and the product of w1 and w2.
    pub signal: Vec<f32>,
}

impl Panel {
    /// `days` of `stocks`; `strength` is the factor of the signal in units of a stock's volatility.
    pub fn simulated(days: usize, stocks: usize, strength: f64, seed: u64) -> Self {
        let of = |name: &str| Stream::named(seed, &format!("atft.{name}"));
        let group = |name: &str, count: u64| (0..stocks as u64).map(|i| of(name).below(i, count) as u8).collect();
        let (sectors, segments): (Vec<u8>, Vec<u8>) = (group("sector", SECTORS as u64), group("segment", SEGMENTS));
        let latent = ["u", "v", "w1", "w2"].map(|name| autoregressive(of(name), PERSISTENCE, days, stocks));
        let signal = signal(&latent, &sectors, stocks);
        let mut panel = Self {
            days,
            stocks,
            seed,
            sectors,
            segments,
            returns: Vec::new(),
            market: market(seed, days),
            turnover: Vec::new(),
            latent,
            signal,
        };
        panel.returns = panel.simulated_returns(strength);
        panel.turnover = panel.simulated_turnover();
        panel
    }

    fn stream(&self, name: &str) -> Stream {
        Stream::named(self.seed, &format!("atft.{name}"))
    }

    /// Volatility of each stock.
    fn volatility(&self) -> Vec<f64> {
        let stream = self.stream("volatility");
        (0..self.stocks as u64).map(|i| 0.012 + 0.012 * stream.uniform(i)).collect()
    }

    fn simulated_returns(&self, strength: f64) -> Vec<f32> {
        let stocks = self.stocks;
        let (volatility, beta) = (self.volatility(), self.stream("beta"));
        let (shocks, sector_shocks) = (self.stream("shock"), self.stream("sector_shock"));
        let (mut variance, mut residual) = (vec![1.0; stocks], vec![0.0; stocks]);
        let [reaction, memory] = STOCK_GARCH;
        let mut returns = Vec::with_capacity(self.days * stocks);
        for day in 0..self.days {
            let moves: Vec<f64> = (0..SECTORS)
                .map(|sector| SECTOR_SHOCK * sector_shocks.normal((day * SECTORS + sector) as u64))
                .collect();
            let market = f64::from(self.market[day]);
            let known = (day > 0).then(|| &self.signal[(day - 1) * stocks..day * stocks]);
            let one = |(stock, (variance, residual)): (usize, (&mut f64, &mut f64))| {
                *variance = (1.0 - reaction - memory) + reaction * *residual * *residual + memory * *variance;
                *residual = variance.sqrt() * student(shocks, (day * stocks + stock) as u64);
                let drift = known.map_or(0.0, |signal| strength * f64::from(signal[stock]));
                let common =
                    (0.6 + 0.8 * beta.uniform(stock as u64)) * market + moves[usize::from(self.sectors[stock])];
                (common + volatility[stock] * (*residual + drift)) as f32
            };
            returns.par_extend(variance.par_iter_mut().zip(&mut residual).enumerate().map(one));
        }
        returns
    }

    fn simulated_turnover(&self) -> Vec<f32> {
        let (volatility, noise) = (self.volatility(), self.stream("turnover"));
        let one = |(i, value): (usize, &f32)| {
            (0.5 * f64::from(value.abs()) / volatility[i % self.stocks] + 0.7 * noise.normal(i as u64)) as f32
        };
        self.returns.par_iter().enumerate().map(one).collect()
    }

    /// The mean of each stock's sector.
    pub fn sector_means(&self, values: &[f32]) -> Vec<f32> {
        sector_means(values, &self.sectors)
    }
}

/// Series (days, stocks) of unit variance with this autocorrelation.
pub fn autoregressive(stream: Stream, persistence: f64, days: usize, stocks: usize) -> Vec<f32> {
    let innovation = (1.0 - persistence * persistence).sqrt();
    let mut last = vec![0.0; stocks];
    let mut all = Vec::with_capacity(days * stocks);
    for day in 0..days {
        let (keep, scale) = if day == 0 { (0.0, 1.0) } else { (persistence, innovation) };
        for (stock, value) in last.iter_mut().enumerate() {
            *value = keep * *value + scale * stream.normal((day * stocks + stock) as u64);
            all.push(*value as f32);
        }
    }
    all
}

/// Scores within each date (rows of `stocks`), limited to 5 standard deviations.
pub fn scored(mut values: Vec<f32>, stocks: usize) -> Vec<f32> {
    for day in values.chunks_exact_mut(stocks) {
        let mean = day.iter().map(|value| f64::from(*value)).sum::<f64>() / stocks as f64;
        let square = |value: &f32| (f64::from(*value) - mean) * (f64::from(*value) - mean);
        let deviation = (day.iter().map(square).sum::<f64>() / stocks as f64).sqrt() + 1e-8;
        day.iter_mut()
            .for_each(|value| *value = (((f64::from(*value) - mean) / deviation) as f32).clamp(-LIMIT, LIMIT));
    }
    values
}

fn sector_means(values: &[f32], sectors: &[u8]) -> Vec<f32> {
    let mut means = Vec::with_capacity(values.len());
    for day in values.chunks_exact(sectors.len()) {
        let mut sums = [[0.0; 2]; SECTORS];
        for (value, sector) in day.iter().zip(sectors) {
            let [sum, count] = &mut sums[usize::from(*sector)];
            *sum += f64::from(*value);
            *count += 1.0;
        }
        means.extend(
            sectors.iter().map(|sector| (sums[usize::from(*sector)][0] / sums[usize::from(*sector)][1]) as f32),
        );
    }
    means
}

/// The sector's part is seen only through the neighbours of a stock, the product only by a model that is not linear.
fn signal([u, v, w1, w2]: &[Vec<f32>; 4], sectors: &[u8], stocks: usize) -> Vec<f32> {
    let of_sector = scored(sector_means(v, sectors), stocks);
    let mixed = (0..u.len()).map(|i| 0.55 * u[i] + 0.55 * of_sector[i] + 0.45 * w1[i] * w2[i]).collect();
    scored(mixed, stocks)
}

/// Returns of the market: two regimes times GARCH.
fn market(seed: u64, days: usize) -> Vec<f32> {
    let of = |name: &str| Stream::named(seed, &format!("atft.market.{name}"));
    let (switch, shocks) = (of("switch"), of("shock"));
    let (mut variance, mut shock, mut regime) = (1.0, 0.0, 0);
    let [reaction, memory] = MARKET_GARCH;
    let mut day_return = |day: u64| {
        if switch.uniform(day) < REGIMES[regime].1 {
            regime = 1 - regime;
        }
        variance = (1.0 - reaction - memory) + reaction * shock * shock + memory * variance;
        shock = libm::sqrt(variance) * shocks.normal(day);
        (shock * REGIMES[regime].0) as f32
    };
    (0..days as u64).map(&mut day_return).collect()
}

/// Student-t with unit variance: a normal over the root of an independent chi-squared that is divided by its degrees of
/// freedom.
fn student(stream: Stream, index: u64) -> f64 {
    let draw = |part: u64| stream.normal(index * (FREEDOM + 1) + part);
    let squares: f64 = (1..=FREEDOM).map(|part| draw(part) * draw(part)).sum();
    let freedom = FREEDOM as f64;
    draw(0) / libm::sqrt(squares / freedom) / libm::sqrt(freedom / (freedom - 2.0))
}
