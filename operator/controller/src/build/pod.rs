//! The pods of an attempt: the `restricted` Pod Security Standard, and the job's pod template.

use super::{Blueprint, annotations, container, labels, volumes};
use crate::names;
use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, PodTemplateSpec, SeccompProfile};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use pawl_contract::plan::LaunchKind;
use pawl_contract::pod;

/// User and group of the trainer: the customary `nonroot`.
pub(super) const USER: i64 = 65532;
/// From SIGTERM to SIGKILL when a checkpoint is to be written, seconds: what the agent gives its ranks, and what it takes
/// to report how they ended.
const CHECKPOINT_GRACE: u64 = pod::CHECKPOINT_GRACE_SECONDS + pod::REPORT_SECONDS;
/// From SIGTERM to SIGKILL otherwise, seconds.
const GRACE: u64 = pod::STOP_GRACE_SECONDS + pod::REPORT_SECONDS;

/// The template of an attempt's pods.
pub(super) fn template(blueprint: &Blueprint<'_>) -> PodTemplateSpec {
    let wanted = &blueprint.job.spec.trainer.pod_template;
    let mut all_labels = wanted.labels.clone();
    all_labels.extend(labels(&blueprint.job.name_any(), blueprint.name()));
    let mut all_annotations = wanted.annotations.clone();
    // What an attempt runs is read from here: it is immutable once pods may be created.
    all_annotations.extend(annotations(blueprint.job, blueprint.plan_hash));
    let metadata = ObjectMeta { labels: Some(all_labels), annotations: Some(all_annotations), ..ObjectMeta::default() };
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec(blueprint)) }
}

fn spec(blueprint: &Blueprint<'_>) -> PodSpec {
    let wanted = &blueprint.job.spec.trainer.pod_template;
    let trains = blueprint.plan.launches.iter().any(|launch| launch.kind == LaunchKind::Train);
    PodSpec {
        init_containers: container::installer(blueprint).map(|container| vec![container]),
        containers: vec![container::trainer(blueprint)],
        volumes: Some(volumes::volumes(blueprint)),
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: i64::try_from(if trains { CHECKPOINT_GRACE } else { GRACE }).ok(),
        subdomain: blueprint.is_gang().then(|| names::SERVICE.to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        node_selector: some(&wanted.node_selector),
        tolerations: some(&wanted.tolerations),
        affinity: wanted.affinity.clone(),
        topology_spread_constraints: some(&wanted.topology_spread_constraints),
        service_account_name: wanted.service_account_name.clone(),
        priority_class_name: wanted.priority_class_name.clone(),
        scheduler_name: wanted.scheduler_name.clone(),
        runtime_class_name: wanted.runtime_class_name.clone(),
        image_pull_secrets: some(&wanted.image_pull_secrets),
        ..PodSpec::default()
    }
}

/// A list or map, unless it is empty.
fn some<T: Clone + Default + PartialEq>(value: &T) -> Option<T> {
    (*value != T::default()).then(|| value.clone())
}
