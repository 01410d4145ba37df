//! What was written to the API server, and by whom: its audit log.

use jiff::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// A moment: the requests to the API server since then can be counted.
pub struct Audit {
    file: PathBuf,
    /// Where the log ended.
    from: u64,
    /// What was asked before may be logged later.
    since: Timestamp,
}

/// A write.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    /// `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    #[serde(default)]
    user: User,
    object_ref: Option<ObjectRef>,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct User {
    /// Of a request that was not authenticated, such as one with an old token, there is none.
    #[serde(default)]
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
}

impl Write {
    /// Whose it was.
    pub fn user(&self) -> &str {
        &self.user.username
    }

    /// How long the API server took to answer, seconds.
    pub fn seconds(&self) -> f64 {
        self.stage_timestamp.duration_since(self.request_received_timestamp).as_secs_f64()
    }

    /// What was written, such as `patch trainingjobs/status`.
    pub fn what(&self) -> String {
        let object = self.object_ref.clone().unwrap_or_default();
        let slash = if object.subresource.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{}", self.verb, object.resource, object.subresource)
    }
}

impl Audit {
    /// From now on.
    pub fn now() -> Self {
        let state =
            std::env::var_os("PAWL_CLUSTER_STATE").expect("PAWL_CLUSTER_STATE: run this through tests/cluster/with");
        let file = PathBuf::from(state).join("log/audit.log");
        let from = file.metadata().expect("the API server keeps an audit log").len();
        Self { file, from, since: Timestamp::now() }
    }

    /// The writes since then into a namespace, oldest first.
    pub fn writes(&self, namespace: &str) -> Vec<Write> {
        let mut file = std::fs::File::open(&self.file).unwrap();
        file.seek(SeekFrom::Start(self.from)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let all = whole.lines().map(|line| serde_json::from_str::<Write>(line).expect("an audit event"));
        let new = all.filter(|write| write.request_received_timestamp >= self.since);
        new.filter(|write| write.object_ref.as_ref().is_some_and(|object| object.namespace == namespace)).collect()
    }

    /// How often a user wrote what since then, without the Lease that a leader renews.
    pub fn count(&self, namespace: &str, user: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for write in self.of_user(namespace, user) {
            *counts.entry(write.what()).or_default() += 1;
        }
        counts
    }

    /// The writes of a user since then, without the Lease that a leader renews.
    pub fn of_user(&self, namespace: &str, user: &str) -> impl Iterator<Item = Write> {
        let writes = self.writes(namespace).into_iter();
        writes.filter(move |write| write.user() == user && !write.what().ends_with(" leases"))
    }
}
