//! Which operator runs the jobs of a namespace, and how it is configured: from the Deployments of the chart, or else
//! from what operators have written into the jobs of the namespace.

use super::configuration::read;
use super::finding::{Finding, Seen};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pawl_controller::{Config, names};
use std::ffi::OsStr;

/// Labels of the chart's Deployments (`pawl.selector` in its `_names.tpl`).
pub const SELECTOR: &str = "app.kubernetes.io/name=pawl-operator";
/// The container of the operator there.
const CONTAINER: &str = "operator";
/// What cannot be read is named like this.
const OPERATOR: &str = "Operator";
/// A job without a status is not served after this time.
const UNSERVED: SignedDuration = SignedDuration::from_secs(120);
/// A status that was written within this time shows an operator at work.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// An operator that a chart has installed.
#[derive(Clone, Debug)]
pub struct Operator {
    /// Namespace and name of its Deployment.
    pub name: String,
    /// Its service account, as the name of a user.
    pub user: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// Replicas that it should have.
    pub replicas: i32,
    /// Replicas that are ready.
    pub ready: i32,
    /// Its configuration; or why this version of the command cannot read it.
    pub config: Result<Config, String>,
}

impl Operator {
    /// The operator of a Deployment.
    pub fn of(deployment: &Deployment) -> Option<Self> {
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
        let named = pod.containers.iter().find(|container| container.name == CONTAINER);
        let account = pod.service_account_name.as_deref().unwrap_or("default");
        Some(Self {
            name: format!("{namespace}/{}", deployment.metadata.name.as_deref().unwrap_or_default()),
            user: format!("system:serviceaccount:{namespace}:{account}"),
            groups: ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"]
                .map(str::to_owned)
                .to_vec(),
            replicas: deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
            ready: deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0),
            config: parsed(named.or_else(|| pod.containers.first())?, namespace),
        })
    }

    /// Whether its configuration names the namespace, or all.
    pub fn watches(&self, namespace: &str) -> bool {
        let namespaces = self.config.as_ref().map(|config| config.namespaces.as_slice());
        namespaces.is_ok_and(|all| all.is_empty() || all.iter().any(|name| name == namespace))
    }
}

/// The configuration of this container.
fn parsed(container: &Container, namespace: &str) -> Result<Config, String> {
    let words = container.command.iter().chain(&container.args).flatten();
    let flags: Vec<String> = words.skip_while(|word| *word != "operator").skip(1).cloned().collect();
    let variable = |name: &OsStr| {
        let mut environment = container.env.iter().flatten();
        environment.rfind(|set| name == set.name.as_str()).and_then(|set| set.value.clone())
    };
    read(&flags, variable, namespace)
}

/// The operators that could be read.
#[derive(Clone, Debug)]
pub struct Operators {
    /// Those that were found.
    pub found: Vec<Operator>,
    /// Why there may be others, such as `you may not list deployments.apps`.
    pub unseen: Option<String>,
}

impl Operators {
    /// The one that runs the jobs of the namespace, if one was found.
    pub fn of(&self, namespace: &str) -> Option<&Operator> {
        let mut serving = self.found.iter().filter(|operator| operator.watches(namespace));
        let first = serving.clone().next();
        serving.find(|operator| operator.replicas > 0).or(first)
    }
}

/// What operators have written into a job of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Name of the job.
    pub job: String,
    /// When the job was created.
    pub created: Option<Timestamp>,
    /// When an operator wrote its status last.
    pub written: Option<Timestamp>,
}

impl Trace {
    /// From the metadata of a job.
    pub fn of(meta: &ObjectMeta) -> Self {
        let fields = meta.managed_fields.iter().flatten();
        let status = fields.filter(|fields| fields.manager.as_deref() == Some(names::FIELD_MANAGER));
        let status = status.filter(|fields| fields.subresource.as_deref() == Some("status"));
        Self {
            job: meta.name.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            written: status.filter_map(|fields| fields.time.as_ref()).map(|time| time.0).max(),
        }
    }
}

