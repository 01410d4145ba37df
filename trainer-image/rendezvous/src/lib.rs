//! Where a gang meets: the token's proof, the messages on the wire, and the blocking client of a rank.
//!
//! Agent 0 of a gang listens (its side is in `pawl-agent`); the other agents and all ranks connect and prove that they
//! hold the gang's [`Token`] without sending it:
//!
//! ```text
//! caller                                   agent 0
//! {"version":1,"who":..,"nonce":C} ->
//!                      <- {"nonce":S}
//! {"proof": HMAC(token, "caller" first-line S)} ->
//!                      <- {"proof": HMAC(token, "listener" first-line S)}
//! ```
//!
//! Both proofs are HMAC-SHA256, compared in constant time. What follows is one JSON document a line ([`wire`]). The
//! proof keeps strangers out of the gang; it does not encrypt, so the network between the nodes of a gang must be one
//! that nobody else can write to (a NetworkPolicy does that on Kubernetes).
//!
//! Ranks [`Client::put`] and [`Client::get`] small values, such as an NCCL id or the address that a rank listens on.
//! Values live as long as their launch.

mod client;
pub mod proof;
mod token;
pub mod wire;

pub use client::{Client, ClientError, connect};
pub use token::{Token, TokenError};
