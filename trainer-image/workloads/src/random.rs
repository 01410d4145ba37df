//! Random numbers as a pure function of (seed, stream, index): SplitMix64 in counter form.
//!
//! It is stateless, so any value can be computed without its predecessors: shards are made in any order, a run resumes
//! at any step, and all ranks agree. `ln`, `sin` and `cos` come from the `libm` crate: bitwise equal on every platform.

use std::f64::consts::TAU;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const STREAM: u64 = 0xD1B5_4A32_D192_ED03;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit words.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// An endless sequence of random words, addressed by index from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    base: u64,
}

impl Stream {
    /// Stream `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { base: seed.wrapping_add(stream.wrapping_mul(STREAM)) }
    }

    /// The stream of `seed` that belongs to `name`; its number is the FNV-1a hash of the name.
    pub fn named(seed: u64, name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        Self::new(mix(seed), hash)
    }

    /// The sub-stream with this index.
    pub fn fork(self, number: u64) -> Self {
        Self { base: mix(self.base ^ mix(number.wrapping_add(STREAM))) }
    }

    /// Word `index`.
    pub fn word(self, index: u64) -> u64 {
        mix(self.base.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(self, index: u64) -> f64 {
        (self.word(index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform integer in `0..bound`, by scaling a uniform number; biased by less than `bound` / 2^53.
    pub fn below(self, index: u64, bound: u64) -> u64 {
        ((self.uniform(index) * bound as f64) as u64).min(bound.saturating_sub(1))
    }

    /// Standard normal `index`, from words `2 * index` and `2 * index + 1` (Box and Muller).
    pub fn normal(self, index: u64) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log1p(-self.uniform(2 * index)));
        radius * libm::cos(TAU * self.uniform(2 * index + 1))
    }

    /// Fills `out` with `uniform(first..)` scaled to [-bound, bound), rounded to f32.
    pub fn fill_symmetric(self, first: u64, bound: f64, out: &mut [f32]) {
        for (index, value) in (first..).zip(out) {
            *value = ((2.0 * self.uniform(index) - 1.0) * bound) as f32;
        }
    }
}

/// `count` standard normals drawn as one array (Box and Muller): ceil(count / 2) radii from the words at `start`, then
/// as many angles; first all cosines, then all sines.
#[derive(Clone, Copy, Debug)]
pub struct Normals {
    stream: Stream,
    start: u64,
    half: u64,
}

impl Normals {
    /// The block of `count` normals whose first word is `start`. It uses `2 * ceil(count / 2)` words.
    pub fn new(stream: Stream, start: u64, count: u64) -> Self {
        Self { stream, start, half: count.div_ceil(2) }
    }

    /// Normal `index` of the block.
    pub fn get(self, index: u64) -> f64 {
        let (pair, sine) = if index < self.half { (index, false) } else { (index - self.half, true) };
        let radius = libm::sqrt(-2.0 * libm::log1p(-self.stream.uniform(self.start + pair)));
        let angle = TAU * self.stream.uniform(self.start + self.half + pair);
        radius * if sine { libm::sin(angle) } else { libm::cos(angle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_equal_the_specification() {
        let stream = Stream::new(42, 1);
        let words = [stream.word(0), stream.word(1), stream.word(2)];
        assert_eq!(words, [0xD7FC_1BDE_F4D9_4D80, 0x096C_2783_F1DB_BC17, 0xCA81_5659_D511_A2C5]);
    }

    #[test]
    fn normals_have_unit_variance_and_no_mean() {
        let (stream, count) = (Stream::new(7, 2), 20_001);
        let block = Normals::new(stream, 11, count);
        let (mut sum, mut squares) = (0.0, 0.0);
        for index in 0..count {
            let value = block.get(index);
            sum += value;
            squares += value * value;
        }
        assert!((sum / count as f64).abs() < 0.03, "mean {}", sum / count as f64);
        assert!((squares / count as f64 - 1.0).abs() < 0.04, "variance {}", squares / count as f64);
    }

    #[test]
    fn names_and_forks_give_unrelated_streams() {
        let words: std::collections::BTreeSet<u64> = ["a", "b", "ab", "ba"]
            .iter()
            .map(|name| Stream::named(3, name))
            .flat_map(|stream| [stream, stream.fork(0), stream.fork(1)])
            .map(|stream| stream.word(0))
            .collect();
        assert_eq!(words.len(), 12);
    }
}
