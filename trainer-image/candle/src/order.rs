//! The order of training data, as a function of seed and position.

use pawl_graph::random::{bits, stream};
use std::collections::BTreeMap;

/// A random permutation of the items for each epoch.
#[derive(Debug)]
pub(crate) struct Order {
    seed: u64,
    items: u64,
    epochs: BTreeMap<u64, Vec<u32>>,
}

impl Order {
    /// The order of `items` items, at least 1.
    pub fn new(seed: u64, items: u64) -> Self {
        Self { seed, items: items.max(1), epochs: BTreeMap::new() }
    }

    /// The indices at `count` positions from `first`, counted from the start of training.
    pub fn indices(&mut self, first: u64, count: u64) -> Vec<u32> {
        let epoch = first / self.items;
        self.epochs.retain(|known, _| *known >= epoch);
        (first..first + count)
            .map(|position| {
                let epoch = position / self.items;
                let permutation = self.epochs.entry(epoch).or_insert_with(|| permutation(self.seed, epoch, self.items));
                permutation[(position % self.items) as usize]
            })
            .collect()
    }
}

/// Fisher and Yates' shuffle.
fn permutation(seed: u64, epoch: u64, items: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..items as u32).collect();
    let stream = stream(seed, &format!("order/{epoch}"));
    for last in (1..all.len()).rev() {
        let other = (u128::from(bits(stream, last as u64)) * (last as u128 + 1)) >> 64;
        all.swap(last, other as usize);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_each_item_once_in_an_order_of_its_own() {
        let mut order = Order::new(7, 10);
        let two = order.indices(0, 20);
        for epoch in two.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(two[..10], two[10..]);
        // A launch that resumes, or that has other batches, sees the same order.
        assert_eq!(Order::new(7, 10).indices(7, 6), two[7..13]);
        assert_ne!(Order::new(8, 10).indices(0, 20), two);
    }
}
