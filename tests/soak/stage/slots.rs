//! A slot: one job after the other, each compared with its twin.

use super::{FRAGILE, Stage};
use crate::answers::{answer, names};
use crate::jobs::Blueprint;
use crate::twins::Twin;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use pawl_api::TrainingJob;
use pawl_api::status::Stage as JobStage;
use pawl_e2e::scene::{JOB_LABEL, stage as stage_of};
use pawl_e2e::soak::goodput::Tracker;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// Longest time without progress: faults and back-offs in a row take minutes.
const STUCK: Duration = Duration::from_secs(600);
/// Longest time until nothing is left of a deleted job.
const GONE: Duration = Duration::from_secs(180);

impl Stage<'_> {
    /// Runs jobs until the time is over, and the last one to its end. They are compared with their twin once it has
    /// ended.
    pub async fn rounds(&self, blueprint: &Blueprint, twin: impl Future<Output = Arc<Twin>> + Clone) {
        for round in 1.. {
            if self.is_over() {
                return;
            }
            self.round(blueprint, twin.clone(), round).await;
        }
    }

    /// One job from its creation to its end.
    async fn round(&self, blueprint: &Blueprint, twin: impl Future<Output = Arc<Twin>>, round: u32) {
        let name = format!("{}, run {round}", blueprint.name);
        let began = Instant::now();
        self.create(blueprint).await;
        let mut tracker = Tracker::default();
        let ended = self.watch(blueprint, &mut tracker).await;
        let took = began.elapsed();
        let said = self.judge(&ended, &*twin.await, &tracker, took);
        if !self.record.check(&name, said) {
            self.evidence(&format!("{}-{round}", blueprint.name), &ended);
        }
        self.remove(blueprint.name).await;
        // Every other job of this name begins while objects of the previous one are still there.
        if round.is_multiple_of(2) {
            match self.gone(blueprint.name, GONE).await {
                Ok(()) => self.clear(blueprint).await,
                Err(left) => {
                    self.record.check(&format!("{name}: nothing is left"), Err(left));
                    self.keep(&["get", "pods,nodes", "--output", "yaml"], &format!("{}-{round}.left", blueprint.name));
                }
            }
        }
    }

    /// Creates a job, as soon as the API server answers.
    pub async fn create(&self, blueprint: &Blueprint) {
        let manifest = blueprint.manifest(&self.scene.namespace);
        let job: TrainingJob = serde_json::from_value(manifest).expect("a valid job");
        let jobs = self.scene.api::<TrainingJob>();
        loop {
            match answer(jobs.create(&PostParams::default(), &job)).await {
                Some(Ok(_)) => return,
                // It was created by a request whose answer was lost.
                Some(Err(kube::Error::Api(status))) if status.reason == "AlreadyExists" => return,
                Some(Err(error)) => self.record.note(&format!("{}: {error}", blueprint.name)),
                None => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Follows a job until it ends, or for as long as it makes progress, and gives its last state.
    pub async fn watch(&self, blueprint: &Blueprint, tracker: &mut Tracker) -> Option<TrainingJob> {
        let jobs = self.scene.api::<TrainingJob>();
        let (mut newest, mut done, mut since) = (None, 0, Instant::now());
        for look in 0_u32.. {
            if let Some((attempt, progress)) = self.view.progress(blueprint.name).await
                && let Some(loss) = tracker.see(&attempt, &progress, blueprint.every, Instant::now())
            {
                self.lost(blueprint, &loss);
            }
            if look.is_multiple_of(3)
                && let Some(Ok(job)) = answer(jobs.get(blueprint.name)).await
            {
                if progress_of(&job) > done {
                    (done, since) = (progress_of(&job), Instant::now());
                }
                let released = job.status.as_ref().is_some_and(|status| status.attempt.is_none());
                let ended = matches!(stage_of(&job), JobStage::Complete | JobStage::Failed);
                newest = Some(job);
                if ended && released {
                    break;
                }
            }
            if since.elapsed() > STUCK {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        newest
    }

    /// Whether a job ended as its twin.
    fn judge(
        &self,
        job: &Option<TrainingJob>,
        twin: &Twin,
        tracker: &Tracker,
        took: Duration,
    ) -> Result<String, String> {
        let job = job.as_ref().ok_or("the API server did not answer")?;
        let status = job.status.as_ref().ok_or("it has no status")?;
        if !matches!(status.stage, JobStage::Complete | JobStage::Failed) {
            let (stage, retry) = (status.stage, &status.retry);
            return Err(format!("no progress for {} s: {stage} {retry:?}", STUCK.as_secs()));
        }
        let differences = twin.differences(&serde_json::to_value(status).expect("a status is JSON"));
        if !differences.is_empty() {
            let shown = differences.iter().take(6).cloned().collect::<Vec<_>>().join("; ");
            return Err(format!("{} fields differ from its twin: {shown}", differences.len()));
        }
        let training = status.training.as_ref();
        let lost: u64 = tracker.losses.iter().map(|loss| loss.items).sum();
        if let Some(training) = training {
            self.goodput.ended(training.measured.items, lost);
        }
        Ok(format!(
            "{} after {:.0} s, {} attempts, {} restarts of the training, {lost} items lost; {} fields as its twin",
            status.stage,
            took.as_secs_f64(),
            status.attempts,
            training.map_or(0, |training| training.restarts),
            twin.len(),
        ))
    }

    /// Deletes a job.
    pub async fn remove(&self, name: &str) {
        let jobs = self.scene.api::<TrainingJob>();
        loop {
            match answer(jobs.delete(name, &DeleteParams::background())).await {
                Some(Err(kube::Error::Api(status))) if status.reason == "NotFound" => return,
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Waits until nothing of a deleted job is left.
    ///
    /// # Errors
    /// What is left.
    pub async fn gone(&self, job: &str, deadline: Duration) -> Result<(), String> {
        let labelled = ListParams::default().labels(&format!("{JOB_LABEL}={job}"));
        let began = Instant::now();
        loop {
            let scene = self.scene;
            let left = [
                names(scene.api::<Job>(), &labelled).await,
                names(scene.api::<Pod>(), &labelled).await,
                names(scene.api::<ConfigMap>(), &labelled).await,
                names(scene.api::<Secret>(), &labelled).await,
                names(scene.api::<PersistentVolumeClaim>(), &labelled).await,
            ];
            if left.iter().all(|left| left.as_ref().is_some_and(Vec::is_empty)) {
                return Ok(());
            }
            if began.elapsed() > deadline {
                return Err(format!("left after {} s: {left:?}", deadline.as_secs()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes the checkpoints of a deleted job from the small disk.
    async fn clear(&self, blueprint: &Blueprint) {
        if blueprint.claim == FRAGILE {
            // While it is frozen, this would block the thread that thaws it.
            let _calm = self.locks.disk.lock().await;
            self.disk.clear(&self.scene.namespace, blueprint.name);
        }
    }

    /// Keeps what is needed to understand a failure.
    pub fn evidence(&self, name: &str, job: &Option<TrainingJob>) {
        let job = serde_json::to_value(job).unwrap_or(Value::Null);
        std::fs::write(self.record.beside(&format!("{name}.json")), format!("{job:#}")).unwrap();
        self.keep(&["get", "events", "--sort-by=.lastTimestamp"], &format!("{name}.events"));
    }

    /// Keeps what kubectl prints.
    fn keep(&self, arguments: &[&str], file: &str) {
        let printed = self.scene.kubectl(arguments).output().map(|output| output.stdout).unwrap_or_default();
        std::fs::write(self.record.beside(file), printed).unwrap();
    }
}

/// What a job has done, as a number that grows: launches of comparisons, then items of the training.
fn progress_of(job: &TrainingJob) -> u64 {
    let Some(status) = &job.status else { return 0 };
    let launches: usize = status.phases.iter().map(|phase| phase.launches.len() + phase.checked.len()).sum();
    let items = status.training.as_ref().map_or(0, |training| training.measured.items);
    launches as u64 + items
}
