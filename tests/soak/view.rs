//! The pods of the jobs as the API server lists them, refreshed while it answers.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use pawl_contract::attempt::AttemptName;
use pawl_contract::progress::Progress;
use pawl_e2e::operator::get;
use pawl_e2e::scene::JOB_LABEL;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// How often the list is refreshed.
const EVERY: Duration = Duration::from_millis(400);
/// Port at which an agent answers.
const PORT: u16 = 9470;
/// Patience with the API server and with agents: either may be stopped or unreachable.
const PATIENCE: Duration = Duration::from_secs(3);

/// A pod of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its job.
    pub job: String,
    /// Its attempt.
    pub attempt: String,
    /// Its index in the gang.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its node, once it is scheduled.
    pub node: String,
    /// Its address, once it has one.
    pub address: Option<String>,
    /// Whether it runs and is not being deleted.
    pub runs: bool,
}

/// The newest list.
#[derive(Default)]
pub struct View(Mutex<Vec<Member>>);

impl View {
    /// Refreshes the list for ever.
    pub async fn follow(&self, pods: Api<Pod>) {
        let labelled = ListParams::default().labels(JOB_LABEL);
        loop {
            if let Ok(Ok(list)) = tokio::time::timeout(PATIENCE, pods.list(&labelled)).await {
                let mut members: Vec<_> = list.items.iter().map(member).collect();
                members.sort();
                *self.members() = members;
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.lock().unwrap()
    }

    /// The running pods, by job and index.
    pub fn running(&self) -> Vec<Member> {
        self.members().iter().filter(|member| member.runs).cloned().collect()
    }

    /// What the newest gang of a job says of its progress, with the name of its attempt.
    pub async fn progress(&self, job: &str) -> Option<(String, Progress)> {
        let leads = |member: &Member| member.job == job && member.index == 0 && member.runs;
        let newest =
            self.running().into_iter().filter(leads).max_by_key(|member| AttemptName::number_of(&member.attempt))?;
        let url = format!("http://{}:{PORT}/progress", newest.address?);
        let answer = tokio::time::timeout(PATIENCE, get(&url)).await.ok()??;
        Some((newest.attempt, serde_json::from_str(&answer).ok()?))
    }
}

fn member(pod: &Pod) -> Member {
    let label = |name: &str| pod.labels().get(name).cloned().unwrap_or_default();
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let phase = status.and_then(|status| status.phase.as_deref());
    Member {
        job: label(JOB_LABEL),
        attempt: label("pawl.dev/attempt"),
        index: label("batch.kubernetes.io/job-completion-index").parse().unwrap_or(0),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        address: status.and_then(|status| status.pod_ip.clone()).filter(|address| !address.is_empty()),
        runs: phase == Some("Running") && pod.metadata.deletion_timestamp.is_none(),
    }
}
