//! Values that are kept as compressed JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Of zstd: a higher level takes several times as long, and saves a tenth.
const LEVEL: i32 = 1;

/// Compressed JSON. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Compressed {
    bytes: Arc<[u8]>,
    /// Bytes of the JSON.
    length: usize,
}

impl Compressed {
    pub(crate) fn new(value: &impl Serialize) -> Option<Self> {
        let json = serde_json::to_vec(value).ok()?;
        let bytes = zstd::bulk::compress(&json, LEVEL).ok()?;
        Some(Self { bytes: bytes.into(), length: json.len() })
    }

    pub(crate) fn open<T: DeserializeOwned>(&self) -> Option<T> {
        let json = zstd::bulk::decompress(&self.bytes, self.length).ok()?;
        serde_json::from_slice(&json).ok()
    }

    /// Bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }
}
