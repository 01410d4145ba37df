//! Statistics that comparisons, gates and the status share.

pub(crate) mod disturbed;
pub(crate) mod outside;
pub(crate) mod sequential;

/// The median of the finite values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_values_that_are_not_finite() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, f64::NAN, 1.0].into_iter()), Some(2.0));
        assert_eq!(median([3.0, 9.0, 1.0].into_iter()), Some(3.0));
    }
}
