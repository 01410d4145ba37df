//! Metrics of the evaluation: losses, and how well sampled forecasts fit what happened.

use super::config::HORIZONS;
use pawl_graph::array::Array;
use std::collections::BTreeMap;

/// Outputs of the evaluation program that are summed as they are, in order.
const LOSSES: [&str; 5] = ["loss", "reconstruction", "kl", "velocity", "returns"];
/// Per horizon: squared error of the mean, whether its sign is right, CRPS, whether the return is within the band.
const PER_HORIZON: [&str; 4] = ["rmse", "direction", "crps", "coverage"];
/// Number of sums; the last one counts windows.
pub const SUMS: usize = LOSSES.len() + PER_HORIZON.len() * HORIZONS.len() + 1;
/// Quantiles of the band.
const BAND: [f64; 2] = [0.05, 0.95];

/// Adds the outputs of the evaluation program for windows whose returns were `returns`: the first windows of the batch.
pub fn add(outputs: &[Array], returns: &[[f64; HORIZONS.len()]], sums: &mut [f64]) {
    for (sum, output) in sums.iter_mut().zip(&outputs[..LOSSES.len()]) {
        *sum += output.to_f64().iter().take(returns.len()).sum::<f64>();
    }
    let samples = &outputs[LOSSES.len()];
    let count = samples.shape()[1];
    let samples = samples.to_f64();
    for (window, returns) in samples.chunks_exact(count * HORIZONS.len()).zip(returns) {
        let slots = sums[LOSSES.len()..].chunks_exact_mut(PER_HORIZON.len());
        for (horizon, (slots, happened)) in slots.zip(returns).enumerate() {
            let mut forecast: Vec<f64> = window.iter().skip(horizon).step_by(HORIZONS.len()).copied().collect();
            forecast.sort_by(f64::total_cmp);
            let mean = forecast.iter().sum::<f64>() / count as f64;
            let [low, high] = BAND.map(|share| quantile(&forecast, share));
            slots[0] += (mean - happened).powi(2);
            slots[1] += f64::from(u8::from((mean > 0.0) == (*happened > 0.0)));
            slots[2] += crps(&forecast, *happened);
            slots[3] += f64::from(u8::from((low..=high).contains(happened)));
        }
    }
    sums[SUMS - 1] += returns.len() as f64;
}

/// The metrics of these sums: `loss` (as in training, with its last factor of the KL divergence) and its parts; for
/// each horizon, such as 15m: `rmse_15m` (of the samples' mean), `direction_15m` (share of windows in which the mean
/// has the sign of the return), `crps_15m`, and `coverage_15m` (share of returns between the 5 % and the 95 % quantile
/// of the samples). Returns are in units of volatility.
pub fn metrics(sums: &[f64]) -> BTreeMap<String, f64> {
    let windows = sums[SUMS - 1];
    let mut all: BTreeMap<String, f64> =
        LOSSES.iter().zip(sums).map(|(name, sum)| (name.to_string(), sum / windows)).collect();
    for (horizon, slots) in HORIZONS.iter().zip(sums[LOSSES.len()..].chunks_exact(PER_HORIZON.len())) {
        for (name, sum) in PER_HORIZON.iter().zip(slots) {
            let mean = sum / windows;
            all.insert(format!("{name}_{}", horizon.name), if *name == "rmse" { mean.sqrt() } else { mean });
        }
    }
    all
}

/// The continuous ranked probability score of an ascending sample for what happened: `mean |s_i - y| - mean |s_i - s_j|
/// / 2`.
pub fn crps(ascending: &[f64], happened: f64) -> f64 {
    let count = ascending.len() as f64;
    let distance = ascending.iter().map(|sample| (sample - happened).abs()).sum::<f64>() / count;
    // Over all pairs, |s_i - s_j| is 2 sum (2 i - count + 1) s_i with i from 0.
    let spread = |(i, sample): (usize, &f64)| (2.0 * i as f64 - count + 1.0) * sample;
    distance - ascending.iter().enumerate().map(spread).sum::<f64>() / (count * count)
}

/// A quantile of an ascending sample, linear between its elements.
fn quantile(ascending: &[f64], share: f64) -> f64 {
    let at = share * (ascending.len() - 1) as f64;
    let (below, above) = (ascending[at.floor() as usize], ascending[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_graph::array::Data;

    #[test]
    fn crps_equals_its_definition() {
        let samples: [f64; 5] = [-1.5, -0.2, 0.3, 0.9, 2.5];
        let n = samples.len() as f64;
        for happened in [-3.0, 0.3, 0.5, 4.0] {
            let distance = samples.iter().map(|s| (s - happened).abs()).sum::<f64>() / n;
            let pairs = samples.iter().flat_map(|a| samples.iter().map(move |b| (a - b).abs())).sum::<f64>() / (n * n);
            assert!((crps(&samples, happened) - (distance - 0.5 * pairs)).abs() < 1e-12);
        }
        assert_eq!(crps(&[2.0, 2.0], 5.0), 3.0, "of a certain forecast it is the absolute error");
    }

    #[test]
    fn metrics_are_means_over_the_windows_that_count() {
        // Two windows count; the third row pads the batch.
        let losses = |value: f32| Array::new([3], Data::F32(vec![value, value + 2.0, 99.0])).unwrap();
        let mut outputs: Vec<Array> = [1.0, 2.0, 3.0, 4.0, 5.0].into_iter().map(losses).collect();
        // Four samples: -1, 0, 1, 4 for the first horizon, all 2 for the others.
        let row = |first: f32| [first, 2.0, 2.0, 2.0];
        let window = [-1.0, 4.0, 1.0, 0.0].into_iter().flat_map(row).collect::<Vec<f32>>();
        outputs.push(Array::new([3, 4, 4], Data::F32([window.clone(), window.clone(), window].concat())).unwrap());
        let mut sums = vec![0.0; SUMS];
        add(&outputs, &[[3.0, 2.0, 1.0, -1.0], [-5.0, 2.0, 2.0, 2.0]], &mut sums);
        let metrics = metrics(&sums);
        assert_eq!(metrics.len(), LOSSES.len() + 16);
        assert_eq!((metrics["loss"], metrics["kl"], metrics["returns"]), (2.0, 4.0, 6.0));
        // Means of 1 beside returns of 3 and -5; the band is from -0.85 to 3.55.
        assert_eq!((metrics["rmse_5m"], metrics["direction_5m"], metrics["coverage_5m"]), (20.0f64.sqrt(), 0.5, 0.5));
        assert_eq!((metrics["rmse_240m"], metrics["direction_240m"], metrics["crps_240m"]), (4.5f64.sqrt(), 0.5, 1.5));
        assert_eq!(metrics["coverage_60m"], 0.5);
    }
}
