//! What holds for the whole run.

use super::Stage;
use crate::answers::names;
use crate::jobs::{self, FRAGILE, LONG, STEADY};
use crate::operators::Usage;
use crate::processes;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use kube::api::ListParams;
use pawl_api::status::Stage as JobStage;
use pawl_e2e::soak::goodput::Tracker;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The least share of training that is useful.
const GOODPUT: f64 = 0.95;
/// Longest time until nothing is left of all jobs.
const GONE: Duration = Duration::from_secs(120);

impl Stage<'_> {
    /// The job that no fault hits directly: it is never restarted, whatever happens to operators and API server.
    pub async fn long(&self) {
        let blueprint = jobs::long(self.options.time());
        self.create(&blueprint).await;
        let mut tracker = Tracker::default();
        let ended = self.watch(&blueprint, &mut tracker).await;
        let status = ended.as_ref().and_then(|job| job.status.clone()).unwrap_or_default();
        let restarts = status.training.as_ref().map_or(0, |training| training.restarts);
        let said = format!("{}, {} attempts, {restarts} restarts", status.stage, status.attempts);
        // One attempt checks the settings, one trains.
        let whole = status.stage == JobStage::Complete && restarts == 0 && status.attempts == 2;
        if !self.record.check("the long job is never restarted", if whole { Ok(said) } else { Err(said) }) {
            self.evidence(LONG, &ended);
        }
        self.remove(LONG).await;
    }

    /// After the end of all jobs: nothing of them is left.
    pub async fn check_remains(&self) {
        let mut left = Vec::new();
        for blueprint in jobs::all().iter().map(|blueprint| blueprint.name).chain([LONG]) {
            if let Err(objects) = self.gone(blueprint, GONE).await {
                left.push(format!("{blueprint}: {objects}"));
            }
        }
        let whole = if left.is_empty() {
            Ok("no Job, Pod, ConfigMap, Secret or claim".to_owned())
        } else {
            Err(left.join("; "))
        };
        self.record.check("no object of a deleted job is left", whole);
        let others = self.others().await;
        let whole =
            if others.is_empty() { Ok("only what was there before".to_owned()) } else { Err(format!("{others:?}")) };
        self.record.check("no other object is left in the namespace", whole);
        self.check_processes().await;
        for (number, replica) in self.replicas.iter().enumerate() {
            let metrics = self.metrics(replica).await.unwrap_or_default();
            let series: Vec<_> = metrics.lines().filter(|line| line.contains("job=\"")).take(5).collect();
            let whole = match (metrics.is_empty(), series.is_empty()) {
                (true, _) => Err("it does not answer".to_owned()),
                (_, true) => Ok(format!("{} lines of metrics", metrics.lines().count())),
                (_, false) => Err(format!("{series:?}")),
            };
            self.record.check(&format!("operator {number} exports no series of deleted jobs"), whole);
        }
    }

    /// Objects of the namespace that neither Kubernetes, the harness nor all jobs together need.
    async fn others(&self) -> BTreeSet<String> {
        let (scene, all) = (self.scene, ListParams::default());
        let lists = [
            names(scene.api::<ConfigMap>(), &all).await,
            names(scene.api::<Secret>(), &all).await,
            names(scene.api::<Service>(), &all).await,
            names(scene.api::<PersistentVolumeClaim>(), &all).await,
        ];
        // The Service is of the namespace: all its gangs meet there.
        let expected = ["kube-root-ca.crt", "pawl-trainers", STEADY, FRAGILE];
        let found = lists.into_iter().flat_map(|list| list.unwrap_or_else(|| vec!["no answer".to_owned()]));
        found.filter(|name| !expected.contains(&name.as_str())).collect()
    }

    /// No rank lives longer than its pod.
    async fn check_processes(&self) {
        let began = Instant::now();
        loop {
            let left = processes::scripted_in_pods();
            if left.is_empty() || began.elapsed() > GONE {
                let whole = if left.is_empty() { Ok("none".to_owned()) } else { Err(format!("processes {left:?}")) };
                self.record.check("no process of a deleted pod is left", whole);
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Goodput and memory.
    pub fn check_totals(&self) {
        if let Some(share) = self.goodput.share() {
            let said = format!("{:.2} % of the training was useful", share * 100.0);
            self.record.figure("goodput", share);
            self.record.check("goodput under kills", if share >= GOODPUT { Ok(said) } else { Err(said) });
        }
        let (losses, excess) = self.losses();
        self.record.figure("gangs replaced during training", losses);
        let whole = if excess.is_empty() { Ok(format!("{losses} gangs replaced")) } else { Err(excess.join("; ")) };
        self.record.check("at most one checkpoint interval is lost by each", whole);
        for (number, replica) in self.replicas.iter().enumerate() {
            let Usage { memory, files } = replica.usage();
            self.record.figure(&format!("operator {number}: memory growth in bytes per hour"), memory.slope() * 3600.0);
            self.record.check(&format!("memory of operator {number} is flat"), memory.flat());
            let growth = files.slope() * files.span();
            let said = format!("mean {:.0}, {growth:+.1} in {:.0} s", files.mean(), files.span());
            let whole = if growth < 0.2 * files.mean() + 5.0 { Ok(said) } else { Err(said) };
            self.record.check(&format!("open files of operator {number} are bounded"), whole);
        }
        let agent = self.agent();
        self.record.figure("agent: memory growth in bytes per hour", agent.slope() * 3600.0);
        self.record.check("memory of an agent is flat", agent.flat());
    }
}
