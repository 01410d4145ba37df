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
/// `spec.managedBy` of a batch Job that Kueue runs in another cluster.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
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
/// Name of the file with the token; its key in a Secret that an earlier version made.
pub const TOKEN_KEY: &str = "token";
/// The Job controller's label on a pod: name of its batch Job.
pub const BATCH_JOB: &str = "batch.kubernetes.io/job-name";
/// The Job controller's label on a pod: uid of its batch Job.
pub const BATCH_JOB_UID: &str = "batch.kubernetes.io/controller-uid";
/// The Job controller's label on a pod: its index in the gang.
pub const BATCH_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Digits of the mark of a Secret with tokens: nobody can guess it.
pub const TOKEN_MARK: usize = 16;

/// A Secret with tokens of gangs. A name of its own, with a random mark: nobody can foresee it, and no pod template
/// mounts it by accident. It is known as soon as a batch Job names it: whoever may read Jobs and create Secrets in the
/// namespace, and is faster than the operator, chooses the tokens of gangs that have yet to read theirs. It cannot be
/// created before: an operator that died after that would create another one each time, as it cannot list Secrets.
pub fn token_secret(mark: &str) -> String {
    format!("pawl-tokens-{mark}")
}

/// Whether a Secret of this name has tokens of several gangs.
pub fn is_shared_token_secret(name: &str) -> bool {
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    name.strip_prefix("pawl-tokens-").is_some_and(|mark| mark.len() == TOKEN_MARK && mark.bytes().all(is_digit))
}

/// Whether a Secret of this name may have the token of a gang of the attempt: with others, or alone, as earlier
/// versions made it.
pub fn is_token_secret(name: &str, attempt: &str) -> bool {
    let mark = name.strip_prefix("pawl-token-").and_then(|rest| rest.strip_prefix(attempt));
    is_shared_token_secret(name) || mark.is_some_and(|mark| mark.is_empty() || mark.starts_with('-'))
}
