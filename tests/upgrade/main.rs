//! The operator of the previous version and this one in turn, on a real Kubernetes: `tests/run upgrade`.
//!
//! Each step replaces the operator. An older operator beside a newer CustomResourceDefinition decides as usual. A newer
//! one beside an older definition can write no status with a new field, which the API server refuses, so it waits. In
//! both cases gangs keep their pods, no attempt is repeated, and the end is the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../faults/gang.rs"]
mod gang;

use gang::{Training, attempt, is_running};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, Stage};
use pawl_e2e::job::{status, toy, verdicts};
use pawl_e2e::programs::{built, kubectl, repository, succeed};
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, Scene, scene};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a gang is observed after the operator was replaced.
const OBSERVED: Duration = Duration::from_secs(4);

/// A version of Pawl.
struct Version {
    pawl: PathBuf,
    definition: PathBuf,
}

impl Version {
    fn previous() -> Self {
        let directory = std::env::var_os("PAWL_PREVIOUS").expect("run this through tests/e2e/run upgrade");
        let directory = Path::new(&directory);
        Self { pawl: directory.join("pawl"), definition: directory.join("trainingjobs.yaml") }
    }

    fn this() -> Self {
        Self { pawl: built("pawl"), definition: repository().join("crds/trainingjobs.yaml") }
    }

    fn define(&self) {
        succeed(kubectl(&["apply", "--server-side", "--force-conflicts", "-f"]).arg(&self.definition));
    }

    async fn operate(&self, scene: &Scene) -> Operator {
        Operator::start_program(scene, &self.pawl).await
    }
}

/// A replacement of the operator.
struct Step<'a> {
    version: &'a Version,
    /// Whether the definition of its version is applied before it starts; otherwise that of the step before stays.
    defines: bool,
}

/// Up and down again, beside the newer definition.
fn up_and_down<'a>(previous: &'a Version, this: &'a Version) -> [Step<'a>; 4] {
    [
        Step { version: this, defines: true },
        Step { version: previous, defines: false },
        Step { version: this, defines: false },
        Step { version: previous, defines: false },
    ]
}

/// The running pods of a job by uid, and their attempts.
async fn gang_of(scene: &Scene, job: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let pods: Vec<Pod> = scene.pods(job).await.into_iter().filter(is_running).collect();
    (pods.iter().filter_map(ResourceExt::uid).collect(), pods.iter().map(attempt).collect())
}

/// Replaces `operator` while a gang of `job` runs, and observes the gang until it has ended, for at most [`OBSERVED`].
async fn replace(scene: &Scene, mut operator: Operator, job: &str, step: &Step<'_>) -> Operator {
    let look = async || Some(gang_of(scene, job).await).filter(|(pods, _)| !pods.is_empty());
    let (pods, attempts) = scene.until("a gang", Duration::from_secs(60), look).await;
    assert!(operator.stop(Duration::from_secs(10)).success());
    if step.defines {
        step.version.define();
    }
    let operator = step.version.operate(scene).await;
    let began = std::time::Instant::now();
    while began.elapsed() < OBSERVED {
        let (now, newer) = gang_of(scene, job).await;
        // Pods of the attempt may end by themselves; none may be replaced.
        let own = newer.is_subset(&attempts);
        assert!(!own || now.is_subset(&pods), "the pods of {attempts:?} were replaced: {pods:?}, now {now:?}");
        if !own || now.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    operator
}

/// The pods that the Job controller made, which is one for each replica and attempt unless an attempt was repeated.
async fn pods_made(scene: &Scene) -> usize {
    let events = scene.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let made = events.iter().filter(|event| event.reason.as_deref() == Some("SuccessfulCreate"));
    made.map(|event| event.message.clone().unwrap_or_default()).collect::<BTreeSet<_>>().len()
}

#[test]
fn in_the_middle_of_a_ladder() {
    scene(async |scene| {
        let (previous, this) = (Version::previous(), Version::this());
        previous.define();
        let mut operator = previous.operate(scene).await;
        // Launches that take a second or more, so that a replaced operator finds them running.
        scene.apply(&toy(|job| {
            job["spec"]["workload"]["config"]["stepSeconds"] = 0.03.into();
            job["spec"]["analysis"].as_object_mut().unwrap().remove("budgetPercent");
        }));
        let optimizing = |job: &TrainingJob| stage(job) == Stage::Optimizing;
        scene.job_until("toy", "to be optimized", Duration::from_secs(90), optimizing).await;
        // The definition of the previous version may lack the field, or not know `Unlimited`: all read an integer.
        this.define();
        scene.patch_spec("toy", json!({"analysis": {"budgetPercent": 1000}})).await;
        let mut seen = BTreeSet::new();
        for step in &up_and_down(&previous, &this) {
            operator = replace(scene, operator, "toy", step).await;
            let job = scene.job("toy").await;
            seen.insert(status(&job).attempt.as_ref().map(|attempt| attempt.name.clone()));
            assert!(!matches!(stage(&job), Stage::Complete | Stage::Failed), "it ended before the last step");
        }
        let _operator = replace(scene, operator, "toy", &Step { version: &this, defines: false }).await;
        let done = scene.complete("toy", Duration::from_secs(300)).await;
        let ends: Vec<_> =
            verdicts(status(&done)).into_iter().map(|(_, state, _, fallback)| (state, fallback)).collect();
        let expected = [(PhaseState::Accepted, 0), (PhaseState::RolledBack, 0), (PhaseState::Accepted, 1)];
        assert_eq!(ends, expected, "{:?}", verdicts(status(&done)));
        assert_eq!(pods_made(scene).await, status(&done).attempts as usize, "an attempt was repeated");
        let reasons = scene.events("toy").await;
        let repeated =
            |reason: &str| matches!(reason, "Superseded" | "TrainerChanged" | "AttemptFailed" | "Unreadable");
        assert!(!reasons.iter().any(|(reason, _)| repeated(reason)), "{reasons:?}");
        assert!(!seen.is_empty());
    });
}

#[test]
fn in_the_middle_of_guarded_training() {
    scene(async |scene| {
        let (previous, this) = (Version::previous(), Version::this());
        previous.define();
        let mut operator = previous.operate(scene).await;
        let training =
            Training::under_way(scene, "train", 110, |job| job["spec"]["trainer"]["replicas"] = 2.into()).await;
        let gang: BTreeSet<String> = training.running().await.iter().filter_map(ResourceExt::uid).collect();
        assert_eq!(gang.len(), 2);
        let beside_older = [Step { version: &this, defines: false }, Step { version: &previous, defines: false }];
        for step in beside_older.iter().chain(&up_and_down(&previous, &this)) {
            operator = replace(scene, operator, "train", step).await;
            let (now, _) = gang_of(scene, "train").await;
            assert_eq!(now, gang, "another gang trains");
        }
        let _operator = replace(scene, operator, "train", &Step { version: &this, defines: false }).await;
        assert_eq!(gang_of(scene, "train").await.0, gang, "another gang trains");
        assert!(training.checkpointed() < training.items, "it is to be under way still");
        let done = training.completes_from(training.checkpointed(), Duration::from_secs(150)).await;
        let found = status(&done).training.as_ref().unwrap();
        assert_eq!((found.restarts, status(&done).attempts), (0, 2), "a preflight, and one training");
    });
}
