mod claims;
mod companions;
mod containers;
mod template;

use super::*;
use crate::facts::{GangFacts, PlanFacts};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec, Toleration, VolumeMount};
use kube::ResourceExt;
use pawl_api::spec::PodSecurity;
use pawl_api::status::{AttemptStatus, Purpose};
use pawl_rendezvous::Token;
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const GANG_UID: &str = "gang-uid";
const TOKEN: &str = "pawl-tokens-0123456789abcdef";

/// A job of two pods with one GPU each, changed, and its first attempt.
struct Made {
    job: TrainingJob,
    plan: AttemptPlan,
    images: Images,
    storage: StorageConfig,
    pods: PodDefaults,
    token: TokenRef,
}

impl Made {
    fn new(change: impl FnOnce(&mut Value)) -> Self {
        let mut job = json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "toy", "namespace": "team", "uid": "job-uid"},
            "spec": {"workload": {"name": "ups"}, "trainer": {"replicas": 2, "gpusPerReplica": 1}},
        });
        change(&mut job);
        let job: TrainingJob = serde_json::from_value(job).unwrap();
        let trainer = &job.spec.trainer;
        let plan = json!({
            "contract": 1, "job": "toy", "attempt": "toy-3", "replicas": trainer.replicas,
            "ranksPerReplica": trainer.gpus_per_replica.max(1), "gpusPerReplica": trainer.gpus_per_replica,
            "launches": [], "stopOnFailure": false,
        });
        let images = Images { trainer: "trainer:1".to_owned(), agent: "pawl:1".to_owned() };
        let (pods, storage) = (PodDefaults::default(), StorageConfig::default());
        let token = TokenRef { secret: TOKEN.to_owned(), key: "7".to_owned() };
        Self { plan: serde_json::from_value(plan).unwrap(), job, images, pods, storage, token }
    }

    fn blueprint(&self) -> Blueprint<'_> {
        let Self { job, plan, images, pods, storage, token } = self;
        let (plan_hash, token) = ("hash", (plan.replicas > 1).then_some(token));
        Blueprint { job, plan, plan_hash, token, images, pods, storage, avoided: &[], record: None }
    }

    fn gang(&self) -> Job {
        gang(&self.blueprint())
    }

    fn pod(&self) -> PodSpec {
        self.gang().spec.unwrap().template.spec.unwrap()
    }

    fn trainer(&self) -> Container {
        self.pod().containers.remove(0)
    }
}

fn variable(container: &Container, name: &str) -> Option<String> {
    let mut all = container.env.iter().flatten();
    // Kubernetes takes the last one of a name.
    all.rfind(|variable| variable.name == name).and_then(|variable| variable.value.clone())
}

fn mount<'a>(container: &'a Container, path: &str) -> Vec<&'a VolumeMount> {
    container.volume_mounts.iter().flatten().filter(|mount| mount.mount_path == path).collect()
}

#[test]
fn ranks_get_time_for_their_slowest_checkpoint_and_the_pod_gets_more() {
    let grace = |lifecycle: Value, status: Value| {
        let mut made = Made::new(|job| (job["spec"]["lifecycle"], job["status"]) = (lifecycle, status));
        made.plan.launches = vec![launch("Train")];
        let ranks = variable(&made.trainer(), "PAWL_STOP_GRACE_SECONDS").unwrap();
        (ranks, made.pod().termination_grace_period_seconds.unwrap())
    };
    assert_eq!(grace(json!({}), json!(null)), ("60".to_owned(), 75));
    let slow = json!({"training": {"stopSeconds": 300}});
    assert_eq!(grace(json!({}), slow.clone()), ("300".to_owned(), 315));
    assert_eq!(grace(json!({"checkpointGrace": "2m"}), slow), ("120".to_owned(), 135));
    assert_eq!(variable(&Made::new(|_| {}).trainer(), "PAWL_STOP_GRACE_SECONDS").unwrap(), "15");
}

