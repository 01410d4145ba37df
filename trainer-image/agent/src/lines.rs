//! Reads and writes lines of bounded length within a timeout; the two directions of an agent's connection.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Timeout of reading a line after its first byte, and of writing one.
pub(crate) const LINE_TIME: Duration = Duration::from_secs(10);

/// Reads one line of at most `limit` bytes, within `first` to its first byte (`None`: no timeout) and `rest` to its
/// end.
pub(crate) async fn read_line<R: AsyncBufRead + Unpin>(
    reader: &mut R,
    limit: usize,
    first: Option<Duration>,
    rest: Duration,
) -> io::Result<Vec<u8>> {
    let begun = match first {
        Some(first) => timeout(first, reader.fill_buf()).await.map_err(|_| late("no line received"))??,
        None => reader.fill_buf().await?,
    };
    if begun.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let mut line = Vec::new();
    let mut bounded = reader.take(limit as u64);
    timeout(rest, bounded.read_until(b'\n', &mut line)).await.map_err(|_| late("a line was not completed"))??;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("a line is longer than {limit} bytes, or truncated"),
        ));
    }
    Ok(line)
}

fn late(what: &str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("{what} in time"))
}

/// Reads and parses one line.
pub(crate) async fn read_json<T: DeserializeOwned, R: AsyncBufRead + Unpin>(
    reader: &mut R,
    limit: usize,
    first: Option<Duration>,
    rest: Duration,
) -> io::Result<T> {
    let line = read_line(reader, limit, first, rest).await?;
    serde_json::from_slice(&line).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}

/// Writes one line.
pub(crate) async fn write_json<W: AsyncWrite + Unpin>(writer: &mut W, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    timeout(LINE_TIME, writer.write_all(&line)).await.map_err(|_| late("a line was not sent"))?
}

/// Writes messages as they arrive, and a `beat` whenever none arrived for `every`; ends when the channel is closed.
pub(crate) async fn write_all<T: Serialize + Clone>(
    mut writer: impl AsyncWrite + Unpin,
    mut messages: mpsc::UnboundedReceiver<T>,
    beat: T,
    every: Duration,
) -> io::Result<()> {
    loop {
        match timeout(every, messages.recv()).await {
            Ok(Some(message)) => write_json(&mut writer, &message).await?,
            Ok(None) => return writer.shutdown().await,
            Err(_) => write_json(&mut writer, &beat).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::BufReader;

    #[tokio::test(start_paused = true)]
    async fn lines_are_bounded_in_length_and_time() {
        let second = Duration::from_secs(1);
        let mut two = BufReader::new(&b"one\ntwo\n"[..]);
        for expected in [&b"one"[..], b"two"] {
            assert_eq!(read_line(&mut two, 4, Some(second), second).await.unwrap(), expected);
        }
        assert_eq!(read_line(&mut two, 4, Some(second), second).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        for (text, kind) in [("four\n", ErrorKind::InvalidData), ("abc", ErrorKind::InvalidData)] {
            let mut reader = BufReader::new(text.as_bytes());
            assert_eq!(read_line(&mut reader, 4, Some(second), second).await.unwrap_err().kind(), kind);
        }
        let (mut drip, slow) = tokio::io::duplex(64);
        let mut slow = BufReader::new(slow);
        assert_eq!(read_line(&mut slow, 64, Some(second), second).await.unwrap_err().kind(), ErrorKind::TimedOut);
        drip.write_all(b"x").await.unwrap();
        assert_eq!(read_line(&mut slow, 64, None, second).await.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
