//! An API server that rejects the operator: for its load, and for a token that is not accepted any more.

use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::job::{status, training};
use pawl_e2e::programs::succeed;
use pawl_e2e::scene::{SCENE, stage};
use pawl_e2e::{Operator, Scene, scene};
use serde_json::json;
use std::time::Duration;

/// For how long all requests are rejected.
const OVERLOADED: Duration = Duration::from_secs(30);

fn trains(job: &TrainingJob) -> bool {
    stage(job) == Stage::Training && status(job).attempt.as_ref().is_some_and(|attempt| attempt.seen)
}

/// How many requests of an operator had this answer.
async fn answers(operator: &Operator, code: &str) -> u64 {
    let metrics = operator.metrics().await;
    let label = format!("code=\"{code}\"");
    let lines = metrics.lines().filter(|line| line.starts_with("pawl_api_requests_total{") && line.contains(&label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Lets priority and fairness reject all requests of the operator.
fn reject_all(scene: &Scene) {
    let metadata = json!({"name": scene.namespace, "labels": {SCENE: scene.namespace}});
    let version = "flowcontrol.apiserver.k8s.io/v1";
    scene.apply(&json!({"apiVersion": version, "kind": "PriorityLevelConfiguration", "metadata": metadata, "spec": {
        "type": "Limited", "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"}}}}));
    let account = json!({"kind": "ServiceAccount", "serviceAccount": {"name": "pawl", "namespace": scene.namespace}});
    let all =
        json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true});
    scene.apply(&json!({"apiVersion": version, "kind": "FlowSchema", "metadata": metadata, "spec": {
        "priorityLevelConfiguration": {"name": scene.namespace}, "matchingPrecedence": 100,
        "rules": [{"subjects": [account], "resourceRules": [all]}]}}));
}

#[test]
fn rejected_by_priority_and_fairness_it_asks_seldom_and_goes_on_afterwards() {
    scene(async |scene| {
        let operator = Operator::start_alone(scene, None).await;
        let names: Vec<String> = (0..5).map(|number| format!("load-{number}")).collect();
        scene.apply(&training("load-0", 40, |_| {}));
        let job = scene.healthy_until("load-0", "to train", Duration::from_secs(90), trains).await;
        let attempts = status(&job).attempts;
        reject_all(scene);
        for name in &names[1..] {
            scene.apply(&training(name, 1, |job| job["spec"]["trainer"]["gpusPerReplica"] = 0.into()));
        }
        let rejected = async || (answers(&operator, "429").await > 0).then_some(());
        scene.until("a rejection", Duration::from_secs(30), rejected).await;
        let before = answers(&operator, "429").await;
        tokio::time::sleep(OVERLOADED).await;
        let during = answers(&operator, "429").await - before;
        eprintln!("{during} requests in {OVERLOADED:?}");
        assert!(during <= 40, "{during} requests in {OVERLOADED:?}: one of each caller after 2, 4, 8 and 16 s");
        succeed(&mut scene.kubectl(&["delete", "flowschema", &scene.namespace]));
        let job = scene.complete("load-0", Duration::from_secs(120)).await;
        assert_eq!(status(&job).attempts, attempts, "the gang continued");
        for name in &names[1..] {
            scene.complete(name, Duration::from_secs(120)).await;
        }
    });
}

/// Its token is revoked at the moment in which the kubelet replaces it.
#[test]
fn a_token_that_is_replaced_is_read_without_a_restart() {
    scene(async |scene| {
        // Its service account and roles.
        drop(Operator::start_alone(scene, None).await);
        let token = |bound: &str| {
            scene.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": bound}}));
            let bind = ["create", "token", "pawl", "--bound-object-kind=Secret", "--bound-object-name", bound];
            succeed(&mut scene.kubectl(&bind)).trim().to_owned()
        };
        let (file, kubeconfig) =
            (scene.directory.path().join("token"), scene.directory.path().join("rotated.kubeconfig"));
        std::fs::write(&file, token("first")).unwrap();
        pawl_e2e::operator::write_kubeconfig(&kubeconfig, "", None);
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&kubeconfig).unwrap()).unwrap();
        config["users"][0]["user"] = json!({"tokenFile": file});
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let operator = Operator::start_alone(scene, Some(&kubeconfig)).await;
        scene.apply(&training("long", 60, |_| {}));
        let job = scene.healthy_until("long", "to train", Duration::from_secs(90), trains).await;
        std::fs::write(&file, token("second")).unwrap();
        succeed(&mut scene.kubectl(&["delete", "secret", "first"]));
        let refused = async || (answers(&operator, "401").await > 0).then_some(());
        scene.until("the first token to be refused", Duration::from_secs(60), refused).await;
        let done = scene.complete("long", Duration::from_secs(180)).await;
        assert_eq!(status(&done).attempts, status(&job).attempts, "the gang continued");
    });
}
