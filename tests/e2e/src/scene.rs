//! A namespace per test, what may be asked of it, and what it says after a failure.

use crate::programs::{kubectl, repository, run, succeed};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::future::ready;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The label that all of a job's objects carry.
pub const JOB_LABEL: &str = "pawl.dev/job";
/// The label of what a scene has outside of its namespace.
pub const SCENE: &str = "pawl-e2e/scene";

/// A namespace of its own.
pub struct Scene {
    /// The administrator's client.
    pub client: Client,
    /// Name of the namespace.
    pub namespace: String,
    /// Files of this test.
    pub directory: tempfile::TempDir,
}

/// Runs a test in a namespace of its own, named after it. After a failure, says what was there.
pub fn scene(test: impl AsyncFnOnce(&Scene)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let scene = Scene::new().await;
        // On the heap: futures that hold several TrainingJobs do not fit into the stack of a test's thread.
        let ended = AssertUnwindSafe(Box::pin(test(&scene))).catch_unwind().await;
        if ended.is_err() {
            scene.tell();
        }
        scene.close().await;
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

fn install_crd() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let crd = repository().join("crds/trainingjobs.yaml");
        succeed(kubectl(&["apply", "--server-side", "--force-conflicts", "-f"]).arg(crd));
        // It has no conditions at first, at which kubectl gives up.
        let wait = ["wait", "--for=condition=Established", "--timeout=5s", "crd/trainingjobs.pawl.dev"];
        let established = || run(&mut kubectl(&wait)).status.success();
        assert!((0..10).any(|_| established()), "the TrainingJob definition is not established");
    });
}

impl Scene {
    async fn new() -> Self {
        install_crd();
        let client = Client::try_default().await.expect("KUBECONFIG: run this through tests/cluster/with");
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("test").rsplit("::").next().unwrap_or("test").replace('_', "-");
        let now = jiff::Timestamp::now().as_millisecond();
        let namespace = format!("{}-{:x}", test[..test.len().min(40)].trim_end_matches('-'), now % 0x100_0000);
        let directory = tempfile::tempdir().unwrap();
        let scene = Self { client, namespace, directory };
        scene.create().await;
        scene
    }

    async fn create(&self) {
        succeed(&mut kubectl(&["create", "namespace", &self.namespace]));
        // A pod that is made before its namespace has a service account is refused.
        self.until("the default service account", Duration::from_secs(20), async || {
            run(&mut self.kubectl(&["get", "serviceaccount", "default"])).status.success().then_some(())
        })
        .await;
    }

    /// Another namespace, which is deleted with this one.
    pub async fn another(&self, name: &str) -> Self {
        let (client, namespace) = (self.client.clone(), format!("{}-{name}", self.namespace));
        let other = Self { client, namespace, directory: tempfile::tempdir().unwrap() };
        other.create().await;
        let own = format!("{SCENE}={}", self.namespace);
        succeed(&mut kubectl(&["label", "namespace", &other.namespace, &own]));
        other
    }

