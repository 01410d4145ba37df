//! A proxy before the API server that stops the operator right after a write of choice: the write happened, and the
//! operator never learns that it did. It can hold back what watches tell, so that caches are old.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use kube::Client;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The proxy.
#[derive(Clone)]
pub struct Proxy {
    /// Where it listens, in plain HTTP.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    lag: Duration,
    writes: AtomicU64,
    /// After which write, counted from 1, whom to kill.
    victim: Mutex<Option<(u64, rustix::process::Pid)>>,
    seen: Mutex<Vec<String>>,
}

impl Proxy {
    /// Starts a proxy that connects to the API server with the credentials of `client`, and lets every news of a watch
    /// wait for `lag`.
    pub async fn start(client: Client, lag: Duration) -> Self {
        let shared =
            Shared { client, lag, writes: AtomicU64::new(0), victim: Mutex::default(), seen: Mutex::default() };
        let shared = Arc::new(shared);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(forward).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, shared }
    }

    /// Kills `process` after the `n`-th write from now, counted from 1, before it gets the answer.
    pub fn kill_after(&self, n: u64, process: rustix::process::Pid) {
        *self.shared.victim.lock().unwrap() = Some((self.writes() + n, process));
    }

    /// The writes so far, without those of Leases.
    pub fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::SeqCst)
    }

    /// The writes so far, such as `POST /apis/batch/v1/namespaces/x/jobs`.
    pub fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().clone()
    }
}

async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let mutates = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let counts = mutates && !request.uri().path().contains("/leases");
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let line = format!("{} {}", request.method(), request.uri().path());
    let (mut head, body) = request.into_parts();
    // The client adds the host, the scheme and its own credentials.
    head.uri = head.uri.path_and_query().map(|path| path.as_str().parse().unwrap()).unwrap_or_default();
    head.headers.remove("host");
    head.headers.remove("authorization");
    let Ok(bytes) = axum::body::to_bytes(body, 4 << 20).await else { return StatusCode::BAD_REQUEST.into_response() };
    let sent = shared.client.send(axum::http::Request::from_parts(head, bytes.to_vec().into())).await;
    // A refused write changed nothing: to die after it is to die before the next.
    if counts && sent.as_ref().is_ok_and(|response| response.status().is_success()) {
        shared.seen.lock().unwrap().push(line);
        let number = shared.writes.fetch_add(1, Ordering::SeqCst) + 1;
        let victim = shared.victim.lock().unwrap().take_if(|(at, _)| *at == number);
        if let Some((_, process)) = victim {
            rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("the operator runs");
            return StatusCode::BAD_GATEWAY.into_response();
        }
    }
    match sent {
        Ok(response) if watches => {
            let (head, body) = response.into_parts();
            let late = late(Body::new(body).into_data_stream(), shared.lag);
            Response::from_parts(head, Body::from_stream(late)).into_response()
        }
        Ok(response) => response.map(Body::new).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// The same chunks in the same order, each `lag` later.
fn late(
    chunks: impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static,
    lag: Duration,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
    let (news, read) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut chunks = std::pin::pin!(chunks);
        while let Some(chunk) = chunks.next().await {
            // The operator is gone.
            if news.send((Instant::now() + lag, chunk)).is_err() {
                return;
            }
        }
    });
    stream::unfold(read, |mut read| async move {
        let (at, chunk) = read.recv().await?;
        tokio::time::sleep_until(at).await;
        Some((chunk, read))
    })
}
