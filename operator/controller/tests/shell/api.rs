//! An API server in memory: objects with versions, server-side apply of what the operator applies, deletion with
//! preconditions, and a log of all changes from which any earlier state can be read again.

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use pawl_contract::attempt::AttemptName;
use pawl_controller::names;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// In the query of a request that changes nothing.
const DRY_RUN: &str = "dryRun=All";

/// Kind (plural), namespace, name.
pub type Id = (String, String, String);

/// When the operator is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its last write was carried out, and it knew.
    AfterAnswer,
    /// Its last write was carried out, and it never heard.
    AnswerLost,
    /// Its last write never arrived.
    NotSent,
    /// Its last write arrives once another operator is at work: it passed the fence at the last moment, and was held up
    /// on its way.
    Late,
}

/// A change of an object; `None` when it was removed.
#[derive(Clone)]
pub struct Change {
    pub version: u64,
    pub id: Id,
    pub object: Option<Value>,
}

#[derive(Default)]
pub struct Store {
    pub version: u64,
    pub objects: BTreeMap<Id, Value>,
    pub log: Vec<Change>,
    /// Mutating requests that were carried out, as verb and path.
    pub writes: Vec<String>,
    /// Requests of the operator that were refused.
    pub refused: Vec<String>,
    /// Gangs that were started or stopped before the status said so.
    pub unannounced: Vec<String>,
    /// Stop the operator at its write of this number, from 1.
    pub stop: Option<(usize, Stop)>,
    pub dead: bool,
    /// The write that is on its way.
    late: Option<(Method, String, String, Value)>,
    /// Requests that are refused: the begin of verb and path, with the status.
    pub refuses: Vec<(&'static str, u16)>,
    /// Trainings run until the test ends them.
    pub held: bool,
    /// Requests that begin like this reach it a minute later, if their client still waits.
    pub slow: &'static str,
    /// Steps of the cluster after which the garbage collector removes what a batch Job owned that is gone.
    pub garbage_after: u32,
    /// The queue whose batch Jobs run in another cluster, as the webhook of Kueue writes into them; `default`: that of
    /// Jobs without one.
    pub elsewhere: &'static str,
    /// How many steps each object has outlived its owner.
    pub orphans: BTreeMap<Id, u32>,
    /// The gang whose pods were the first to mount each token: namespace, Secret and key.
    pub tokens: BTreeMap<String, String>,
    uids: u64,
}

#[derive(Clone, Default)]
pub struct Api(Arc<Mutex<Store>>);

impl Api {
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap()
    }

    /// A client of this API server.
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        kube::Client::new(tower::service_fn(move |request| answer(api.clone(), request)), "default")
    }
}

async fn answer(api: Api, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await.map_err(std::io::Error::other)?;
    let body: Value = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    let slow = api.store().slow;
    if !slow.is_empty() && format!("{} {}", parts.method, parts.uri.path()).starts_with(slow) {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let mut store = api.store();
    let lost = || std::io::Error::other("the operator was stopped");
    if store.dead {
        return Err(lost());
    }
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let writes = parts.method != Method::GET && !query.contains(DRY_RUN);
    let stop = store.stop.filter(|(at, _)| writes && store.writes.len() + 1 == *at).map(|(_, stop)| stop);
    if stop == Some(Stop::NotSent) {
        store.dead = true;
        return Err(lost());
    }
    let path = parts.uri.path().to_owned();
    if stop == Some(Stop::Late) {
        store.dead = true;
        store.late = Some((parts.method, path, query, body));
        return Err(lost());
    }
    let dry_run = if query.contains(DRY_RUN) { "?dryRun=All" } else { "" };
    let asked = format!("{} {path}{dry_run}", parts.method);
    let refusal = store.refuses.iter().find(|(refused, _)| asked.starts_with(refused));
    let (code, value) = match refusal {
        Some((_, code)) => status(StatusCode::from_u16(*code).unwrap(), "refused by the test"),
        None => store.handle(&parts.method, &path, &query, body),
    };
    if writes && code.is_success() {
        store.writes.push(asked);
        if let Some(stop) = stop {
            store.dead = true;
            if stop == Stop::AnswerLost {
                return Err(lost());
            }
        }
    } else if writes {
        store.refused.push(format!("{asked}: {code}"));
    }
    let bytes = serde_json::to_vec(&value).unwrap();
    Ok(Response::builder().status(code).body(Body::from(bytes)).unwrap())
}

fn status(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason,
        "code": code.as_u16()}),
    )
}