    async fn close(&self) {
        succeed(&mut kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]));
        let own = format!("--selector={SCENE}={}", self.namespace);
        let kinds =
            "namespaces,persistentvolumes,clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations";
        succeed(&mut kubectl(&["delete", kinds, &own, "--wait=false"]));
    }

    /// An API of this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until a node takes pods.
    pub async fn node_is_ready(&self, node: &str) {
        let node = format!("node/{node}");
        let wait = ["wait", "--for=condition=Ready", "--timeout=1s", &node];
        let look = async || run(&mut kubectl(&wait)).status.success().then_some(());
        self.until("the node to be ready", Duration::from_secs(60), look).await;
    }

    /// kubectl in this namespace.
    pub fn kubectl(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = kubectl(&["--namespace", &self.namespace]);
        command.args(arguments);
        command
    }

    /// What `kubectl apply -f -` says of a manifest.
    pub fn try_apply(&self, manifest: &str) -> Result<(), String> {
        let mut command = self.kubectl(&["apply", "-f", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is there");
        child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    /// Applies a manifest.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn apply(&self, manifest: &Value) {
        self.try_apply(&manifest.to_string()).unwrap_or_else(|refusal| panic!("{refusal}\n{manifest:#}"));
    }

    /// Lets a service account of this namespace do what RBAC rules say, here.
    pub fn allow(&self, account: &str, rules: Vec<Value>) {
        self.allow_of(self, account, rules);
    }

    /// Lets a service account of the namespace of `other` do what RBAC rules say, here.
    pub fn allow_of(&self, other: &Self, account: &str, rules: Vec<Value>) {
        let (group, metadata) = ("rbac.authorization.k8s.io", json!({ "name": account }));
        let version = format!("{group}/v1");
        self.apply(&json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules}));
        self.apply(&json!({
            "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": other.namespace}],
        }));
    }

    /// Lets a service account of this namespace do what RBAC rules say about objects that have no namespace.
    pub fn allow_everywhere(&self, account: &str, rules: &Value) {
        let (group, name) = ("rbac.authorization.k8s.io", format!("{}-{account}", self.namespace));
        let version = format!("{group}/v1");
        let metadata = json!({"name": name, "labels": {SCENE: self.namespace}});
        self.apply(&json!({"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": rules}));
        self.apply(&json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}],
        }));
    }

    /// Changes a job's spec, as `kubectl patch --type merge` does.
    pub async fn patch_spec(&self, job: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.api::<TrainingJob>().patch(job, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Where all operators of this scene write their logs.
    pub fn operator_log(&self) -> PathBuf {
        self.directory.path().join("operator.log")
    }

    /// The job.
    pub async fn job(&self, name: &str) -> TrainingJob {
        self.api().get(name).await.unwrap()
    }

    /// The job as JSON: what a person sees.
    pub async fn status(&self, name: &str) -> Value {
        serde_json::to_value(self.job(name).await.status).unwrap()
    }

    /// The pods of a job, by name.
    pub async fn pods(&self, job: &str) -> Vec<Pod> {
        self.owned(job).await
    }

    /// The objects of a kind that carry a job's label, by name.
    pub async fn owned<K>(&self, job: &str) -> Vec<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        let labelled = ListParams::default().labels(&format!("{JOB_LABEL}={job}"));
        let mut all = self.api::<K>().list(&labelled).await.unwrap().items;
        all.sort_by_key(|object| object.meta().name.clone());
        all
    }

    /// How many batch Jobs, ConfigMaps and Pods a job has: what goes with its attempts.
    pub async fn count_owned(&self, job: &str) -> usize {
        self.owned::<Job>(job).await.len() + self.owned::<ConfigMap>(job).await.len() + self.pods(job).await.len()
    }

    /// The reasons and notes of the events about an object.
    pub async fn events(&self, name: &str) -> Vec<(String, String)> {
        let all = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        let about = all.items.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        about.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    /// Waits until `look` finds something.
    ///
    /// # Panics
    /// At the deadline.
    pub async fn until<T>(&self, what: &str, deadline: Duration, look: impl AsyncFn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(began.elapsed() < deadline, "waited {deadline:?} in vain: {what}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until a job is as `holds` says, and gives it.
    pub async fn job_until(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&TrainingJob) -> bool,
    ) -> TrainingJob {
        // A watch leaves the machine to what is tested: some of it measures time.
        let seen = watcher::watch_object(self.api::<TrainingJob>(), name).filter_map(async |seen| match seen {
            Ok(job) => job,
            // An API server that is away may come back.
            Err(_) => {
                tokio::time::sleep(LOOK).await;
                None
            }
        });
        let mut fitting = pin!(seen.filter(|job| ready(holds(job))));
        match tokio::time::timeout(deadline, fitting.next()).await {
            Ok(Some(job)) => job,
            _ => panic!("waited {deadline:?} in vain: {name}: {what}"),
        }
    }

    /// As [`Self::job_until`], for a job that must not fail: it is not waited for any longer then.
    ///
    /// # Panics
    /// At the deadline, and as soon as the job is Failed.
    pub async fn healthy_until(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        holds: impl Fn(&TrainingJob) -> bool,
    ) -> TrainingJob {
        let job = self.job_until(name, what, deadline, |job| holds(job) || stage(job) == Stage::Failed).await;
        let failure = job.status.as_ref().and_then(|status| status.failure.as_ref());
        assert_ne!(stage(&job), Stage::Failed, "{name} failed before it was seen {what}: {failure:?}");
        job
    }

    /// Waits until a job is Complete.
    ///
    /// # Panics
    /// As [`Self::healthy_until`].
    pub async fn complete(&self, name: &str, deadline: Duration) -> TrainingJob {
        self.healthy_until(name, "to be Complete", deadline, |job| stage(job) == Stage::Complete).await
    }

    /// After a failure: all that a person would look at.
    fn tell(&self) {
        for arguments in [
            &["get", "trainingjobs,jobs,configmaps,pods", "-o", "wide"][..],
            &["get", "events", "--sort-by=.lastTimestamp"],
            &["get", "trainingjobs", "-o", "jsonpath={range .items[*]}{.status}{\"\\n\"}{end}"],
            &["logs", "-l", JOB_LABEL, "--all-containers", "--prefix", "--tail=30", "--ignore-errors"],
        ] {
            let output = run(&mut self.kubectl(arguments));
            eprintln!("== kubectl {}\n{}{}", arguments.join(" "), text(&output.stdout), text(&output.stderr));
        }
        let log = std::fs::read_to_string(self.operator_log()).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(80).collect();
        eprintln!("== the operator's log");
        last.iter().rev().for_each(|line| eprintln!("{line}"));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The stage of a job; Pending before it has a status.
pub fn stage(job: &TrainingJob) -> Stage {
    job.status.as_ref().map(|status| status.stage).unwrap_or_default()
}
