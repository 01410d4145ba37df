//! The server to which the KubeflowCallback of Hugging Face Transformers reports: `KUBEFLOW_TRAINER_SERVER_URL`.
//!
//! The callback sends `POST` requests with a bearer token, at the start, at most every 5 seconds, and at the end:
//! `{"trainerStatus": {"progressPercentage": 40, "metrics": [{"name": "current_step", "value": "20"}, ...]}}`.

use super::followed::Followed;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pawl_contract::log::Reading;
use pawl_contract::plan::LOSS;
use pawl_rendezvous::hexadecimal::random_hex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout of a request; the callback itself waits 5 seconds.
const REQUEST: Duration = Duration::from_secs(5);
/// Maximum size of an update in bytes.
const MAX_UPDATE: usize = 64 << 10;
/// Mean loss of all steps, in the update at the end.
const MEAN_LOSS: &str = "train_loss";
/// Metrics of an evaluation about its speed.
const SPEED: [&str; 3] = ["_runtime", "_per_second", "_compilation_time"];

/// The server of one launch, on the loopback interface. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Kubeflow {
    url: String,
    token: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for Kubeflow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubeflow {
    /// Starts the server for a rank whose launch has the directory `dir`.
    pub(crate) async fn start(dir: &Path, followed: Followed) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let secret = random_hex()?;
        let token = dir.join("kubeflow.token");
        crate::files::write_secret(&token, secret.as_bytes())?;
        // An update has the newest loss, and comes by the clock.
        followed.sample();
        let service = Arc::new(Service { bearer: format!("Bearer {secret}"), followed });
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                // One at a time: there is one callback, and its requests are in order.
                let found = parking_lot::Mutex::new(None);
                let answer = service_fn(|request| async {
                    let (status, update) = service.answer(request).await;
                    *found.lock() = update;
                    let mut response = Response::new(Full::<Bytes>::default());
                    *response.status_mut() = status;
                    Ok::<_, Infallible>(response)
                });
                let served = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), answer);
                if !matches!(timeout(REQUEST, served).await, Ok(Ok(()))) {
                    tracing::debug!("an update of the KubeflowCallback failed");
                }
                if let Some(update) = found.into_inner() {
                    seen.readings(&update).into_iter().for_each(|reading| service.followed.observe(reading));
                    update.value(MEAN_LOSS).into_iter().for_each(|loss| service.followed.conclude(loss));
                }
            }
        });
        Ok(Self { url, token, task })
    }

    /// The environment of the rank.
    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        let token = self.token.to_string_lossy().into_owned();
        [("KUBEFLOW_TRAINER_SERVER_URL", self.url.clone()), ("KUBEFLOW_TRAINER_SERVER_TOKEN", token)]
    }
}

struct Service {
    bearer: String,
    followed: Followed,
}

impl Service {
    async fn answer(&self, request: Request<Incoming>) -> (StatusCode, Option<Update>) {
        if request.method() != Method::POST {
            return (StatusCode::METHOD_NOT_ALLOWED, None);
        }
        if request.headers().get(AUTHORIZATION).is_none_or(|sent| sent.as_bytes() != self.bearer.as_bytes()) {
            return (StatusCode::UNAUTHORIZED, None);
        }
        let Ok(body) = Limited::new(request.into_body(), MAX_UPDATE).collect().await else {
            return (StatusCode::PAYLOAD_TOO_LARGE, None);
        };
        match serde_json::from_slice(&body.to_bytes()) {
            Ok(update) => (StatusCode::OK, Some(update)),
            Err(_) => (StatusCode::BAD_REQUEST, None),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update {
    trainer_status: TrainerStatus,
}

impl Update {
    fn value(&self, name: &str) -> Option<f64> {
        self.trainer_status.metrics.iter().find(|metric| metric.name == name)?.value.parse().ok()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrainerStatus {
    #[serde(default)]
    metrics: Vec<Metric>,
}

#[derive(Debug, Deserialize)]
struct Metric {
    name: String,
    value: String,
}

/// The newest values: an update repeats those that have not changed.
#[derive(Debug, Default)]
struct Seen {
    loss: Option<f64>,
    validation: BTreeMap<String, f64>,
}

impl Seen {
    fn readings(&mut self, update: &Update) -> Vec<Reading> {
        let metrics = &update.trainer_status.metrics;
        let step = update.value("current_step").filter(|step| *step >= 0.0).map(|step| step as u64);
        let loss = update.value(LOSS);
        let is_new = |old: Option<f64>| loss.map(f64::to_bits) != old.map(f64::to_bits);
        let new_loss = loss.filter(|_| is_new(self.loss));
        self.loss = loss.or(self.loss);
        let mut readings = Vec::new();
        if step.is_some() || new_loss.is_some() {
            readings.push(Reading::Training { step, items: None, epoch: None, loss: new_loss });
        }
        let named = metrics.iter().filter_map(|metric| {
            let name =
                metric.name.strip_prefix("eval_").filter(|_| !SPEED.iter().any(|end| metric.name.ends_with(end)))?;
            Some((name.to_owned(), metric.value.parse().ok()?))
        });
        let validation: BTreeMap<String, f64> = named.collect();
        let same = |old: &BTreeMap<String, f64>| format!("{old:?}") == format!("{validation:?}");
        if validation.contains_key(LOSS) && !same(&self.validation) {
            readings.push(Reading::Validation { step: None, items: None, metrics: validation.clone() });
            self.validation = validation;
        }
        readings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_new_in_an_update_is_read() {
        let mut seen = Seen::default();
        let mut read = |metrics: &[(&str, &str)]| {
            let metrics: Vec<_> = metrics.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let update = json!({"trainerStatus": {"progressPercentage": 1, "metrics": metrics}});
            seen.readings(&serde_json::from_value(update).unwrap())
        };
        assert!(read(&[("total_steps", "100")]).is_empty());
        let training = |step, loss| Reading::Training { step: Some(step), items: None, epoch: None, loss };
        assert_eq!(read(&[("current_step", "20"), ("loss", "2.5"), ("grad_norm", "1")]), [training(20, Some(2.5))]);
        assert_eq!(read(&[("current_step", "25"), ("loss", "2.5")]), [training(25, None)]);
        let evaluated = [("current_step", "30"), ("loss", "2.5"), ("eval_loss", "2.0"), ("eval_runtime", "3.0")];
        let metrics = BTreeMap::from([("loss".to_owned(), 2.0)]);
        let validation = Reading::Validation { step: None, items: None, metrics };
        assert_eq!(read(&evaluated), [training(30, None), validation]);
        assert_eq!(read(&evaluated), [training(30, None)]);
    }
}
