//! The claim of a job that names no storage: one of somebody else is left alone.

use crate::api::{Api, Id};
use crate::cluster;
use crate::crash::job;
use crate::operator::Operator;
use crate::service::reconcile;
use serde_json::{Value, json};

/// Rounds after which the first attempt that needs the claim has begun.
const ROUNDS: usize = 20;

fn id() -> Id {
    ("persistentvolumeclaims".to_owned(), "default".to_owned(), "toy-storage".to_owned())
}

fn claim(labels: &Value) -> Value {
    json!({"metadata": {"name": "toy-storage", "namespace": "default", "labels": labels}, "spec": {"volumeName": "theirs"}})
}

/// Reconciles until nothing more can happen. Returns the error of the last reconcile.
async fn settled(api: &Api, operator: &mut Operator) -> Option<String> {
    let mut failed = None;
    for _ in 0..ROUNDS {
        let now = api.store().version;
        operator.catch_up(now);
        failed = operator.reconcile().await.err().map(|error| error.to_string());
        cluster::step(&mut api.store());
    }
    failed
}

fn begun() -> (Api, Operator) {
    let api = Api::default();
    api.store().create(("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned()), job());
    let before = api.store().version;
    let operator = Operator::start(&api, before);
    (api, operator)
}

/// Batch Jobs that mount the claim.
fn users(api: &Api) -> usize {
    let store = api.store();
    let jobs = store.objects.iter().filter(|((kind, ..), _)| kind == "jobs");
    jobs.filter(|(_, job)| job.to_string().contains("toy-storage")).count()
}

/// Status, reason and message of the condition `Stalled`.
fn stalled(api: &Api) -> (String, String, String) {
    let store = api.store();
    let job = &store.objects[&("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned())];
    let conditions = job["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "Stalled").unwrap();
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_somebody_else_is_not_used() {
    for labels in [
        json!({}),
        json!({"app.kubernetes.io/managed-by": "Helm", "pawl.dev/job": "toy"}),
        json!({"app.kubernetes.io/managed-by": "pawl", "pawl.dev/job": "other"}),
    ] {
        let (api, mut operator) = begun();
        api.store().create(id(), claim(&labels));
        let error = settled(&api, &mut operator).await.expect("the claim is not ours");
        assert!(error.contains("PersistentVolumeClaim toy-storage is not this job's"), "{error}");
        assert!(
            error.contains("kubectl label pvc toy-storage") && error.contains("spec.train.checkpoint.storage"),
            "{error}"
        );
        assert_eq!(users(&api), 0, "{labels}");
        let (status, reason, message) = stalled(&api);
        assert_eq!((status.as_str(), reason.as_str()), ("True", "ActionRequired"));
        assert_eq!(message, error);

        // Its owner gives it to the job.
        let given = json!({"app.kubernetes.io/managed-by": "pawl", "pawl.dev/job": "toy"});
        api.store().put(id(), claim(&given));
        reconcile(&mut operator, &api).await;
        assert_eq!(users(&api), 1);
        assert_eq!(stalled(&api).0, "False");
        assert_eq!(api.store().objects[&id()]["spec"]["volumeName"], "theirs");
    }
}
