//! Collectives over TCP among threads: sums in rank order, lost and confused peers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_graph::collective::Collective as _;
use pawl_trainer::collective::{CollectiveError, Exchange, Gang, TcpMesh, part};
use proptest::prelude::*;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A rendezvous in memory.
#[derive(Clone, Default)]
struct Board(Arc<(Mutex<Values>, Condvar)>);

type Values = HashMap<String, Vec<u8>>;

impl Exchange for Board {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        self.0.0.lock().unwrap().insert(key.to_owned(), value.to_vec());
        self.0.1.notify_all();
        Ok(())
    }

    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, String> {
        let board = self.0.0.lock().unwrap();
        let (board, _) = self.0.1.wait_timeout_while(board, limit, |board| !board.contains_key(key)).unwrap();
        board.get(key).cloned().ok_or_else(|| format!("nobody put {key}"))
    }
}

/// Runs `body` on every rank of a gang, each in a thread of its own; the results by rank.
fn gang<T: Send + 'static>(
    world: u32,
    deadline: Duration,
    body: impl Fn(&mut TcpMesh) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let (board, body) = (Board::default(), Arc::new(body));
    let ranks: Vec<_> = (0..world)
        .map(|rank| {
            let (mut board, body) = (board.clone(), Arc::clone(&body));
            std::thread::spawn(move || {
                let mut mesh = TcpMesh::connect(rank, world, LOOPBACK, &mut board, deadline).unwrap();
                body(&mut mesh)
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Values whose sum depends on the order in which it is taken.
fn values(rank: u32, length: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_u32.wrapping_mul(rank + 1);
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 - 8_388_608.0) * 10f32.powi((state % 13) as i32 - 6)
        })
        .collect()
}

fn sum_in_rank_order(world: u32, length: usize) -> Vec<f32> {
    let mut sum = values(0, length);
    for rank in 1..world {
        sum.iter_mut().zip(values(rank, length)).for_each(|(s, v)| *s += v);
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sums_are_taken_in_rank_order_however_the_buffer_is_cut(
        world in 2u32..6,
        length in prop_oneof![0usize..40, 2000usize..2100, 30_000usize..30_100],
        cut in 0.0f64..1.0,
    ) {
        let results = gang(world, Duration::from_secs(10), move |mesh| {
            let mut whole = values(mesh.rank(), length);
            mesh.all_reduce_sum(&mut whole).unwrap();
            let mut cut_in_two = values(mesh.rank(), length);
            let (a, b) = cut_in_two.split_at_mut((length as f64 * cut) as usize);
            mesh.all_reduce_sum(a).unwrap();
            mesh.all_reduce_sum(b).unwrap();
            let mine = part(length, mesh.rank() as usize, mesh.world_size() as usize);
            let mut scattered = vec![0.0; mine.len()];
            mesh.reduce_scatter_sum(&values(mesh.rank(), length), &mut scattered).unwrap();
            let mut gathered = vec![0.0; length];
            mesh.all_gather(&scattered, &mut gathered).unwrap();
            (whole, cut_in_two, gathered)
        });
        let expected = sum_in_rank_order(world, length);
        for (whole, cut_in_two, gathered) in results {
            prop_assert_eq!(&whole, &expected);
            prop_assert_eq!(&cut_in_two, &expected);
            prop_assert_eq!(&gathered, &expected);
        }
    }
}

#[test]
fn broadcast_and_bytes_reach_every_rank() {
    let results = gang(4, Duration::from_secs(10), |mesh| {
        let mut data = values(mesh.rank(), 50_000);
        mesh.broadcast(2, &mut data).unwrap();
        mesh.barrier().unwrap();
        (data, mesh.gather_bytes(&vec![mesh.rank() as u8; mesh.rank() as usize]).unwrap())
    });
    for (data, bytes) in results {
        assert_eq!(data, values(2, 50_000));
        assert_eq!(bytes, vec![vec![], vec![1], vec![2, 2], vec![3, 3, 3]]);
    }
}

#[test]
fn one_rank_alone_gets_its_own_values() {
    let gang = Gang::alone();
    let (mut data, mut mine, mut all) = (values(0, 5000), vec![0.0; 5000], vec![0.0; 5000]);
    gang.all_reduce(&mut data).unwrap();
    gang.reduce_scatter(&data, &mut mine).unwrap();
    gang.all_gather(&mine, &mut all).unwrap();
    assert_eq!((&data, &all), (&values(0, 5000), &data));
    assert_eq!(gang.gather(&7).unwrap(), [7]);
    gang.barrier().unwrap();
}

#[test]
fn a_rank_that_leaves_is_named_to_all_others_at_once() {
    let start = Instant::now();
    let results = gang(3, Duration::from_secs(60), |mesh| {
        mesh.barrier().unwrap();
        if mesh.rank() == 1 { None } else { Some(mesh.all_reduce_sum(&mut vec![1.0; 100_000])) }
    });
    assert!(start.elapsed() < Duration::from_secs(10), "nobody waited for the deadline");
    // The rank that notices first leaves too, so that the others may name either.
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        match result {
            Some(Err(CollectiveError::LostPeer { rank: lost, .. })) => assert_ne!(lost, rank as u32),
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn a_silent_rank_is_lost_after_the_deadline() {
    let results = gang(2, Duration::from_millis(300), |mesh| {
        mesh.barrier().unwrap();
        if mesh.rank() == 1 {
            std::thread::sleep(Duration::from_secs(1));
            return None;
        }
        let start = Instant::now();
        Some((mesh.barrier().unwrap_err().to_string(), start.elapsed()))
    });
    let (message, after) = results[0].clone().unwrap();
    assert!(message.contains("lost rank 1") && message.contains("0.3 s"), "{message}");
    assert!(after >= Duration::from_millis(300) && after < Duration::from_millis(900), "{after:?}");
}

#[test]
fn ranks_that_disagree_are_told_so() {
    let results = gang(2, Duration::from_secs(5), |mesh| {
        let mut data = vec![0.0; 10 + mesh.rank() as usize];
        mesh.all_reduce_sum(&mut data)
    });
    assert!(results.iter().any(|r| matches!(r, Err(CollectiveError::Disagreement { .. }))), "{results:?}");
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn a_stranger_is_turned_away() {
    let mut board = Board::default();
    let mut watch = board.clone();
    let stranger = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let offer = watch.get("mesh/0", Duration::from_secs(5)).unwrap();
        let address = std::str::from_utf8(&offer[16..]).unwrap().to_owned();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(&[b"pawlmsh1".as_slice(), &[0; 16], &1u32.to_le_bytes()].concat()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "turned away, not let in");
        TcpMesh::connect(1, 2, LOOPBACK, &mut watch, Duration::from_secs(5)).unwrap().barrier()
    });
    let mut mesh = TcpMesh::connect(0, 2, LOOPBACK, &mut board, Duration::from_secs(5)).unwrap();
    mesh.barrier().unwrap();
    stranger.join().unwrap().unwrap();
}

/// A connection to the listener of rank 0 from an address of its own.
fn neighbor(offer: &[u8]) -> std::net::TcpStream {
    let address: std::net::SocketAddr = std::str::from_utf8(&offer[16..]).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn silent_strangers_do_not_keep_the_gang_apart() {
    use std::io::Write;
    let mut board = Board::default();
    let mut watch = board.clone();
    let others = std::thread::spawn(move || {
        let offer = watch.get("mesh/0", Duration::from_secs(5)).unwrap();
        let strangers: Vec<_> = (0..400)
            .map(|index| {
                let mut stream = neighbor(&offer);
                // Silence, the beginning of a hello, garbage.
                let _ = match index % 3 {
                    0 => Ok(()),
                    1 => stream.write_all(b"pawl"),
                    _ => stream.write_all(&[7; 4096]),
                };
                stream
            })
            .collect();
        let met = Instant::now();
        let mut mesh = TcpMesh::connect(1, 2, LOOPBACK, &mut watch, Duration::from_secs(10)).unwrap();
        let ended = mesh.barrier();
        drop(strangers);
        (ended, met.elapsed())
    });
    let mut mesh = TcpMesh::connect(0, 2, LOOPBACK, &mut board, Duration::from_secs(10)).unwrap();
    mesh.barrier().unwrap();
    let (ended, took) = others.join().unwrap();
    ended.unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_length_that_a_peer_announces_allocates_nothing() {
    use std::io::Write;
    let mut board = Board::default();
    let mut watch = board.clone();
    let peer = std::thread::spawn(move || {
        let offer = watch.get("mesh/0", Duration::from_secs(5)).unwrap();
        let address = std::str::from_utf8(&offer[16..]).unwrap().to_owned();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(&[b"pawlmsh1".as_slice(), &offer[..16], &1u32.to_le_bytes()].concat()).unwrap();
        // The first message, of 8 bytes: the length of what follows.
        let announced = 1u64 << 45;
        stream.write_all(&[1u64.to_le_bytes(), 8u64.to_le_bytes(), announced.to_le_bytes()].concat()).unwrap();
        stream
    });
    let mut mesh = TcpMesh::connect(0, 2, LOOPBACK, &mut board, Duration::from_secs(5)).unwrap();
    let error = mesh.gather_bytes(b"mine").unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("35184372088832 bytes"), "{error}");
    drop(peer.join().unwrap());
}

#[test]
fn long_messages_arrive_whole() {
    let length = |rank: u32| [0, 65_536, 200_001][rank as usize];
    let results = gang(3, Duration::from_secs(10), move |mesh| {
        mesh.gather_bytes(&vec![mesh.rank() as u8 + 1; length(mesh.rank())]).unwrap()
    });
    for all in results {
        for (rank, bytes) in (0..3).zip(all) {
            assert!(bytes == vec![rank as u8 + 1; length(rank)], "{} bytes of rank {rank}", bytes.len());
        }
    }
}

/// A rendezvous of files, for processes.
struct Folder(std::path::PathBuf);

impl Exchange for Folder {
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let path = self.0.join(key.replace('/', "-"));
        pawl_durable::replace(&path, value).map_err(|e| e.to_string())
    }

    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, String> {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Ok(bytes) = std::fs::read(self.0.join(key.replace('/', "-"))) {
                return Ok(bytes);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("nobody put {key}"))
    }
}

/// Three processes sum for ever; one is killed; the others end with the contract's exit code at once.
#[test]
fn a_killed_process_ends_the_others_with_40() {
    const RANK: &str = "PAWL_TEST_MESH_RANK";
    const DIR: &str = "PAWL_TEST_MESH_DIR";
    if let Ok(rank) = std::env::var(RANK) {
        let mut board = Folder(std::env::var(DIR).unwrap().into());
        let rank: u32 = rank.parse().unwrap();
        let deadline = Duration::from_secs(30);
        let mut mesh = TcpMesh::connect(rank, 3, LOOPBACK, &mut board, deadline).unwrap();
        let mut data = vec![1.0; 200_000];
        for round in 0.. {
            if let Err(error) = mesh.all_reduce_sum(&mut data) {
                let ending = pawl_trainer::ending::Ending::from(error);
                std::process::exit(ending.outcome().exit_code().into());
            }
            if round == 3 {
                board.put(&format!("ready/{rank}"), b"").unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let start = |rank: u32| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_ends_the_others_with_40"])
            .env(RANK, rank.to_string())
            .env(DIR, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut ranks: Vec<_> = (0..3).map(start).collect();
    let mut board = Folder(dir.path().to_owned());
    for rank in 0..3 {
        board.get(&format!("ready/{rank}"), Duration::from_secs(30)).unwrap();
    }
    ranks[1].kill().unwrap();
    let killed = Instant::now();
    for rank in [0, 2] {
        assert_eq!(ranks[rank].wait().unwrap().code(), Some(40), "rank {rank}");
    }
    assert!(killed.elapsed() < Duration::from_secs(5), "long before the deadline: {:?}", killed.elapsed());
    ranks[1].wait().unwrap();
}
