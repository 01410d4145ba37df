//! Agent 0's listener: authenticates by the token, and serves agents and ranks.

use crate::coordinator::Inbox;
use crate::handshake::{HANDSHAKE, authenticate};
use crate::lines::{LINE_TIME, read_json, write_all, write_json};
use crate::messages::{Down, Up};
use crate::store::Store;
use parking_lot::Mutex;
use pawl_rendezvous::Token;
use pawl_rendezvous::strangers::{Limits, Strangers};
use pawl_rendezvous::wire::{Answer, Ask, MAX_LINE, Who};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Limits of concurrent handshakes. A pod has at most 65 callers: its agent and 64 ranks. One that is refused tries
/// again. With those of the HTTP server, they leave descriptors where a process may have 1024.
const LIMITS: Limits = Limits { total: 512, per_address: 128, grace: Duration::from_secs(1) };
/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 4096;

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

/// A connection that may not have authenticated yet.
struct Stranger {
    task: AbortHandle,
    /// Whether it has authenticated.
    known: Arc<AtomicBool>,
}

struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Server {
    /// Accepts connections forever; dropping the future closes all of them. Of too many that have not authenticated,
    /// from one address or altogether, the oldest is closed, or the new one if all of them are new.
    pub(crate) async fn run(self, listener: TcpListener) {
        let server = Arc::new(self);
        if let Err(error) = rustix::net::listen(&listener, BACKLOG) {
            tracing::warn!(%error, "the queue of connections has its default length");
        }
        let mut strangers: Strangers<Stranger> = Strangers::new(LIMITS);
        let mut connections = JoinSet::new();
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    strangers.retain(|one| !one.task.is_finished() && !one.known.load(Ordering::Relaxed));
                    let now = Instant::now();
                    let Ok(replaced) = strangers.make_room(from.ip(), now) else { continue };
                    replaced.into_iter().for_each(|one| one.task.abort());
                    let server = Arc::clone(&server);
                    let known = Arc::new(AtomicBool::new(false));
                    let authenticated = Arc::clone(&known);
                    let task = connections.spawn(async move {
                        let greeted = timeout(HANDSHAKE, server.handshake(stream)).await;
                        authenticated.store(matches!(greeted, Ok(Ok(_))), Ordering::Relaxed);
                        let ended = match greeted {
                            Ok(Ok((connection, who))) => server.serve(connection, who).await,
                            Ok(Err(e)) => Err(e),
                            Err(_) => Err(io::ErrorKind::TimedOut.into()),
                        };
                        if let Err(e) = ended {
                            tracing::debug!(%from, error = %e, "connection ended");
                        }
                    });
                    strangers.enter(from.ip(), now, Stranger { task, known });
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
        let who = authenticate(&self.token, &mut connection.reader, &mut connection.writer).await?;
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
