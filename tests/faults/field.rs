//! What an operator meets in the field: every wait has a reason, and every cause is reported.

use crate::gang::{Training, attempt};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::audit::Audit;
use pawl_e2e::job::{status, training};
use pawl_e2e::machines::Node;
use pawl_e2e::operator::{ACCOUNT, rules};
use pawl_e2e::programs::{built, run, succeed};
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, Scene, scene};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

/// Within this time every wait has a reason.
const REPORTED: Duration = Duration::from_secs(60);
/// A pod that does not end is reported this long after its grace period, and the operator looks every 5 seconds.
const STUCK: Duration = Duration::from_secs(75);
/// The node on which one does not.
const NUMBER: u32 = 8;

/// A training of a second, with this pod template.
fn short(name: &str, template: Value) -> Value {
    training(name, 1, |job| job["spec"]["trainer"]["podTemplate"] = template)
}

/// A script in an image with a shell, which first runs `first` in every launch.
fn script(name: &str, first: &str, template: Value) -> Value {
    training(name, 60, |job| {
        let steps = r#"i=0; while [ $i -lt 1000 ]; do i=$((i + 1)); echo "step $i loss 1.0"; sleep 0.1; done"#;
        let command = ["sh", "-c", &format!("{first}; {steps}"), "--batch=$(settings.batchPerGpu)"];
        job["spec"]["workload"] = json!({"command": command,
            "monitor": {"training": r"step (?<step>\d+) loss (?<loss>\S+)"}});
        job["spec"]["trainer"] =
            json!({"image": "localhost/busybox:test", "gpusPerReplica": 0, "podTemplate": template});
        job["spec"]["settings"] = json!({"batchPerGpu": 8});
    })
}

fn condition(job: &TrainingJob, kind: &str) -> Option<(String, String)> {
    let conditions = &job.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")?;
    Some((found.reason.clone(), found.message.clone()))
}

/// Waits until a condition of a job has this reason, and these words in its message.
async fn reported(scene: &Scene, job: &str, kind: &str, reason: &str, words: &str) -> TrainingJob {
    let what = format!("{kind} {reason}: {words}");
    let holds = |job: &TrainingJob| {
        condition(job, kind).is_some_and(|(found, message)| found == reason && message.contains(words))
    };
    scene.job_until(job, &what, REPORTED, holds).await
}

/// The operator was never ready, so that nothing was decided in the other namespaces either.
#[test]
fn a_namespace_that_cannot_be_listed_holds_up_no_other() {
    scene(async |alpha| {
        let (beta, gamma) = (alpha.another("beta").await, alpha.another("gamma").await);
        let others = [&beta, &gamma];
        others.into_iter().for_each(|other| other.allow_of(alpha, ACCOUNT, rules()));
        let operator = Operator::start_with(alpha, &others).await;
        // It takes longer than the namespace takes to go.
        let training = Training::under_way(alpha, "train", 60, |_| {}).await;
        operator.kill();

        // One is gone with its Role, in the other one a right is missing, and a pod of the third is lost meanwhile.
        gamma.apply(&short("waits", json!({})));
        let fewer = rules().into_iter().filter(|rule| rule["resources"] != json!(["services"]));
        gamma.allow_of(alpha, ACCOUNT, fewer.collect());
        let namespaces: Api<Namespace> = Api::all(alpha.client.clone());
        namespaces.delete(&beta.namespace, &DeleteParams::default()).await.unwrap();
        let gone = async || namespaces.get_opt(&beta.namespace).await.unwrap().is_none().then_some(());
        alpha.until("the namespace to be gone", Duration::from_secs(60), gone).await;
        let (gang, items) = (training.running().await, training.checkpointed());
        alpha.api::<Pod>().delete(&gang[0].name_any(), &DeleteParams::default()).await.unwrap();

        let operator = Operator::start_with(alpha, &others).await;
        training.again(&gang, 1, Duration::from_secs(30)).await;
        let (metrics, log) = (operator.metrics().await, operator.log());
        for (Scene { namespace, .. }, resource) in [(&beta, "pods"), (&gamma, "Services")] {
            let series = format!("pawl_watch_errors_total{{namespace=\"{namespace}\",resource=\"{resource}\"}}");
            assert!(metrics.contains(&series), "{series}: {metrics}");
            let words = format!("watch of {resource} failed");
            assert!(log.lines().any(|line| line.contains(&words) && line.contains(namespace)), "{namespace}: {log}");
        }
        training.completes_from(items, Duration::from_secs(120)).await;
        reported(&gamma, "waits", "Stalled", "ActionRequired", "cannot list Services").await;
        assert!(gamma.pods("waits").await.is_empty(), "without all facts nothing is decided");
    });
}