/// Whether an operator runs the jobs of the namespace, and only one.
pub fn served(namespace: &str, operators: &Operators, traces: &Seen<Vec<Trace>>, now: Timestamp) -> Finding {
    let serving: Vec<&Operator> = operators.found.iter().filter(|operator| operator.watches(namespace)).collect();
    let acting: Vec<&Operator> = serving.iter().copied().filter(|operator| operator.replicas > 0).collect();
    match (&acting[..], &serving[..]) {
        ([], []) => by_traces(namespace, operators, traces, now),
        ([], [idle, ..]) => Finding::problem(
            format!("Deployment {}", idle.name),
            format!("is the operator of namespace {namespace:?} and has no replicas"),
            format!("scale it up: kubectl scale {} --replicas 1", selected(&idle.name)),
        ),
        ([one], _) if one.ready < 1 => Finding::problem(
            format!("Deployment {}", one.name),
            format!("is the operator of namespace {namespace:?} and has no ready replica"),
            format!("see why: kubectl describe {}", selected(&one.name)),
        ),
        ([one], _) => {
            let others = operators.unseen.as_ref().map(|why| format!("; whether others do is not known: {why}"));
            let message = format!("runs the jobs of namespace {namespace:?}{}", others.unwrap_or_default());
            Finding::ok(format!("Deployment {}", one.name), message)
        }
        (several, _) => Finding::problem(
            OPERATOR,
            format!(
                "namespace {namespace:?} has {} operators, which undo each other's work: {}",
                several.len(),
                listed(several)
            ),
            "set `namespaces` of one of the releases of the chart so that they do not overlap, or uninstall one",
        ),
    }
}

/// A Deployment `namespace/name` for kubectl.
fn selected(name: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    format!("deployment/{name} --namespace {namespace}")
}

