//! Labelled images in memory, and their splits.

pub mod cifar;
pub mod waves;

use super::config::{CHANNELS, Config, DataConfig, SIDE, Source};
use crate::random::Stream;
use crate::store::{OnProgress, StoreError};
use std::ops::Range;
use std::path::Path;

/// Bytes of an image: the planes of its channels, each row by row.
pub const BYTES: usize = CHANNELS * SIDE * SIDE;

/// Stream of the order in which CIFAR-10 is split.
const SPLIT_STREAM: u64 = 9;

/// Part of the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// For training.
    Train,
    /// For validation during the training.
    Validation,
    /// For the test at its end.
    Test,
}

/// Labelled images: first the training images, then those for validation, then those for the test.
#[derive(Debug, Default)]
pub struct Images {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    training: usize,
    validation: usize,
}

impl Images {
    /// Generates or reads the images of `config`.
    ///
    /// # Errors
    /// When a file is missing or not in CIFAR-10's binary format, or has too few images.
    pub fn open(config: &Config, progress: OnProgress<'_>) -> Result<Self, StoreError> {
        let DataConfig { source, directory, training, validation, test, seed, .. } = &config.data;
        match source {
            Source::Generated => {
                let (pixels, labels) = waves::generate(training + validation + test, *seed, progress);
                Ok(Self { pixels, labels, training: *training, validation: *validation })
            }
            Source::Cifar10 => {
                let directory = Path::new(directory.as_deref().unwrap_or("."));
                let known = cifar::read(directory, &cifar::TRAINING, training + validation)?;
                let mut images = Self { training: *training, validation: *validation, ..Self::default() };
                let order = split_order(known.len(), *seed);
                order[..training + validation].iter().for_each(|&record| images.push(&known, record));
                if *test > 0 {
                    let tests = cifar::read(directory, &cifar::TEST, *test)?;
                    (0..*test).for_each(|record| images.push(&tests, record));
                }
                Ok(images)
            }
        }
    }

    fn push(&mut self, records: &cifar::Records, record: usize) {
        let (label, pixels) = records.get(record);
        self.labels.push(label);
        self.pixels.extend_from_slice(pixels);
    }

    /// Positions of a split.
    pub fn range(&self, split: Split) -> Range<usize> {
        let held_out = self.training + self.validation;
        match split {
            Split::Train => 0..self.training,
            Split::Validation => self.training..held_out,
            Split::Test => held_out..self.labels.len(),
        }
    }

    /// The bytes of an image, see [`BYTES`].
    pub fn pixels(&self, position: usize) -> &[u8] {
        &self.pixels[position * BYTES..(position + 1) * BYTES]
    }

    /// The class of an image.
    pub fn label(&self, position: usize) -> u8 {
        self.labels[position]
    }
}

/// Record numbers in the order of a random number each; training images are the first ones.
fn split_order(records: usize, seed: u64) -> Vec<usize> {
    let stream = Stream::new(seed, SPLIT_STREAM);
    let mut order: Vec<usize> = (0..records).collect();
    order.sort_by(|&a, &b| stream.uniform(a as u64).total_cmp(&stream.uniform(b as u64)));
    order
}
