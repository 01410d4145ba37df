//! Bytes as hexadecimal digits.

use std::fmt::Write;

/// 256 random bits in hexadecimal.
///
/// # Errors
/// When the system's random number generator cannot be read.
pub fn random_hex() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(hex(&bytes))
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Decodes hexadecimal; `None` when `text` is not hexadecimal.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hexadecimal_is_undone(bytes: Vec<u8>) {
            prop_assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_read_as_hexadecimal_or_refused(text: String) {
            let _ = unhex(&text);
        }
    }
}
