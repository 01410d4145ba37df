//! The same gang twice: as a `TrainingJob`, and as the batch Job that the operator makes of it.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::report::{LaunchResult, fold};
use pawl_controller::names;
use pawl_controller::objects::{self, Blueprint, Images, PodDefaults, StorageConfig, TokenRef};
use pawl_decision::action::Action;
use pawl_decision::observed::Observed;
use serde_json::{Value, json};

/// Pods of a gang.
pub const REPLICAS: usize = 8;
/// What KWOK lets the first pod of a gang leave as its termination message: what an agent would.
const TERMINATION: &str = "pawl.test/termination";
/// Image of the pods; nobody pulls it.
const IMAGE: &str = "localhost/pawl:test";

/// A job of one attempt: eight pods with a GPU each check the baseline of a foreign trainer, and there is nothing to
/// train.
pub fn training_job(name: &str) -> Value {
    let mut manifest = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
        "spec": {
            "workload": {"command": ["trainer"]},
            "trainer": {"image": IMAGE, "replicas": REPLICAS, "gpusPerReplica": 1,
                        "podTemplate": {"annotations": {TERMINATION: ""}}},
        },
    });
    let (plan, _) = start(&manifest);
    let launches = plan.launches.iter();
    let done =
        launches.map(|launch| serde_json::from_value(json!({"launch": launch.launch, "outcome": "Done"})).unwrap());
    manifest["spec"]["trainer"]["podTemplate"]["annotations"][TERMINATION] =
        fold(&done.collect::<Vec<LaunchResult>>()).into();
    manifest
}

/// The batch Job that the operator makes of [`training_job`], as a person posts it: nobody's, and no namesake's Service
/// or watch takes its pods for the operator's.
pub fn batch_job(name: &str) -> Job {
    let manifest = training_job(name);
    let (plan, plan_hash) = start(&manifest);
    let job = serde_json::from_value(manifest).unwrap();
    let images = Images { trainer: IMAGE.to_owned(), agent: IMAGE.to_owned() };
    let (pods, storage) = (PodDefaults::default(), StorageConfig::default());
    let token = TokenRef { secret: "pawl-tokens".to_owned(), key: "0".to_owned() };
    let mut gang = objects::gang(&Blueprint {
        job: &job,
        plan: &plan,
        plan_hash: &plan_hash,
        token: Some(&token),
        images: &images,
        pods: &pods,
        storage: &storage,
        avoided: &[],
        record: None,
    });
    gang.metadata.name = Some(name.to_owned());
    gang.metadata.owner_references = None;
    let template = gang.spec.as_mut().unwrap().template.metadata.as_mut().unwrap();
    for labels in [&mut gang.metadata.labels, &mut template.labels] {
        labels.as_mut().unwrap().insert(names::MANAGED_BY.to_owned(), "nobody".to_owned());
    }
    gang
}

/// What the operator starts first for a job.
fn start(manifest: &Value) -> (pawl_contract::plan::AttemptPlan, String) {
    let job: TrainingJob = serde_json::from_value(manifest.clone()).expect("a TrainingJob");
    let decision = pawl_decision::decide(&job, &TrainingJobStatus::default(), &Observed::default(), Timestamp::now());
    let mut actions = decision.actions.into_iter();
    let Some(Action::Start { plan, plan_hash }) = actions.next() else { panic!("nothing is started") };
    (plan, plan_hash)
}
