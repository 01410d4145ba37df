//! Rendezvous of a gang: token authentication, the wire messages, and the blocking client of a rank.
//!
//! Agent 0 of a gang listens (the server side is in `pawl-agent`); the other agents and all ranks connect and prove
//! that they hold the gang's [`Token`] without sending it:
//!
//! ```text
//! caller                                   agent 0
//! {"version":1,"who":..,"nonce":C} ->
//!                      <- {"nonce":S}
//! {"proof": HMAC(token, "caller" first-line S)} ->
//!                      <- {"proof": HMAC(token, "listener" first-line S)}
//! ```
//!
//! Both proofs are HMAC-SHA256, compared in constant time. After the handshake, each line is one JSON document
//! ([`wire`]). The proof authenticates both sides; it does not encrypt, so only members of the gang may be able to
//! write to the network between its nodes (on Kubernetes, enforce this with a NetworkPolicy).
//!
//! Ranks [`Client::put`] and [`Client::get`] small values, such as an NCCL id or the address that a rank listens on.
//! Values are dropped when their launch ends.

mod client;
pub mod hexadecimal;
pub mod proof;
pub mod strangers;
mod token;
pub mod wire;

pub use client::{Client, ClientError, connect};
pub use token::{Token, TokenError};
