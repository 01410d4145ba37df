//! Which data launches had.

use serde::{Deserialize, Serialize};

/// What the hash of data is of. Hashes of different kinds say nothing about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hashed {
    /// What generates them: the generator, its configuration and its seed.
    Generator,
    /// Names, sizes and contents of all files.
    Content,
    /// Names and sizes of all files, and parts of their contents: of a file of more than 2 MiB the first and the last
    /// one, and of many files only the first ones.
    Sample,
    /// Names and sizes of all files: their contents take too long to read, or cannot be read.
    Names,
    /// What the library that reads them has as their fingerprint. The same data may have another one on another
    /// machine.
    Fingerprint,
    /// Of a later version.
    #[serde(other)]
    Other,
}

/// Data, by a hash: two launches with different hashes of one kind, other than a fingerprint, had different data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// Where they are: a directory or file, or the name of a dataset; absent where they are generated, or it is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// What the hash is of.
    pub hashed: Hashed,
    /// The hash.
    pub hash: String,
}
