//! Gradients of a fused optimizer: where they are written.
//!
//! The optimizer reads all gradients as one array. A gradient that is written where it ends up in the array needs no
//! copy. But the array is held from its first gradient on, when most activations are still alive: the arena would be
//! larger by the gradients that come later. The first gradients are therefore written elsewhere, and copied when all
//! are there, if that makes the arena smaller.

use super::{Lowered, layout::Part};
use std::collections::HashSet;

/// The program with the smallest arena, and the fewest copies among these, for some numbers of first gradients that are
/// copied. `lower` lowers it with copies of these parts, and returns the parts that are written in place, in their
/// order.
pub(super) fn smallest(lower: impl Fn(&HashSet<Part>) -> (Lowered, Vec<Part>)) -> Lowered {
    let (mut best, parts) = lower(&HashSet::new());
    for count in counts(parts.len()) {
        let (copied, _) = lower(&parts[..count].iter().copied().collect());
        if copied.plan.arena < best.plan.arena {
            best = copied;
        }
    }
    best
}

/// Numbers of copied parts that are tried: each twice the one before, then all.
fn counts(all: usize) -> Vec<usize> {
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|&n| n < all).collect();
    counts.extend((all > 0).then_some(all));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_double() {
        assert_eq!(counts(0), [0; 0]);
        assert_eq!(counts(5), [1, 2, 4, 5]);
    }
}
