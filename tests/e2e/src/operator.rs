//! The operator as a process in the control plane's network, with the rights of its service account and no more.

use crate::programs::{built, repository, succeed};
use crate::scene::Scene;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Name of the operator's service account.
pub const ACCOUNT: &str = "pawl";
/// The checkpoints of most jobs here need not be kept, and the cluster has few volumes.
const NO_STORAGE: [&str; 2] = ["--default-storage", "None"];
/// It logs verbosely and polls often, and jobs use the images of the tests.
const TALKATIVE: [&str; 12] = [
    "--log-format",
    "text",
    "--log",
    "info,pawl_controller=debug",
    "--ask-every",
    "1s",
    "--progress-every",
    "1s",
    "--trainer-image",
    "localhost/pawl:test",
    "--agent-image",
    "localhost/pawl:test",
];
/// Longest time until an operator is ready: another one may hold the lease.
const READY: Duration = Duration::from_secs(30);

/// An operator at work; it is killed when this is dropped.
pub struct Operator {
    child: Child,
    /// Where it writes its log.
    pub log: PathBuf,
    /// Where it serves metrics and probes.
    pub http: SocketAddr,
}

/// The operator's program, and what is added to its environment.
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// Variables and values.
    pub environment: Vec<(String, String)>,
}

impl Program {
    /// `pawl` as it was built with the tests.
    pub fn built() -> Self {
        Self { path: built("pawl"), environment: Vec::new() }
    }
}

/// The service account of the operator in the scene's namespace, and a kubeconfig with its token.
pub fn account(scene: &Scene) -> PathBuf {
    let path = scene.directory.path().join("operator.kubeconfig");
    if !path.exists() {
        scene.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}));
        scene.allow(ACCOUNT, rules());
        scene.allow_everywhere(ACCOUNT, &json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]));
        let token = succeed(&mut scene.kubectl(&["create", "token", ACCOUNT, "--duration=6h"]));
        write_kubeconfig(&path, token.trim(), None);
    }
    path
}

/// What the operator may do in a namespace: the chart's own rules, which hold no template, and to lead.
pub fn rules() -> Vec<Value> {
    let path = repository().join("charts/pawl/templates/rbac.yaml");
    let template = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let begin = template.split_once("define \"pawl.rules\" -}}\n").expect("the chart defines pawl.rules").1;
    let rules = begin.split_once("{{- end }}").unwrap().0;
    let mut rules: Vec<Value> =
        serde_saphyr::from_str(rules).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let verbs = ["get", "create", "update"];
    rules.push(json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}));
    rules
}

/// The administrator's kubeconfig with another token, and with another server if one is given.
pub fn write_kubeconfig(path: &Path, token: &str, server: Option<&str>) {
    let admin = Kubeconfig::read().expect("KUBECONFIG is set");
    let cluster = admin.clusters[0].cluster.as_ref().unwrap();
    let mut fields = json!({ "server": server.unwrap_or(cluster.server.as_deref().unwrap()) });
    if server.is_none() {
        fields["certificate-authority-data"] = cluster.certificate_authority_data.clone().into();
    }
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": fields}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(path, config.to_string()).unwrap();
}

