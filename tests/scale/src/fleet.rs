//! Many gangs at once.

use crate::census::Census;
use crate::gangs::{self, REPLICAS};
use crate::nodes::{self, Kwok};
use crate::operator::{Metered, manager_cpu_seconds};
use futures::{StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use pawl_api::TrainingJob;
use pawl_e2e::audit::Audit;
use pawl_e2e::{Operator, Scene};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

/// Gangs that are posted at a time.
const POSTS: usize = 16;
/// Longest time until all pods are there, and until all jobs have ended.
const DEADLINE: Duration = Duration::from_secs(240);

/// Gangs posted as plain batch Jobs.
#[derive(Serialize, Deserialize)]
pub struct Raw {
    /// How many.
    pub jobs: usize,
    /// From the first post to the last pod, seconds.
    pub pods_seconds: f64,
    /// From the first post to the last, seconds.
    pub posts_seconds: f64,
}

/// Gangs posted as `TrainingJob`s.
#[derive(Serialize, Deserialize)]
pub struct Pawl {
    /// How many.
    pub jobs: usize,
    /// From the first post to the last pod, seconds.
    pub pods_seconds: f64,
    /// From the first post to the last, seconds.
    pub posts_seconds: f64,
    /// From when the trainers were let end until all jobs were Complete and all gangs released, seconds.
    pub end_seconds: f64,
    /// Writes of the operator until the end: how many of what.
    pub writes: BTreeMap<String, usize>,
    /// Processor time of the operator until all pods ran, seconds.
    pub cpu_running_seconds: f64,
    /// The same until the end.
    pub cpu_seconds: f64,
    /// Processor time of the kube-controller-manager for these jobs until the end, seconds.
    pub manager_cpu_seconds: f64,
    /// 99 % of the operator's writes took the API server no longer, seconds.
    pub write_p99_seconds: f64,
    /// Most memory of the operator, MiB.
    pub peak_mebibytes: f64,
    /// Reconciles until the end.
    pub reconciles: f64,
    /// 99 % of the reconciles until all pods ran took no longer, seconds.
    pub p99_running_seconds: f64,
    /// 99 % of the reconciles until the end took no longer, seconds.
    pub p99_seconds: f64,
}

/// Posts gangs as plain batch Jobs.
pub async fn raw(scene: &Scene, jobs: usize) -> Raw {
    nodes::make(&scene.client).await;
    let _kwok = Kwok::start(scene.directory.path(), &["nodes.yaml", "pods.yaml"]);
    let census = Census::of_metadata(&scene.client, &scene.namespace);
    settle().await;
    let gangs = (0..jobs).map(|number| gangs::batch_job(&name(number))).collect();
    let began = Instant::now();
    let posted = post(&scene.api::<Job>(), gangs).await;
    let made = census.count(jobs * REPLICAS, DEADLINE).await;
    Raw { jobs, pods_seconds: (made - began).as_secs_f64(), posts_seconds: (posted - began).as_secs_f64() }
}

/// Posts gangs as `TrainingJob`s; when all of their pods run, lets them end.
pub async fn pawl(scene: &Scene, jobs: usize) -> Pawl {
    nodes::make(&scene.client).await;
    let kwok = Kwok::start(scene.directory.path(), &["nodes.yaml", "pods.yaml"]);
    let census = Census::of_metadata(&scene.client, &scene.namespace);
    let operator = Metered::start(scene).await;
    settle().await;
    let (audit, manager_before) = (Audit::now(), manager_cpu_seconds());
    let resource = ApiResource::erase::<TrainingJob>(&());
    let api = Api::<DynamicObject>::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
    let read = |number| serde_json::from_value(gangs::training_job(&name(number))).unwrap();
    let gangs = (0..jobs).map(read).collect();
    let began = Instant::now();
    let posted = post(&api, gangs).await;
    let made = census.count(jobs * REPLICAS, DEADLINE).await;
    drop(census);
    all_run(scene).await;
    let running = operator.reconciles().await;
    let cpu_running_seconds = operator.cpu_seconds();

    drop(kwok);
    nodes::hand_over(&scene.client).await;
    let let_end = Instant::now();
    let _kwok = Kwok::start(scene.directory.path(), &["nodes.yaml", "pods.yaml", "finish.yaml"]);
    all_complete(scene, jobs).await;
    all_released(scene).await;
    let end_seconds = let_end.elapsed().as_secs_f64();
    let reconciles = operator.reconciles().await;
    let user = Operator::user(scene);
    let mut writes: Vec<f64> = audit.of_user(&scene.namespace, &user).map(|write| write.seconds()).collect();
    writes.sort_by(f64::total_cmp);
    Pawl {
        jobs,
        pods_seconds: (made - began).as_secs_f64(),
        posts_seconds: (posted - began).as_secs_f64(),
        end_seconds,
        writes: audit.count(&scene.namespace, &user),
        cpu_running_seconds,
        cpu_seconds: operator.cpu_seconds(),
        manager_cpu_seconds: manager_cpu_seconds() - manager_before,
        write_p99_seconds: writes[(writes.len() - 1) * 99 / 100],
        peak_mebibytes: operator.peak_mebibytes(),
        reconciles: reconciles.count(),
        p99_running_seconds: running.quantile(0.99),
        p99_seconds: reconciles.quantile(0.99),
    }
}

/// Name of a job.
fn name(number: usize) -> String {
    format!("job-{number}")
}

/// What was just started goes quiet.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// Posts objects, a few at a time. Gives when the last one was there.
async fn post<K>(api: &Api<K>, objects: Vec<K>) -> Instant
where
    K: Resource + Clone + Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let posts =
        objects.into_iter().map(|object| async move { api.create(&PostParams::default(), &object).await.map(|_| ()) });
    let answers: Vec<_> = stream::iter(posts).buffer_unordered(POSTS).collect().await;
    answers.into_iter().for_each(|answer| answer.expect("the API server takes the gang"));
    Instant::now()
}

