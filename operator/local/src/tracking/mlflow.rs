//! The part of MLflow's REST API that logs runs: <https://mlflow.org/docs/latest/api_reference/rest-api.html>.

mod answers;

use super::TrackError;
use answers::{Created, FoundExperiment, FoundRun, FoundRuns, Said};
use jiff::Timestamp;
use pawl_contract::report::truncated;
use pawl_display::track::{Curve, JobRuns, Run, RunState};
use pawl_display::url::encode;
use reqwest::{Client, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(10);
/// The experiment, unless a variable names another one.
const EXPERIMENT: &str = "pawl";
/// Most metrics in a request: MLflow takes 1000 values.
const MOST_METRICS: usize = 800;
/// Most parameters or tags in a request, as MLflow limits them.
const MOST_PARAMS: usize = 100;
/// Longest value of a tag or a parameter, bytes; MLflow takes 5000 and more.
const LONGEST: usize = 4000;
/// Status of a run that may still change.
const RUNNING: &str = "RUNNING";
/// Names the job in the tags of its runs.
const UID: &str = "pawl.uid";
/// Names a run among those of its job.
const KEY: &str = "pawl.run";

/// A tracking server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    client: Client,
    /// As given, with the password.
    url: String,
    shown: String,
    access: Access,
    experiment: Experiment,
}

/// How a client identifies itself, by the variables of MLflow.
#[derive(Clone, Debug)]
enum Access {
    Open,
    Token(String),
    User(String, Option<String>),
}

#[derive(Clone, Debug)]
enum Experiment {
    Id(String),
    Name(String),
}

/// A run that the server has.
#[derive(Debug, Default)]
struct Known {
    id: String,
    status: String,
    params: Vec<String>,
    /// The newest value of each metric, and its step.
    newest: BTreeMap<String, (u64, f64)>,
}

