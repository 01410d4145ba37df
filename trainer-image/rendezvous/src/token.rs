//! The secret of a gang.

use crate::hexadecimal::{hex, random_hex};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The secret that every agent and rank of a gang holds. Never printed.
#[derive(Clone)]
pub struct Token(Vec<u8>);

/// A token could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("token file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is too short to be a secret, or too long to be a token.
    #[error(
        "token file {}: a token has {} to {} bytes: write one with `head -c 32 /dev/urandom | base64`",
        path.display(), Token::SHORTEST, Token::LONGEST
    )]
    Length {
        /// The file.
        path: PathBuf,
    },
}

impl Token {
    /// Minimum bytes of a token: 128 bits in hexadecimal.
    pub const SHORTEST: usize = 32;
    /// Maximum bytes of a token.
    pub const LONGEST: usize = 1024;

    /// A new random token: 256 bits in hexadecimal.
    ///
    /// # Errors
    /// When the system's random number generator cannot be read.
    pub fn random() -> std::io::Result<Self> {
        Ok(Self(random_hex()?.into_bytes()))
    }

    /// The token for `purpose`, which is always the same: HMAC-SHA256 in hexadecimal. It tells nothing of this one, nor
    /// of those for other purposes.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(purpose.as_bytes());
        Self(hex(&mac.finalize().into_bytes()).into_bytes())
    }

    /// Reads a token; surrounding white space is ignored.
    ///
    /// # Errors
    /// [`TokenError`] when the file cannot be read, or the token is too short or too long.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |source| TokenError::Unreadable { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(Self::LONGEST as u64 + 2).read_to_end(&mut bytes).map_err(unreadable)?;
        let token = bytes.trim_ascii();
        if !(Self::SHORTEST..=Self::LONGEST).contains(&token.len()) {
            return Err(TokenError::Length { path: path.to_owned() });
        }
        Ok(Self(token.to_vec()))
    }

    /// The secret, for the token file and the proof.
    pub fn secret(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_token_depends_on_its_purpose_and_its_origin() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.derive("a").secret(), one.derive("a").secret());
        for different in [one.derive("b"), other.derive("a"), one.clone()] {
            assert_ne!(one.derive("a").secret(), different.secret());
        }
        assert_eq!(one.derive("a").secret().len(), one.secret().len());
    }

    #[test]
    fn a_token_file_is_trimmed_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            Token::read(&path)
        };
        assert_eq!(read(&[b"x".repeat(32), b"\n".to_vec()].concat()).unwrap().secret(), b"x".repeat(32));
        for wrong in [b"".to_vec(), b"short".to_vec(), b"x".repeat(1025), b"x".repeat(1 << 20)] {
            assert!(matches!(read(&wrong), Err(TokenError::Length { .. })));
        }
        assert!(matches!(Token::read(&dir.path().join("none")), Err(TokenError::Unreadable { .. })));
        assert_eq!(format!("{:?}", read(&b"s".repeat(40)).unwrap()), "Token(..)");
    }
}