/// How nodes with GPUs die: a driver or what runs the containers hangs, and the node stays ready. Nobody said so.
#[test]
fn a_pod_that_cannot_end_on_a_ready_node_is_reported_with_what_to_do() {
    scene(async |scene| {
        let node = Node::own(NUMBER, 0);
        scene.node_is_ready(&node.name()).await;
        let operator = scene.operator().await;
        let template = node.pod_template();
        // It takes longer than the pod is stuck.
        let training =
            Training::under_way(scene, "train", 90, |job| job["spec"]["trainer"]["podTemplate"] = template).await;
        let gang = training.running().await;
        let (pod, uid) = (gang[0].name_any(), gang[0].uid().unwrap());
        assert_eq!(gang[0].spec.as_ref().unwrap().node_name, Some(node.name()));
        node.stop_runtime(&uid);
        scene.api::<Pod>().delete(&pod, &DeleteParams::default().grace_period(1)).await.unwrap();

        let holds = |job: &TrainingJob| condition(job, "Stalled").is_some();
        let job = scene.job_until("train", "to report the pod", STUCK, holds).await;
        let (reason, message) = condition(&job, "Stalled").unwrap();
        let found = format!("pod {pod} does not end, though its node {} is ready", node.name());
        assert!(reason == "ActionRequired" && message.starts_with(&found), "{reason}: {message}");
        let advice = ["restart the node", &format!("kubectl delete pod {pod} --force")];
        assert!(advice.iter().all(|advice| message.contains(advice)), "{message}");
        // What the alert is about.
        let metrics = operator.metrics().await;
        let alarm = |line: &str| line.starts_with("pawl_job_condition{") && line.contains("reason=\"ActionRequired\"");
        assert!(metrics.lines().any(alarm), "{metrics}");
        let beside = scene.pods("train").await.iter().any(|pod| attempt(pod) != attempt(&gang[0]));
        assert!(!beside, "as long as the pod may run, no other gang starts");

        let items = training.checkpointed();
        node.continue_runtime(&uid);
        let done = training.completes_from(items, Duration::from_secs(120)).await;
        assert_eq!(condition(&done, "Stalled"), None);
    });
}

/// The batch Job kept the template with which it was made: the job stayed `Queued` until it was suspended and resumed.
#[test]
fn a_pod_template_that_is_corrected_reaches_a_gang_that_waits() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let nowhere = json!({"nodeSelector": {"kubernetes.io/hostname": "node-nowhere"}});
        scene.apply(&short("selector", nowhere));
        scene.apply(&short("request", json!({"resources": {"requests": {"memory": "900Gi"}}})));
        reported(scene, "selector", "Reconciling", "Queued", "didn't match Pod's node affinity/selector").await;
        reported(scene, "request", "Reconciling", "Queued", "Insufficient memory").await;
        let corrected = |template: Value| json!({"trainer": {"podTemplate": template}});
        scene.patch_spec("selector", corrected(json!({"nodeSelector": null}))).await;
        scene.patch_spec("request", corrected(json!({"resources": {"requests": {"memory": "10Mi"}}}))).await;
        for name in ["selector", "request"] {
            let done = scene.complete(name, Duration::from_secs(120)).await;
            assert_eq!((status(&done).attempts > 1, &status(&done).retry), (true, &None), "{name}: that is no failure");
        }
    });
}

