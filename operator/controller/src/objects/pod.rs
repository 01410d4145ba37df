//! The pods of an attempt: the `restricted` Pod Security Standard, and the job's pod template.

use super::companions::carries_plan;
use super::{Blueprint, PodDefaults, annotations, container, labels, some, volumes};
use crate::names;
use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, NodeSelectorRequirement, NodeSelectorTerm, PodResourceClaim, PodSecurityContext,
    PodSpec, PodTemplateSpec, PreferredSchedulingTerm, SeccompProfile, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use pawl_api::TrainingJob;
use pawl_api::spec::PodSecurity;
use pawl_contract::pod;
use std::collections::BTreeMap;

/// The template of an attempt's pods.
pub(super) fn template(blueprint: &Blueprint<'_>) -> PodTemplateSpec {
    let wanted = &blueprint.job.spec.trainer.pod_template;
    let defaults = blueprint.pods;
    let mut all_labels = defaults.labels.clone();
    all_labels.extend(wanted.labels.clone());
    all_labels.extend(labels(&blueprint.job.name_any(), blueprint.name()));
    let mut all_annotations = unmoved(blueprint.job);
    all_annotations.extend(defaults.annotations.clone());
    all_annotations.extend(wanted.annotations.clone());
    // What an attempt runs is read from here: it is immutable once pods may be created.
    all_annotations.extend(annotations(blueprint.job, blueprint.plan_hash));
    all_annotations.insert(names::TEMPLATE_HASH.to_owned(), blueprint.template_hash());
    all_annotations.extend(carries_plan(blueprint).map(|plan| (names::PLAN.to_owned(), plan)));
    let metadata = ObjectMeta { labels: Some(all_labels), annotations: Some(all_annotations), ..ObjectMeta::default() };
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec(blueprint)) }
}