/// Namespace, plural, name and subresource of a path.
fn parse(path: &str) -> (String, String, Option<String>, Option<String>) {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.iter().position(|part| *part == "namespaces") {
        Some(at) => {
            let part = |n: usize| parts.get(at + n).map(|part| (*part).to_owned());
            (part(1).unwrap(), part(2).unwrap(), part(3), part(4))
        }
        // Cluster-scoped: /api/v1/nodes/NAME.
        None => (String::new(), parts[2].to_owned(), parts.get(3).map(|part| (*part).to_owned()), None),
    }
}

impl Store {
    fn handle(&mut self, method: &Method, path: &str, query: &str, mut body: Value) -> (StatusCode, Value) {
        let (namespace, plural, name, subresource) = parse(path);
        let id = |name: &str| (plural.clone(), namespace.clone(), name.to_owned());
        match (method.as_str(), name.as_deref()) {
            ("GET", Some(name)) => match self.objects.get(&id(name)) {
                Some(object) => (StatusCode::OK, object.clone()),
                None => status(StatusCode::NOT_FOUND, "NotFound"),
            },
            ("GET", None) => self.list(&plural, &namespace, query),
            ("POST", None) => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                let is_default = self.elsewhere == "default" && body["metadata"]["labels"][names::QUEUE].is_null();
                if plural == "jobs" && is_default {
                    body["metadata"]["labels"][names::QUEUE] = json!(self.elsewhere);
                }
                let queue = body["metadata"]["labels"][names::QUEUE].as_str().unwrap_or_default();
                if plural == "jobs" && !queue.is_empty() && queue == self.elsewhere {
                    body["spec"]["managedBy"] = json!(names::MULTIKUEUE);
                }
                if query.contains(DRY_RUN) {
                    return (StatusCode::CREATED, body);
                }
                if plural == "jobs" {
                    self.announced(&namespace, &name, false);
                }
                self.create(id(&name), body)
            }
            ("PUT", Some(name)) => self.replace(id(name), body),
            ("PATCH", Some(name)) => self.apply(id(name), subresource.as_deref(), body),
            ("DELETE", Some(name)) => {
                if plural == "jobs" && body["propagationPolicy"] == "Foreground" {
                    self.announced(&namespace, name, true);
                }
                self.delete(&id(name), &body)
            }
            ("DELETE", None) => self.delete_collection(&plural, &namespace, query),
            other => panic!("{other:?} {path}"),
        }
    }

    /// The write that was on its way arrives. Returns whether it was carried out.
    pub fn arrive(&mut self) -> bool {
        let Some((method, path, query, body)) = self.late.take() else { return false };
        let (code, _) = self.handle(&method, &path, &query, body);
        code.is_success()
    }

    /// Notes a gang that is started or stopped although the status of its job does not say so.
    fn announced(&mut self, namespace: &str, attempt: &str, stops: bool) {
        let job = AttemptName::parse(attempt).unwrap().job;
        let job = &self.objects[&("trainingjobs".to_owned(), namespace.to_owned(), job.to_owned())];
        let status = &job["status"];
        let parallel = status["parallel"].as_array().into_iter().flatten();
        let intent = std::iter::once(&status["attempt"]).chain(parallel).find(|named| named["name"] == attempt);
        let said = match (stops, intent) {
            (false, named) => named.is_some(),
            (true, Some(named)) => !named["stop"].is_null(),
            // Of an attempt that the status no longer names nothing may run.
            (true, None) => true,
        };
        if !said {
            let intent = intent.unwrap_or(&Value::Null);
            self.unannounced.push(format!("{attempt} {}: {intent}", if stops { "stopped" } else { "started" }));
        }
    }

    /// The objects of a namespace, or the one that the query names.
    fn list(&self, plural: &str, namespace: &str, query: &str) -> (StatusCode, Value) {
        let name = query.split("metadata.name%3D").nth(1).map(|rest| rest.split('&').next().unwrap_or_default());
        let wanted = |id: &&Id| id.0 == plural && id.1 == namespace && name.is_none_or(|name| id.2 == name);
        // Events of the operator have another form; a real API server converts them.
        let own = |object: &&Value| plural != "events" || object["apiVersion"] != "events.k8s.io/v1";
        let named = self.objects.iter().filter(|(id, _)| wanted(id)).map(|(_, object)| object);
        let items: Vec<_> = named.filter(own).collect();
        (StatusCode::OK, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}))
    }

    pub fn create(&mut self, id: Id, mut object: Value) -> (StatusCode, Value) {
        if self.objects.contains_key(&id) {
            return status(StatusCode::CONFLICT, "AlreadyExists");
        }
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["namespace"] = json!(id.1);
        object["metadata"]["creationTimestamp"] = json!(jiff::Timestamp::now().to_string());
        (StatusCode::CREATED, self.put(id, object))
    }

    /// Writes an object under a new version.
    pub fn put(&mut self, id: Id, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log.push(Change { version: self.version, id: id.clone(), object: Some(object.clone()) });
        self.objects.insert(id, object.clone());
        object
    }

    pub fn remove(&mut self, id: &Id) {
        if self.objects.remove(id).is_some() {
            self.version += 1;
            self.log.push(Change { version: self.version, id: id.clone(), object: None });
        }
    }

    fn replace(&mut self, id: Id, body: Value) -> (StatusCode, Value) {
        match self.objects.get(&id) {
            None => status(StatusCode::NOT_FOUND, "NotFound"),
            Some(there) if there["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] => {
                status(StatusCode::CONFLICT, "Conflict")
            }
            Some(_) => (StatusCode::OK, self.put(id, body)),
        }
    }

    fn apply(&mut self, id: Id, subresource: Option<&str>, body: Value) -> (StatusCode, Value) {
        let Some(there) = self.objects.get(&id) else {
            return if subresource.is_some() {
                status(StatusCode::NOT_FOUND, "NotFound")
            } else {
                self.create(id, body)
            };
        };
        for field in ["resourceVersion", "uid"] {
            let wanted = &body["metadata"][field];
            if !wanted.is_null() && *wanted != there["metadata"][field] {
                return status(StatusCode::CONFLICT, "Conflict");
            }
        }
        let address = &there["spec"]["clusterIP"];
        if id.0 == "services" && !address.is_null() && *address != body["spec"]["clusterIP"] {
            return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
        }
        let mut object = there.clone();
        match subresource {
            // A merge patch names no type of the object, server-side apply does.
            Some("status") if body["apiVersion"].is_null() => {
                body["status"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .for_each(|(name, value)| object["status"][name] = value.clone());
            }
            Some("status") => object["status"] = body["status"].clone(),
            _ => merge(&mut object, &body),
        }
        if object == *there {
            return (StatusCode::OK, object);
        }
        (StatusCode::OK, self.put(id, object))
    }

    fn delete(&mut self, id: &Id, options: &Value) -> (StatusCode, Value) {
        let Some(there) = self.objects.get(id) else { return status(StatusCode::NOT_FOUND, "NotFound") };
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != there["metadata"]["uid"] {
            return status(StatusCode::CONFLICT, "Conflict");
        }
        let mut object = there.clone();
        if options["propagationPolicy"] == "Foreground" {
            object["metadata"]["deletionTimestamp"] = json!(jiff::Timestamp::now().to_string());
            object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
            return (StatusCode::OK, self.put(id.clone(), object));
        }
        self.remove(id);
        (StatusCode::OK, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    fn delete_collection(&mut self, plural: &str, namespace: &str, query: &str) -> (StatusCode, Value) {
        let attempt = query.split("pawl.dev%2Fattempt%3D").nth(1).expect("only the pods of one attempt are deleted");
        let attempt = attempt.split('&').next().unwrap();
        self.announced(namespace, attempt, true);
        let chosen: Vec<(Id, Value)> = self
            .objects
            .iter()
            .filter(|((kind, ns, _), object)| {
                let phase = object["status"]["phase"].as_str().unwrap_or_default();
                kind == plural
                    && ns == namespace
                    && object["metadata"]["labels"]["pawl.dev/attempt"] == attempt
                    && !matches!(phase, "Succeeded" | "Failed")
            })
            .map(|(id, object)| (id.clone(), object.clone()))
            .collect();
        for (id, object) in chosen {
            self.mark_deleted(id, object);
        }
        (StatusCode::OK, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}))
    }

    /// A graceful deletion begins.
    pub fn mark_deleted(&mut self, id: Id, mut object: Value) {
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(jiff::Timestamp::now().to_string());
            self.put(id, object);
        }
    }

    /// The objects as they were at a version.
    pub fn at(&self, version: u64) -> BTreeMap<Id, Value> {
        let mut objects = BTreeMap::new();
        for change in self.log.iter().take_while(|change| change.version <= version) {
            match &change.object {
                Some(object) => objects.insert(change.id.clone(), object.clone()),
                None => objects.remove(&change.id),
            };
        }
        objects
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(object.entry(name.clone()).or_insert(Value::Object(Map::new())), value);
            }
        }
        (object, patch) => *object = patch.clone(),
    }
}