#[test]
fn a_gang_that_runs_takes_its_new_template_when_its_user_starts_it_again() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&training("toy", 20, |job| {
            job["spec"]["train"]["checkpoint"]["storage"] = "pvc://toy/run".into();
        }));
        scene.claim("toy");
        let saved = |job: &TrainingJob| {
            let training = job.status.as_ref().and_then(|status| status.training.as_ref());
            training.is_some_and(|training| training.last_checkpoint.is_some())
        };
        let before = scene.healthy_until("toy", "to have a checkpoint", Duration::from_secs(90), saved).await;
        let env = json!([{"name": "CORRECTED", "value": "yes"}]);
        scene.patch_spec("toy", json!({"trainer": {"podTemplate": {"env": env}}})).await;
        reported(scene, "toy", "RestartNeeded", "TemplateChanged", "kubectl pawl restart toy").await;
        let attempt = |job: &TrainingJob| status(job).attempt.as_ref().map(|attempt| attempt.name.clone());
        assert_eq!(attempt(&scene.job("toy").await), attempt(&before), "it goes on");
        let printed =
            succeed(Command::new(built("pawl")).args(["kubectl", "restart", "toy", "--namespace", &scene.namespace]));
        assert!(printed.contains("will be replaced"), "{printed}");
        let done = scene.complete("toy", Duration::from_secs(120)).await;
        let training = status(&done).training.as_ref().unwrap();
        assert_eq!((training.restarts, status(&done).attempts), (0, status(&before).attempts + 1));
        assert_eq!(condition(&done, "RestartNeeded"), None);
    });
}

/// All of them were "waiting in its queue, for free devices or for quota".
#[test]
fn pods_that_are_refused_at_admission_are_reported_with_the_cause() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let limits = json!([{"type": "Container", "max": {"memory": "1Gi"}}]);
        scene.apply(&json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"},
            "spec": {"limits": limits}}));
        scene.apply(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"},
            "spec": {"hard": {"requests.cpu": "1"}}}));
        let with = |name: &str, cpu: &str, template: Value| {
            let mut job = short(name, template);
            let resources = &mut job["spec"]["trainer"]["podTemplate"]["resources"];
            resources["requests"]["cpu"] = cpu.into();
            job["spec"]["lifecycle"]["schedulingTimeout"] = "60s".into();
            job
        };
        scene.apply(&with("memory", "10m", json!({"resources": {"limits": {"memory": "2Gi"}}})));
        scene.apply(&with("quota", "2", json!({})));
        scene.apply(&short("demanded", json!({})));
        reported(scene, "memory", "Reconciling", "PodsRefused", "maximum memory usage per Container is 1Gi").await;
        reported(scene, "quota", "Reconciling", "Queued", "waits for quota: 0 of 1 pods run; FailedCreate").await;
        reported(scene, "demanded", "Reconciling", "PodsRefused", "must specify requests.cpu").await;
        let printed =
            succeed(Command::new(built("pawl")).args(["kubectl", "status", "memory", "--namespace", &scene.namespace]));
        assert!(printed.contains("maximum memory usage"), "{printed}");
        // What has to be corrected does not wait without limit.
        let counted = |job: &TrainingJob| {
            let retry = job.status.as_ref().and_then(|status| status.retry.as_ref());
            retry.is_some_and(|retry| retry.count > 0 && retry.message.contains("maximum memory usage"))
        };
        scene.job_until("memory", "to be counted", Duration::from_secs(90), counted).await;
        assert_eq!(status(&scene.job("quota").await).attempts, 1, "a quota is waited for");
    });
}

