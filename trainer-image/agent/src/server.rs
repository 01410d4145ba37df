//! Agent 0's listener: authenticates by the token, and serves agents and ranks.

use crate::coordinator::Inbox;
use crate::lines::{LINE_TIME, read_json, read_line, write_all, write_json};
use crate::messages::{Down, Up};
use crate::store::Store;
use parking_lot::Mutex;
use pawl_rendezvous::Token;
use pawl_rendezvous::hexadecimal::random_hex;
use pawl_rendezvous::proof::{Challenge, Side, holds, prove};
use pawl_rendezvous::wire::{Answer, Ask, Hello, ListenerNonce, MAX_HELLO_LINE, MAX_LINE, Proof, VERSION, Who};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Timeout of the whole handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Maximum number of concurrent handshakes; more connections wait in the kernel's backlog.
const STRANGERS: usize = 256;

/// State shared by all connections.
pub(crate) struct Server {
    pub(crate) token: Token,
    pub(crate) replicas: u32,
    pub(crate) world_size: u32,
    pub(crate) lost_after: Duration,
    pub(crate) store: Arc<Store>,
    pub(crate) inbox: mpsc::UnboundedSender<Inbox>,
    /// Address at which the agents connect to this one.
    pub(crate) met_at: Arc<OnceLock<SocketAddr>>,
    /// Agents that have connected; each connects once.
    pub(crate) came: Mutex<BTreeSet<u32>>,
}

struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Server {
    /// Accepts connections forever; dropping the future closes all of them.
    pub(crate) async fn run(self, listener: TcpListener) {
        let server = Arc::new(self);
        let strangers = Arc::new(Semaphore::new(STRANGERS));
        let mut connections = JoinSet::new();
        loop {
            let Ok(permit) = Arc::clone(&strangers).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, from)) => {
                    let server = Arc::clone(&server);
                    connections.spawn(async move {
                        let greeted = timeout(HANDSHAKE, server.handshake(stream)).await;
                        drop(permit);
                        let ended = match greeted {
                            Ok(Ok((connection, who))) => server.serve(connection, who).await,
                            Ok(Err(e)) => Err(e),
                            Err(_) => Err(io::ErrorKind::TimedOut.into()),
                        };
                        if let Err(e) = ended {
                            tracing::debug!(%from, error = %e, "connection ended");
                        }
                    });
                }
                // Out of descriptors, or the client has disconnected: the next connection may succeed.
                Err(e) => {
                    tracing::warn!(error = %e, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }

    /// The authenticated identity of the caller.
    async fn handshake(&self, stream: TcpStream) -> io::Result<(Connection, Who)> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let mut connection = Connection { reader: BufReader::new(reader), writer };
        let Connection { reader, writer } = &mut connection;
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
        if !holds(&self.token, Side::Caller, &challenge, &proof) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "wrong token"));
        }
        write_json(writer, &Proof { proof: prove(&self.token, Side::Listener, &challenge) }).await?;
        Ok((connection, who))
    }

    async fn serve(&self, connection: Connection, who: Who) -> io::Result<()> {
        match who {
            Who::Agent { replica } if (1..self.replicas).contains(&replica) => {
                if !self.came.lock().insert(replica) {
                    return Err(io::Error::other(format!("agent {replica} connected twice")));
                }
                self.serve_agent(connection, replica).await
            }
            Who::Agent { replica } => Err(io::Error::other(format!("unknown agent {replica}"))),
            Who::Rank { rank, launch } if rank < self.world_size && self.store.runs(&launch) => {
                self.serve_rank(connection, &launch).await
            }
            Who::Rank { rank, launch } => Err(io::Error::other(format!("rank {rank} of `{launch}` is not running"))),
        }
    }

    /// Forwards messages in both directions until the agent disconnects, or agent 0 has sent everything.
    async fn serve_agent(&self, connection: Connection, replica: u32) -> io::Result<()> {
        let Connection { mut reader, writer } = connection;
        let here = writer.local_addr()?;
        // All agents use the same name: the first connection shows its address.
        let _ = self.met_at.set(SocketAddr::new(here.ip().to_canonical(), here.port()));
        let (down, messages) = mpsc::unbounded_channel();
        let tell = |message| self.inbox.send(message).map_err(io::Error::other);
        tell(Inbox::Joined { replica, down })?;
        let read = async {
            loop {
                let message: Up = read_json(&mut reader, MAX_LINE, Some(self.lost_after), LINE_TIME).await?;
                if message != Up::Beat {
                    tell(Inbox::Said { replica, message })?;
                }
            }
        };
        let write = write_all(writer, messages, Down::Beat, self.lost_after / 4);
        let (mut read, mut write) = (std::pin::pin!(read), std::pin::pin!(write));
        let ended: io::Result<()> = tokio::select! {
            ended = &mut read => ended,
            // Everything is sent: the agent closes the connection.
            Ok(()) = &mut write => read.await,
        };
        let why = match ended {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => "its connection was closed".to_owned(),
            Err(e) => e.to_string(),
            Ok(()) => String::new(),
        };
        tell(Inbox::Gone { replica, why })
    }

    /// Serves a rank until its launch is over.
    async fn serve_rank(&self, connection: Connection, launch: &str) -> io::Result<()> {
        let Connection { mut reader, mut writer } = connection;
        loop {
            let answer = match read_json(&mut reader, MAX_LINE, None, LINE_TIME).await? {
                Ask::Put { key, value } => self.store.put(launch, key, value),
                Ask::Get { key, wait_ms } => self.store.get(launch, &key, Duration::from_millis(wait_ms)).await,
            };
            let over = matches!(answer, Answer::Refused(_)) && !self.store.runs(launch);
            write_json(&mut writer, &answer).await?;
            if over {
                return Ok(());
            }
        }
    }
}
