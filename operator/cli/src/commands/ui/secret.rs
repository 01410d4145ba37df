//! Random texts that cannot be guessed, and their comparison.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};

/// A text of 256 random bits.
///
/// # Errors
/// When the system gives no random bytes.
pub fn secret() -> io::Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether two texts are the same. How long it takes does not depend on where they differ.
pub fn same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_different() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert_eq!(one.len(), 64);
        assert!(same(&one, &one) && !same(&one, &other) && !same(&one, ""));
    }
}