/// The operator tried 136 times a second, and said nothing.
#[test]
fn a_claim_that_is_kept_by_a_notebook_is_reported_and_tried_rarely() {
    scene(async |scene| {
        let _operator = Operator::with_claims(scene).await;
        scene.claim("toy-storage");
        succeed(&mut scene.kubectl(&[
            "label",
            "pvc",
            "toy-storage",
            "app.kubernetes.io/managed-by=pawl",
            "pawl.dev/job=toy",
        ]));
        scene.apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "notebook"},
            "spec": {"terminationGracePeriodSeconds": 0,
                "containers": [{"name": "notebook", "image": "localhost/busybox:test",
                    "volumeMounts": [{"name": "m", "mountPath": "/m"}]}],
                "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "toy-storage"}}]},
        }));
        let runs = ["wait", "--for=jsonpath={.status.phase}=Running", "pod/notebook", "--timeout=1s"];
        let look = async || run(&mut scene.kubectl(&runs)).status.success().then_some(());
        scene.until("the notebook to run", Duration::from_secs(60), look).await;
        succeed(&mut scene.kubectl(&["delete", "pvc", "toy-storage", "--wait=false"]));

        scene.apply(&training("toy", 1, |_| {}));
        reported(scene, "toy", "Stalled", "ActionRequired", "kubectl describe pvc toy-storage").await;
        let audit = Audit::now();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let writes = audit.count(&scene.namespace, &Operator::user(scene));
        assert!(writes.values().sum::<usize>() <= 4, "{writes:?}");
        succeed(&mut scene.kubectl(&["delete", "pod", "notebook"]));
        scene.complete("toy", Duration::from_secs(180)).await;
    });
}

/// Exit code 30 hid the eviction: the job was started again for ever, and nothing was counted.
#[test]
fn a_training_that_fills_its_disk_fails_with_the_volume() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let fill = |path: &str| format!("dd if=/dev/zero of={path}/x bs=1M count=100 2>/dev/null");
        let scratch = json!({"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "16Mi"}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]});
        let mut volume = script("volume", &fill("/scratch"), scratch);
        let mut limit = script("limit", &fill("/tmp"), json!({"resources": {"limits": {"ephemeral-storage": "32Mi"}}}));
        for job in [&mut volume, &mut limit] {
            job["spec"]["lifecycle"]["maxRestarts"] = 0.into();
            scene.apply(job);
        }
        for (name, words) in [("volume", "scratch"), ("limit", "ephemeral")] {
            let failed = |job: &TrainingJob| stage(job) == Stage::Failed;
            let job = scene.job_until(name, "to fail", Duration::from_secs(240), failed).await;
            let failure = status(&job).failure.as_ref().unwrap();
            assert!(failure.message.contains("evicted") && failure.message.contains(words), "{failure:?}");
        }
    });
}

/// It failed at once, with a checkpoint there and restarts unused, and blamed the memory of the host.
#[test]
fn a_training_whose_rank_is_killed_for_its_memory_resumes_and_then_fails_with_the_limit() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&training("toy", 60, |job| {
            job["spec"]["workload"]["config"]["faults"] =
                json!([{"fault": "ExhaustMemory", "atStep": 20, "bytes": 1_000_000_000, "kinds": ["Train"]}]);
            job["spec"]["trainer"]["podTemplate"] = json!({"resources": {"limits": {"memory": "128Mi"}}});
            job["spec"]["lifecycle"]["maxRestarts"] = 1.into();
        }));
        let failed = |job: &TrainingJob| stage(job) == Stage::Failed;
        let job = scene.job_until("toy", "to fail", Duration::from_secs(180), failed).await;
        let (failure, training) = (status(&job).failure.as_ref().unwrap(), status(&job).training.as_ref().unwrap());
        assert_eq!(failure.reason, "RetriesExhausted", "{failure:?}");
        assert!(failure.message.contains("128 MiB") || failure.message.contains("128Mi"), "{failure:?}");
        assert_eq!(training.restarts, 2, "it was tried again before it failed");
    });
}

