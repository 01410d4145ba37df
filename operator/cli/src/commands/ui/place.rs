//! The places that a command line names.

use super::library::Library;
use super::source::Source;
use super::storage::Storage;
use std::sync::Arc;

/// Where jobs are kept.
pub enum Place {
    /// In directories.
    Directories(Arc<Library>),
    /// In a storage.
    Storage(Arc<Storage>),
}

impl Place {
    /// The jobs there.
    pub fn source(&self) -> Arc<dyn Source> {
        match self {
            Self::Directories(library) => library.clone(),
            Self::Storage(storage) => storage.clone(),
        }
    }
}
