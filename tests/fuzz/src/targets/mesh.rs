//! The connections between ranks: the first bytes of a stranger, and the frames of a peer.

use pawl_trainer::collective::{Exchange, TcpMesh};
use std::cell::OnceCell;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Bytes of the secret at the beginning of an offer.
const SECRET: usize = 16;

/// The rendezvous: rank 0's offer is known, and what the own rank offers is called on.
struct Board<'b> {
    offer: Vec<u8>,
    own: &'b mut dyn FnMut(SocketAddr),
}

impl Exchange for Board<'_> {
    fn put(&mut self, _: &str, value: &[u8]) -> Result<(), String> {
        let address = value.get(SECRET..).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        (self.own)(address.ok_or("an offer ends in an address")?);
        Ok(())
    }

    fn get(&mut self, _: &str, _: Duration) -> Result<Vec<u8>, String> {
        Ok(self.offer.clone())
    }
}

/// Closes at once, so that no port remains in use: an input needs two.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket can be reset");
}

/// Rank 1 of two, whose peer sends the input instead of frames. The first byte chooses the collective.
pub fn frames(input: &[u8]) {
    let Some((&choice, frames)) = input.split_first() else { return };
    thread_local! {
        static LISTENER: OnceCell<TcpListener> = const { OnceCell::new() };
    }
    LISTENER.with(|listener| {
        let listener = listener.get_or_init(|| TcpListener::bind((LOOPBACK, 0)).expect("a port is free"));
        let address = listener.local_addr().expect("a listener has an address");
        let offer = [&[7; SECRET][..], address.to_string().as_bytes()].concat();
        let mut board = Board { offer, own: &mut |_| {} };
        let mesh = TcpMesh::connect(1, 2, LOOPBACK, &mut board, Duration::from_secs(5)).expect("the peer is there");
        let mut mesh = mesh.with_deadline(Duration::from_millis(20));
        let (mut peer, _) = listener.accept().expect("the rank connects");
        let mut hello = [0; 8 + SECRET + 4];
        peer.read_exact(&mut hello).expect("the rank says who it is");
        // More than the socket holds would block.
        peer.write_all(&frames[..frames.len().min(64 << 10)]).expect("the input is sent");
        peer.shutdown(Shutdown::Write).expect("the input ends");
        let mut values = vec![1.0; if choice & 4 == 0 { 3 } else { 4096 }];
        let _ = match choice & 3 {
            0 => mesh.gather_bytes(b"mine").map(|all| assert_eq!(all[1], b"mine")),
            1 => mesh.all_reduce_sum(&mut values),
            2 => mesh.broadcast(0, &mut values),
            _ => mesh.barrier().and_then(|()| mesh.gather_bytes(&[]).map(drop)),
        };
        reset(peer);
    });
}

/// Rank 0 of two, to which the input is sent by somebody who does not know its secret.
pub fn hello(input: &[u8]) {
    let mut stranger = None;
    let mut own = |address: SocketAddr| {
        let mut stream = TcpStream::connect(address).expect("the rank listens");
        stream.write_all(&input[..input.len().min(4096)]).expect("the input is sent");
        stranger = Some(stream);
    };
    let mut board = Board { offer: Vec::new(), own: &mut own };
    let met = TcpMesh::connect(0, 2, LOOPBACK, &mut board, Duration::from_millis(2));
    stranger.into_iter().for_each(reset);
    assert!(met.is_err(), "a stranger was taken for a rank");
}
