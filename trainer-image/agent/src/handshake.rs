//! The listener's side of the handshake: everything that is read from a caller before it has proved the token.

use crate::lines::{read_json, read_line, write_json};
use pawl_rendezvous::Token;
use pawl_rendezvous::hexadecimal::random_hex;
use pawl_rendezvous::proof::{Challenge, Side, holds, prove};
use pawl_rendezvous::wire::{Hello, ListenerNonce, MAX_HELLO_LINE, Proof, VERSION, Who};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncWrite};

/// Timeout of the whole handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Runs the handshake with a caller, and returns its authenticated identity.
///
/// # Errors
/// The connection fails, a line is too long or malformed, the caller has another version, or it does not prove `token`.
pub async fn authenticate<R, W>(token: &Token, reader: &mut R, writer: &mut W) -> io::Result<Who>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let hello = read_line(reader, MAX_HELLO_LINE, None, HANDSHAKE).await?;
    let hello = String::from_utf8(hello).map_err(io::Error::other)?;
    let Hello { version, who, nonce: _ } = serde_json::from_str(&hello)?;
    if version != VERSION {
        return Err(io::Error::other(format!("rendezvous version {version}, not {VERSION}")));
    }
    let listener_nonce = random_hex()?;
    write_json(writer, &ListenerNonce { nonce: listener_nonce.clone() }).await?;
    let challenge = Challenge { hello, listener_nonce };
    let Proof { proof } = read_json(reader, MAX_HELLO_LINE, None, HANDSHAKE).await?;
    if !holds(token, Side::Caller, &challenge, &proof) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "wrong token"));
    }
    write_json(writer, &Proof { proof: prove(token, Side::Listener, &challenge) }).await?;
    Ok(who)
}
