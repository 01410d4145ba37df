//! Statistics over the last bars: each value is of the window that ends with its bar, and shorter at the beginning.

/// Added to standard deviations, which are divisors.
const LEAST: f64 = 1e-12;

/// Sums of the last `window` values.
pub fn sums(values: &[f64], window: usize) -> Vec<f64> {
    let mut total = 0.0;
    let cumulative: Vec<f64> = std::iter::once(0.0)
        .chain(values.iter().map(|value| {
            total += value;
            total
        }))
        .collect();
    (1..=values.len()).map(|end| cumulative[end] - cumulative[end.saturating_sub(window)]).collect()
}

/// Means of the last `window` values.
pub fn means(values: &[f64], window: usize) -> Vec<f64> {
    let sums = sums(values, window).into_iter();
    sums.enumerate().map(|(i, sum)| sum / (i + 1).min(window) as f64).collect()
}

/// Standard deviations (of the population) of the last `window` values, plus 1e-12.
pub fn deviations(values: &[f64], window: usize) -> Vec<f64> {
    let squares: Vec<f64> = values.iter().map(|value| value * value).collect();
    let pairs = means(&squares, window).into_iter().zip(means(values, window));
    pairs.map(|(square, mean)| libm::sqrt((square - mean * mean).max(0.0)) + LEAST).collect()
}

/// Covariances of the last `window` pairs.
pub fn covariances(a: &[f64], b: &[f64], window: usize) -> Vec<f64> {
    let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
    let separate = means(a, window).into_iter().zip(means(b, window));
    means(&products, window).into_iter().zip(separate).map(|(both, (a, b))| both - a * b).collect()
}

/// How many deviations each value is from the mean of the last `window` values.
pub fn scores(values: &[f64], window: usize) -> Vec<f64> {
    let of = means(values, window).into_iter().zip(deviations(values, window));
    values.iter().zip(of).map(|(value, (mean, deviation))| (value - mean) / deviation).collect()
}

/// The largest of the last `window` values.
pub fn largest(values: &[f64], window: usize) -> Vec<f64> {
    extremes(values, window, f64::max)
}

/// The smallest of the last `window` values.
pub fn smallest(values: &[f64], window: usize) -> Vec<f64> {
    extremes(values, window, f64::min)
}

fn extremes(values: &[f64], window: usize, pick: fn(f64, f64) -> f64) -> Vec<f64> {
    let of = |end: usize| values[(end + 1).saturating_sub(window)..=end].iter().copied().fold(values[end], pick);
    (0..values.len()).map(of).collect()
}

/// The exponential moving average with the factor 2 / (span + 1), from the first value on.
pub fn averages(values: &[f64], span: usize) -> Vec<f64> {
    let factor = 2.0 / (span as f64 + 1.0);
    let mut average = values.first().copied().unwrap_or(0.0);
    let next = |value: &f64| {
        average += factor * (value - average);
        average
    };
    values.iter().map(next).collect()
}

/// Each value's predecessor `by` bars ago; 0 where there is none.
pub fn lagged(values: &[f64], by: usize) -> Vec<f64> {
    std::iter::repeat_n(0.0, by.min(values.len())).chain(values.iter().copied()).take(values.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_end_with_their_bar() {
        let values = [1.0, 4.0, 2.0, 7.0];
        assert_eq!(sums(&values, 2), [1.0, 5.0, 6.0, 9.0]);
        assert_eq!(means(&values, 3), [1.0, 2.5, 7.0 / 3.0, 13.0 / 3.0]);
        assert_eq!(largest(&values, 2), [1.0, 4.0, 4.0, 7.0]);
        assert_eq!(smallest(&values, 3), [1.0, 1.0, 1.0, 2.0]);
        assert_eq!(lagged(&values, 1), [0.0, 1.0, 4.0, 2.0]);
        assert_eq!(lagged(&values, 9), [0.0; 4]);
        assert_eq!(averages(&values, 3), [1.0, 2.5, 2.25, 4.625]);
        let near = |got: &[f64], wanted: &[f64]| got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(near(&deviations(&values, 2), &[0.0, 1.5, 1.0, 2.5]));
        assert!(near(&covariances(&values, &[0.0, 1.0, 1.0, 0.0], 2), &[0.0, 0.75, 0.0, -1.25]));
        assert!(near(&scores(&values, 2)[1..], &[1.0, -1.0, 1.0]));
    }
}
