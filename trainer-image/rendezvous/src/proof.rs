//! Mutual proof that both sides hold the token.

use crate::Token;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt::Write;

/// Side of the connection that makes a proof. The sides' proofs differ, so that a proof cannot be reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Caller,
    /// Agent 0, which listens.
    Listener,
}

/// The values of one connection that both proofs cover.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// The caller's first line as sent: its claimed identity and its nonce.
    pub hello: String,
    /// Nonce of the listener.
    pub listener_nonce: String,
}

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

fn mac(token: &Token, side: Side, challenge: &Challenge) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.secret()).expect("HMAC takes keys of any length");
    let side: &[u8] = match side {
        Side::Caller => b"pawl rendezvous 1 caller",
        Side::Listener => b"pawl rendezvous 1 listener",
    };
    for part in [side, challenge.hello.as_bytes(), challenge.listener_nonce.as_bytes()] {
        // Each part is prefixed with its length: no two challenges give the same bytes.
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

/// The proof of `side`, in hexadecimal digits.
pub fn prove(token: &Token, side: Side, challenge: &Challenge) -> String {
    hex(&mac(token, side, challenge).finalize().into_bytes())
}

/// Whether `proof` is the proof of `side`, in constant time.
pub fn holds(token: &Token, side: Side, challenge: &Challenge, proof: &str) -> bool {
    unhex(proof).is_some_and(|bytes| mac(token, side, challenge).verify_slice(&bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_proof_holds_only_for_its_token_side_and_challenge() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        let challenge = Challenge { hello: "ab".into(), listener_nonce: "cd".into() };
        let proof = prove(&token, Side::Caller, &challenge);
        assert!(holds(&token, Side::Caller, &challenge, &proof));
        assert!(!holds(&other, Side::Caller, &challenge, &proof));
        assert!(!holds(&token, Side::Listener, &challenge, &proof));
        let shifted = Challenge { hello: "abc".into(), listener_nonce: "d".into() };
        assert!(!holds(&token, Side::Caller, &shifted, &proof));
        for wrong in ["", "zz", &proof[..62], &proof.replace(|c: char| c.is_ascii_digit(), "a")] {
            assert!(!holds(&token, Side::Caller, &challenge, wrong), "{wrong}");
        }
    }

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
