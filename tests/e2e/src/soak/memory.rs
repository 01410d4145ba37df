//! Whether a process keeps the memory that it has.

use std::time::Duration;

/// Samples of a process over time, in stretches in which it does the same work.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Stretch, seconds since the start of the process, value.
    taken: Vec<(u32, f64, f64)>,
    stretch: u32,
}

/// A process that started, or got other work, has not reached its working set yet.
const WARM_UP: Duration = Duration::from_secs(60);
/// Growth that is noise of the allocator: a share of the mean, or bytes if that is more.
const NOISE: (f64, f64) = (0.1, 4e6);

impl Samples {
    /// From now on, the process does other work: its memory may be at another level.
    pub fn turn(&mut self) {
        self.stretch += 1;
    }

    /// A sample of a process of this age, which has done the same work for `since`.
    pub fn add(&mut self, age: Duration, since: Duration, value: f64) {
        if since >= WARM_UP {
            self.taken.push((self.stretch, age.as_secs_f64(), value));
        }
    }

    /// Seconds between the first and the last sample.
    pub fn span(&self) -> f64 {
        let ends = self.taken.first().zip(self.taken.last());
        ends.map_or(0.0, |((_, first, _), (_, last, _))| last - first)
    }

    /// The mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        self.taken.iter().map(|(_, _, value)| value).sum::<f64>() / self.taken.len().max(1) as f64
    }

    /// The slope that all stretches have in common, each at a level of its own, by least squares, per second; 0 with
    /// fewer than two samples.
    pub fn slope(&self) -> f64 {
        let (mut products, mut squares) = (0.0, 0.0);
        for stretch in self.taken.chunk_by(|a, b| a.0 == b.0) {
            let count = stretch.len() as f64;
            let middle = stretch.iter().map(|(_, time, _)| time).sum::<f64>() / count;
            let mean = stretch.iter().map(|(_, _, value)| value).sum::<f64>() / count;
            for (_, time, value) in stretch {
                products += (time - middle) * (value - mean);
                squares += (time - middle).powi(2);
            }
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
            self.taken.len(),
            limit / 1e6,
        );
        match self.taken.len() {
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
            let age = Duration::from_secs(second);
            samples.add(age, age, 30e6 + noise + growth * second as f64 / 3600.0);
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

    /// Half an hour at 20 MB, then half an hour at 30 MB with other work; both grow by this much an hour.
    fn halves(growth: f64) -> Samples {
        let mut samples = Samples::default();
        for second in (0..3600_u64).step_by(5) {
            if second == 1800 {
                samples.turn();
            }
            let level = if second < 1800 { 20e6 } else { 30e6 };
            let since = Duration::from_secs(second % 1800);
            samples.add(Duration::from_secs(second), since, level + growth * second as f64 / 3600.0);
        }
        samples
    }

    #[test]
    fn another_level_is_no_growth() {
        assert!(halves(0.0).flat().is_ok());
        assert!((halves(12e6).slope() * 3600.0 - 12e6).abs() < 0.1e6);
        assert!(halves(12e6).flat().is_err());
    }

    #[test]
    fn what_was_hardly_sampled_is_not_flat() {
        let mut samples = Samples::default();
        let (second, minutes) = (Duration::from_secs(1), Duration::from_secs(100));
        samples.add(second, second, 1e9);
        assert_eq!(samples.span(), 0.0, "it was not warm yet");
        samples.add(minutes, minutes, 1e6);
        assert!(samples.flat().unwrap_err().starts_with("too few samples"));
    }
}
