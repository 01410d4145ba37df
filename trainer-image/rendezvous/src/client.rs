//! The blocking client of a rank.

use crate::hexadecimal::{hex, random_hex, unhex};
use crate::proof::{Challenge, Side, holds, prove};
use crate::wire::{Answer, Ask, Hello, ListenerNonce, MAX_HELLO_LINE, MAX_LINE, Proof, VERSION, Who};
use crate::{Token, TokenError};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A rank's connection to the rendezvous of its gang.
#[derive(Debug)]
pub struct Client<S = TcpStream> {
    stream: BufReader<S>,
}

/// A request to the rendezvous failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A variable of the contract's environment is missing or malformed.
    #[error("environment variable {0}: missing or malformed; the agent sets it: start ranks through `pawl`")]
    Environment(&'static str),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The connection failed or was closed.
    #[error("rendezvous: {0}")]
    Connection(#[from] std::io::Error),
    /// Authentication failed: the two sides hold different tokens.
    #[error("rendezvous: authentication failed: the two sides hold different tokens")]
    WrongToken,
    /// The response does not follow the protocol.
    #[error("rendezvous: malformed response: do both sides run the same version of pawl?")]
    Protocol,
    /// The request was rejected, and why.
    #[error("rendezvous: rejected: {0}")]
    Refused(String),
    /// Timeout: no rank stored the value.
    #[error("rendezvous: timeout: no rank stored `{key}` within {waited:?}")]
    Timeout {
        /// The key.
        key: String,
        /// How long this rank waited.
        waited: Duration,
    },
}

/// Timeout of connecting, of the handshake, and of a response beyond the wait that the request asks for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for which a caller tries again when the listener closes its connections: it has too many of strangers.
const TURNED_AWAY: Duration = Duration::from_secs(5);
/// Interval between these attempts.
const RETRY: Duration = Duration::from_millis(200);
/// Longest wait of a single request.
const WAIT: Duration = Duration::from_secs(20);

/// Connects to `address` (`host:port`) and authenticates with the token; each step times out after 10 s. Returns the
/// connection and the bytes that were received after the handshake.
///
/// # Errors
/// [`ClientError`] when the address cannot be reached, the handshake fails, or the tokens differ.
pub fn connect(address: &str, token: &Token, who: Who) -> Result<(TcpStream, Vec<u8>), ClientError> {
    let client = Client::open(address, token, who)?;
    let received = client.stream.buffer().to_vec();
    Ok((client.stream.into_inner(), received))
}

impl Client {
    /// Connects as the rank that the environment names (see [`pawl_contract::env`]), for the launch of the plan.
    ///
    /// # Errors
    /// [`ClientError`] when a variable is missing or malformed, the token cannot be read, and as [`Client::connect`].
    pub fn from_env(launch: &str) -> Result<Self, ClientError> {
        use pawl_contract::env;
        let variable = |name| std::env::var(name).map_err(|_| ClientError::Environment(name));
        let rank = variable(env::RANK)?.parse().map_err(|_| ClientError::Environment(env::RANK))?;
        let token = Token::read(Path::new(&variable(env::TOKEN_FILE)?))?;
        Self::connect(&variable(env::RENDEZVOUS)?, &token, rank, launch)
    }

    /// Connects to `address` (`host:port`) as `rank` of `launch`.
    ///
    /// # Errors
    /// As the function [`connect`].
    pub fn connect(address: &str, token: &Token, rank: u32, launch: &str) -> Result<Self, ClientError> {
        Self::open(address, token, Who::Rank { rank, launch: launch.to_owned() })
    }

    fn open(address: &str, token: &Token, who: Who) -> Result<Self, ClientError> {
        let end = Instant::now() + TURNED_AWAY;
        loop {
            match Self::dial(address, token, who.clone()) {
                Err(ClientError::Connection(error)) if is_closed(&error) && Instant::now() < end => sleep(RETRY),
                ended => return ended,
            }
        }
    }

    fn dial(address: &str, token: &Token, who: Who) -> Result<Self, ClientError> {
        let mut last = std::io::Error::other(format!("`{address}` has no address"));
        for resolved in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&resolved, PATIENCE) {
                Ok(stream) => return Self::handshake(stream, token, who),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn handshake(stream: TcpStream, token: &Token, who: Who) -> Result<Self, ClientError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Self::over(stream, token, who)
    }

    /// Stores `value` (64 KiB at most) under `key` (256 bytes at most) for all ranks of the launch. A key can be stored
    /// once.
    ///
    /// # Errors
    /// [`ClientError`] when the connection is lost, or the request is rejected: the key is already stored, a limit is
    /// exceeded, or the launch is not running.
    pub fn put(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.send(&json(&Ask::Put { key: key.to_owned(), value: hex(value) }))?;
        match self.receive(MAX_LINE)? {
            Answer::Stored => Ok(()),
            Answer::Refused(why) => Err(ClientError::Refused(why)),
            Answer::Value(_) | Answer::Missing => Err(ClientError::Protocol),
        }
    }

    /// The value of `key`, waiting up to `timeout` for a rank to store it.
    ///
    /// # Errors
    /// [`ClientError`] when no rank stores the key in time, the connection is lost, or the launch is not running.
    pub fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, ClientError> {
        let start = Instant::now();
        loop {
            let wait = timeout.saturating_sub(start.elapsed()).min(WAIT);
            self.stream.get_ref().set_read_timeout(Some(wait + PATIENCE))?;
            self.send(&json(&Ask::Get { key: key.to_owned(), wait_ms: wait.as_millis() as u64 }))?;
            match self.receive(MAX_LINE)? {
                Answer::Value(value) => return unhex(&value).ok_or(ClientError::Protocol),
                Answer::Missing if start.elapsed() < timeout => {}
                Answer::Missing => return Err(ClientError::Timeout { key: key.to_owned(), waited: timeout }),
                Answer::Refused(why) => return Err(ClientError::Refused(why)),
                Answer::Stored => return Err(ClientError::Protocol),
            }
        }
    }
}

impl<S: Read + Write> Client<S> {
    /// Authenticates over an open connection. Bounded in size, not in time.
    ///
    /// # Errors
    /// [`ClientError`] when the connection is lost, the handshake fails, or the tokens differ.
    pub fn over(stream: S, token: &Token, who: Who) -> Result<Self, ClientError> {
        let mut client = Self { stream: BufReader::new(stream) };
        let nonce = random_hex()?;
        let hello = json(&Hello { version: VERSION, who, nonce });
        client.send(&hello)?;
        let ListenerNonce { nonce } = client.receive(MAX_HELLO_LINE)?;
        let challenge = Challenge { hello, listener_nonce: nonce };
        client.send(&json(&Proof { proof: prove(token, Side::Caller, &challenge) }))?;
        // A side that rejects a proof closes the connection.
        let answer: Proof = client.receive(MAX_HELLO_LINE).map_err(|error| match error {
            ClientError::Connection(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => ClientError::WrongToken,
            error => error,
        })?;
        if !holds(token, Side::Listener, &challenge, &answer.proof) {
            return Err(ClientError::WrongToken);
        }
        Ok(client)
    }

    fn send(&mut self, line: &str) -> Result<(), ClientError> {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        Ok(self.stream.get_mut().write_all(&bytes)?)
    }

    fn receive<T: DeserializeOwned>(&mut self, limit: usize) -> Result<T, ClientError> {
        let mut line = Vec::new();
        (&mut self.stream).take(limit as u64).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        serde_json::from_slice(&line).map_err(|_| ClientError::Protocol)
    }
}

/// Whether the other side closed the connection.
fn is_closed(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn json(message: &impl serde::Serialize) -> String {
    serde_json::to_string(message).expect("messages hold only strings and integers")
}
