//! The connection of another agent to agent 0.

use crate::lines::{LINE_TIME, read_json, write_all};
use crate::member::Link;
use crate::messages::{Down, Up};
use pawl_rendezvous::wire::{MAX_LINE, Who};
use pawl_rendezvous::{ClientError, Token, connect};
use std::io::{self, Cursor};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Interval between two attempts to connect to agent 0.
const RETRY: Duration = Duration::from_millis(200);

/// Connects to agent 0, which may start later, within `gather`.
///
/// # Errors
/// The error of the last attempt; returned at once when the tokens differ, since a retry cannot fix that.
pub(crate) async fn join(
    address: &str,
    token: &Token,
    replica: u32,
    gather: Duration,
) -> Result<(std::net::TcpStream, Vec<u8>), ClientError> {
    let deadline = Instant::now() + gather;
    loop {
        let (address, token) = (address.to_owned(), token.clone());
        let reached = tokio::task::spawn_blocking(move || connect(&address, &token, Who::Agent { replica })).await;
        match reached.map_err(io::Error::other)? {
            Ok(connection) => return Ok(connection),
            Err(e @ (ClientError::WrongToken | ClientError::Protocol)) => return Err(e),
            Err(e) if Instant::now() + RETRY >= deadline => return Err(e),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// Forwards messages in both directions; the task ends when all messages are sent or the connection to agent 0 is lost.
pub(crate) fn link(
    (stream, received): (std::net::TcpStream, Vec<u8>),
    lost_after: Duration,
) -> io::Result<(Link, JoinHandle<()>)> {
    stream.set_nonblocking(true)?;
    let (reader, writer) = TcpStream::from_std(stream)?.into_split();
    let mut reader = BufReader::new(Cursor::new(received).chain(reader));
    let (up, messages) = mpsc::unbounded_channel();
    let (said, down) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        let read = async {
            loop {
                let message: Down = read_json(&mut reader, MAX_LINE, Some(lost_after), LINE_TIME).await?;
                if message != Down::Beat && said.send(message).is_err() {
                    return io::Result::Ok(());
                }
            }
        };
        let ended = tokio::select! {
            ended = read => ended,
            ended = write_all(writer, messages, Up::Beat, lost_after / 4) => ended,
        };
        if let Err(e) = ended {
            tracing::debug!(error = %e, "the connection to agent 0 ended");
        }
    });
    Ok((Link { up, down }, task))
}
