//! Metrics of the evaluation: how well the medians rank the returns of a date, as correlations and as portfolios.

use super::config::HORIZONS;
use std::collections::BTreeMap;

/// Sums per horizon: RankIC, its square, IC, its square.
const PER_HORIZON: usize = 4;
/// Number of sums: dates, loss, Sharpe ratio over the stocks of a date, spread of the deciles and its square; then
/// those of the horizons.
pub const SUMS: usize = 5 + PER_HORIZON * HORIZONS.len();
/// Trading days of a year.
const YEAR: f64 = 252.0;
/// Reciprocal of the share of the stocks that are bought, and of those that are sold.
const DECILE: usize = 10;

/// Adds one date: its loss, and the forecasts and returns (stocks, horizons) of its stocks.
pub fn add(loss: f64, medians: &[f64], returns: &[f64], sums: &mut [f64]) {
    let column = |values: &[f64], horizon: usize| -> Vec<f64> {
        values.iter().skip(horizon).step_by(HORIZONS.len()).copied().collect()
    };
    let (forecast, happened) = (column(medians, 0), column(returns, 0));
    let positions = forecast.iter().zip(&happened).map(|(forecast, happened)| sign(*forecast) * happened);
    let spread = decile_spread(&forecast, &happened);
    let first = [1.0, loss, sharpe(&positions.collect::<Vec<_>>()), spread, spread * spread];
    let of_horizons = (0..HORIZONS.len()).flat_map(|horizon| {
        let (forecast, happened) = (column(medians, horizon), column(returns, horizon));
        let (rank, linear) = (spearman(&forecast, &happened), pearson(&forecast, &happened));
        [rank, rank * rank, linear, linear * linear]
    });
    for (sum, value) in sums.iter_mut().zip(first.into_iter().chain(of_horizons)) {
        *sum += value;
    }
}

/// The metrics of these sums. `loss`; for each horizon, such as 5d: `rankic_5d` and `ic_5d`, Spearman's and Pearson's
/// correlation of medians and returns over the stocks of a date, mean over dates, and `icir_5d`, the mean of the latter
/// over its standard deviation; `rankic_mean`, over the horizons; `sharpe`, of positions by the sign of the median over
/// the stocks of a date, mean over dates, of 1 day and not annualized; `spread_sharpe`, annualized, of the best tenth
/// of the stocks minus the worst.
pub fn metrics(sums: &[f64]) -> BTreeMap<String, f64> {
    let dates = sums[0];
    let mut all = BTreeMap::from([
        ("loss".to_owned(), sums[1] / dates),
        ("sharpe".to_owned(), sums[2] / dates),
        ("spread_sharpe".to_owned(), ratio(sums[3], sums[4], dates) * YEAR.sqrt()),
    ]);
    let mut ranks = 0.0;
    for (horizon, sums) in HORIZONS.iter().zip(sums[5..].chunks_exact(PER_HORIZON)) {
        all.insert(format!("rankic_{}", horizon.name), sums[0] / dates);
        all.insert(format!("ic_{}", horizon.name), sums[2] / dates);
        all.insert(format!("icir_{}", horizon.name), ratio(sums[2], sums[3], dates));
        ranks += sums[0] / dates;
    }
    all.insert("rankic_mean".to_owned(), ranks / HORIZONS.len() as f64);
    all
}

/// Mean over standard deviation, of the sum of some values and that of their squares; 0 when they do not vary.
fn ratio(sum: f64, squares: f64, count: f64) -> f64 {
    let mean = sum / count;
    let variance = (squares - sum * mean) / (count - 1.0);
    if variance > 0.0 { mean / variance.sqrt() } else { 0.0 }
}

/// -1, 0 or 1.
fn sign(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

/// Mean over standard deviation (of the sample); 0 when the values do not vary.
pub fn sharpe(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    if deviation > 0.0 { mean / deviation } else { 0.0 }
}

/// Ranks from 1; equal values share the mean of theirs.
pub fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let ties = order[start..].iter().take_while(|&&i| values[i] == values[order[start]]).count().max(1);
        let mean = start as f64 + (ties + 1) as f64 / 2.0;
        order[start..start + ties].iter().for_each(|&i| ranks[i] = mean);
        start += ties;
    }
    ranks
}

/// Pearson's correlation; 0 when one of the two does not vary.
pub fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let count = a.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        both += a * b;
        of_a += a * a;
        of_b += b * b;
    }
    if of_a > 0.0 && of_b > 0.0 { both / (of_a.sqrt() * of_b.sqrt()) } else { 0.0 }
}

/// Spearman's rank correlation: Pearson's of the ranks.
pub fn spearman(a: &[f64], b: &[f64]) -> f64 {
    pearson(&ranks(a), &ranks(b))
}

/// Mean return of the tenth of the stocks with the highest forecasts minus that of the tenth with the lowest.
fn decile_spread(forecast: &[f64], happened: &[f64]) -> f64 {
    let mut order: Vec<usize> = (0..forecast.len()).collect();
    order.sort_by(|&a, &b| forecast[a].total_cmp(&forecast[b]));
    let count = (order.len() / DECILE).max(1);
    let mean = |stocks: &[usize]| stocks.iter().map(|&stock| happened[stock]).sum::<f64>() / count as f64;
    mean(&order[order.len() - count..]) - mean(&order[..count])
}
