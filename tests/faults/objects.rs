//! People who delete and edit what the operator made.

use crate::gang::{Training, attempt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use pawl_api::TrainingJob;
use pawl_e2e::{Scene, scene};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// What people break of an attempt's own objects is put right within this.
const OWNED: Duration = Duration::from_secs(5);
/// The same for the Service of the namespace: it has a cool-down of a few seconds after a repair.
const SHARED: Duration = Duration::from_secs(10);
/// The Service of a namespace.
const SERVICE: &str = "pawl-trainers";

/// Makes the plan so long that its pods do not carry it: it has a ConfigMap.
fn lengthen_plan(job: &mut Value) {
    let effects = job["spec"]["workload"]["config"]["effects"].as_array_mut().unwrap();
    effects.extend((0..80).map(|number| json!({"setting": "batchPerGpu", "value": 1000 + number, "factor": 1.0})));
}

#[test]
fn a_deleted_job_is_a_lost_gang_and_training_resumes() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 20, |_| {}).await;
        let gang = training.running().await;
        let items = training.checkpointed();
        scene.api::<Job>().delete(&attempt(&gang[0]), &DeleteParams::background()).await.unwrap();
        training.again(&gang, 1, Duration::from_secs(30)).await;
        training.completes_from(items, Duration::from_secs(90)).await;
    });
}

#[test]
fn the_loss_of_its_token_and_its_plan_does_not_hurt_a_running_gang() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 15, |job| {
            job["spec"]["trainer"]["replicas"] = 2.into();
            lengthen_plan(job);
        })
        .await;
        let gang = training.running().await;
        let name = attempt(&gang[0]);
        // A plan in an object of its own cannot be edited: the API server sees to that.
        let edit = Patch::Merge(json!({"data": {"plan.json": "{}"}}));
        let refused = scene.api::<ConfigMap>().patch(&name, &PatchParams::default(), &edit).await.unwrap_err();
        assert!(refused.to_string().contains("immutable"), "{refused}");
        let edit = Patch::Merge(json!({"stringData": {"0": "x"}}));
        let secrets = scene.owned::<Secret>("train").await;
        assert_eq!(secrets.len(), 1, "its attempts have a Secret together");
        let token = secrets[0].name_any();
        let refused = scene.api::<Secret>().patch(&token, &PatchParams::default(), &edit).await.unwrap_err();
        assert!(refused.to_string().contains("immutable"), "{refused}");
        scene.api::<Secret>().delete(&token, &DeleteParams::default()).await.unwrap();
        scene.api::<ConfigMap>().delete(&name, &DeleteParams::default()).await.unwrap();
        let done = training.completes_from(training.checkpointed(), Duration::from_secs(90)).await;
        assert_eq!(pawl_e2e::job::status(&done).training.as_ref().unwrap().restarts, 0);
    });
}

/// All that Pawl says of an object.
fn said(object: &impl Serialize) -> Value {
    let all = serde_json::to_value(object).unwrap();
    let (meta, spec) = (&all["metadata"], &all["spec"]);
    let sizes = [&spec["parallelism"], &spec["completions"]];
    let names = [&spec["selector"], &spec["publishNotReadyAddresses"], &spec["clusterIP"]];
    let annotations = ["pawl.dev/plan-hash", "pawl.dev/job-uid"].map(|name| &meta["annotations"][name]);
    json!([meta["labels"], meta["ownerReferences"], annotations, sizes, names])
}

/// Breaks an object in each of these ways, and waits each time until all that Pawl says of it is back.
async fn broken_and_put_right<K>(scene: &Scene, name: &str, ways: &[Value], deadline: Duration)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug,
{
    let objects = scene.api::<K>();
    let before = said(&objects.get(name).await.unwrap());
    for broken in ways {
        objects.patch(name, &PatchParams::default(), &Patch::Merge(broken)).await.unwrap();
        let began = Instant::now();
        let whole = async || (said(&objects.get(name).await.unwrap()) == before).then_some(());
        scene.until(&format!("{broken} to be put right"), deadline, whole).await;
        eprintln!("{broken}: put right within {:.2} s", began.elapsed().as_secs_f64());
    }
}