#[test]
fn what_is_built_is_found_to_be_intact_and_the_jobs_own() {
    let made = Made::new(|_| {});
    let mut there = made.gang();
    there.metadata.uid = Some(GANG_UID.to_owned());
    let facts = GangFacts::new(&serde_json::from_value(json!(there)).unwrap()).unwrap();
    assert!(facts.intact, "{facts:?}");
    let read = (facts.job_uid.as_str(), facts.plan_hash.as_str(), facts.replicas, facts.suspended);
    assert_eq!(read, ("job-uid", "hash", 2, false));
    assert_eq!((facts.carries_plan, facts.token_secret.as_deref()), (true, Some(TOKEN)));
    let mounting = |volumes: Value| {
        let mut there = json!(there);
        there["spec"]["template"]["spec"]["volumes"] = volumes;
        let facts = GangFacts::new(&serde_json::from_value(there).unwrap()).unwrap();
        (facts.carries_plan, facts.token_secret)
    };
    let secret = |name: &str| json!({"name": "pawl-token", "secret": {"secretName": name}});
    let earlier = json!([{"name": "pawl-plan", "configMap": {"name": "toy-3"}}, secret("pawl-token-toy-3")]);
    assert_eq!(mounting(earlier), (false, Some("pawl-token-toy-3".to_owned())), "an earlier version made it");
    // The operator creates no Secret of another name.
    for name in ["db", "pawl-token-toy-30", "pawl-token-toy", "pawl-tokens-db", "pawl-tokens-"] {
        assert_eq!(mounting(json!([secret(name)])), (false, None), "{name}");
    }
    let plan = PlanFacts::new(&plan(&made.blueprint(), GANG_UID).unwrap().metadata);
    assert_eq!(plan, PlanFacts { uid: String::new(), gang_uid: GANG_UID.to_owned(), intact: true });
}

#[test]
fn a_repair_says_what_was_built() {
    let made = Made::new(|job| job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "q"}));
    let under_way = AttemptStatus {
        name: "toy-3".to_owned(),
        plan_hash: "hash".to_owned(),
        purpose: Purpose::Train,
        ..AttemptStatus::default()
    };
    let repair = gang_repair(&made.job, &under_way);
    let gang = made.gang();
    assert_eq!(repair["metadata"], json!(gang.metadata));
    assert_eq!(repair["spec"], json!({"parallelism": 2, "completions": 2}));
    let built = plan(&made.blueprint(), GANG_UID).unwrap().metadata;
    let repair = plan_repair("toy", "toy-3", "u-1", GANG_UID);
    assert_eq!(repair["metadata"]["labels"], json!(built.labels));
    assert_eq!(repair["metadata"]["ownerReferences"], json!(built.owner_references));
}

#[test]
fn the_batch_job_makes_all_pods_at_once_and_never_another() {
    let spec = Made::new(|_| {}).gang().spec.unwrap();
    assert_eq!((spec.completions, spec.parallelism, spec.backoff_limit), (Some(2), Some(2), Some(0)));
    assert_eq!(spec.completion_mode.as_deref(), Some("Indexed"));
    assert_eq!(spec.pod_replacement_policy.as_deref(), Some("Failed"));
    assert!(spec.pod_failure_policy.unwrap().rules.iter().all(|rule| rule.action == "FailJob"));
    assert_eq!(spec.template.spec.unwrap().restart_policy.as_deref(), Some("Never"));
}

#[test]
fn a_plan_without_gpus_asks_for_none() {
    let mut made = Made::new(|_| {});
    let gpus = |made: &Made| made.trainer().resources.unwrap_or_default().limits.unwrap_or_default();
    assert_eq!(gpus(&made)["nvidia.com/gpu"].0, "1");
    (made.plan.replicas, made.plan.gpus_per_replica) = (1, 0);
    assert!(gpus(&made).is_empty());
    assert_eq!(made.gang().spec.unwrap().completions, Some(1));
    assert_eq!(variable(&made.trainer(), "PAWL_AGENT_TOKEN_FILE"), None);
}

