//! The messages of the handshake and of ranks: one JSON document a line. Agents add their own in `pawl-agent`.

use serde::{Deserialize, Serialize};

/// Version of the handshake and the messages. Both sides must speak the same.
pub const VERSION: u32 = 1;
/// Longest line before the proof, in bytes with its line feed.
pub const MAX_HELLO_LINE: usize = 1024;
/// Longest line after the proof, in bytes with its line feed.
pub const MAX_LINE: usize = 256 * 1024;
/// Longest key, in bytes.
pub const MAX_KEY: usize = 256;
/// Longest value, in bytes (twice as many as hexadecimal digits on the wire).
pub const MAX_VALUE: usize = 64 * 1024;
/// Most keys of one launch.
pub const MAX_KEYS: usize = 8192;

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Who {
    /// The agent of a replica.
    Agent {
        /// Its index, 1 or more.
        replica: u32,
    },
    /// A rank of a launch.
    Rank {
        /// Global rank.
        rank: u32,
        /// Name of the launch.
        launch: String,
    },
}

/// First line of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Who connects.
    pub who: Who,
    /// Random text.
    pub nonce: String,
}

/// First answer of the listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerNonce {
    /// Random text.
    pub nonce: String,
}

/// Second line of either side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proof {
    /// Hexadecimal HMAC-SHA256, see [`crate::proof`].
    pub proof: String,
}

/// What a rank asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Ask {
    /// Store a value under a key that is not yet taken.
    Put {
        /// The key.
        key: String,
        /// The value in hexadecimal digits.
        value: String,
    },
    /// Read a value, waiting for it.
    Get {
        /// The key.
        key: String,
        /// Longest wait, in milliseconds; the listener waits 60 s at most.
        wait_ms: u64,
    },
}

/// What the listener answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// The value is stored.
    Stored,
    /// The value, in hexadecimal digits.
    Value(String),
    /// Nobody stored a value in time.
    Missing,
    /// The listener will not do it, and why.
    Refused(String),
}
