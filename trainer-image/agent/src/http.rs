//! The HTTP server of a pod's agent: `/healthz` and `/metrics`, and of agent 0 `/progress` and `/attempt`.

use crate::live::Live;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pawl_rendezvous::strangers::{Limits, Strangers};
use std::convert::Infallible;
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Limits of concurrent connections. Readers are the operator, Prometheus and people, with an address and a few
/// connections each; their requests take milliseconds, so that the oldest connection is not one of theirs.
const LIMITS: Limits = Limits { total: 128, per_address: 16, grace: Duration::ZERO };
/// Length of the kernel's queue of connections that are not accepted yet.
const BACKLOG: i32 = 4096;
/// Timeout of a request and its response.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Maximum size of a request's header in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Serves `live` over HTTP until the future is dropped. A connection carries one request, within five seconds. Of too
/// many connections, from one address or altogether, the oldest is closed.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(listener: std::net::TcpListener, live: Live) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let mut visitors: Strangers<AbortHandle> = Strangers::new(LIMITS);
    let mut connections = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Out of descriptors, or the client has disconnected: the next connection may succeed.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        visitors.retain(|task| !task.is_finished());
        let now = Instant::now();
        let Ok(replaced) = visitors.make_room(from.ip(), now) else { continue };
        replaced.into_iter().for_each(|task| task.abort());
        let live = live.clone();
        let task = connections.spawn(async move {
            match timeout(CLIENT_TIME, answer_over(stream, &live)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "request to the agent failed"),
                Err(_) => tracing::debug!("request to the agent timed out"),
            }
        });
        visitors.enter(from.ip(), now, task);
        while connections.try_join_next().is_some() {}
    }
}

/// Answers the one request of a connection. Bounded in size, not in time.
///
/// # Errors
/// The connection fails, or the request is malformed.
pub async fn answer_over<S>(stream: S, live: &Live) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answer = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(&request, live))));
    let mut http = http1::Builder::new();
    // A client may close its sending side after the request.
    http.keep_alive(false).half_close(true).max_buf_size(MAX_HEAD).serve_connection(TokioIo::new(stream), answer).await
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
