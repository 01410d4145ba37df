//! The order of training data, as a function of seed and position.

use crate::error::{Error, Result};
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
    /// The order of `items` items.
    ///
    /// # Errors
    /// When there are none, or more than indices of 32 bits can number.
    pub fn new(seed: u64, items: u64) -> Result<Self> {
        if items == 0 {
            return Err(Error::invalid("run.training: no items: the number of items of an epoch must be at least 1"));
        }
        if items > u64::from(u32::MAX) {
            return Err(Error::invalid(format!(
                "run.training: {items} items: an epoch can have at most {}, as indices are unsigned 32-bit integers; give the number of \
                 groups of items, and load a group for each index",
                u32::MAX
            )));
        }
        Ok(Self { seed, items, epochs: BTreeMap::new() })
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
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_each_item_once_in_an_order_of_its_own() {
        let new = |seed| Order::new(seed, 10).unwrap();
        let mut order = new(7);
        let two = order.indices(0, 20);
        for epoch in two.chunks(10) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(two[..10], two[10..]);
        // A launch that resumes, or that has other batches, sees the same order.
        assert_eq!(new(7).indices(7, 6), two[7..13]);
        assert_ne!(new(8).indices(0, 20), two);
    }

    #[test]
    fn a_number_of_items_that_has_no_indices_is_refused() {
        assert!(Order::new(7, u64::from(u32::MAX)).is_ok());
        let message = |items| Order::new(7, items).unwrap_err().to_string();
        assert!(message(1 << 32).starts_with("run.training: 4294967296 items: an epoch can have at most 4294967295"));
        assert!(message(0).starts_with("run.training: no items"));
    }
}