/// Keeps autoscalers from moving pods with GPUs in order to save a node: what they measured is lost with them.
fn unmoved(job: &TrainingJob) -> BTreeMap<String, String> {
    let annotations =
        [("karpenter.sh/do-not-disrupt", "true"), ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")];
    let pairs = annotations.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pairs.into_iter().filter(|_| job.spec.trainer.gpus_per_replica > 0).collect()
}

/// The items of the job, and those defaults that none of them replaces.
fn joined<T: Clone>(own: &[T], defaults: &[T], replaces: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let others = defaults.iter().filter(|default| !own.iter().any(|item| replaces(item, default)));
    own.iter().chain(others).cloned().collect()
}

/// The secrets for pulling images: those of the job and of the administrator.
pub(super) fn image_pull_secrets(job: &TrainingJob, defaults: &PodDefaults) -> Option<Vec<LocalObjectReference>> {
    let own = &job.spec.trainer.pod_template.image_pull_secrets;
    some(&joined(own, &defaults.image_pull_secrets, |a, b| a.name == b.name))
}

/// The tolerations of the job and of the administrator, and one for the taint that keeps pods without GPUs off the
/// nodes with GPUs: its key is the resource. Some clusters add it by themselves (the admission plugin
/// `ExtendedResourceToleration`).
pub(super) fn tolerations(job: &TrainingJob, defaults: &PodDefaults) -> Option<Vec<Toleration>> {
    let trainer = &job.spec.trainer;
    let own = (trainer.gpus_per_replica > 0 && trainer.gpu_claim().is_none()).then(|| Toleration {
        key: Some(trainer.gpu_resource.clone()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    // A taint is a key with an effect: tolerating another effect of the same key replaces nothing.
    let same = |a: &Toleration, b: &Toleration| (&a.key, &a.effect) == (&b.key, &b.effect);
    let mut all = joined(&trainer.pod_template.tolerations, &defaults.tolerations, same);
    all.extend(own.filter(|own| !all.contains(own)));
    some(&all)
}

/// The node labels that the job requires, and those of the administrator with other keys.
fn node_selector(job: &TrainingJob, defaults: &PodDefaults) -> Option<BTreeMap<String, String>> {
    let mut all = defaults.node_selector.clone();
    all.extend(job.spec.trainer.pod_template.node_selector.clone());
    some(&all)
}

/// Weight of the preference for other nodes: the largest.
const AVOID: i32 = 100;

/// The affinity of the job, and a preference for nodes that are not avoided, by their names.
fn affinity(wanted: Option<Affinity>, avoided: &[String]) -> Option<Affinity> {
    if avoided.is_empty() {
        return wanted;
    }
    // The API server wants one value in each of them.
    let others = avoided.iter().map(|node| NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node.clone()]),
    });
    let preference = NodeSelectorTerm { match_fields: Some(others.collect()), match_expressions: None };
    let mut affinity = wanted.unwrap_or_default();
    let nodes = affinity.node_affinity.get_or_insert_default();
    let preferred = nodes.preferred_during_scheduling_ignored_during_execution.get_or_insert_default();
    preferred.push(PreferredSchedulingTerm { preference, weight: AVOID });
    Some(affinity)
}

/// The claims of the job's pod template; in pods without GPUs, such as a preflight's, without that of the GPUs.
fn resource_claims(blueprint: &Blueprint<'_>) -> Option<Vec<PodResourceClaim>> {
    let trainer = &blueprint.job.spec.trainer;
    let mut claims = trainer.pod_template.resource_claims.clone();
    claims.retain(|claim| blueprint.plan.gpus_per_replica > 0 || claim.name != trainer.gpu_resource);
    some(&claims)
}

fn spec(blueprint: &Blueprint<'_>) -> PodSpec {
    let (wanted, defaults) = (&blueprint.job.spec.trainer.pod_template, blueprint.pods);
    // What the agent gives its ranks, and what it takes to report how they ended.
    let grace = blueprint.stop_grace_seconds() + pod::REPORT_SECONDS;
    PodSpec {
        init_containers: container::init_containers(blueprint),
        containers: vec![container::trainer(blueprint)],
        volumes: Some(volumes::volumes(blueprint)),
        resource_claims: resource_claims(blueprint),
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: i64::try_from(grace).ok(),
        subdomain: blueprint.is_gang().then(|| names::SERVICE.to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(security(blueprint.job, defaults)),
        node_selector: node_selector(blueprint.job, defaults),
        tolerations: tolerations(blueprint.job, defaults),
        affinity: affinity(wanted.affinity.clone(), blueprint.avoided),
        topology_spread_constraints: some(&wanted.topology_spread_constraints),
        service_account_name: wanted.service_account_name.clone(),
        priority_class_name: wanted.priority_class_name.clone().or_else(|| defaults.priority_class_name.clone()),
        scheduler_name: wanted.scheduler_name.clone(),
        runtime_class_name: wanted.runtime_class_name.clone().or_else(|| defaults.runtime_class_name.clone()),
        image_pull_secrets: image_pull_secrets(blueprint.job, defaults),
        ..PodSpec::default()
    }
}

/// The `restricted` standard, with the ids of the job, or else those that the administrator sets.
pub(super) fn security(job: &TrainingJob, defaults: &PodDefaults) -> PodSecurityContext {
    let (given, defaults) = (&job.spec.trainer.pod_template.security_context, &defaults.security_context);
    let id = |of: fn(&PodSecurity) -> Option<i64>| given.as_ref().and_then(of).or_else(|| of(defaults));
    let groups = given.as_ref().map(|given| &given.supplemental_groups).filter(|groups| !groups.is_empty());
    let fs_group = id(|ids| ids.fs_group);
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: id(|ids| ids.run_as_user),
        run_as_group: id(|ids| ids.run_as_group),
        fs_group,
        fs_group_change_policy: fs_group.map(|_| "OnRootMismatch".to_owned()),
        supplemental_groups: some(groups.unwrap_or(&defaults.supplemental_groups)),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}
