//! What the pod template of a job may refer to.
//!
//! The operator creates pods with its own rights. Without a policy, whoever may create a `TrainingJob` could read every
//! Secret of the namespace, run under every service account, mount the node's file system and preempt other workloads.
//! These references are therefore denied unless the administrator allows them by name.

use crate::TrainingJob;
use crate::spec::{COMMON_VOLUME_TYPES, InitContainer, PodSecurity, PodTemplate};
use crate::validate::{Problem, quoted};
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Volume, VolumeProjection};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// References that pod templates may contain. The default allows none.
///
/// An entry of a list of names is a name, `namespace/name`, `namespace/*`, or `*`.
///
/// ```
/// use pawl_api::Policy;
///
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy", "namespace": "team"},
///     "spec": {
///         "workload": {"name": "ups"},
///         "trainer": {"podTemplate": {"priorityClassName": "high"}},
///     },
/// }))?;
/// let problems = Policy::default().problems(&job);
/// assert_eq!(problems[0].field, "spec.trainer.podTemplate.priorityClassName");
/// let policy: Policy = r#"{"allowedPriorityClasses": ["team/high"]}"#.parse()?;
/// assert!(policy.problems(&job).is_empty());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Policy {
    /// Secrets that environment variables and volumes of pods may refer to, those of init containers included.
    pub allowed_secrets: Vec<String>,
    /// Secrets that may be used only to pull the image. Those of `allowed_secrets` may be used too.
    pub allowed_image_pull_secrets: Vec<String>,
    /// Service accounts; `default` is always allowed.
    pub allowed_service_accounts: Vec<String>,
    /// Priority classes.
    pub allowed_priority_classes: Vec<String>,
    /// Runtime classes.
    pub allowed_runtime_classes: Vec<String>,
    /// Paths on the node that `hostPath` volumes may mount, with everything below them; `/` allows every path.
    pub allowed_host_paths: Vec<String>,
    /// Types of volumes besides `persistentVolumeClaim`, `configMap`, `emptyDir`, `ephemeral` and `csi`:
    /// [`VOLUME_TYPES`](crate::spec::VOLUME_TYPES).
    pub allowed_volume_types: Vec<String>,
    /// User and group ids that `securityContext` may set.
    pub allowed_ids: Vec<IdRange>,
}

/// A range of user and group ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRange {
    /// Smallest id.
    pub min: i64,
    /// Largest id.
    pub max: i64,
}

impl FromStr for Policy {
    type Err = serde_json::Error;

    /// Reads a policy in JSON.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text)
    }
}

/// Where the pod template is.
const AT: &str = "spec.trainer.podTemplate";
/// Annotations that would replace the AppArmor profile of a container.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

impl Policy {
    /// The references of `job` that this policy does not allow, each with its field, value and remedy.
    pub fn problems(&self, job: &TrainingJob) -> Vec<Problem> {
        let namespace = job.metadata.namespace.as_deref().unwrap_or("default");
        let mut check = Check { policy: self, namespace, problems: Vec::new() };
        check.pod(&job.spec.trainer.pod_template);
        check.problems
    }
}