/// Deletes the Service, and waits until all that Pawl says of it is there again.
async fn service_deleted_and_made_again(scene: &Scene) {
    let services = scene.api::<Service>();
    let before = said(&services.get(SERVICE).await.unwrap());
    services.delete(SERVICE, &DeleteParams::default()).await.unwrap();
    let began = Instant::now();
    let made = async || services.get_opt(SERVICE).await.unwrap().filter(|service| said(service) == before);
    scene.until("the Service to be made again", SHARED, made).await;
    eprintln!("the Service, deleted: made again within {:.2} s", began.elapsed().as_secs_f64());
}

#[test]
fn what_people_break_of_owned_objects_comes_back() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        // Two pods train twice as much in a second: it takes a minute.
        let training = Training::under_way(scene, "train", 120, |job| {
            job["spec"]["trainer"]["replicas"] = 2.into();
            lengthen_plan(job);
        })
        .await;
        let gang = training.running().await;
        let name = attempt(&gang[0]);
        let both = [
            json!({"metadata": {"labels": {"pawl.dev/job": null}}}),
            json!({"metadata": {"labels": {"pawl.dev/attempt": "other"}}}),
            // Now the operator does not see it any more.
            json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}),
            json!({"metadata": {"ownerReferences": null}}),
        ];
        broken_and_put_right::<ConfigMap>(scene, &name, &both, OWNED).await;
        broken_and_put_right::<Job>(scene, &name, &both, OWNED).await;
        let of_jobs = [
            json!({"metadata": {"annotations": {"pawl.dev/plan-hash": "0"}}}),
            json!({"metadata": {"annotations": {"pawl.dev/job-uid": null}}}),
            json!({"spec": {"parallelism": 3}}),
        ];
        broken_and_put_right::<Job>(scene, &name, &of_jobs, OWNED).await;
        // By the Service the pods of a gang find each other: it is all jobs', and put right while one of them needs it.
        let of_services = [
            json!({"metadata": {"labels": {"app.kubernetes.io/name": null}}}),
            json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}),
            json!({"spec": {"selector": {"app.kubernetes.io/name": "other"}}}),
            json!({"spec": {"publishNotReadyAddresses": false}}),
        ];
        broken_and_put_right::<Service>(scene, SERVICE, &of_services, SHARED).await;
        service_deleted_and_made_again(scene).await;
        let done = training.completes_from(training.checkpointed(), Duration::from_secs(90)).await;
        assert_eq!(pawl_e2e::job::status(&done).training.as_ref().unwrap().restarts, 0, "nothing of this hurts a gang");
        // Nobody needs it any more.
        let nothing = async || (scene.count_owned("train").await == 0).then_some(());
        scene.until("the attempt to be released", Duration::from_secs(60), nothing).await;
        scene.api::<Service>().delete(SERVICE, &DeleteParams::default()).await.unwrap();
        tokio::time::sleep(SHARED).await;
        assert!(scene.api::<Service>().get_opt(SERVICE).await.unwrap().is_none(), "an operator at rest writes nothing");
    });
}

#[test]
fn a_pod_that_lost_its_label_is_still_there() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training = Training::under_way(scene, "train", 20, |_| {}).await;
        let gang = training.running().await;
        let unlabelled = Patch::Merge(json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}));
        let name = gang[0].name_any();
        scene.api::<Pod>().patch(&name, &PatchParams::default(), &unlabelled).await.unwrap();
        // Nobody takes it for gone: it trains to the end, and its end is found out.
        let done = training.completes_from(training.checkpointed(), Duration::from_secs(90)).await;
        assert_eq!(pawl_e2e::job::status(&done).training.as_ref().unwrap().restarts, 0);
    });
}

#[test]
fn deleting_a_job_leaves_nothing() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let training =
            Training::under_way(scene, "train", 60, |job| job["spec"]["trainer"]["replicas"] = 2.into()).await;
        assert_eq!(training.running().await.len(), 2);
        scene.api::<TrainingJob>().delete("train", &DeleteParams::default()).await.unwrap();
        let owned = async || scene.count_owned("train").await + scene.owned::<Secret>("train").await.len();
        let nothing = async || (owned().await == 0).then_some(());
        scene.until("all to be gone", Duration::from_secs(120), nothing).await;
        assert!(scene.api::<TrainingJob>().get_opt("train").await.unwrap().is_none());
        // And nothing comes back.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(owned().await, 0);
    });
}
