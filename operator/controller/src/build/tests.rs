use super::*;
use crate::facts::{GangFacts, PlanFacts};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec, VolumeMount};
use kube::ResourceExt;
use pawl_api::status::{AttemptStatus, Purpose};
use pawl_rendezvous::Token;
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const GANG_UID: &str = "gang-uid";

/// A job of two pods with one GPU each, changed, and its first attempt.
struct Made {
    job: TrainingJob,
    plan: AttemptPlan,
    images: Images,
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
        Self { plan: serde_json::from_value(plan).unwrap(), job, images }
    }

    fn blueprint(&self) -> Blueprint<'_> {
        Blueprint { job: &self.job, plan: &self.plan, plan_hash: "hash", images: &self.images }
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
fn what_is_built_is_found_to_be_intact_and_the_jobs_own() {
    let made = Made::new(|_| {});
    let mut there = made.gang();
    there.metadata.uid = Some(GANG_UID.to_owned());
    let facts = GangFacts::new(&serde_json::from_value(json!(there)).unwrap()).unwrap();
    assert!(facts.intact, "{facts:?}");
    let read = (facts.job_uid.as_str(), facts.plan_hash.as_str(), facts.replicas, facts.suspended);
    assert_eq!(read, ("job-uid", "hash", 2, false));
    let plan = PlanFacts::new(&plan(&made.blueprint(), GANG_UID).unwrap().metadata);
    assert_eq!(plan, PlanFacts { gang_uid: GANG_UID.to_owned(), intact: true });
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
    let repair = plan_repair("toy", "toy-3", GANG_UID);
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

#[test]
fn checkpoints_of_a_job_that_does_not_say_end_with_the_pod() {
    let trainer = Made::new(|_| {}).trainer();
    let work = variable(&trainer, "PAWL_WORK_DIR").unwrap();
    assert_eq!(variable(&trainer, "PAWL_CHECKPOINTS"), Some(format!("{work}/checkpoints")));
    assert!(mount(&trainer, paths::CHECKPOINTS).is_empty());
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
fn nobody_can_change_plan_and_token_and_both_go_with_the_batch_job() {
    let made = Made::new(|_| {});
    let plan = plan(&made.blueprint(), GANG_UID).unwrap();
    let token = token(&made.blueprint(), GANG_UID, &Token::random().unwrap());
    assert_eq!((plan.immutable, token.immutable), (Some(true), Some(true)));
    for metadata in [&plan.metadata, &token.metadata] {
        let owner = &metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Job", "toy-3", GANG_UID));
        assert_eq!((metadata.name.as_deref(), metadata.namespace.as_deref()), (Some("toy-3"), Some("team")));
    }
    let read: AttemptPlan = serde_json::from_str(&plan.data.unwrap()["plan.json"]).unwrap();
    assert_eq!(read, made.plan);
    assert!(token.data.unwrap()["token"].0.len() >= 32);
}

#[test]
fn one_headless_service_names_the_first_pods_of_all_gangs() {
    let service = service("team").spec.unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    let mut pods = Made::new(|_| {}).gang().spec.unwrap().template.metadata.unwrap().labels.unwrap();
    let selector = service.selector.unwrap();
    let mut selected = |index: &str| {
        // The Job controller says so on each pod.
        pods.insert("batch.kubernetes.io/job-completion-index".to_owned(), index.to_owned());
        selector.iter().all(|(name, value)| pods.get(name) == Some(value))
    };
    assert_eq!([selected("0"), selected("1")], [true, false]);
}
