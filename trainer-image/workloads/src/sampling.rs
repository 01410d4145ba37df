//! Selection of the samples of a batch: pure functions of (seed, position), independent of the number of ranks or
//! workers.

use crate::random::Stream;
use parking_lot::Mutex;
use std::sync::Arc;

/// Number of cached permutations; consecutive batches span at most two cycles, and workers run ahead by a few.
const KEPT: usize = 4;

/// An infinite order of `len` samples: every sample once per cycle, each cycle reshuffled.
///
/// Position `p` lies in cycle `p / len`. When `group` consecutive positions must be distinct samples (an item that
/// bundles several), a cycle is truncated to a multiple of `group`; the remaining samples may occur in the next one.
#[derive(Debug)]
pub struct Shuffle {
    stream: Stream,
    len: u64,
    cycle: u64,
    recent: Mutex<Vec<(u64, Arc<[u32]>)>>,
}

impl Shuffle {
    /// The order of `len` samples under `seed` for the purpose `name`; `group` consecutive positions are distinct.
    ///
    /// # Panics
    /// When `len` is 0, `group` is 0 or more than `len`, or `len` does not fit in 32 bits.
    pub fn new(seed: u64, name: &str, len: usize, group: usize) -> Self {
        assert!(0 < group && group <= len && u32::try_from(len).is_ok(), "cannot take {group} of {len} samples");
        let (len, group) = (len as u64, group as u64);
        Self { stream: Stream::named(seed, name), len, cycle: len / group * group, recent: Mutex::default() }
    }

    /// The sample at `position`, in `0..len`.
    pub fn sample(&self, position: u64) -> usize {
        self.permutation(position / self.cycle)[(position % self.cycle) as usize] as usize
    }

    fn permutation(&self, cycle: u64) -> Arc<[u32]> {
        let mut recent = self.recent.lock();
        if let Some((_, order)) = recent.iter().find(|(number, _)| *number == cycle) {
            return Arc::clone(order);
        }
        let order: Arc<[u32]> = permutation(self.stream.fork(cycle), self.len as u32).into();
        if recent.len() == KEPT {
            recent.remove(0);
        }
        recent.push((cycle, Arc::clone(&order)));
        order
    }
}

/// A uniform permutation of `0..len` (Fisher and Yates).
pub(crate) fn permutation(stream: Stream, len: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, stream.below(last as u64, last as u64 + 1) as usize);
    }
    order
}

/// `count` of `0..len` without replacement, uniform, ascending (so that a gather walks forward). All when `count >=
/// len`.
pub fn choose(stream: Stream, len: u32, count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..len).collect();
    if count >= len {
        return all;
    }
    for next in 0..count {
        let other = next + stream.below(u64::from(next), u64::from(len - next)) as u32;
        all.swap(next as usize, other as usize);
    }
    all.truncate(count as usize);
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn every_sample_comes_once_per_cycle(seed: u64, len in 1usize..60, cycle in 0u64..5) {
            let shuffle = Shuffle::new(seed, "order", len, 1);
            let seen: BTreeSet<usize> = (0..len as u64).map(|p| shuffle.sample(cycle * len as u64 + p)).collect();
            prop_assert_eq!(seen, (0..len).collect::<BTreeSet<_>>());
        }

        #[test]
        fn groups_hold_distinct_samples(seed: u64, len in 1usize..40, group in 1usize..40, number in 0u64..50) {
            prop_assume!(group <= len);
            let shuffle = Shuffle::new(seed, "order", len, group);
            let first = number * group as u64;
            let seen: BTreeSet<usize> = (first..first + group as u64).map(|p| shuffle.sample(p)).collect();
            prop_assert_eq!(seen.len(), group);
        }

        #[test]
        fn the_order_does_not_depend_on_who_asks_first(seed: u64, positions in prop::collection::vec(0u64..500, 1..40)) {
            let (asked, fresh) = (Shuffle::new(seed, "order", 17, 1), Shuffle::new(seed, "order", 17, 1));
            for &position in &positions {
                let _ = asked.sample(position);
            }
            for &position in positions.iter().rev() {
                prop_assert_eq!(asked.sample(position), fresh.sample(position));
            }
        }

        #[test]
        fn choices_are_distinct_and_in_range(seed: u64, len in 1u32..300, count in 0u32..400) {
            let chosen = choose(Stream::new(seed, 0), len, count);
            prop_assert_eq!(chosen.len(), count.min(len) as usize);
            prop_assert!(chosen.windows(2).all(|w| w[0] < w[1]) && chosen.iter().all(|&i| i < len));
        }
    }

    #[test]
    fn choices_are_uniform() {
        let mut hits = [0u32; 20];
        for draw in 0..4000 {
            for index in choose(Stream::new(5, 5).fork(draw), 20, 5) {
                hits[index as usize] += 1;
            }
        }
        // 1000 expected each, standard deviation 27.
        assert!(hits.iter().all(|&h| (860..1140).contains(&h)), "{hits:?}");
    }

    #[test]
    fn cycles_are_shuffled_anew() {
        let shuffle = Shuffle::new(1, "order", 50, 1);
        let cycle = |c: u64| (0..50).map(|p| shuffle.sample(c * 50 + p)).collect::<Vec<_>>();
        assert_ne!(cycle(0), cycle(1));
    }
}