fn listed(operators: &[&Operator]) -> String {
    operators.iter().map(|operator| operator.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether an operator that was not found runs the jobs of the namespace: one that the chart has not installed, or one
/// whose Deployment cannot be read.
fn by_traces(namespace: &str, operators: &Operators, traces: &Seen<Vec<Trace>>, now: Timestamp) -> Finding {
    let none = Vec::new();
    let traces = if let Seen::Found(traces) = traces { traces } else { &none };
    let install = "add the namespace to `namespaces` of the chart, or install Pawl for it";
    let since = |time: &Timestamp| now.duration_since(*time);
    let newest = traces.iter().filter(|trace| trace.written.is_some()).max_by_key(|trace| trace.written);
    let recent = newest.filter(|trace| trace.written.as_ref().is_some_and(|time| since(time) <= RECENT));
    if let Some(trace) = recent {
        let minutes = trace.written.as_ref().map_or(0, |time| since(time).as_mins().max(0));
        let message =
            format!("has written the status of TrainingJob {} within the last {} min", trace.job, minutes + 1);
        return Finding::ok(OPERATOR, message);
    }
    let unserved =
        |trace: &&Trace| trace.written.is_none() && trace.created.as_ref().is_some_and(|time| since(time) > UNSERVED);
    if let Some(waiting) = traces.iter().find(unserved) {
        let minutes = waiting.created.as_ref().map_or(0, |time| since(time).as_mins());
        let message = format!(
            "none runs the jobs of namespace {namespace:?}: TrainingJob {} has had no status for {minutes} min",
            waiting.job
        );
        return Finding::problem(OPERATOR, message, install);
    }
    if let Some(unread) =
        operators.found.iter().find_map(|operator| Some((&operator.name, operator.config.as_ref().err()?)))
    {
        let (name, error) = unread;
        return Finding::unknown(
            format!("Deployment {name}"),
            format!("has a configuration of another version: {error}"),
        );
    }
    match (&operators.unseen, newest) {
        (Some(why), Some(old)) => {
            let at = old.written.map_or_else(String::new, |time| time.to_string());
            Finding::unknown(
                OPERATOR,
                format!(
                    "has written the status of TrainingJob {} at {at}; whether one still runs is not known: {why}",
                    old.job
                ),
            )
        }
        (Some(why), None) => Finding::unknown(
            OPERATOR,
            format!(
                "whether one runs the jobs of namespace {namespace:?} is not known: {why}, and no job there shows it"
            ),
        ),
        (None, _) if operators.found.is_empty() => {
            let message =
                format!("no Deployment has the label {SELECTOR}, and no job of namespace {namespace:?} shows one");
            Finding::problem(OPERATOR, message, install)
        }
        (None, _) => {
            let all: Vec<&Operator> = operators.found.iter().collect();
            let message = format!("none watches namespace {namespace:?}: not {}", listed(&all));
            Finding::problem(OPERATOR, message, install)
        }
    }
}

/// Whether the operator has the rights that it needs in the namespace: those of a namespace that was created after the
/// release are given with the next upgrade.
pub fn rights(namespace: &str, operator: &Operator, allowed: &Seen<Vec<(&'static str, bool)>>) -> Option<Finding> {
    let object = format!("Deployment {}", operator.name);
    match allowed {
        Seen::Found(allowed) => {
            let missing: Vec<&str> = allowed.iter().filter(|(_, allowed)| !allowed).map(|(right, _)| *right).collect();
            (!missing.is_empty()).then(|| {
                Finding::problem(
                    object,
                    format!("watches namespace {namespace:?}, but may not {} there", missing.join(", nor ")),
                    "give its service account the Role of the chart: helm upgrade does for a namespace that exists",
                )
            })
        }
        Seen::Unseen(why) => Some(Finding::unknown(
            object,
            format!("whether it has its rights in namespace {namespace:?} is not checked: {why}"),
        )),
        Seen::Absent => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult;
    use serde_json::{Value, json};

    fn deployment(name: &str, env: Value, ready: i32) -> Operator {
        let command = json!(["/bin/pawl", "operator"]);
        let container = json!({"name": "operator", "command": command, "args": ["--concurrency", "4"], "env": env});
        let deployment = json!({
            "metadata": {"name": "pawl-operator", "namespace": name},
            "spec": {"selector": {}, "template": {"spec": {"serviceAccountName": "pawl", "containers": [container]}}},
            "status": {"availableReplicas": ready},
        });
        Operator::of(&serde_json::from_value(deployment).unwrap()).unwrap()
    }

    fn watching(name: &str, namespaces: &str) -> Operator {
        deployment(name, json!([{"name": "PAWL_NAMESPACES", "value": namespaces}]), 1)
    }

    fn trace(job: &str, created: i64, written: Option<i64>) -> Trace {
        let ago = |seconds: i64| Timestamp::from_second(1_000_000 - seconds).unwrap();
        Trace { job: job.to_owned(), created: Some(ago(created)), written: written.map(ago) }
    }

    fn found(operators: &[Operator], unseen: Option<&str>, traces: &[Trace]) -> Finding {
        let operators = Operators { found: operators.to_vec(), unseen: unseen.map(str::to_owned) };
        let now = Timestamp::from_second(1_000_000).unwrap();
        served("team", &operators, &Seen::Found(traces.to_vec()), now)
    }

    #[test]
    fn the_configuration_is_that_of_the_deployment() {
        let env = json!([
            {"name": "PAWL_NAMESPACES", "value": "team,other"}, {"name": "PAWL_TRAINER_IMAGE", "value": "trainer:7"},
            {"name": "PAWL_CLAIM_CLASS", "value": "fast"}, {"name": "PAWL_CLAIM_ACCESS_MODE", "value": ""},
            {"name": "PAWL_POLICY", "value": "{\"allowedSecrets\": [\"s3\"]}"},
            {"name": "PAWL_CONCURRENCY", "value": "9"},
            {"name": "PAWL_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]);
        let operator = deployment("pawl-system", env, 1);
        let config = operator.config.clone().unwrap();
        assert_eq!(
            (config.images.trainer.as_str(), config.concurrency),
            ("trainer:7", 4),
            "a flag goes before its variable"
        );
        assert_eq!((config.storage.claim.class.as_deref(), config.storage.claim.access_mode), (Some("fast"), None));
        assert_eq!(config.policy.allowed_secrets, ["s3"]);
        assert!(operator.watches("team") && !operator.watches("elsewhere"));
        assert_eq!(operator.user, "system:serviceaccount:pawl-system:pawl");
        let newer = deployment("pawl-system", json!([{"name": "PAWL_DEFAULT_STORAGE", "value": "Tape"}]), 1);
        assert!(newer.config.unwrap_err().contains("Tape"));
    }

    #[test]
    fn the_deployment_of_the_chart_is_found() {
        let templates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/pawl/templates");
        let read = |name: &str| std::fs::read_to_string(templates.join(name)).unwrap();
        assert!(read("_names.tpl").contains(&SELECTOR.replace('=', ": ")));
        assert!(read("deployment.yaml").contains(&format!("- name: {CONTAINER}\n")));
    }

    #[test]
    fn one_operator_that_is_ready_is_needed() {
        assert_eq!(found(&[watching("a", "")], None, &[]).result, CheckResult::Ok);
        assert_eq!(found(&[watching("a", "x,team"), watching("b", "y")], None, &[]).result, CheckResult::Ok);
        let down = found(&[deployment("a", json!([]), 0)], None, &[]);
        assert!(down.result == CheckResult::Problem && down.message.contains("no ready replica"), "{down:?}");
        let two = found(&[watching("a", ""), watching("b", "team")], None, &[]);
        assert!(
            two.result == CheckResult::Problem && two.message.contains("a/pawl-operator, b/pawl-operator"),
            "{two:?}"
        );
        let none = found(&[watching("b", "y")], None, &[]);
        assert!(
            none.result == CheckResult::Problem && none.message.contains("none watches namespace \"team\""),
            "{none:?}"
        );
        let nothing = found(&[], None, &[]);
        assert!(nothing.result == CheckResult::Problem && nothing.message.contains(SELECTOR), "{nothing:?}");
    }

    #[test]
    fn without_the_right_to_look_the_jobs_of_the_namespace_tell() {
        let blind = Some("you may not list deployments.apps");
        let unknown = found(&[], blind, &[]);
        assert!(unknown.result == CheckResult::Unknown && unknown.message.contains("you may not list"), "{unknown:?}");
        assert_eq!(found(&[], blind, &[trace("old", 90_000, Some(80_000))]).result, CheckResult::Unknown);
        assert_eq!(found(&[], blind, &[trace("runs", 90_000, Some(30))]).result, CheckResult::Ok);
        let waits = found(&[], blind, &[trace("old", 90_000, Some(80_000)), trace("waits", 300, None)]);
        assert!(
            waits.result == CheckResult::Problem && waits.message.contains("waits has had no status for 5 min"),
            "{waits:?}"
        );
        assert_eq!(found(&[], blind, &[trace("new", 10, None)]).result, CheckResult::Unknown, "it may be next");
        // An operator that no chart has installed.
        assert_eq!(found(&[], None, &[trace("runs", 90_000, Some(30))]).result, CheckResult::Ok);
    }

    #[test]
    fn an_operator_without_rights_in_the_namespace_is_a_problem() {
        let operator = watching("a", "team");
        let allowed = |create| Seen::Found(vec![("list trainingjobs.pawl.dev", true), ("create jobs.batch", create)]);
        assert_eq!(rights("team", &operator, &allowed(true)), None);
        let missing = rights("team", &operator, &allowed(false)).unwrap();
        assert!(missing.message.contains("may not create jobs.batch"), "{missing:?}");
        let unseen = rights("team", &operator, &Seen::Unseen("you may not".to_owned())).unwrap();
        assert_eq!(unseen.result, CheckResult::Unknown);
    }
}