/// No program ran: that says nothing about the job.
#[test]
fn a_pod_that_its_node_does_not_accept_is_a_disruption() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        // The scheduler knows better than to choose a node without room: the test does what it does not.
        let template = json!({"schedulerName": "by-hand", "resources": {"requests": {"cpu": "900"}}});
        scene.apply(&short("toy", template));
        let waits = async || scene.pods("toy").await.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
        let pod = scene.until("a pod", Duration::from_secs(60), waits).await;
        bind(scene, &pod, "node-1");
        let retried = |job: &TrainingJob| job.status.as_ref().is_some_and(|status| status.retry.is_some());
        let job = scene.job_until("toy", "to be tried again", Duration::from_secs(60), retried).await;
        let retry = status(&job).retry.as_ref().unwrap();
        assert_eq!((retry.count, retry.disruptions), (0, 1), "{retry:?}");
        assert!(retry.message.contains("node-1 did not accept") && retry.message.contains("cpu"), "{retry:?}");
        assert!(retry.not_before.is_some(), "{retry:?}");
    });
}

/// Binds a pod to a node, as a scheduler does.
fn bind(scene: &Scene, pod: &Pod, node: &str) {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name_any()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let file = scene.directory.path().join("binding.json");
    std::fs::write(&file, binding.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/{}/pods/{}/binding", scene.namespace, pod.name_any());
    succeed(scene.kubectl(&["create", "--raw", &path, "-f"]).arg(&file));
}

/// It ended as stopped on request, and was started again at once, for ever and uncounted.
#[test]
fn a_gang_that_somebody_stops_by_sigterm_is_reported_as_a_disruption() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&script("toy", "true", json!({})));
        let runs = |job: &TrainingJob| stage(job) == Stage::Training;
        scene.healthy_until("toy", "to train", Duration::from_secs(120), runs).await;
        let look = async || {
            let pods = scene.pods("toy").await;
            let pod = pods.iter().find(|pod| pod.metadata.deletion_timestamp.is_none())?.name_any();
            let kill = ["exec", &pod, "-c", "trainer", "--", "kill", "-TERM", "1"];
            run(&mut scene.kubectl(&kill)).status.success().then_some(())
        };
        scene.until("SIGTERM to be sent", Duration::from_secs(60), look).await;
        let told = async || {
            let events = scene.events("toy").await;
            events.into_iter().find(|(reason, note)| reason == "Disrupted" && note.contains("SIGTERM"))
        };
        scene.until("the disruption to be reported", Duration::from_secs(60), told).await;
    });
}

/// The pods were deleted as soon as their results were in the status, which has room for the last line only.
#[test]
fn the_log_of_a_failed_job_can_be_read_until_the_job_goes_on() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        scene.apply(&script("broken", "echo first words; echo more; exit 3", json!({})));
        let failed = |job: &TrainingJob| stage(job) == Stage::Failed;
        scene.job_until("broken", "to fail", Duration::from_secs(120), failed).await;
        // It was gone after 30 seconds.
        tokio::time::sleep(Duration::from_secs(40)).await;
        let arguments = ["kubectl", "logs", "broken", "--namespace", &scene.namespace];
        let log = succeed(Command::new(built("pawl")).args(arguments));
        assert!(log.contains("first words"), "{log}");
        scene.patch_spec("broken", json!({"lifecycle": {"maxRestarts": 1}})).await;
        let next = |job: &TrainingJob| stage(job) != Stage::Failed;
        scene.job_until("broken", "to go on", Duration::from_secs(60), next).await;
        scene.job_until("broken", "to fail again", Duration::from_secs(120), failed).await;
        let newest = async || {
            let pods = scene.api::<Pod>().list(&kube::api::ListParams::default()).await.unwrap();
            let attempts: std::collections::BTreeSet<_> =
                pods.iter().filter_map(|pod| pod.labels().get("pawl.dev/attempt").cloned()).collect();
            (attempts.len() == 1).then_some(())
        };
        scene.until("only the newest attempt to have pods", Duration::from_secs(30), newest).await;
    });
}
