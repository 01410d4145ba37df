//! An API server that rejects requests for its load, over HTTP, as priority and fairness does.

use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Json, Router};
use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use pawl_controller::client;
use pawl_controller::clock::Offset;
use pawl_controller::jobs::Jobs;
use pawl_controller::leader::Leadership;
use pawl_controller::metrics::Metrics;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// Jobs that are reconciled at the same time.
const CALLERS: usize = 60;

/// An API server: when requests arrived, and whether it accepts them.
#[derive(Clone, Default)]
struct Server {
    arrived: Arc<Mutex<Vec<Instant>>>,
    accepts: Arc<Mutex<bool>>,
}

impl Server {
    async fn start(&self) -> Config {
        let server = self.clone();
        let answer = move || {
            let server = server.clone();
            async move {
                server.arrived.lock().push(Instant::now());
                if *server.accepts.lock() {
                    return Json(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}))
                        .into_response();
                }
                // What priority and fairness answers is no `Status`.
                let body = "Too many requests, please try again later.\n";
                (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")], body).into_response()
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        Config::new(url)
    }
}

fn connect(config: Config, leadership: &Leadership) -> Client {
    client::connect(config, &Metrics::new(Jobs::default()), leadership, &Offset::default()).unwrap()
}

/// Each of them repeated its requests on its own: 60 callers made over a thousand in four seconds.
#[tokio::test]
async fn many_callers_are_no_storm_and_go_on_once_it_accepts() {
    let server = Server::default();
    let maps: Api<ConfigMap> = Api::namespaced(connect(server.start().await, &Leadership::alone()), "default");
    let began = Instant::now();
    let accepts = server.accepts.clone();
    let call = async |maps: &Api<ConfigMap>| {
        let mut wait = Duration::from_millis(20);
        loop {
            match maps.get("a").await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) => assert_eq!(status.code, 429, "{status:?}"),
                Err(error) => panic!("{error}"),
            }
            sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(300));
        }
    };
    let (opens, _) = (
        async {
            sleep(Duration::from_secs(4)).await;
            *accepts.lock() = true;
        },
        (),
    );
    tokio::join!(join_all((0..CALLERS).map(|_| call(&maps))), opens);
    let arrived = server.arrived.lock();
    let early = arrived.iter().filter(|at| at.duration_since(began) < Duration::from_secs(4)).count();
    // At once, after 1 s, and 2 s later.
    assert!((CALLERS..=3 * CALLERS).contains(&early), "{early} requests in 4 s");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

/// What waits until the API server is asked again is not written by a replica that no longer leads by then.
#[tokio::test]
async fn what_was_held_back_is_not_sent_once_the_lease_is_lost() {
    let server = Server::default();
    let (role, roles) = tokio::sync::watch::channel(pawl_controller::leader::Role::Leading { until: None });
    let maps: Api<ConfigMap> = Api::namespaced(connect(server.start().await, &Leadership::of(roles)), "default");
    maps.get("a").await.expect_err("it is rejected, and the next one waits");
    *server.accepts.lock() = true;
    let (parameters, map) = (PostParams::default(), ConfigMap::default());
    let lost = async {
        sleep(Duration::from_millis(200)).await;
        role.send_replace(pawl_controller::leader::Role::Unknown);
    };
    let (written, ()) = tokio::join!(maps.create(&parameters, &map), lost);
    let error = written.expect_err("this replica leads no more");
    assert!(error.to_string().contains("does not lead"), "{error}");
    assert_eq!(server.arrived.lock().len(), 1);
}
