//! A neighbor pod attacks the ports of the agent: ten thousand connections that are silent, slow or garbage, and
//! replays.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod gang;

use gang::{Agent, address, appears, limits, nodes, outcomes, plan};
use pawl_agent::{Event, Live, Node, Stop, run, serve};
use pawl_contract::exit::Outcome;
use pawl_rendezvous::proof::{Challenge, Side, prove};
use pawl_rendezvous::wire::{Hello, ListenerNonce, Proof, VERSION, Who};
use pawl_rendezvous::{Client, Token};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

/// Address of the neighbor; the operator and the gang use 127.0.0.1.
const NEIGHBOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Connections that the neighbor opens.
const CONNECTIONS: usize = 10_000;
/// Time in which an answer has to come, in spite of the attack.
const SOON: Duration = Duration::from_secs(2);
/// Memory that the attack may cost this process: both sides of all connections.
const MEMORY: usize = 96 << 20;

/// The connections of the neighbor, as many as this process may hold; the oldest are closed for new ones.
struct Neighbor {
    target: SocketAddr,
    open: std::collections::VecDeque<TcpStream>,
    most: usize,
    opened: usize,
}

impl Neighbor {
    fn new(target: SocketAddr) -> Self {
        let mut files = getrlimit(Resource::Nofile);
        files.current = files.maximum;
        setrlimit(Resource::Nofile, files).unwrap();
        // Both sides are in this process, which has other files open too.
        let most = files.maximum.map_or(CONNECTIONS, |most| usize::try_from(most / 2 - 250).unwrap().min(CONNECTIONS));
        Self { target, open: std::collections::VecDeque::new(), most, opened: 0 }
    }

    /// Opens connections: a third of them silent, a third of them with the beginning of a message, and garbage.
    async fn open(&mut self, count: usize) {
        for _ in 0..count {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((NEIGHBOR, 0).into()).unwrap();
            let Ok(Ok(mut stream)) = tokio::time::timeout(SOON, socket.connect(self.target)).await else { continue };
            // The other side may hang up in the middle: that is what it should do.
            let _ = match self.opened % 3 {
                0 => Ok(0),
                1 => stream.write(b"GET /attempt HTTP/1.1\r\nHos").await,
                _ => stream.try_write(&[b'x'; 64 << 10]),
            };
            self.opened += 1;
            self.open.push_back(stream);
            if self.open.len() > self.most {
                self.open.pop_front();
            }
        }
    }