/// A client with the rights of a kubeconfig.
pub async fn client(kubeconfig: &Path) -> Client {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

impl Scene {
    /// An operator that watches this namespace.
    pub async fn operator(&self) -> Operator {
        Operator::start(self, None).await
    }
}

impl Operator {
    /// Starts an operator that watches the scene's namespace, and waits until it is ready. `kubeconfig` replaces its
    /// own.
    pub async fn start(scene: &Scene, kubeconfig: Option<&Path>) -> Self {
        Self::spawn(scene, kubeconfig, &[]).ready(scene).await
    }

    /// The same without an election: it need not wait for the lease of one that was killed.
    pub async fn start_alone(scene: &Scene, kubeconfig: Option<&Path>) -> Self {
        Self::spawn_alone(scene, kubeconfig).ready(scene).await
    }

    /// Starts an operator without an election that watches the namespaces of `others`, too, and waits until it is
    /// ready. What it may do there is up to the test: see [`rules`].
    pub async fn start_with(scene: &Scene, others: &[&Scene]) -> Self {
        let mut arguments = vec!["--leader-election", "false"];
        arguments.extend(others.iter().flat_map(|other| ["--namespace", &other.namespace]));
        Self::spawn(scene, None, &arguments).ready(scene).await
    }

    /// Starts an operator without an election, and does not wait for it.
    pub fn spawn_alone(scene: &Scene, kubeconfig: Option<&Path>) -> Self {
        Self::spawn(scene, kubeconfig, &["--leader-election", "false"])
    }

    /// Starts the operator `program`, such as that of an earlier version, and waits until it is ready.
    pub async fn start_program(scene: &Scene, program: &Path) -> Self {
        let arguments = [&TALKATIVE[..], &NO_STORAGE, &["--leader-election", "false"]].concat();
        let program = Program { path: program.to_owned(), environment: Vec::new() };
        Self::begin(scene, &program, None, &arguments).ready(scene).await
    }

    async fn ready(self, scene: &Scene) -> Self {
        let probe = format!("http://{}/readyz", self.http);
        scene.until("the operator to be ready", READY, async || get(&probe).await).await;
        self
    }

    /// Starts an operator that logs verbosely and polls often.
    fn spawn(scene: &Scene, kubeconfig: Option<&Path>, arguments: &[&str]) -> Self {
        Self::spawn_with(scene, kubeconfig, &[&NO_STORAGE, arguments].concat())
    }

    /// Starts a replica of an operator with another program, and does not wait for it.
    pub fn spawn_program(scene: &Scene, program: &Program) -> Self {
        Self::begin(scene, program, None, &[&TALKATIVE[..], &NO_STORAGE].concat())
    }

    fn spawn_with(scene: &Scene, kubeconfig: Option<&Path>, arguments: &[&str]) -> Self {
        Self::begin(scene, &Program::built(), kubeconfig, &[&TALKATIVE, arguments].concat())
    }

    /// Starts an operator with the chart's defaults except for storage, and waits until it is ready.
    pub async fn as_installed(scene: &Scene) -> Self {
        Self::begin(scene, &Program::built(), None, &NO_STORAGE).ready(scene).await
    }

    /// Starts an operator that creates a claim for each job that names no storage, and waits until it is ready.
    pub async fn with_claims(scene: &Scene) -> Self {
        Self::spawn_with(scene, None, &["--default-storage", "Claim"]).ready(scene).await
    }

    /// Starts another operator, whose lease is elsewhere, and waits until it is ready.
    pub async fn another(scene: &Scene) -> Self {
        let arguments = [&TALKATIVE[..], &NO_STORAGE, &["--leader-election", "false"]].concat();
        let lease = format!("not-{}", scene.namespace);
        Self::begin_as(scene, &lease, &Program::built(), None, &arguments).ready(scene).await
    }

    fn begin(scene: &Scene, program: &Program, kubeconfig: Option<&Path>, arguments: &[&str]) -> Self {
        Self::begin_as(scene, &scene.namespace, program, kubeconfig, arguments)
    }

    fn begin_as(scene: &Scene, lease: &str, program: &Program, kubeconfig: Option<&Path>, arguments: &[&str]) -> Self {
        let own = account(scene);
        let http = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = scene.operator_log();
        let out = File::options().create(true).append(true).open(&log).unwrap();
        let child = Command::new(&program.path)
            .envs(program.environment.iter().cloned())
            .args(["operator", "--namespace", &scene.namespace, "--lease-namespace", lease])
            .args(["--listen", &http.to_string()])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig.unwrap_or(&own))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        Self { child, log, http }
    }

    /// Who it is in the audit log.
    pub fn user(scene: &Scene) -> String {
        format!("system:serviceaccount:{}:{ACCOUNT}", scene.namespace)
    }

    /// Whether it is gone.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its process.
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it is gone.
    ///
    /// # Panics
    /// At the deadline.
    pub fn gone(&mut self, deadline: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < deadline, "the operator is still there after {deadline:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM and waits until it is gone.
    pub fn stop(&mut self, deadline: Duration) -> ExitStatus {
        kill_process(self.process(), Signal::TERM).unwrap();
        self.gone(deadline)
    }

    /// Its metrics.
    pub async fn metrics(&self) -> String {
        get(&format!("http://{}/metrics", self.http)).await.expect("the operator serves metrics")
    }

    /// What it wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of a successful answer to GET.
pub async fn get(url: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(host).await.ok()?;
        let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).filter(|code| *code == "200").map(|_| body.to_owned())
    };
    tokio::time::timeout(Duration::from_secs(5), exchange).await.ok()?
}
