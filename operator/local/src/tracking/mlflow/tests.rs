//! Against a server that keeps runs as MLflow does. `tests/python/tracking` uses MLflow itself.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the server was asked, and its runs.
#[derive(Default)]
struct Kept {
    calls: Vec<String>,
    access: Vec<String>,
    runs: Vec<Value>,
}

/// A server that answers each connection once.
struct Fake {
    address: String,
    kept: Arc<Mutex<Kept>>,
}

impl Fake {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = Arc::clone(&kept);
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serve(stream, &shared)));
        Self { address, kept }
    }

    fn logged(&self, runs: &JobRuns, variable: impl Fn(&str) -> Option<String>) -> Result<(), TrackError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Server::new(&self.address, variable)?.log(runs))
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.kept.lock().unwrap().calls)
    }

    fn run(&self, key: &str) -> Value {
        self.run_of("u-1", key)
    }

    fn run_of(&self, uid: &str, key: &str) -> Value {
        let kept = self.kept.lock().unwrap();
        let has = |run: &Value, tag: &str, value: &str| {
            values(run, "tags").any(|pair| pair == (tag.to_owned(), json!(value)))
        };
        let known = |run: &&Value| has(run, UID, uid) && has(run, KEY, key);
        kept.runs.iter().find(known).unwrap_or_else(|| panic!("no {key} in {:?}", kept.runs)).clone()
    }
}

/// Keys and values of a list in the data of a run.
fn values(run: &Value, list: &str) -> impl Iterator<Item = (String, Value)> {
    let all = run["data"][list].as_array().unwrap().clone();
    all.into_iter().map(|pair| (pair["key"].as_str().unwrap().to_owned(), pair["value"].clone()))
}

fn serve(stream: TcpStream, kept: &Mutex<Kept>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    let (mut length, mut access) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => access = value.to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let call = first.split_whitespace().nth(1).unwrap().strip_prefix("/api/2.0/mlflow/").unwrap().to_owned();
    let mut kept = kept.lock().unwrap();
    kept.calls.push(call.clone());
    kept.access.push(access);
    let (status, answer) = answer(&mut kept.runs, &call, &serde_json::from_slice(&body).unwrap_or_default());
    let text = answer.to_string();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    let _ = (&stream).write_all((head + &text).as_bytes());
}

