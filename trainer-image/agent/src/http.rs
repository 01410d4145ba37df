//! The HTTP server of a pod's agent: `/healthz` and `/metrics`, and of agent 0 `/progress` and `/attempt`.

use crate::live::Live;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Maximum concurrent connections; more wait in the kernel's backlog.
const CONNECTIONS: usize = 64;
/// Timeout of a request and its response.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Maximum size of a request's header in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Serves `live` over HTTP until the future is dropped. A connection carries one request, within five seconds.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(listener: std::net::TcpListener, live: Live) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of descriptors, or the client has disconnected: the next connection may succeed.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let live = live.clone();
        connections.spawn(async move {
            let answer = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, &live))));
            let mut http = http1::Builder::new();
            let served = http.keep_alive(false).max_buf_size(MAX_HEAD).serve_connection(TokioIo::new(stream), answer);
            match timeout(CLIENT_TIME, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "request to the agent failed"),
                Err(_) => tracing::debug!("request to the agent timed out"),
            }
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

type Answer = Response<Full<Bytes>>;

fn answer(request: &Request<Incoming>, live: &Live) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/metrics" => body(prometheus::TEXT_FORMAT, live.metrics().into()),
        "/attempt" if live.leads() => body(JSON, live.attempt()),
        "/progress" if live.leads() => match live.progress() {
            Some(progress) => body(JSON, serde_json::to_vec(&progress).unwrap_or_default()),
            None => {
                let mut nothing = Answer::default();
                *nothing.status_mut() = StatusCode::NO_CONTENT;
                nothing
            }
        },
        _ if live.leads() => text(StatusCode::NOT_FOUND, "available: /healthz, /metrics, /progress and /attempt\n"),
        _ => text(
            StatusCode::NOT_FOUND,
            "available: /healthz and /metrics; agent 0 also serves /progress and /attempt\n",
        ),
    }
}

const JSON: &str = "application/json";

fn body(kind: &'static str, content: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::from(content));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn text(status: StatusCode, words: &'static str) -> Answer {
    let mut answer = body("text/plain; charset=utf-8", words.into());
    *answer.status_mut() = status;
    answer
}
