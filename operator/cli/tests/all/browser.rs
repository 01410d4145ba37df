//! A running `pawl ui`, asked as a browser asks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::Duration;

/// The server, which ends when this is dropped.
pub struct Ui {
    pub child: Child,
    /// Its address and port.
    pub address: String,
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ui {
    /// Starts this command, which listens on a free port and whose standard output is a pipe.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    /// Sends a request, whose answer is read from the stream.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        stream
    }

    /// Asks for a page, whose answer is read from the stream.
    pub fn ask(&self, path: &str, host: &str) -> TcpStream {
        self.send("GET", path, &[("Host", host)], "")
    }

    /// Status code, head and body of the answer to a request.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut text = String::new();
        self.send(method, path, headers, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        (code, head.to_owned(), body.to_owned())
    }

    /// The answer with a page.
    pub fn get(&self, path: &str) -> (u16, String, String) {
        self.request("GET", path, &[("Host", &self.address)], "")
    }

    /// The answer to a form that a page of this server sends.
    pub fn post(&self, path: &str, form: &str) -> (u16, String, String) {
        let origin = format!("http://{}", self.address);
        self.request("POST", path, &[("Host", &self.address), ("Origin", &origin)], form)
    }
}
