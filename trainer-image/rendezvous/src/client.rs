//! The blocking client of a rank.

use crate::proof::{Challenge, Side, hex, holds, prove, random_hex, unhex};
use crate::wire::{Answer, Ask, Hello, ListenerNonce, MAX_HELLO_LINE, MAX_LINE, Proof, VERSION, Who};
use crate::{Token, TokenError};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

/// A rank's connection to the rendezvous of its gang.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// The rendezvous did not do what the rank asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A variable of the contract's environment is missing or malformed.
    #[error("environment variable {0}: not set as the agent sets it: start ranks through `pawl`")]
    Environment(&'static str),
    /// The token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The connection failed or was closed.
    #[error("rendezvous: {0}")]
    Connection(#[from] std::io::Error),
    /// The other side does not hold the gang's token, or closed the connection because this side does not.
    #[error("rendezvous: the two sides do not hold the same token")]
    WrongToken,
    /// The other side speaks another language.
    #[error("rendezvous: an unreadable answer: do both sides run the same version of pawl?")]
    Protocol,
    /// The other side refused, and why.
    #[error("rendezvous: refused: {0}")]
    Refused(String),
    /// Nobody stored the value in time.
    #[error("rendezvous: nobody stored `{key}` within {waited:?}")]
    Timeout {
        /// The key.
        key: String,
        /// How long this rank waited.
        waited: Duration,
    },
}

/// Time for connecting, for the handshake and for an answer beyond its own wait.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait that is asked for at once.
const WAIT: Duration = Duration::from_secs(20);

/// Connects to `address` (`host:port`) and proves the token, in 10 s a step at most. The bytes are those that were
/// received behind the handshake already.
pub fn connect(address: &str, token: &Token, who: Who) -> Result<(TcpStream, Vec<u8>), ClientError> {
    let client = Client::open(address, token, who)?;
    let received = client.stream.buffer().to_vec();
    Ok((client.stream.into_inner(), received))
}

impl Client {
    /// Connects as the rank that the environment names (see [`pawl_contract::env`]), for the launch of the plan.
    pub fn from_env(launch: &str) -> Result<Self, ClientError> {
        use pawl_contract::env;
        let variable = |name| std::env::var(name).map_err(|_| ClientError::Environment(name));
        let rank = variable(env::RANK)?.parse().map_err(|_| ClientError::Environment(env::RANK))?;
        let token = Token::read(Path::new(&variable(env::TOKEN_FILE)?))?;
        Self::connect(&variable(env::RENDEZVOUS)?, &token, rank, launch)
    }

    /// Connects to `address` (`host:port`) as `rank` of `launch`.
    pub fn connect(address: &str, token: &Token, rank: u32, launch: &str) -> Result<Self, ClientError> {
        Self::open(address, token, Who::Rank { rank, launch: launch.to_owned() })
    }

    fn open(address: &str, token: &Token, who: Who) -> Result<Self, ClientError> {
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
        let mut client = Self { stream: BufReader::new(stream) };
        let nonce = random_hex()?;
        let hello = json(&Hello { version: VERSION, who, nonce });
        client.send(&hello)?;
        let ListenerNonce { nonce } = client.receive(MAX_HELLO_LINE)?;
        let challenge = Challenge { hello, listener_nonce: nonce };
        client.send(&json(&Proof { proof: prove(token, Side::Caller, &challenge) }))?;
        // Whoever refuses a proof just closes the connection.
        let answer: Proof = client.receive(MAX_HELLO_LINE).map_err(|error| match error {
            ClientError::Connection(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => ClientError::WrongToken,
            error => error,
        })?;
        if !holds(token, Side::Listener, &challenge, &answer.proof) {
            return Err(ClientError::WrongToken);
        }
        Ok(client)
    }

    /// Stores `value` (64 KiB at most) under `key` (256 bytes at most) for all ranks of the launch. A key is stored once.
    pub fn put(&mut self, key: &str, value: &[u8]) -> Result<(), ClientError> {
        self.send(&json(&Ask::Put { key: key.to_owned(), value: hex(value) }))?;
        match self.receive(MAX_LINE)? {
            Answer::Stored => Ok(()),
            Answer::Refused(why) => Err(ClientError::Refused(why)),
            Answer::Value(_) | Answer::Missing => Err(ClientError::Protocol),
        }
    }

    /// The value of `key`, waiting up to `timeout` for a rank to store it.
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

fn json(message: &impl serde::Serialize) -> String {
    serde_json::to_string(message).expect("messages hold only strings and integers")
}
