//! One question to one agent: `GET /attempt`.

use crate::metrics::LiveOutcome;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pawl_contract::live::{Attempt, MAX_ATTEMPT};
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// Asks the agent at `address`. Bounded in size, not in time: the caller has the deadline.
pub(super) async fn attempt(address: SocketAddr) -> Result<Attempt, LiveOutcome> {
    let stream = TcpStream::connect(address).await.map_err(|_| LiveOutcome::Unreachable)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|_| LiveOutcome::Unreachable)?;
    let request = Request::get("/attempt")
        .header(header::HOST, address.to_string())
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("a request of literals and an address");
    let answer = async {
        let response = sender.send_request(request).await.map_err(|_| LiveOutcome::Invalid)?;
        if response.status() != StatusCode::OK {
            return Err(LiveOutcome::Refused);
        }
        let body = Limited::new(response.into_body(), MAX_ATTEMPT).collect().await.map_err(|_| LiveOutcome::Invalid)?;
        serde_json::from_slice(&body.to_bytes()).map_err(|_| LiveOutcome::Invalid)
    };
    tokio::pin!(answer);
    // The connection moves only while it is polled; it ends with the question.
    tokio::select! {
        answer = &mut answer => answer,
        _ = connection => answer.await,
    }
}
