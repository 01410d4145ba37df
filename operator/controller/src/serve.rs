//! The operator's HTTP: metrics, liveness, readiness.
//!
//! - `GET /metrics`: [`crate::metrics`] as text.
//! - `GET /healthz`: 200 while the process serves.
//! - `GET /readyz`: 200 when this replica does its part: it leads and its caches are filled, or it follows a leader
//!   that is alive. Else 503 with the reason.

use crate::leader::{Leadership, Role};
use crate::metrics::Metrics;
use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use futures::stream;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

/// Whether this replica does its part. Clones share it.
#[derive(Clone)]
pub struct Readiness {
    leadership: Leadership,
    caches: Arc<AtomicBool>,
}

impl Readiness {
    /// Not ready: no cache is filled.
    pub fn new(leadership: Leadership) -> Self {
        Self { leadership, caches: Arc::default() }
    }

    /// Says whether the caches that reconciles read from are filled.
    pub fn caches_filled(&self, filled: bool) {
        self.caches.store(filled, Ordering::Relaxed);
    }

    /// Why this replica is not ready; `None` when it is.
    pub fn missing(&self) -> Option<&'static str> {
        match self.leadership.role() {
            Role::Leading { .. } if !self.leadership.may_act() => Some("the lease could not be renewed"),
            Role::Leading { .. } if !self.caches.load(Ordering::Relaxed) => {
                Some("leading, but the caches are not filled")
            }
            Role::Leading { .. } => None,
            Role::Following { .. } if self.leadership.follows() => None,
            Role::Following { .. } => Some("following, but the leader does not renew its lease"),
            Role::Unknown => Some("the lease was not read yet, or cannot be read"),
        }
    }
}

/// Serves until `stop` resolves, then finishes the open requests.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, routes(metrics, readiness)).with_graceful_shutdown(stop).await
}

/// The routes.
pub fn routes(metrics: Metrics, readiness: Readiness) -> Router {
    let text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Router::new()
        .route(
            "/metrics",
            get(move || async move {
                let pages = metrics.pages().map(Ok::<_, Infallible>);
                (text, Body::from_stream(stream::iter(pages)))
            }),
        )
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || async move {
                match readiness.missing() {
                    None => (StatusCode::OK, "ready\n").into_response(),
                    Some(missing) => {
                        (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {missing}\n")).into_response()
                    }
                }
            }),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Jobs;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use tower::Service;

    async fn ask(routes: &mut Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let Ok(response) = routes.call(request).await;
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn a_leader_is_ready_once_its_caches_are_filled() {
        let readiness = Readiness::new(Leadership::alone());
        let mut routes = routes(Metrics::new(Jobs::default()), readiness.clone());
        assert_eq!(ask(&mut routes, "/healthz").await.0, StatusCode::OK, "it lives before it is ready");
        let (status, why) = ask(&mut routes, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(why.contains("caches"), "{why}");
        readiness.caches_filled(true);
        assert_eq!(ask(&mut routes, "/readyz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_text() {
        let mut routes = routes(Metrics::new(Jobs::default()), Readiness::new(Leadership::alone()));
        let (status, text) = ask(&mut routes, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("# TYPE pawl_leader gauge\npawl_leader 0\n"), "{text}");
        for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
            assert!(text.contains(&format!("\n{name} ")), "{name}: {text}");
        }
        assert_eq!(ask(&mut routes, "/").await.0, StatusCode::NOT_FOUND);
    }
}
