//! What a failure says, in a form that is equal when it repeats.

use serde::{Deserialize, Serialize};

/// The text with which a program failed (the line of its exception, or its last line), hashed without what differs
/// between two runs of the same failure: words with digits, such as addresses, times, steps and the names of launches.
///
/// Whoever sees the text makes it: decisions compare fingerprints, never messages.
///
/// ```
/// use pawl_contract::fingerprint::Fingerprint;
///
/// let of = Fingerprint::of;
/// assert_eq!(of("IndexError: index 17 is out of range"), of("IndexError: index 3 is out of range"));
/// assert_eq!(of("/data/job-1/a: no such file"), of("/data/job-2/a: no such file"));
/// assert_ne!(of("IndexError: index 17 is out of range"), of("KeyError: 'text'"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Fingerprint(u32);

impl Fingerprint {
    /// The fingerprint of a text.
    pub fn of(text: &str) -> Self {
        let of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+');
        let mut hash = Fnv::default();
        let mut rest = text.trim();
        while let Some(first) = rest.chars().next() {
            let is_word = of_word(first);
            let end = rest.find(|c| of_word(c) != is_word).unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            hash.add(if is_word && piece.contains(|c: char| c.is_ascii_digit()) { "#" } else { piece });
            rest = after;
        }
        Self(hash.0)
    }
}

/// FNV-1a of 32 bits.
struct Fnv(u32);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x811c_9dc5)
    }
}

impl Fnv {
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    }
}
