//! The token ids that a source of tokens needs.

/// The token between documents of bytes; ids below it are bytes.
pub const END_OF_DOCUMENT: u16 = 256;
/// The smallest vocabulary in which dialogues have several codes to distinguish.
pub const LEAST_DIALOGUE_VOCABULARY: usize = 32;
