//! Mutual proof that both sides hold the token.

use crate::Token;
use crate::hexadecimal::{hex, unhex};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

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
}
