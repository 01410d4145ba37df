//! A stream with structure of order 2 plus Zipf noise: learnable, for any vocabulary, with a floor well under its
//! logarithm.

use crate::random::Stream;
use crate::sampling::permutation;
use rayon::prelude::*;

/// Number of independent pieces of the stream.
const LANES: usize = 512;
/// Maximum number of used ids.
const USED: usize = 8192;
/// Probability that a token is determined by the two before it.
const RULED: f64 = 0.7;
/// Exponent of the noise.
const EXPONENT: f64 = 1.1;
/// Seed of the rule, which is the same for all streams.
const RULE_SEED: u64 = 1234;

/// `tokens` ids below `vocabulary`, a pure function of the seed.
pub fn markov_stream(tokens: usize, vocabulary: usize, seed: u64) -> Vec<u32> {
    let used = vocabulary.min(USED) as u64;
    let rule = permutation(Stream::named(RULE_SEED, "slm.rule"), used as u32);
    let mut cumulative = Vec::with_capacity(used as usize);
    let mut sum = 0.0;
    for rank in 1..=used {
        sum += (rank as f64).powf(-EXPONENT);
        cumulative.push(sum);
    }
    let lanes = Stream::named(seed, "slm.markov");
    let mut stream = vec![0; tokens];
    stream.par_chunks_mut(tokens.div_ceil(LANES).max(1)).enumerate().for_each(|(lane, out)| {
        let draws = lanes.fork(lane as u64);
        let (mut before, mut current) = (draws.below(0, used), draws.below(1, used));
        for (index, out) in out.iter_mut().enumerate() {
            let draw = 2 + 2 * index as u64;
            let next = if draws.uniform(draw) < RULED {
                u64::from(rule[((current * 31 + before % 7 * 1013) % used) as usize])
            } else {
                let level = draws.uniform(draw + 1) * sum;
                cumulative.partition_point(|&c| c < level).min(used as usize - 1) as u64
            };
            *out = next as u32;
            (before, current) = (current, next);
        }
    });
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_tokens_follow_the_rule_and_the_rest_is_zipf() {
        let (count, vocabulary) = (200_000, 512);
        let stream = markov_stream(count, vocabulary, 7);
        assert_eq!(stream, markov_stream(count, vocabulary, 7));
        assert_ne!(stream, markov_stream(count, vocabulary, 8));
        let rule = permutation(Stream::named(RULE_SEED, "slm.rule"), 512);
        let lane = count.div_ceil(LANES);
        let mut ruled = 0;
        for piece in stream.chunks(lane) {
            for three in piece.windows(3) {
                ruled += usize::from(three[2] == rule[((three[1] * 31 + three[0] % 7 * 1013) % 512) as usize]);
            }
        }
        let share = ruled as f64 / count as f64;
        assert!((0.68..0.73).contains(&share), "{share}");
        assert!(stream.iter().all(|&token| (token as usize) < vocabulary));
    }
}