#[test]
fn a_queue_gets_the_batch_job_suspended() {
    let queued = Made::new(|job| {
        job["metadata"]["labels"] =
            json!({"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "urgent", "team": "a"});
    });
    let gang = queued.gang();
    assert_eq!(gang.labels()["kueue.x-k8s.io/queue-name"], "q");
    assert_eq!(gang.labels()["kueue.x-k8s.io/priority-class"], "urgent");
    assert!(!gang.labels().contains_key("team"), "labels of the job are not those of its gangs");
    assert_eq!(gang.spec.unwrap().suspend, Some(true));
    assert_eq!(Made::new(|_| {}).gang().spec.unwrap().suspend, None);
}

#[test]
fn a_pod_template_cannot_take_the_place_of_what_pawl_says() {
    let made = Made::new(|job| {
        job["spec"]["trainer"]["podTemplate"] = json!({
            "labels": {"pawl.dev/job": "other", "team": "a"},
            "annotations": {"pawl.dev/plan-hash": "other", "note": "b"},
        });
    });
    let meta = made.gang().spec.unwrap().template.metadata.unwrap();
    let (labels, annotations) = (meta.labels.unwrap(), meta.annotations.unwrap());
    assert_eq!((labels["pawl.dev/job"].as_str(), labels["team"].as_str()), ("toy", "a"));
    assert_eq!((annotations["pawl.dev/plan-hash"].as_str(), annotations["note"].as_str()), ("hash", "b"));
}

#[test]
fn pods_with_gpus_go_to_tainted_nodes_and_are_not_moved() {
    let toleration = |key: &str| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    let made = Made::new(|job| {
        job["spec"]["trainer"]["gpuResource"] = "example.com/gpu".into();
        job["spec"]["trainer"]["podTemplate"] = json!({
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
            "annotations": {"karpenter.sh/do-not-disrupt": "false"},
        });
    });
    assert_eq!(made.pod().tolerations, Some(vec![toleration("spot"), toleration("example.com/gpu")]));
    let annotations = made.gang().spec.unwrap().template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false");
    assert_eq!(annotations["karpenter.sh/do-not-disrupt"], "false", "the job's own");

    let none = Made::new(|job| job["spec"]["trainer"]["gpusPerReplica"] = 0.into());
    assert_eq!(none.pod().tolerations, None);
    let annotations = none.gang().spec.unwrap().template.metadata.unwrap().annotations.unwrap();
    assert!(!annotations.keys().any(|name| name.contains("karpenter") || name.contains("autoscaler")));
}

#[test]
fn all_containers_keep_the_restricted_standard() {
    let foreign = Made::new(|job| job["spec"]["workload"] = json!({"command": ["train"]}));
    let pod = foreign.pod();
    let security = pod.security_context.as_ref().unwrap();
    assert_eq!((security.run_as_non_root, security.run_as_user), (Some(true), Some(65532)));
    assert_eq!(security.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
    assert_eq!(pod.automount_service_account_token, Some(false));
    let containers: Vec<_> = pod.containers.iter().chain(pod.init_containers.iter().flatten()).collect();
    assert_eq!(containers.len(), 2);
    for container in containers {
        let security = container.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false));
        assert_eq!(security.read_only_root_filesystem, Some(true));
        assert_eq!(security.capabilities.as_ref().unwrap().drop, Some(vec!["ALL".to_owned()]));
    }
}

#[test]
fn a_foreign_image_gets_the_agent_and_our_own_has_it() {
    let foreign = Made::new(|job| {
        job["spec"]["workload"] = json!({"command": ["train"]});
        job["spec"]["trainer"]["image"] = "theirs:2".into();
    });
    let installer = foreign.pod().init_containers.unwrap().remove(0);
    assert_eq!(installer.image.as_deref(), Some("pawl:1"));
    let trainer = foreign.trainer();
    assert_eq!(trainer.image.as_deref(), Some("theirs:2"));
    assert_eq!(trainer.command.as_ref().unwrap()[0], "/pawl/bin/pawl");
    // The trainer starts what the other container installed, and cannot change it.
    let (from, to) = (mount(&installer, "/pawl/bin"), mount(&trainer, "/pawl/bin"));
    assert_eq!(from[0].name, to[0].name);
    assert_eq!((from[0].read_only, to[0].read_only), (None, Some(true)));

    let own = Made::new(|_| {});
    assert_eq!(own.pod().init_containers, None);
    assert_eq!(own.trainer().image.as_deref(), Some("trainer:1"));
    assert_eq!(own.trainer().command.unwrap(), ["/bin/pawl", "agent"]);
}

#[test]
fn gpus_come_beside_what_the_template_asks_for() {
    let made = Made::new(|job| {
        job["spec"]["trainer"]["gpuResource"] = "amd.com/gpu".into();
        job["spec"]["trainer"]["gpusPerReplica"] = 4.into();
        job["spec"]["trainer"]["podTemplate"] =
            json!({"resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "2"}}});
    });
    let resources = json!(made.trainer().resources.unwrap());
    let wanted = json!({"limits": {"memory": "1Gi", "amd.com/gpu": "4"}, "requests": {"cpu": "2"}});
    assert_eq!(resources, wanted);
    let none = Made::new(|job| job["spec"]["trainer"]["gpusPerReplica"] = 0.into());
    assert_eq!(none.trainer().resources, None);
}

#[test]
fn only_pods_of_a_gang_find_and_trust_each_other() {
    let pair = Made::new(|_| {});
    assert_eq!(pair.pod().subdomain.as_deref(), Some("pawl-trainers"));
    let trainer = pair.trainer();
    assert_eq!(variable(&trainer, "PAWL_AGENT_ADDRESS").as_deref(), Some("toy-3-0.pawl-trainers.team.svc:9471"));
    assert_eq!(variable(&trainer, "PAWL_AGENT_TOKEN_FILE").as_deref(), Some("/etc/pawl/token/token"));
    assert_eq!(mount(&trainer, "/etc/pawl/token")[0].read_only, Some(true));
    let ports = trainer.ports.unwrap().into_iter().map(|port| port.container_port).collect::<Vec<_>>();
    assert_eq!(ports, [9470, 9471]);

    let single = Made::new(|job| job["spec"]["trainer"]["replicas"] = 1.into());
    assert_eq!(single.pod().subdomain, None);
    assert_eq!(variable(&single.trainer(), "PAWL_AGENT_ADDRESS"), None);
    assert!(mount(&single.trainer(), "/etc/pawl/token").is_empty());
    assert_eq!(single.trainer().ports.unwrap().len(), 1);
}

#[rstest]
#[case::claim("pvc://models", "/pawl/checkpoints/team/toy/job-uid", "models")]
#[case::folder_of_a_claim("pvc://models/a/b/", "/pawl/checkpoints/a/b/team/toy/job-uid", "models")]
#[case::object_store("s3://bucket/run", "s3://bucket/run/team/toy/job-uid", None)]
#[case::mounted_by_the_template("file:///mnt/run", "file:///mnt/run/team/toy/job-uid", None)]
fn checkpoints_go_where_the_job_says(
    #[case] given: &str,
    #[case] location: &str,
    #[case] claim: impl Into<Option<&'static str>>,
) {
    let claim = claim.into();
    let made = Made::new(|job| job["spec"]["train"] = json!({"checkpoint": {"storage": given}}));
    assert_eq!(variable(&made.trainer(), "PAWL_CHECKPOINTS").as_deref(), Some(location));
    let claims: Vec<_> = made.pod().volumes.unwrap().into_iter().filter_map(|v| v.persistent_volume_claim).collect();
    assert_eq!(claims.first().map(|source| source.claim_name.as_str()), claim);
    assert_eq!(mount(&made.trainer(), "/pawl/checkpoints").len(), claims.len());
}

#[rstest]
#[case::claim("pvc://models/team/base/u", "/pawl/resume-from/team/base/u", "models")]
#[case::object_store("s3://bucket/team/base/u", "s3://bucket/team/base/u", None)]
fn the_checkpoints_of_another_job_are_read_only(
    #[case] given: &str,
    #[case] location: &str,
    #[case] claim: impl Into<Option<&'static str>>,
) {
    let claim = claim.into();
    let made = Made::new(|job| job["spec"]["train"] = json!({"resumeFrom": {"storage": given}}));
    assert_eq!(variable(&made.trainer(), "PAWL_RESUME_FROM").as_deref(), Some(location));
    let claims: Vec<_> = made.pod().volumes.unwrap().into_iter().filter_map(|v| v.persistent_volume_claim).collect();
    assert_eq!(claims.first().map(|source| source.claim_name.as_str()), claim);
    let trainer = made.trainer();
    let mounts = mount(&trainer, "/pawl/resume-from");
    assert!(mounts.len() == claims.len() && mounts.iter().all(|mount| mount.read_only == Some(true)));
    assert_eq!(variable(&Made::new(|_| {}).trainer(), "PAWL_RESUME_FROM"), None);
}

/// A job that names no storage, as the operator fills it in; its gang trains.
fn without_storage(change: impl FnOnce(&mut Value)) -> Made {
    let mut made = Made::new(change);
    pawl_decision::storage::fill(&mut made.job, &made.storage.default);
    made.plan.launches = vec![launch("Train")];
    made
}

fn launch(kind: &str) -> pawl_contract::plan::LaunchPlan {
    let plan = json!({
        "contract": 1, "job": "toy", "attempt": "toy-3", "launch": "train", "kind": kind, "seed": 42,
        "workload": {"name": "ups"}, "settings": {}, "budget": {}, "hangTimeoutSeconds": 300,
    });
    serde_json::from_value(plan).unwrap()
}

#[test]
fn a_path_that_the_template_mounts_is_the_jobs_own() {
    let made = Made::new(|job| {
        job["spec"]["trainer"]["podTemplate"] = json!({
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "sets"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/pawl/data/"}],
        });
    });
    let trainer = made.trainer();
    assert!(mount(&trainer, "/pawl/data").is_empty());
    assert_eq!(mount(&trainer, "/pawl/data/")[0].name, "data");
    let volumes: Vec<_> = made.pod().volumes.unwrap().into_iter().map(|volume| volume.name).collect();
    let mounts: BTreeSet<_> = trainer.volume_mounts.unwrap().into_iter().map(|mount| mount.name).collect();
    assert_eq!(volumes.iter().cloned().collect::<BTreeSet<_>>(), mounts, "each volume is mounted, and is there");
    assert_eq!(volumes.len(), mounts.len());
}

#[test]
fn shared_memory_is_memory_of_the_size_that_is_asked_for() {
    let size = |made: &Made| {
        let shared = made.pod().volumes.unwrap().into_iter().find(|volume| volume.name == "pawl-shm").unwrap();
        let directory = shared.empty_dir.unwrap();
        assert_eq!(directory.medium.as_deref(), Some("Memory"));
        directory.size_limit.unwrap().0
    };
    assert_eq!(size(&Made::new(|_| {})), "1Gi");
    let asked = Made::new(|job| job["spec"]["trainer"]["podTemplate"] = json!({"sharedMemory": "8Gi"}));
    assert_eq!(size(&asked), "8Gi");
}

#[test]
fn directories_on_the_disk_of_the_node_are_bounded() {
    let mut made = Made::new(|job| job["spec"]["workload"] = json!({"command": ["train"]}));
    let sizes = |made: &Made| {
        let volumes = made.pod().volumes.unwrap().into_iter();
        let directories = volumes.filter_map(|volume| Some((volume.name, volume.empty_dir?)));
        let sized = directories.map(|(name, directory)| (name, directory.size_limit.map(|size| size.0)));
        sized.collect::<BTreeMap<_, _>>()
    };
    let limited = sizes(&made);
    assert_eq!(limited.len(), 5, "{limited:?}");
    assert!(limited.values().all(Option::is_some), "{limited:?}");
    made.pods = r#"{"emptyDirs": {"work": "7Gi"}}"#.parse().unwrap();
    let chosen = sizes(&made);
    assert_eq!((chosen["pawl-work"].as_deref(), &chosen["pawl-data"]), (Some("7Gi"), &None));
}

#[test]
fn ids_are_those_of_the_job_then_of_the_chart_and_otherwise_left_to_the_cluster() {
    let ids = |made: &Made| {
        let security = made.pod().security_context.unwrap();
        assert_eq!(security.run_as_non_root, Some(true));
        let one = [security.run_as_user, security.run_as_group, security.fs_group];
        (one, security.supplemental_groups.unwrap_or_default(), security.fs_group_change_policy.is_some())
    };
    let mut made = Made::new(|job| {
        job["spec"]["trainer"]["podTemplate"] =
            json!({"securityContext": {"runAsUser": 1001, "supplementalGroups": [5000]}});
    });
    assert_eq!(ids(&made), ([Some(1001), Some(65532), Some(65532)], vec![5000], true));
    made.pods = r#"{"securityContext": {"runAsGroup": 7, "supplementalGroups": [8]}}"#.parse().unwrap();
    assert_eq!(ids(&made), ([Some(1001), Some(7), None], vec![5000], false));
    // OpenShift's restricted-v2 chooses the ids.
    let mut made = Made::new(|_| {});
    made.pods = "{}".parse().unwrap();
    assert_eq!(ids(&made), ([None; 3], vec![], false));
}

#[test]
fn defaults_of_the_chart_join_what_the_job_sets_and_never_replace_it() {
    let fields = |template: Value| {
        let mut made = Made::new(|job| {
            job["spec"]["trainer"]["gpusPerReplica"] = 0.into();
            job["spec"]["trainer"]["podTemplate"] = template;
        });
        let defaults = json!({
            "imagePullSecrets": [{"name": "mirror"}, {"name": "hub"}], "runtimeClassName": "nvidia",
            "priorityClassName": "research", "nodeSelector": {"pool": "gpus", "zone": "a"},
            "tolerations": [{"key": "gpus", "operator": "Exists", "effect": "NoSchedule"},
                            {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        });
        made.pods = defaults.to_string().parse().unwrap();
        let pod = made.pod();
        json!([
            pod.image_pull_secrets,
            pod.runtime_class_name,
            pod.priority_class_name,
            pod.node_selector,
            pod.tolerations
        ])
    };
    let tolerated = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
    let secrets = |names: &[&str]| json!(names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>());
    let alone = json!([
        secrets(&["mirror", "hub"]), "nvidia", "research", {"pool": "gpus", "zone": "a"},
        [tolerated("gpus"), tolerated("spot")],
    ]);
    assert_eq!(fields(json!({})), alone);
    let limited = json!({"key": "spot", "operator": "Equal", "value": "short", "effect": "NoSchedule"});
    let evicted = json!({"key": "gpus", "operator": "Exists", "effect": "NoExecute"});
    let both = fields(json!({
        "imagePullSecrets": [{"name": "own"}, {"name": "hub"}], "runtimeClassName": "kata",
        "priorityClassName": "urgent", "nodeSelector": {"pool": "large"}, "tolerations": [limited, evicted],
    }));
    let joined = json!([
        secrets(&["own", "hub", "mirror"]), "kata", "urgent", {"pool": "large", "zone": "a"},
        [limited, evicted, tolerated("gpus")],
    ]);
    assert_eq!(both, joined);
}

#[test]
fn defaults_of_the_chart_name_what_neither_the_job_nor_the_operator_does() {
    let mut made = Made::new(|job| {
        job["spec"]["trainer"]["podTemplate"] = json!({
            "labels": {"team": "own"}, "annotations": {"note": "own"}, "env": [{"name": "NO_PROXY", "value": "own"}],
            "initContainers": [{"name": "fetch", "image": "fetch:2", "env": [{"name": "NO_PROXY", "value": "init"}]}],
        });
    });
    let proxy = |name: &str| json!({"name": name, "value": "http://proxy:3128"});
    let defaults = json!({
        "labels": {"team": "default", "cost-center": "7", "pawl.dev/job": "other"},
        "annotations": {"note": "default", "sidecar.istio.io/inject": "false"},
        "env": [proxy("HTTPS_PROXY"), proxy("NO_PROXY"), proxy("HOME"), proxy("PAWL_IMAGE")],
    });
    let before = made.trainer();
    made.pods = defaults.to_string().parse().unwrap();
    let metadata = made.gang().spec.unwrap().template.metadata.unwrap();
    let (labels, annotations) = (metadata.labels.unwrap(), metadata.annotations.unwrap());
    assert_eq!((labels["team"].as_str(), labels["cost-center"].as_str()), ("own", "7"));
    assert_ne!(labels.get("pawl.dev/job").map(String::as_str), Some("other"), "{labels:?}");
    assert_eq!((annotations["note"].as_str(), annotations["sidecar.istio.io/inject"].as_str()), ("own", "false"));
    let trainer = made.trainer();
    assert_eq!(variable(&trainer, "HTTPS_PROXY").as_deref(), Some("http://proxy:3128"));
    for name in ["NO_PROXY", "HOME", "PAWL_IMAGE"] {
        assert_eq!(variable(&trainer, name), variable(&before, name), "{name}");
    }
    let fetch = made.pod().init_containers.unwrap().into_iter().find(|container| container.name == "fetch").unwrap();
    assert_eq!(variable(&fetch, "HTTPS_PROXY").as_deref(), Some("http://proxy:3128"));
    assert_eq!(variable(&fetch, "NO_PROXY").as_deref(), Some("init"));
}

#[test]
fn the_installer_of_the_agent_has_the_requests_and_limits_of_the_trainer() {
    let resources = json!({
        "limits": {"cpu": "4", "memory": "8Gi", "rdma/hca": "1"}, "requests": {"cpu": "4", "memory": "8Gi"},
    });
    let foreign = |resources: Value| {
        let made = Made::new(|job| {
            job["spec"]["workload"] = json!({"command": ["train"]});
            job["spec"]["trainer"]["podTemplate"] = json!({"resources": resources});
        });
        made.pod().init_containers.unwrap().remove(0).resources
    };
    let common = json!({"cpu": "4", "memory": "8Gi"});
    assert_eq!(json!(foreign(resources)), json!({"limits": common, "requests": common}));
    assert_eq!(foreign(json!({"limits": {"rdma/hca": "1"}})), None);
    assert_eq!(foreign(json!({})), None);
}

#[test]
fn the_agent_gets_the_reference_of_the_image_to_record_it() {
    let image = |made: Made| variable(&made.trainer(), "PAWL_IMAGE");
    assert_eq!(image(Made::new(|_| {})).as_deref(), Some("trainer:1"));
    let theirs = Made::new(|job| job["spec"]["trainer"]["image"] = "theirs:2".into());
    assert_eq!(image(theirs).as_deref(), Some("theirs:2"));
}

#[test]
fn the_jobs_own_environment_comes_last() {
    let made = Made::new(|job| {
        job["spec"]["trainer"]["podTemplate"] =
            json!({"env": [{"name": "HOME", "value": "/home"}, {"name": "A", "value": "b"}]});
    });
    let trainer = made.trainer();
    assert_eq!(variable(&trainer, "HOME").as_deref(), Some("/home"));
    assert_eq!(variable(&trainer, "A").as_deref(), Some("b"));
    assert_eq!(variable(&Made::new(|_| {}).trainer(), "HOME").as_deref(), Some("/tmp"));
}

#[test]
fn the_pod_that_reads_checkpoints_has_limits_a_deadline_and_the_ids_of_the_writers() {
    let read = |template: Value, ids: &PodSecurity| {
        let pull = r#"{"imagePullSecrets": [{"name": "mirror"}], "tolerations": [{"key": "gpus"}]}"#;
        let defaults = PodDefaults { security_context: ids.clone(), ..pull.parse().unwrap() };
        let job: TrainingJob = serde_json::from_value(json!({
            "metadata": {"name": "toy", "namespace": "team"},
            "spec": {"workload": {"name": "ups"}, "trainer": {"podTemplate": template}},
        }))
        .unwrap();
        reader(&job, "pvc://models/team/toy/u", "pawl:1", &defaults).spec.unwrap()
    };
    let writers = PodSecurity { run_as_user: Some(1000), fs_group: Some(2000), ..PodSecurity::default() };
    let pod = read(json!({}), &writers);
    let resources = pod.containers[0].resources.clone().unwrap();
    let (requests, limits) = (resources.requests.unwrap(), resources.limits.unwrap());
    assert!(["cpu", "memory"].iter().all(|name| requests.contains_key(*name) && limits.contains_key(*name)));
    assert!(pod.active_deadline_seconds.is_some_and(|seconds| seconds > 0));
    let ids = pod.security_context.unwrap();
    assert_eq!((ids.run_as_user, ids.run_as_group, ids.fs_group), (Some(1000), None, Some(2000)));
    assert_eq!(
        json!([pod.image_pull_secrets, pod.tolerations.unwrap()[0]]),
        json!([[{"name": "mirror"}], {"key": "gpus"}])
    );
    let own = read(json!({"securityContext": {"runAsUser": 7}}), &writers).security_context.unwrap();
    assert_eq!(own.run_as_user, Some(7), "the job's own ids come first");
    let openshift = read(json!({}), &PodSecurity::default()).security_context.unwrap();
    assert_eq!((openshift.run_as_user, openshift.fs_group, openshift.run_as_non_root), (None, None, Some(true)));
}
