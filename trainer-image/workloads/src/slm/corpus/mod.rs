//! Token streams: generated, tokenized from text, or read from token files.

mod dialogues;
mod documents;
mod markov;
mod text;

pub use dialogues::Dialogues;
pub use documents::{Documents, Window};
pub use markov::markov_stream;

use super::config::{Config, DataConfig, Layout, Source};
use super::split::Split;
use super::tokenizer::Tokenizer;
use super::vocabulary::END_OF_DOCUMENT;
use crate::store::{OnProgress, StoreError};
use dialogues::ANSWER;
use memmap2::Mmap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use text::Text;

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

    /// Where `id` stands, ascending.
    fn positions(&self, id: u32) -> Vec<usize> {
        match self {
            Self::Made(tokens) => positions(tokens, |&token| token == id),
            Self::Mapped(map) => positions(map.as_chunks().0, |&word| u32::from_le_bytes(word) == id),
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

fn positions<T>(all: &[T], holds: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, one)| holds(one)).map(|(at, _)| at).collect()
}

/// The two splits of a corpus.
#[derive(Debug)]
pub struct Corpus {
    train: Tokens,
    validation: Tokens,
    /// First tokens of the windows, item by item, where a file prescribes them.
    order: Option<Mmap>,
    /// Documents of training and validation, where something asks for them.
    documents: Option<[Documents; 2]>,
    /// Ids of diagnosis codes.
    codes: Option<Range<u32>>,
}

impl Corpus {
    /// Generates or opens the corpus of `config`, with text tokenized by `tokenizer` (as bytes without one). Slow
    /// results are cached below `root`.
    ///
    /// # Errors
    /// When files cannot be read, have too few tokens, or an id is not in the vocabulary.
    pub fn open(
        config: &Config,
        tokenizer: Option<&Tokenizer>,
        root: &Path,
        progress: OnProgress<'_>,
    ) -> Result<Self, StoreError> {
        let DataConfig { source, directory, tokens, seed, layout, .. } = &config.data;
        let directory = Path::new(directory.as_deref().unwrap_or_default());
        let corpus = match source {
            Source::Markov => {
                progress("generating data", 0, 1);
                let mut train = markov_stream(*tokens, config.architecture.vocabulary, *seed);
                let validation = train.split_off(tokens - tokens / 20);
                Self::of([train, validation].map(Tokens::Made))
            }
            Source::Dialogues => {
                progress("generating data", 0, 1);
                let dialogues = Dialogues::new(*tokens, config.architecture.vocabulary, *seed);
                let splits = [Split::Train, Split::Validation];
                let documents = splits.map(|split| Documents::of_lengths(dialogues.lengths(split), Some(ANSWER)));
                Self {
                    documents: Some(documents),
                    codes: Some(dialogues.codes()),
                    ..Self::of(splits.map(|split| Tokens::Made(dialogues.tokens(split))))
                }
            }
            Source::Text => {
                let text = Text { directory, tokens: *tokens, seed: *seed, tokenizer };
                let splits = if tokenizer.is_some() {
                    let [train, validation] = text.cached(root, progress)?;
                    [Tokens::Mapped(mapped(&train)?), Tokens::Mapped(mapped(&validation)?)]
                } else {
                    text.read(progress)?.map(Tokens::Made)
                };
                let end = tokenizer.map_or(u32::from(END_OF_DOCUMENT), Tokenizer::end_of_document);
                let documents = |tokens: &Tokens| Documents::ended_at(tokens.positions(end), tokens.len());
                let documents = (*layout == Layout::Padded).then(|| splits.each_ref().map(documents));
                Self { documents, ..Self::of(splits) }
            }
            Source::Tokens => {
                let map = |name: &str| Ok::<_, StoreError>(Tokens::Mapped(mapped(&directory.join(name))?));
                let order = directory.join("order.bin");
                let order = order.exists().then(|| mapped(&order)).transpose()?;
                Self { order, ..Self::of([map("train.bin")?, map("validation.bin")?]) }
            }
        };
        for (name, split) in [("training", Split::Train), ("validation", Split::Validation)] {
            if config.data.by_document(split) {
                if corpus.documents(split).is_none_or(|documents| documents.count() == 0) {
                    return Err(StoreError::Source(format!(
                        "the {name} split has no document: provide more text, or raise workload.config.data.tokens"
                    )));
                }
            } else if corpus.len(split) <= config.sequence {
                let (held, wanted) = (corpus.len(split), config.sequence + 1);
                return Err(StoreError::Source(format!(
                    "the {name} split has {held} tokens, a window needs {wanted}: provide more text, or reduce workload.config.sequence"
                )));
            }
        }
        Ok(corpus)
    }

    fn of([train, validation]: [Tokens; 2]) -> Self {
        Self { train, validation, order: None, documents: None, codes: None }
    }

    /// Documents of a split, where [`Layout::Padded`] or prompts ask for them.
    pub fn documents(&self, split: Split) -> Option<&Documents> {
        let [train, validation] = self.documents.as_ref()?;
        Some(match split {
            Split::Train => train,
            Split::Validation => validation,
        })
    }

    /// Ids of diagnosis codes, where documents end in one.
    pub fn codes(&self) -> Option<Range<u32>> {
        self.codes.clone()
    }

    /// Tokens of a split.
    pub fn len(&self, split: Split) -> usize {
        self.tokens(split).len()
    }

    /// Copies tokens of a split from `start` on.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn read(&self, split: Split, start: usize, out: &mut [u32]) {
        self.tokens(split).read(start, out);
    }

    /// Start of the window of training item `item`, if `order.bin` prescribes it: 64-bit words, repeated cyclically.
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
        StoreError::Source(format!(
            "{path}: cannot be read: {error}; it must contain token ids as little-endian 32-bit words"
        ))
    };
    let file = File::open(path).map_err(wrong)?;
    // SAFETY: data of a run are not written while it runs; were they, other tokens would be read, but none out of
    // bounds.
    unsafe { Mmap::map(&file) }.map_err(wrong)
}
