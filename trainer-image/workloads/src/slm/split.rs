//! The splits of a corpus.

use std::ops::Range;

/// Cumulative fractions of documents at the end of each split: the rest is a test split, unused here.
pub(super) const SPLIT: [f64; 2] = [0.70, 0.85];

/// A split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Training.
    Train,
    /// Validation.
    Validation,
}

/// Numbers of the documents of a split, of `documents` in the order that the seed gives.
pub(super) fn share(split: Split, documents: usize) -> Range<usize> {
    let [train, validation] = SPLIT.map(|share| (share * documents as f64).ceil() as usize);
    match split {
        Split::Train => 0..train,
        Split::Validation => train..validation,
    }
}