impl Server {
    pub(super) fn new(address: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, TrackError> {
        let url = address.trim_end_matches('/').to_owned();
        let shown = without_user(&url);
        let refused = |problem| Err(TrackError::Address { address: shown.clone(), problem });
        match url.split_once("://") {
            Some(("http", _)) => {}
            Some(("https", _)) if cfg!(feature = "tls") => {}
            Some(("https", _)) => return refused("this build has no TLS: use a released one, or http://"),
            _ => return refused("Pawl logs to a tracking server: use http:// or https://"),
        }
        let Ok(client) = Client::builder().timeout(REQUEST).build() else {
            return refused("no client can be made for it: the certificates of this machine cannot be read");
        };
        let access = match (variable("MLFLOW_TRACKING_TOKEN"), variable("MLFLOW_TRACKING_USERNAME")) {
            (Some(token), _) => Access::Token(token),
            (None, Some(user)) => Access::User(user, variable("MLFLOW_TRACKING_PASSWORD")),
            (None, None) => Access::Open,
        };
        let name = || variable("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|| EXPERIMENT.to_owned());
        let experiment = variable("MLFLOW_EXPERIMENT_ID").map_or_else(|| Experiment::Name(name()), Experiment::Id);
        Ok(Self { client, url, shown, access, experiment })
    }

    pub(super) fn address(&self) -> &str {
        &self.shown
    }

    pub(super) async fn log(&self, runs: &JobRuns) -> Result<(), TrackError> {
        let experiment = self.experiment().await?;
        let mut known = self.known(&experiment, &runs.uid).await?;
        let now = Timestamp::now().as_millisecond();
        let place = Place { experiment: &experiment, uid: &runs.uid, now };
        let parent = self.log_run(&place, &runs.job, None, known.remove(&runs.job.key)).await?;
        for run in &runs.children {
            self.log_run(&place, run, Some(&parent), known.remove(&run.key)).await?;
        }
        // What is no more a run of the job, such as the training of an earlier revision, has no result.
        for left in known.values().filter(|left| left.status == RUNNING) {
            self.update(&left.id, "KILLED", Some(now)).await?;
        }
        Ok(())
    }

    /// The id of the experiment, which is made if there is none of its name.
    async fn experiment(&self) -> Result<String, TrackError> {
        let name = match &self.experiment {
            Experiment::Id(id) => return Ok(id.clone()),
            Experiment::Name(name) => name,
        };
        let call = "experiments/get-by-name";
        let request = self.client.get(format!("{}?experiment_name={}", self.path(call), encode(name)));
        match self.answer::<FoundExperiment>(call, request).await {
            Ok(found) => Ok(found.experiment.experiment_id),
            Err(TrackError::Refused { status, .. }) if status == StatusCode::NOT_FOUND.as_u16() => {
                let made: answers::Experiment = self.post("experiments/create", &json!({"name": name})).await?;
                Ok(made.experiment_id)
            }
            Err(error) => Err(error),
        }
    }

    /// The runs of a job that the server has, by their keys.
    async fn known(&self, experiment: &str, uid: &str) -> Result<BTreeMap<String, Known>, TrackError> {
        let filter = format!("tags.`{UID}` = '{uid}'");
        let wanted = json!({"experiment_ids": [experiment], "filter": filter, "max_results": 1000});
        let found: FoundRuns = self.post("runs/search", &wanted).await?;
        let keyed = found.runs.into_iter().filter_map(|FoundRun { info, data }| {
            let key = data.tags.iter().find(|tag| tag.key == KEY)?.value.clone();
            let newest = data.metrics.into_iter().map(|it| (it.key, (it.step.number(), it.value)));
            let params = data.params.into_iter().map(|param| param.key).collect();
            Some((key, Known { id: info.run_id, status: info.status, params, newest: newest.collect() }))
        });
        Ok(keyed.collect())
    }

    /// Logs what is new of a run; its id.
    async fn log_run(
        &self,
        place: &Place<'_>,
        run: &Run,
        parent: Option<&str>,
        known: Option<Known>,
    ) -> Result<String, TrackError> {
        let known = match known {
            Some(known) => known,
            None => Known { id: self.create(place, run, parent).await?, ..Known::default() },
        };
        let id = &known.id;
        let tags: Vec<Value> = run.tags.iter().map(|(name, text)| pair(&format!("pawl.{name}"), text)).collect();
        for some in tags.chunks(MOST_PARAMS) {
            self.batch(id, &json!({"tags": some})).await?;
        }
        // A parameter cannot change: it is another run then, or the job was edited.
        let params = run.settings.iter().filter(|(name, _)| !known.params.contains(&allowed(name)));
        let params: Vec<Value> = params.map(|(name, value)| pair(&allowed(name), value)).collect();
        for some in params.chunks(MOST_PARAMS) {
            self.batch(id, &json!({"params": some})).await?;
        }
        let metrics: Vec<Value> = new_values(run, &known.newest, place.now);
        for some in metrics.chunks(MOST_METRICS) {
            self.batch(id, &json!({"metrics": some})).await?;
        }
        let status = match run.state {
            RunState::Running => RUNNING,
            RunState::Finished => "FINISHED",
            RunState::Failed => "FAILED",
        };
        if known.status != status {
            self.update(id, status, (run.state != RunState::Running).then_some(place.now)).await?;
        }
        Ok(known.id)
    }

    async fn update(&self, id: &str, status: &str, ended: Option<i64>) -> Result<(), TrackError> {
        let mut update = json!({"run_id": id, "status": status});
        if let Some(ended) = ended {
            update["end_time"] = ended.into();
        }
        let _: Value = self.post("runs/update", &update).await?;
        Ok(())
    }

    async fn create(&self, place: &Place<'_>, run: &Run, parent: Option<&str>) -> Result<String, TrackError> {
        let mut tags = vec![pair(UID, place.uid), pair(KEY, &run.key)];
        tags.extend(parent.map(|parent| pair("mlflow.parentRunId", parent)));
        let wanted = json!({
            "experiment_id": place.experiment, "run_name": run.name, "start_time": place.now, "tags": tags,
        });
        let created: Created = self.post("runs/create", &wanted).await?;
        Ok(created.run.info.run_id)
    }

    async fn batch(&self, id: &str, part: &Value) -> Result<(), TrackError> {
        let mut whole = part.clone();
        whole["run_id"] = id.into();
        let _: Value = self.post("runs/log-batch", &whole).await?;
        Ok(())
    }

    async fn post<T: DeserializeOwned>(&self, call: &'static str, body: &Value) -> Result<T, TrackError> {
        let request = self.client.post(self.path(call)).header("Content-Type", "application/json");
        self.answer(call, request.body(body.to_string())).await
    }

    fn path(&self, call: &str) -> String {
        format!("{}/api/2.0/mlflow/{call}", self.url)
    }

    async fn answer<T: DeserializeOwned>(&self, call: &'static str, request: RequestBuilder) -> Result<T, TrackError> {
        let address = || self.shown.clone();
        let request = match &self.access {
            Access::Open => request,
            Access::Token(token) => request.bearer_auth(token),
            Access::User(user, password) => request.basic_auth(user, password.as_ref()),
        };
        // Its address may contain a password.
        let unreachable =
            |error: reqwest::Error| TrackError::Unreachable { address: address(), cause: causes(&error.without_url()) };
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let text = answer.text().await.map_err(unreachable)?;
        if !status.is_success() {
            let said = serde_json::from_str::<Said>(&text).map(|said| said.message).unwrap_or(text);
            let message = truncated(said.trim(), 300).to_owned();
            return Err(TrackError::Refused { address: address(), call, status: status.as_u16(), message });
        }
        serde_json::from_str(&text).map_err(|cause| TrackError::Answer { address: address(), call, cause })
    }
}

/// Where and when a run is logged.
struct Place<'a> {
    experiment: &'a str,
    uid: &'a str,
    /// Milliseconds since 1970.
    now: i64,
}

fn pair(key: &str, value: &str) -> Value {
    json!({"key": key, "value": truncated(value, LONGEST)})
}

/// The values that the server does not have yet.
fn new_values(run: &Run, newest: &BTreeMap<String, (u64, f64)>, now: i64) -> Vec<Value> {
    let open = |name: &str, curve: &Curve| -> Curve {
        let last = newest.get(name);
        let is_new =
            |point: &&(u64, f64)| last.is_none_or(|last| point.0 > last.0 || point.0 == last.0 && point != &last);
        curve.iter().filter(is_new).copied().collect()
    };
    let metrics = run.metrics.iter().flat_map(|(name, curve)| {
        let name = allowed(name);
        let values = open(&name, curve).into_iter();
        values.map(move |(step, value)| json!({"key": name, "value": value, "timestamp": now, "step": step}))
    });
    metrics.collect()
}

/// `name` with the characters that MLflow takes in the name of a parameter or a metric.
fn allowed(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "_-./ ".contains(c) { c } else { '_' }).collect()
}

/// `url` without a user and a password.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let host = rest.find('/').unwrap_or(rest.len());
    let from = rest[..host].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}", &rest[from..])
}

/// An error and its causes, the last of which says most.
fn causes(error: &(dyn Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |&error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests;
