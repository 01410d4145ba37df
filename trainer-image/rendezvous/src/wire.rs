//! The messages of the handshake and of ranks, one JSON document per line. The messages between agents are in
//! `pawl-agent`.

use serde::{Deserialize, Serialize};

/// Version of the protocol: handshake and messages. Both sides must use the same.
pub const VERSION: u32 = 1;
/// Maximum length of a line before the proof, in bytes with its line feed.
pub const MAX_HELLO_LINE: usize = 1024;
/// Maximum length of a line after the proof, in bytes with its line feed.
pub const MAX_LINE: usize = 256 * 1024;
/// Maximum length of a key in bytes.
pub const MAX_KEY: usize = 256;
/// Maximum length of a value in bytes; on the wire it is in hexadecimal, twice as long.
pub const MAX_VALUE: usize = 64 * 1024;
/// Maximum number of keys per launch.
pub const MAX_KEYS: usize = 8192;

/// Identity of the caller.
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
    /// Identity of the caller.
    pub who: Who,
    /// Nonce: random hexadecimal text.
    pub nonce: String,
}

/// First line of the listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerNonce {
    /// Nonce: random hexadecimal text.
    pub nonce: String,
}

/// Second line of either side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proof {
    /// Hexadecimal HMAC-SHA256, see [`crate::proof`].
    pub proof: String,
}

/// Request of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Ask {
    /// Store a value under a key that is not yet taken.
    Put {
        /// The key.
        key: String,
        /// The value in hexadecimal.
        value: String,
    },
    /// Read a value, waiting until it is stored.
    Get {
        /// The key.
        key: String,
        /// Maximum wait in milliseconds; the listener waits 60 s at most.
        wait_ms: u64,
    },
}

/// Response of the listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// The value is stored.
    Stored,
    /// The value in hexadecimal.
    Value(String),
    /// Timeout: no rank stored the value.
    Missing,
    /// The request was rejected, and why.
    Refused(String),
}
