//! The handshake of the rendezvous, from both sides, before the other one has proved the token.

use super::block_on;
use pawl_agent::handshake::authenticate;
use pawl_rendezvous::wire::{Answer, Ask, MAX_HELLO_LINE, Who};
use pawl_rendezvous::{Client, Token};
use std::io::{self, Read, Write};

/// Nobody authenticates without the token, and what is sent and read is bounded.
pub fn run(input: &[u8]) {
    let token = Token::random().expect("random numbers");
    let (mut reader, mut sent) = (input, Vec::new());
    let met = block_on(authenticate(&token, &mut reader, &mut sent));
    assert!(met.is_err(), "a caller authenticated without the token: {met:?}");
    assert!(sent.len() <= MAX_HELLO_LINE, "{} bytes were sent to a stranger", sent.len());

    let who = Who::Rank { rank: 1, launch: "train-0badcafe".to_owned() };
    let met = Client::over(Listener { unread: input, sent: Vec::new() }, &token, who);
    assert!(met.is_err(), "a listener authenticated without the token");

    // After the proof: a line is one request or one response.
    let _ = serde_json::from_slice::<Ask>(input);
    let _ = serde_json::from_slice::<Answer>(input);
}

/// A listener that sends the input.
struct Listener<'i> {
    unread: &'i [u8],
    sent: Vec<u8>,
}

impl Read for Listener<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.unread.read(out)
    }
}

impl Write for Listener<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sent.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
