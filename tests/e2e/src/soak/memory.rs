//! Whether a process keeps the memory that it has.

use std::time::Duration;

/// Samples of a process over time.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<(f64, f64)>);

/// A process that started has not reached its working set yet.
const WARM_UP: Duration = Duration::from_secs(60);
/// Growth that is noise of the allocator: a share of the mean, or bytes if that is more.
const NOISE: (f64, f64) = (0.1, 4e6);

impl Samples {
    /// A sample of a process of this age.
    pub fn add(&mut self, age: Duration, value: f64) {
        if age >= WARM_UP {
            self.0.push((age.as_secs_f64(), value));
        }
    }

    /// Seconds between the first and the last sample.
    pub fn span(&self) -> f64 {
        let ends = self.0.first().zip(self.0.last());
        ends.map_or(0.0, |((first, _), (last, _))| last - first)
    }

    /// The mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        self.0.iter().map(|(_, value)| value).sum::<f64>() / self.0.len().max(1) as f64
    }

    /// The slope by least squares, per second; 0 with fewer than two samples.
    pub fn slope(&self) -> f64 {
        let count = self.0.len().max(1) as f64;
        let middle = self.0.iter().map(|(time, _)| time).sum::<f64>() / count;
        let mean = self.mean();
        let (mut products, mut squares) = (0.0, 0.0);
        for (time, value) in &self.0 {
            products += (time - middle) * (value - mean);
            squares += (time - middle).powi(2);
        }
        if squares > 0.0 { products / squares } else { 0.0 }
    }

    /// Says how flat the memory is.
    ///
    /// # Errors
    /// It grew by more than noise.
    pub fn flat(&self) -> Result<String, String> {
        let growth = self.slope() * self.span();
        let limit = (self.mean() * NOISE.0).max(NOISE.1);
        let said = format!(
            "mean {:.1} MB, {:+.2} MB/h, {:+.2} MB in {:.0} s ({} samples, limit {:.1} MB)",
            self.mean() / 1e6,
            self.slope() * 3600.0 / 1e6,
            growth / 1e6,
            self.span(),
            self.0.len(),
            limit / 1e6,
        );
        match self.0.len() {
            0..10 => Err(format!("too few samples: {said}")),
            _ if growth > limit => Err(said),
            _ => Ok(said),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour of samples, every 5 s, of a value that grows by this much an hour, and varies.
    fn hour(growth: f64) -> Samples {
        let mut samples = Samples::default();
        for second in (0..3600_u64).step_by(5) {
            let noise = if second % 10 == 0 { 1e6 } else { -1e6 };
            samples.add(Duration::from_secs(second), 30e6 + noise + growth * second as f64 / 3600.0);
        }
        samples
    }

    #[test]
    fn growth_is_told_from_noise() {
        assert!(hour(0.0).flat().is_ok());
        assert!(hour(1e6).flat().is_ok());
        assert!((hour(12e6).slope() * 3600.0 - 12e6).abs() < 0.1e6);
        assert!(hour(12e6).flat().is_err());
        assert!(hour(-12e6).flat().is_ok(), "memory that is given back is no leak");
    }

    #[test]
    fn what_was_hardly_sampled_is_not_flat() {
        let mut samples = Samples::default();
        samples.add(Duration::from_secs(1), 1e9);
        assert_eq!(samples.span(), 0.0, "it was not warm yet");
        samples.add(Duration::from_secs(100), 1e6);
        assert!(samples.flat().unwrap_err().starts_with("too few samples"));
    }
}