fn answer(runs: &mut Vec<Value>, call: &str, asked: &Value) -> (&'static str, Value) {
    match call {
        "experiments/get-by-name?experiment_name=my%20team" => {
            ("404 Not Found", json!({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no experiment"}))
        }
        "experiments/create" => ("200 OK", json!({"experiment_id": "7"})),
        "experiments/get-by-name?experiment_name=pawl" => ("200 OK", json!({"experiment": {"experiment_id": "3"}})),
        "runs/search" => {
            let wanted: Vec<&Value> = runs.iter().filter(|run| is_wanted(run, asked)).collect();
            // Without a run, it has no list.
            ("200 OK", if wanted.is_empty() { json!({}) } else { json!({"runs": wanted}) })
        }
        "runs/create" => {
            let id = format!("id-{}", runs.len());
            let info = json!({"run_id": id, "status": "RUNNING", "experiment_id": asked["experiment_id"]});
            runs.push(json!({"info": info, "data": {"tags": asked["tags"], "params": [], "metrics": []}}));
            ("200 OK", json!({"run": runs.last()}))
        }
        "runs/log-batch" => {
            let run = runs.iter_mut().find(|run| run["info"]["run_id"] == asked["run_id"]).unwrap();
            for list in ["tags", "params", "metrics"] {
                for value in asked[list].as_array().into_iter().flatten() {
                    let all = run["data"][list].as_array_mut().unwrap();
                    // MLflow refuses another value of a parameter.
                    assert!(list != "params" || all.iter().all(|known| known["key"] != value["key"]), "{value}");
                    all.retain(|known| known["key"] != value["key"]);
                    all.push(value.clone());
                }
            }
            ("200 OK", json!({}))
        }
        "runs/update" => {
            let run = runs.iter_mut().find(|run| run["info"]["run_id"] == asked["run_id"]).unwrap();
            run["info"]["status"] = asked["status"].clone();
            ("200 OK", json!({}))
        }
        _ => ("400 Bad Request", json!({"message": format!("no call {call}")})),
    }
}

/// Whether a run is of the experiments of a search, and has the tag of its filter.
fn is_wanted(run: &Value, asked: &Value) -> bool {
    let filter = asked["filter"].as_str().unwrap();
    let (tag, value) = filter.strip_prefix("tags.`").unwrap().split_once("` = '").unwrap();
    let value = value.strip_suffix('\'').unwrap();
    let experiments = asked["experiment_ids"].as_array().unwrap();
    experiments.contains(&run["info"]["experiment_id"])
        && values(run, "tags").any(|(name, known)| name == tag && known == value)
}

fn run(key: &str, state: RunState, loss: &[(u64, f64)]) -> Run {
    Run {
        key: key.to_owned(),
        name: key.to_owned(),
        state,
        settings: BTreeMap::from([("nccl.NCCL_ALGO".to_owned(), "Ring".to_owned())]),
        tags: BTreeMap::from([("verdict", "Accepted".to_owned())]),
        metrics: BTreeMap::from([("loss".to_owned(), loss.to_vec())]),
    }
}

fn runs(loss: &[(u64, f64)], state: RunState) -> JobRuns {
    let children = vec![run("phase/graph/x", RunState::Finished, &[(0, 1.5)]), run("training/r", state, loss)];
    JobRuns { uid: "u-1".to_owned(), job: run("job", state, &[]), children }
}

#[test]
fn what_was_logged_before_is_not_logged_again() {
    let fake = Fake::start();
    fake.logged(&runs(&[(8, 2.0), (16, 1.0)], RunState::Running), |_| None).unwrap();
    let training = fake.run("training/r");
    let [job, phase] = [fake.run("job"), fake.run("phase/graph/x")];
    assert!(
        values(&training, "tags").any(|pair| pair == ("mlflow.parentRunId".to_owned(), job["info"]["run_id"].clone()))
    );
    assert!(values(&job, "tags").all(|(name, _)| name != "mlflow.parentRunId"));
    assert!(values(&phase, "tags").any(|pair| pair == ("pawl.verdict".to_owned(), json!("Accepted"))));
    assert_eq!(values(&phase, "params").collect::<Vec<_>>(), [("nccl.NCCL_ALGO".to_owned(), json!("Ring"))]);
    assert_eq!((&phase["info"]["status"], &training["info"]["status"]), (&json!("FINISHED"), &json!("RUNNING")));
    assert_eq!(training["info"]["experiment_id"], "3");
    fake.calls();

    fake.logged(&runs(&[(8, 2.0), (16, 1.0), (24, 0.5)], RunState::Finished), |_| None).unwrap();
    let calls = fake.calls();
    assert!(!calls.contains(&"runs/create".to_owned()), "{calls:?}");
    let newest = fake.run("training/r")["data"]["metrics"][0].clone();
    assert_eq!((&newest["step"], &newest["value"]), (&json!(24), &json!(0.5)));
    assert_eq!(fake.run("job")["info"]["status"], "FINISHED");

    fake.logged(&runs(&[(24, 0.5)], RunState::Finished), |_| None).unwrap();
    let calls = fake.calls();
    assert!(!calls.contains(&"runs/update".to_owned()), "{calls:?}");
    assert_eq!(calls.iter().filter(|call| *call == "runs/log-batch").count(), 3, "only tags: {calls:?}");
}

/// Jobs have runs of the same keys in one experiment.
#[test]
fn runs_of_another_job_are_left_unchanged() {
    let fake = Fake::start();
    fake.logged(&runs(&[(8, 2.0)], RunState::Running), |_| None).unwrap();
    let before = fake.run("training/r");
    let other = JobRuns { uid: "u-2".to_owned(), ..runs(&[(8, 3.0)], RunState::Finished) };
    fake.logged(&other, |_| None).unwrap();
    assert_eq!(fake.run("training/r"), before);
    let own = fake.run_of("u-2", "training/r");
    assert_ne!(own["info"]["run_id"], before["info"]["run_id"]);
    assert_eq!((&own["info"]["status"], &own["data"]["metrics"][0]["value"]), (&json!("FINISHED"), &json!(3.0)));
}

/// An edited job trains anew, as another run.
#[test]
fn a_training_that_was_given_up_runs_no_more() {
    let fake = Fake::start();
    let edited = JobRuns { children: vec![run("training/s", RunState::Running, &[])], ..runs(&[], RunState::Running) };
    fake.logged(&runs(&[], RunState::Running), |_| None).unwrap();
    fake.logged(&edited, |_| None).unwrap();
    let status = |key: &str| fake.run(key)["info"]["status"].clone();
    assert_eq!((status("training/r"), status("training/s")), (json!("KILLED"), json!("RUNNING")));
    assert_eq!(status("phase/graph/x"), "FINISHED", "it has had a result");
}

#[test]
fn an_experiment_is_made_and_the_client_identifies_itself_by_the_variables_of_mlflow() {
    let fake = Fake::start();
    let variable = |name: &str| match name {
        "MLFLOW_EXPERIMENT_NAME" => Some("my team".to_owned()),
        "MLFLOW_TRACKING_TOKEN" => Some("t17".to_owned()),
        _ => None,
    };
    fake.logged(&runs(&[], RunState::Running), variable).unwrap();
    assert_eq!(fake.run("job")["info"]["experiment_id"], "7");
    assert!(fake.kept.lock().unwrap().access.iter().all(|access| access == "Bearer t17"));
}

#[test]
fn an_error_names_the_address_without_its_password_and_the_cause() {
    let problem = |address: &str| Server::new(address, |_| None).unwrap_err().to_string();
    assert!(problem("sqlite:///mlflow.db").contains("use http:// or https://"));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fake = Fake { address: format!("http://me:hunter2@{closed}/ml/"), kept: Arc::default() };
    let error = fake.logged(&runs(&[], RunState::Running), |_| None).unwrap_err();
    assert!(matches!(error, TrackError::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with(&format!("http://{closed}/ml: ")) && !text.contains("hunter2"), "{text}");
    let fake = Fake::start();
    let error = fake
        .logged(&runs(&[], RunState::Running), |name| (name == "MLFLOW_EXPERIMENT_NAME").then(|| "other".to_owned()));
    assert!(matches!(error, Err(TrackError::Refused { status: 400, .. })), "{error:?}");
}