    /// One more byte on the newest connections.
    async fn drip(&mut self) {
        for stream in self.open.iter_mut().rev().take(500) {
            let _ = stream.try_write(b"x");
        }
    }
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// An agent that serves, as `pawl agent` does.
fn start_serving(dir: &Path) -> (Agent, SocketAddr) {
    let plan = plan(1, 1, &["a"], "until [ -e ../../go ]; do sleep 0.02; done; done_well");
    let node = Node { limits: limits(), ..Node::local(dir.join("node"), Vec::new()) };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let live = Live::new(&plan, node.replica, &node.work_dir).unwrap();
    let server = tokio::spawn(serve(listener, live.clone()));
    let (stop, stopped) = watch::channel(Stop::No);
    let dir = node.work_dir.clone();
    let task = tokio::spawn(async move {
        let result = run(&plan, node, stopped, move |event: Event| live.hear(&event)).await;
        drop(server);
        result
    });
    (Agent { dir, stop, events: std::sync::Arc::default(), task }, address)
}

/// The answer to a request, and how long it took.
async fn ask(address: SocketAddr, path: &'static str) -> (String, Duration) {
    let answer = tokio::task::spawn_blocking(move || {
        let asked = Instant::now();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| (answer, asked.elapsed()))
    });
    answer.await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_gets_its_answers_while_a_neighbor_opens_ten_thousand_connections() {
    let dir = tempdir().unwrap();
    let (agent, address) = start_serving(dir.path());
    assert!(ask(address, "/attempt").await.0.contains("job-1"));
    let before = resident();
    let mut neighbor = Neighbor::new(address);
    while neighbor.opened < CONNECTIONS {
        neighbor.open(CONNECTIONS / 10).await;
        neighbor.drip().await;
        let (answer, took) = ask(address, "/attempt").await;
        assert!(answer.contains("job-1"), "{answer}");
        assert!(took < SOON, "after {} connections: {took:?}", neighbor.opened);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < MEMORY, "{} MiB more", grown >> 20);
    assert!(ask(address, "/metrics").await.0.contains("pawl_agent_ranks"));
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(outcomes(&agent.result().await), [("a", Outcome::Done)]);
}

/// The lines that a caller with the token sends, and the stream; what a neighbor could record.
fn greet(address: &str, token: &Token, who: Who) -> (Vec<u8>, BufReader<std::net::TcpStream>) {
    let mut stream = BufReader::new(std::net::TcpStream::connect(address).unwrap());
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let hello = serde_json::to_string(&Hello { version: VERSION, who, nonce: "00".repeat(32) }).unwrap();
    stream.get_mut().write_all(format!("{hello}\n").as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let ListenerNonce { nonce } = serde_json::from_str(&line).unwrap();
    let challenge = Challenge { hello: hello.clone(), listener_nonce: nonce };
    let proof = serde_json::to_string(&Proof { proof: prove(token, Side::Caller, &challenge) }).unwrap();
    stream.get_mut().write_all(format!("{proof}\n").as_bytes()).unwrap();
    line.clear();
    stream.read_line(&mut line).unwrap();
    assert!(line.contains("proof"), "{line}");
    (format!("{hello}\n{proof}\n").into_bytes(), stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_meets_while_a_neighbor_attacks_its_rendezvous() {
    let dir = tempdir().unwrap();
    let script = "touch ../../up-$RANK; until [ -e ../../go ]; do sleep 0.02; done; done_well";
    let plan = plan(2, 1, &["a"], script);
    let mut nodes = nodes(dir.path(), 2);
    let address = address(&nodes[0]);
    let second = nodes.remove(1);
    let mut agents = vec![Agent::start(&plan, nodes.remove(0))];
    let before = resident();
    let mut neighbor = Neighbor::new(address.parse().unwrap());
    neighbor.open(CONNECTIONS / 2).await;

    let joined = Instant::now();
    agents.push(Agent::start(&plan, second));
    appears(&dir.path().join("up-1")).await;
    assert!(joined.elapsed() < 2 * SOON, "the gang met after {:?}", joined.elapsed());

    neighbor.open(CONNECTIONS / 2).await;
    neighbor.drip().await;
    let token = Token::read(&dir.path().join("token")).unwrap();
    let ranks = tokio::task::spawn_blocking(move || {
        let asked = Instant::now();
        let mut client = Client::connect(&address, &token, 0, "a").unwrap();
        client.put("key", b"value").unwrap();
        assert_eq!(client.get("key", Duration::ZERO).unwrap(), b"value");
        assert!(asked.elapsed() < SOON, "a rank met the gang after {:?}", asked.elapsed());
        // What a caller said once opens nothing again: the nonce of the listener is another one.
        let (recorded, _open) = greet(&address, &token, Who::Rank { rank: 1, launch: "a".to_owned() });
        for _ in 0..100 {
            let mut replay = std::net::TcpStream::connect(&address).unwrap();
            replay.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            replay.write_all(&recorded).unwrap();
            let mut answer = Vec::new();
            let _ = replay.read_to_end(&mut answer);
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.contains("nonce") && !answer.contains("proof"), "{answer}");
        }
    });
    ranks.await.unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown < MEMORY, "{} MiB more", grown >> 20);
    std::fs::write(dir.path().join("go"), "").unwrap();
    for agent in agents {
        assert_eq!(outcomes(&agent.result().await), [("a", Outcome::Done)]);
    }
}