struct Check<'a> {
    policy: &'a Policy,
    namespace: &'a str,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn pod(&mut self, pod: &PodTemplate) {
        let policy = self.policy;
        // Without `..`: a new field needs a decision here, and in the checks of the chart's admission policy.
        let PodTemplate {
            env,
            env_from,
            init_containers,
            volumes,
            image_pull_secrets,
            service_account_name,
            priority_class_name,
            runtime_class_name,
            security_context,
            annotations,
            labels: _,
            node_selector: _,
            tolerations: _,
            affinity: _,
            topology_spread_constraints: _,
            resources: _,
            // Claims of the namespace, as those for volumes.
            resource_claims: _,
            image_pull_policy: _,
            volume_mounts: _,
            scheduler_name: _,
            shared_memory: _,
        } = pod;
        self.variables("", env, env_from);
        for (i, container) in init_containers.iter().enumerate() {
            self.init_container(&format!("initContainers[{i}]."), container);
        }
        for (i, volume) in volumes.iter().enumerate() {
            self.volume(&format!("volumes[{i}]"), volume, service_account_name.as_deref());
        }
        for (i, secret) in image_pull_secrets.iter().enumerate() {
            let lists = [&policy.allowed_image_pull_secrets, &policy.allowed_secrets];
            let field = format!("imagePullSecrets[{i}].name");
            self.named(field, Some(&secret.name), &lists, "allowedImagePullSecrets");
        }
        let account = service_account_name.as_deref().filter(|name| *name != "default");
        let accounts = &policy.allowed_service_accounts;
        self.named("serviceAccountName", account, &[accounts], "allowedServiceAccounts");
        let (priority, runtime) = (priority_class_name.as_deref(), runtime_class_name.as_deref());
        self.named("priorityClassName", priority, &[&policy.allowed_priority_classes], "allowedPriorityClasses");
        self.named("runtimeClassName", runtime, &[&policy.allowed_runtime_classes], "allowedRuntimeClasses");
        self.ids(security_context.as_ref());
        for name in annotations.keys().filter(|name| name.starts_with(APPARMOR)) {
            let field = format!("{AT}.annotations");
            self.problems.push(Problem::new(field, quoted(name), "would replace the AppArmor profile", "remove it"));
        }
    }

    /// A container besides the trainer's: the security context and the volumes are those of the pod.
    fn init_container(&mut self, at: &str, container: &InitContainer) {
        // Without `..`: see above.
        let InitContainer {
            env,
            env_from,
            name: _,
            image: _,
            image_pull_policy: _,
            restart_policy: _,
            command: _,
            args: _,
            working_dir: _,
            resources: _,
            volume_mounts: _,
        } = container;
        self.variables(at, env, env_from);
    }

    /// The environment of the container whose fields are at `at`.
    fn variables(&mut self, at: &str, env: &[EnvVar], env_from: &[EnvFromSource]) {
        for (i, variable) in env.iter().enumerate() {
            let secret = variable.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref());
            let field = format!("{at}env[{i}].valueFrom.secretKeyRef.name");
            self.secret(field, secret.map(|secret| secret.name.as_str()));
        }
        for (i, source) in env_from.iter().enumerate() {
            let secret = source.secret_ref.as_ref().map(|secret| secret.name.as_str());
            self.secret(format!("{at}envFrom[{i}].secretRef.name"), secret);
        }
    }

    fn volume(&mut self, at: &str, volume: &Volume, account: Option<&str>) {
        let policy = self.policy;
        self.secret(
            format!("{at}.secret.secretName"),
            volume.secret.as_ref().map(|s| s.secret_name.as_deref().unwrap_or_default()),
        );
        let published = volume.csi.as_ref().and_then(|csi| csi.node_publish_secret_ref.as_ref());
        self.secret(format!("{at}.csi.nodePublishSecretRef.name"), published.map(|secret| secret.name.as_str()));
        if let Some(host) = &volume.host_path
            && !policy.allowed_host_paths.iter().any(|allowed| is_below(&host.path, allowed))
        {
            self.deny(&format!("{at}.hostPath.path"), quoted(&host.path), "allowedHostPaths");
        }
        let other = other_type(volume);
        if let Some(other) = other.filter(|other| !policy.allowed_volume_types.iter().any(|allowed| allowed == other)) {
            let message = "is a type of volume that is not allowed by the policy of the operator";
            let remedy = "use persistentVolumeClaim, configMap, emptyDir, ephemeral or csi, or ask the administrator to add it to \
                          policy.allowedVolumeTypes of the chart";
            self.problems.push(Problem::new(format!("{AT}.{at}.{other}"), "", message, remedy));
        }
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
        for (j, source) in sources.into_iter().flatten().enumerate() {
            self.projection(&format!("{at}.projected.sources[{j}]"), source, account);
        }
    }

    fn projection(&mut self, at: &str, source: &VolumeProjection, account: Option<&str>) {
        self.secret(format!("{at}.secret.name"), source.secret.as_ref().map(|secret| secret.name.as_str()));
        // That of a named account is checked by its name.
        if source.service_account_token.is_some() && account.is_none_or(|name| name == "default") {
            let message = "is a token of the default service account";
            let remedy =
                "set serviceAccountName to an account in policy.allowedServiceAccounts of the chart, or remove it";
            self.problems.push(Problem::new(format!("{AT}.{at}.serviceAccountToken"), "", message, remedy));
        }
    }

    fn secret(&mut self, field: String, name: Option<&str>) {
        let policy = self.policy;
        self.named(field, name, &[&policy.allowed_secrets], "allowedSecrets");
    }

    fn named(&mut self, field: impl AsRef<str>, name: Option<&str>, lists: &[&Vec<String>], list: &str) {
        let Some(name) = name else { return };
        let allowed = |entry: &String| match entry.split_once('/') {
            None => entry == "*" || entry == name,
            Some((namespace, entry)) => namespace == self.namespace && (entry == "*" || entry == name),
        };
        if !lists.iter().any(|entries| entries.iter().any(allowed)) {
            self.deny(field.as_ref(), quoted(name), list);
        }
    }

    fn ids(&mut self, security: Option<&PodSecurity>) {
        let Some(security) = security else { return };
        let one = [
            ("runAsUser", security.run_as_user),
            ("runAsGroup", security.run_as_group),
            ("fsGroup", security.fs_group),
        ];
        let one = one.into_iter().filter_map(|(field, id)| Some((field.to_owned(), id?)));
        let groups = security.supplemental_groups.iter().enumerate();
        let groups = groups.map(|(i, id)| (format!("supplementalGroups[{i}]"), *id));
        for (field, id) in one.chain(groups) {
            if !self.policy.allowed_ids.iter().any(|range| (range.min..=range.max).contains(&id)) {
                self.deny(&format!("securityContext.{field}"), id.to_string(), "allowedIds");
            }
        }
    }

    fn deny(&mut self, field: &str, value: String, list: &str) {
        let message = "is not allowed by the policy of the operator";
        let remedy = format!("remove it, or ask the administrator to add it to policy.{list} of the chart");
        self.problems.push(Problem::new(format!("{AT}.{field}"), value, message, remedy));
    }
}

/// The type of a volume that no list of names covers; `None` for the types that are always allowed, and for those whose
/// names are checked.
fn other_type(volume: &Volume) -> Option<String> {
    let fields = serde_json::to_value(volume).ok()?;
    let mut fields = fields.as_object()?.keys();
    fields.find(|field| *field != "name" && !COMMON_VOLUME_TYPES.contains(&field.as_str())).cloned()
}

/// Whether `path` is `allowed` or below it.
fn is_below(path: &str, allowed: &str) -> bool {
    let rest = path.strip_prefix(allowed.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) && !path.split('/').any(|part| part == "..")
}