/// Waits until no pod is left that does not run.
async fn all_run(scene: &Scene) {
    let waiting = ListParams::default().fields("status.phase=Pending").limit(1);
    let none = async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        scene.api::<Pod>().list_metadata(&waiting).await.ok().filter(|list| list.items.is_empty())
    };
    scene.until("all pods to run", DEADLINE, none).await;
    // The operator hears of the last ones.
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Waits until `count` jobs are Complete.
async fn all_complete(scene: &Scene, jobs: usize) {
    let api = scene.api::<Ending>();
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    let mut complete = HashSet::new();
    let wait = async {
        while complete.len() < jobs {
            let Some(Ok(Event::Apply(job) | Event::InitApply(job))) = events.next().await else { continue };
            match job.status.stage.as_deref() {
                Some("Complete") => _ = complete.insert(job.metadata.uid),
                Some("Failed") => panic!("a job failed: {:?}", job.metadata.name),
                _ => {}
            }
        }
    };
    let ended = tokio::time::timeout(DEADLINE, wait).await;
    assert!(ended.is_ok(), "{} of {jobs} jobs are Complete after {DEADLINE:?}", complete.len());
}

/// Waits until no batch Job is left.
async fn all_released(scene: &Scene) {
    let one = ListParams::default().limit(1);
    let none = async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        scene.api::<Job>().list_metadata(&one).await.ok().filter(|list| list.items.is_empty())
    };
    scene.until("all batch Jobs to be gone", DEADLINE, none).await;
}

/// A `TrainingJob`, of which only the stage is read.
#[derive(Clone, Debug, Deserialize)]
struct Ending {
    metadata: ObjectMeta,
    #[serde(default)]
    status: EndingStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct EndingStatus {
    stage: Option<String>,
}

impl Resource for Ending {
    type DynamicType = ();
    type Scope = <PartialObjectMeta<TrainingJob> as Resource>::Scope;

    fn kind(_: &()) -> Cow<'_, str> {
        TrainingJob::kind(&())
    }

    fn group(_: &()) -> Cow<'_, str> {
        TrainingJob::group(&())
    }

    fn version(_: &()) -> Cow<'_, str> {
        TrainingJob::version(&())
    }

    fn plural(_: &()) -> Cow<'_, str> {
        TrainingJob::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
