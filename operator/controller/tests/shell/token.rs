//! The token of the service account, which the kubelet replaces while the operator runs.

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Config};
use parking_lot::Mutex;
use pawl_controller::client;
use pawl_controller::clock::Offset;
use pawl_controller::error::{Doing, Error};
use pawl_controller::jobs::Jobs;
use pawl_controller::leader::Leadership;
use pawl_controller::metrics::Metrics;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// After that, the file is read again. A token that the kubelet replaces is good for ten minutes yet.
const REREAD: Duration = Duration::from_secs(60);

/// A file with a token, which is removed when this is dropped.
struct TokenFile(PathBuf);

impl TokenFile {
    fn write(&self, token: &str) {
        std::fs::write(&self.0, token).unwrap();
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The first token is revoked before the kubelet replaces it, as when the keys of the API server are changed: requests
/// fail until the file is read again, without a restart, and the error says why.
#[tokio::test]
async fn a_new_one_is_used_within_a_minute_without_a_restart() {
    let file = TokenFile(std::env::temp_dir().join(format!("pawl-token-{}", std::process::id())));
    file.write("first");
    let good = Arc::new(Mutex::new("Bearer first"));
    let known = good.clone();
    let answer = move |headers: HeaderMap| {
        let is_good = headers.get(header::AUTHORIZATION).is_some_and(|token| token == *known.lock());
        async move {
            let body = if is_good {
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
            } else {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401,
                    "message": "Unauthorized"})
            };
            (if is_good { StatusCode::OK } else { StatusCode::UNAUTHORIZED }, axum::Json(body)).into_response()
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    config.auth_info.token_file = Some(file.0.display().to_string());
    let client =
        client::connect(config, &Metrics::new(Jobs::default()), &Leadership::alone(), &Offset::default()).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let read = async || maps.get("a").await.doing(|| "read ConfigMap a".to_owned());
    read().await.expect("the first token is good");

    *good.lock() = "Bearer second";
    file.write("second");
    let began = Instant::now();
    let error: Error = read().await.expect_err("it has the first one yet");
    assert_eq!(error.kind(), "unauthorized");
    assert_eq!(error.reported_after(), Some(Duration::from_secs(120)), "it lasts no longer than a minute");
    assert!(error.to_string().contains("Unauthorized"), "{error}");
    while read().await.is_err() {
        assert!(began.elapsed() < REREAD, "the file is not read again");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
