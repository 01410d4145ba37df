//! Names, labels and annotations of owned objects, in one place.

/// Field manager of every write.
pub const FIELD_MANAGER: &str = "pawl";
/// Label: what the object is. Its value is [`TRAINER_NAME`].
pub const NAME: &str = "app.kubernetes.io/name";
/// Value of [`NAME`].
pub const TRAINER_NAME: &str = "pawl-trainer";
/// Label: who manages the object. Its value is [`MANAGER`]; the operator watches only objects with it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGER: &str = "pawl";
/// The label selector of everything that the operator makes.
pub const SELECTOR: &str = "app.kubernetes.io/managed-by=pawl";
/// Label: the `TrainingJob`.
pub const JOB: &str = "pawl.dev/job";
/// Label: the attempt, `<job>-<number>`.
pub const ATTEMPT: &str = "pawl.dev/attempt";
/// Annotation of the batch Job and of its pods: hash of the plan that the attempt runs.
pub const PLAN_HASH: &str = "pawl.dev/plan-hash";
/// Annotation of the batch Job and of its pods: uid of its `TrainingJob`. It distinguishes jobs of one name, also when
/// the owner reference was removed.
pub const JOB_UID: &str = "pawl.dev/job-uid";
/// Annotation of a gang's pods: hash of what their template was made from, without the plan.
pub const TEMPLATE_HASH: &str = "pawl.dev/template-hash";
/// Annotation of a gang's pods: the plan, where it fits ([`crate::objects::carries_plan`]); they read it as a file.
pub const PLAN: &str = "pawl.dev/plan";
/// Labels of a `TrainingJob` that its batch Jobs have as well: Kueue's.
pub const KUEUE: &str = "kueue.x-k8s.io/";
pub use pawl_decision::observed::QUEUE;
/// The headless Service of a namespace: the first pod of a gang is found by its hostname and this subdomain.
pub const SERVICE: &str = "pawl-trainers";
/// The container in which the agent and its ranks run.
pub const CONTAINER: &str = "trainer";
/// The init container that brings the agent into a foreign image.
pub const AGENT_CONTAINER: &str = "agent";
/// Volume with the plan, in a gang's pods.
pub const PLAN_VOLUME: &str = "pawl-plan";
/// Volume with the token, in a gang's pods.
pub const TOKEN_VOLUME: &str = "pawl-token";
/// Key of the plan in the attempt's ConfigMap, and name of its file.
pub const PLAN_KEY: &str = "plan.json";
/// Key of the token in the gang's Secret.
pub const TOKEN_KEY: &str = "token";
/// The Job controller's label on a pod: name of its batch Job.
pub const BATCH_JOB: &str = "batch.kubernetes.io/job-name";
/// The Job controller's label on a pod: uid of its batch Job.
pub const BATCH_JOB_UID: &str = "batch.kubernetes.io/controller-uid";
/// The Job controller's label on a pod: its index in the gang.
pub const BATCH_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The Secret with the token of a gang. A name of its own: a job whose attempts have the names of Secrets of others
/// would mount them. `mark` is another one for each batch Job of the attempt: one that is created again does not find
/// the Secret of the one before, which the operator could neither read nor tell from its own.
pub fn token_secret(attempt: &str, mark: &str) -> String {
    format!("pawl-token-{attempt}-{mark}")
}

/// Whether a Secret of this name is one with the token of a gang of the attempt, also of an earlier version.
pub fn is_token_secret(name: &str, attempt: &str) -> bool {
    let mark = name.strip_prefix("pawl-token-").and_then(|rest| rest.strip_prefix(attempt));
    mark.is_some_and(|mark| mark.is_empty() || mark.starts_with('-'))
}
