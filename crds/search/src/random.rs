//! Counter-based random numbers: a draw is a function of (seed, stage, trial, purpose, counter), so that a trial gets
//! the same numbers whatever was drawn for other trials before it.

/// What random numbers are drawn for. Purposes of one trial are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A point drawn uniformly.
    Uniform = 1,
    /// The candidates of a sampler.
    Candidates = 2,
    /// Checking whether a constraint can be satisfied.
    Validation = 3,
    /// The trees of a random forest.
    Forest = 4,
}

/// The random numbers of one trial and purpose: SplitMix64, whose output is a hash of key and counter.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A hash of `seed` and `words`, in order.
pub(crate) fn key(seed: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(seed.wrapping_add(GOLDEN)), |key, word| mix((key ^ word).wrapping_add(GOLDEN)))
}

impl Draws {
    pub(crate) fn new(seed: u64, stage: u32, trial: u32, purpose: Purpose) -> Self {
        Self { state: key(seed, &[u64::from(stage), u64::from(trial), purpose as u64]) }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number in [0, 1), a multiple of 2^-53.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An index below `count`, which is positive.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// An index drawn with probabilities proportional to `weights`, whose sum is positive.
    pub(crate) fn weighted(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
        let mut left = self.uniform() * weights.clone().sum::<f64>();
        let mut last = 0;
        for (index, weight) in weights.enumerate() {
            if weight > 0.0 {
                last = index;
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(trial: u32, purpose: Purpose) -> Vec<f64> {
        let mut draws = Draws::new(42, 0, trial, purpose);
        (0..1000).map(|_| draws.uniform()).collect()
    }

    #[test]
    fn trials_and_purposes_are_independent_and_repeatable() {
        let uniform = draws(7, Purpose::Uniform);
        assert_eq!(uniform, draws(7, Purpose::Uniform));
        for other in [draws(8, Purpose::Uniform), draws(7, Purpose::Candidates)] {
            let product: f64 = uniform.iter().zip(&other).map(|(a, b)| (a - 0.5) * (b - 0.5)).sum::<f64>() / 1000.0;
            assert!(product.abs() < 4.0 / 12.0 / 1000f64.sqrt(), "correlated: {product}");
        }
        let mean = uniform.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.04, "{mean}");
    }

    #[test]
    fn weights_are_probabilities() {
        let mut draws = Draws::new(1, 0, 0, Purpose::Forest);
        let mut counts = [0usize; 4];
        for _ in 0..10_000 {
            counts[draws.weighted([0.0, 1.0, 3.0, 0.0].into_iter())] += 1;
        }
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!((counts[2] as f64 / 10_000.0 - 0.75).abs() < 0.02, "{counts:?}");
        assert!((0..1000).map(|_| draws.below(3)).all(|index| index < 3));
    }
}
