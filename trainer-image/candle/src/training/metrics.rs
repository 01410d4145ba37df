//! Validation metrics of a gang.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// The means over the ranks of their metrics, as bits of float64 by name.
///
/// # Errors
/// When a rank has other metrics than rank 0.
pub(super) fn means(ranks: &[BTreeMap<String, u64>]) -> Result<BTreeMap<String, f64>> {
    let Some(first) = ranks.first() else { return Ok(BTreeMap::new()) };
    let names = |metrics: &BTreeMap<String, u64>| metrics.keys().cloned().collect::<Vec<_>>().join(", ");
    if let Some((rank, other)) = ranks.iter().enumerate().find(|(_, other)| !other.keys().eq(first.keys())) {
        return Err(Error::invalid(format!(
            "evaluate: the metrics of rank {rank} are {}, those of rank 0 {}: return the same names on all ranks",
            names(other),
            names(first)
        )));
    }
    let mean = |name: &String| ranks.iter().map(|rank| f64::from_bits(rank[name])).sum::<f64>() / ranks.len() as f64;
    Ok(first.keys().map(|name| (name.clone(), mean(name))).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn rank<const N: usize>(metrics: [(&str, f64); N]) -> BTreeMap<String, u64> {
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value.to_bits())).collect()
    }

    #[test]
    fn metrics_are_averaged_by_name() {
        let ranks = [rank([("loss", 1.0), ("accuracy", 0.5)]), rank([("loss", 2.0), ("accuracy", 0.75)])];
        let expected = BTreeMap::from([("accuracy".to_owned(), 0.625), ("loss".to_owned(), 1.5)]);
        assert_eq!(means(&ranks).unwrap(), expected);
        assert!(means(&[rank([("loss", 1.0)]), rank([("loss", f64::NAN)])]).unwrap()["loss"].is_nan());
    }

    #[test]
    fn ranks_with_other_metrics_are_refused() {
        for other in [rank([("error", 1.0), ("loss", 2.0)]), rank([("loss", 2.0)])] {
            let message = means(&[rank([("accuracy", 0.5), ("loss", 1.0)]), other]).unwrap_err().to_string();
            assert!(message.starts_with("evaluate: the metrics of rank 1 are "), "{message}");
            assert!(message.contains("those of rank 0 accuracy, loss"), "{message}");
        }
    }
}
