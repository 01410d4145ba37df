//! Token streams: generated, read from text, or read as they are.

mod markov;
mod text;

pub use markov::markov_stream;
pub use text::END_OF_DOCUMENT;

use super::config::{Config, DataConfig, Source};
use crate::store::{OnProgress, StoreError};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// Ids one after the other.
#[derive(Debug)]
enum Tokens {
    /// In memory.
    Made(Vec<u32>),
    /// In a file of little-endian 32-bit words.
    Mapped(Mmap),
}

impl Tokens {
    fn len(&self) -> usize {
        match self {
            Self::Made(tokens) => tokens.len(),
            Self::Mapped(map) => map.len() / 4,
        }
    }

    fn read(&self, start: usize, out: &mut [u32]) {
        match self {
            Self::Made(tokens) => out.copy_from_slice(&tokens[start..start + out.len()]),
            Self::Mapped(map) => {
                let words = map[4 * start..4 * (start + out.len())].as_chunks().0;
                out.iter_mut().zip(words).for_each(|(out, &word)| *out = u32::from_le_bytes(word));
            }
        }
    }
}

/// The two splits of a corpus.
#[derive(Debug)]
pub struct Corpus {
    train: Tokens,
    validation: Tokens,
    /// First tokens of the windows, item by item, where a file prescribes them.
    order: Option<Mmap>,
}

/// A split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What is learnt from.
    Train,
    /// What is measured on.
    Validation,
}

impl Corpus {
    /// Makes or opens the corpus of `config`.
    ///
    /// # Errors
    /// When files cannot be read, hold too little, or an id is not in the vocabulary.
    pub fn open(config: &Config, progress: OnProgress<'_>) -> Result<Self, StoreError> {
        let DataConfig { source, directory, tokens, seed } = &config.data;
        let directory = Path::new(directory.as_deref().unwrap_or_default());
        let corpus = match source {
            Source::Markov => {
                progress("generating data", 0, 1);
                let mut train = markov_stream(*tokens, config.architecture.vocabulary, *seed);
                let validation = train.split_off(tokens - tokens / 20);
                Self { train: Tokens::Made(train), validation: Tokens::Made(validation), order: None }
            }
            Source::Text => {
                let (train, validation) = text::read(directory, *tokens, *seed, progress)?;
                Self { train: Tokens::Made(train), validation: Tokens::Made(validation), order: None }
            }
            Source::Tokens => {
                let map = |name: &str| Ok::<_, StoreError>(Tokens::Mapped(mapped(&directory.join(name))?));
                let order = directory.join("order.bin");
                let order = order.exists().then(|| mapped(&order)).transpose()?;
                Self { train: map("train.bin")?, validation: map("validation.bin")?, order }
            }
        };
        for (name, split) in [("training", &corpus.train), ("validation", &corpus.validation)] {
            if split.len() <= config.sequence {
                let (held, wanted) = (split.len(), config.sequence + 1);
                return Err(StoreError::Source(format!(
                    "the {name} split holds {held} tokens, a window takes {wanted}: give more text, or shorten workload.config.sequence"
                )));
            }
        }
        Ok(corpus)
    }

    /// Tokens of a split.
    pub fn len(&self, split: Split) -> usize {
        self.tokens(split).len()
    }

    /// Copies tokens of a split from `start` on.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn read(&self, split: Split, start: usize, out: &mut [u32]) {
        self.tokens(split).read(start, out);
    }

    /// Where the window of training item `item` begins, if a file says so: `order.bin`, 64-bit words, used again from its beginning.
    pub fn prescribed(&self, item: u64) -> Option<u64> {
        let words = self.order.as_ref()?.as_chunks::<8>().0;
        words.get((item % words.len().max(1) as u64) as usize).map(|&word| u64::from_le_bytes(word))
    }

    fn tokens(&self, split: Split) -> &Tokens {
        match split {
            Split::Train => &self.train,
            Split::Validation => &self.validation,
        }
    }
}

fn mapped(path: &Path) -> Result<Mmap, StoreError> {
    let wrong = |error: std::io::Error| {
        let path = path.display();
        StoreError::Source(format!("{path}: cannot be read: {error}; it holds token ids as little-endian 32-bit words"))
    };
    let file = File::open(path).map_err(wrong)?;
    // SAFETY: data of a run are not written while it runs; were they, other tokens would be read, but none out of bounds.
    unsafe { Mmap::map(&file) }.map_err(wrong)
}
