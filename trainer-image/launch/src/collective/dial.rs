//! The connection of a rank to one that listens.

use super::welcome::{MAGIC, SECRET};
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a connection that is refused is tried again. A rank listens before it offers its address, but the network
/// may learn of a new pod later than its peers do: one that enforces NetworkPolicies rejects what it does not know
/// yet.
const REFUSED: Duration = Duration::from_secs(20);
/// Interval between two attempts.
const RETRY: Duration = Duration::from_millis(100);

/// Connects to the rank that made `offer`, until `end`, and authenticates as `rank`.
///
/// # Errors
/// The offer cannot be read, or the last attempt failed.
pub(super) fn dial(offer: &[u8], rank: u32, end: Instant) -> Result<TcpStream, String> {
    let (secret, address) = offer.split_at_checked(SECRET).ok_or("its offer is too short")?;
    let address = std::str::from_utf8(address).ok().and_then(|a| a.parse::<SocketAddr>().ok());
    let address = address.ok_or("its offer names no address")?;
    let mut stream = connect(address, end).map_err(|e| format!("{address}: {e}"))?;
    let hello = [&MAGIC[..], secret, &rank.to_le_bytes()].concat();
    stream.write_all(&hello).map_err(|e| format!("{address}: {e}"))?;
    Ok(stream)
}

fn connect(address: SocketAddr, end: Instant) -> std::io::Result<TcpStream> {
    let until = end.min(Instant::now() + REFUSED);
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            // A rule rejects by one of these.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable)
                    && Instant::now() + RETRY < until =>
            {
                thread::sleep(RETRY);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// An address at which nobody listens now.
    fn vacant() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn offer(address: SocketAddr) -> Vec<u8> {
        [&[7; SECRET][..], address.to_string().as_bytes()].concat()
    }

    #[test]
    fn a_network_that_refuses_at_first_is_tried_again() {
        let address = vacant();
        let peer = thread::spawn(move || {
            thread::sleep(RETRY * 3);
            let (mut stream, _) = TcpListener::bind(address).unwrap().accept().unwrap();
            let mut hello = [0; MAGIC.len() + SECRET + 4];
            stream.read_exact(&mut hello).unwrap();
            hello
        });
        dial(&offer(address), 5, Instant::now() + REFUSED).unwrap();
        assert!(peer.join().unwrap().ends_with(&[7, 5, 0, 0, 0]));
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_at_the_deadline() {
        let (address, began) = (vacant(), Instant::now());
        let error = dial(&offer(address), 1, began + RETRY * 4).unwrap_err();
        assert!(error.contains("refused"), "{error}");
        assert!(began.elapsed() < REFUSED, "{:?}", began.elapsed());
    }
}
