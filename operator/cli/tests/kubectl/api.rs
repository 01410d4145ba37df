//! An API server of a few answers, which remembers what it was asked.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub kind: String,
    /// Whose request it is, as `Bearer TOKEN`; empty: nobody's.
    pub authorization: String,
    pub body: Bytes,
}

impl Asked {
    /// Its body.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Whether it asks for the changes of something.
    pub fn watches(&self) -> bool {
        self.query.contains("watch=true")
    }

    /// Whether it would change something: a question about rights is a POST, too.
    pub fn writes(&self) -> bool {
        let asks = self.path.starts_with("/apis/authorization.k8s.io/");
        self.method != Method::GET && !self.query.contains("dryRun=All") && !asks
    }
}

/// An answer.
pub enum Answer {
    /// An object or a list.
    Json(Value),
    /// The error of the API server: code, reason, message, name of the object.
    Failure(u16, &'static str, String, &'static str),
    /// Text, such as a log, with its code.
    Text(u16, String),
}

/// The server; it ends when this is dropped.
pub struct Api {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: Runtime,
}

impl Api {
    /// Starts a server that answers so.
    pub fn start(answer: impl Fn(&Asked) -> Answer + Clone + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let remember = Arc::clone(&asked);
        let handler = move |request: Request| {
            let (answer, remember) = (answer.clone(), Arc::clone(&remember));
            async move {
                let (head, body) = request.into_parts();
                let asked = Asked {
                    method: head.method,
                    path: head.uri.path().to_owned(),
                    query: head.uri.query().unwrap_or_default().to_owned(),
                    kind: text(&head.headers, &header::CONTENT_TYPE),
                    authorization: text(&head.headers, &header::AUTHORIZATION),
                    body: axum::body::to_bytes(body, 1 << 20).await.unwrap(),
                };
                remember.lock().unwrap().push(asked.clone());
                response(answer(&asked))
            }
        };
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
        Self { address, asked, _runtime: runtime }
    }

    /// What it was asked.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// What would have changed something.
    pub fn writes(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::writes).collect()
    }
}

/// A header; empty when it is missing.
fn text(headers: &HeaderMap, name: &HeaderName) -> String {
    headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

fn response(answer: Answer) -> Response {
    let (code, kind, body) = match answer {
        Answer::Json(object) => (200, "application/json", object.to_string()),
        Answer::Failure(code, reason, message, name) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                                "reason": reason, "message": message, "details": {"name": name, "kind": "trainingjobs"}});
            (code, "application/json", status.to_string())
        }
        Answer::Text(code, text) => (code, "text/plain", text),
    };
    let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
    response.header(header::CONTENT_TYPE, kind).body(Body::from(body)).unwrap()
}

/// The response for an unknown path.
pub fn unknown() -> Answer {
    Answer::Text(404, "404 page not found\n".to_owned())
}

/// A list of objects.
pub fn list(items: &[Value]) -> Answer {
    Answer::Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items}))
}

/// Where the jobs of namespace `team` are.
pub const JOBS: &str = "/apis/pawl.dev/v1alpha1/namespaces/team/trainingjobs";

/// A job in the middle of its phases.
pub fn job() -> Value {
    json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "toy", "namespace": "team", "uid": "11", "generation": 1, "resourceVersion": "5"},
        "spec": {
            "workload": {"name": "ups"},
            "trainer": {"replicas": 2, "gpusPerReplica": 4},
            "phases": [
                {"name": "compile", "settings": {"compile": "Graph"}},
                {"name": "slow", "settings": {"activationCheckpointing": "Full"}, "pin": "RolledBack"},
            ],
        },
        "status": {
            "observedGeneration": 1, "stage": "Training", "attempts": 4, "progress": "41%",
            "phases": [
                {"name": "compile", "state": "Accepted", "reason": "SpeedAboveThreshold", "message": "speedup 1.5",
                 "speedup": {"estimate": "1.5", "lower": "1.4", "upper": "1.6", "pairs": 3},
                 "launches": [{"name": "compile-p0-a", "kind": "Measure", "arm": "Control", "pair": 0, "seed": 42,
                               "outcome": "Done", "itemsPerSecond": "100", "items": 1000},
                              {"name": "compile-p0-b", "kind": "Measure", "arm": "Candidate", "pair": 0, "seed": 42,
                               "outcome": "Done", "itemsPerSecond": "150", "items": 1000}]},
                {"name": "slow", "state": "RolledBack", "reason": "Pinned", "message": "pinned to RolledBack"},
            ],
            "training": {"steps": 50, "items": 400, "itemsPerSecond": "140", "loss": "0.5"},
        },
    })
}

/// The server of a cluster whose namespace `team` has the one job `toy`.
pub fn one_job() -> Api {
    Api::start(|asked| match asked.path.strip_prefix(JOBS) {
        Some("/toy") => Answer::Json(job()),
        Some("") => list(&[job()]),
        Some(other) => {
            let message = format!("trainingjobs.pawl.dev {:?} not found", other.trim_start_matches('/'));
            Answer::Failure(404, "NotFound", message, "named")
        }
        None => list(&[]),
    })
}
