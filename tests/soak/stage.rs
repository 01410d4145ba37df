//! What the soak consists of: nodes, storage, operators, jobs; and their order.

mod checks;
mod inject;
mod slots;

use self::inject::Locks;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::jobs::{self, Blueprint, FRAGILE, LONG, NODES, STEADY, node_label};
use crate::operators::{Replica, SAMPLE};
use crate::options::Options;
use crate::processes;
use crate::record::Record;
use crate::twins::Twin;
use crate::view::View;
use futures::FutureExt;
use futures::future::join_all;
use pawl_e2e::Scene;
use pawl_e2e::machines::Node;
use pawl_e2e::operator::get;
use pawl_e2e::programs::{kubectl, succeed};
use pawl_e2e::soak::goodput::{Goodput, Loss};
use pawl_e2e::soak::memory::Samples;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Semaphore;

/// The node of the long job: no fault hits it.
const QUIET: u32 = 7;
/// The nodes of the other jobs.
const DOOMED: [u32; 2] = [8, 9];
/// Twins that run at a time, beside the jobs.
const TWINS: usize = 2;
/// Operators are not killed in the last third of the time: a process has to live for a while to show whether its memory
/// grows.
const KILLS: f64 = 2.0 / 3.0;

/// Everything of a run.
pub struct Stage<'a> {
    pub scene: &'a Scene,
    pub options: Options,
    pub record: Arc<Record>,
    pub began: Instant,
    pub view: View,
    pub goodput: Goodput,
    pub replicas: Vec<Replica<'a>>,
    pub disk: Disk,
    pub nodes: Vec<Arc<Node>>,
    pub locks: Locks,
    /// The node of the long job, for as long as this lives.
    quiet: Node,
    twins: Semaphore,
    agent: Mutex<Samples>,
    /// Losses of more than a checkpoint interval.
    excess: Mutex<Vec<String>>,
    losses: Mutex<u32>,
}

impl<'a> Stage<'a> {
    /// Starts nodes, storage and operators.
    pub async fn build(scene: &'a Scene, options: Options, record: Arc<Record>) -> Self {
        scene.claim(STEADY);
        let fragile = scene.claim(FRAGILE);
        // Before the nodes start: a node sees what is mounted by then.
        let disk = Disk::mount(scene.directory.path().join("fragile.img"), fragile);
        let quiet = Node::start(QUIET, 0);
        let nodes: Vec<_> = DOOMED.iter().map(|number| Arc::new(Node::start(*number, 0))).collect();
        let groups = nodes.iter().map(|node| (node.name(), "jobs")).chain([(quiet.name(), LONG)]);
        for (node, group) in groups {
            scene.node_is_ready(&node).await;
            let label = format!("{NODES}={}", node_label(&scene.namespace, group));
            succeed(&mut kubectl(&["label", "--overwrite", "node", &node, &label]));
        }
        let clock = |number| match Clock::new(scene.directory.path().join(format!("clock-{number}"))) {
            Ok(clock) => Some(clock),
            Err(why) => {
                record.note(&format!("skipped: clock jumps of operator {number}: {why}"));
                None
            }
        };
        let replicas = [0, 1].map(|number| Replica::start(scene, clock(number))).into();
        let (view, goodput, locks, agent, excess, losses) = Default::default();
        let (began, twins) = (Instant::now(), Semaphore::new(TWINS));
        Self {
            scene,
            options,
            record,
            began,
            view,
            goodput,
            replicas,
            disk,
            nodes,
            locks,
            quiet,
            twins,
            agent,
            excess,
            losses,
        }
    }

    /// Whether no new job starts and no fault happens any more.
    pub fn is_over(&self) -> bool {
        self.began.elapsed() >= self.options.time()
    }

    /// Whether operators may be killed still.
    pub fn kills_operators(&self) -> bool {
        self.began.elapsed() < self.options.time().mul_f64(KILLS)
    }

    /// Runs jobs and faults until the time is over and all jobs have ended.
    pub async fn run(&self) {
        let blueprints = jobs::all();
        let slots = join_all(blueprints.iter().map(|blueprint| self.slot(blueprint)));
        let work = async { tokio::join!(slots, self.long(), self.inject()) };
        tokio::select! {
            _ = work => {}
            () = self.view.follow(self.scene.api()) => {}
            () = self.observe() => {}
        }
        self.check_remains().await;
    }

    /// The twin of a job, once it has ended.
    pub async fn twin(&self, blueprint: &Blueprint) -> Arc<Twin> {
        let _turn = self.twins.acquire().await.expect("it is never closed");
        let (blueprint, directory) = (blueprint.clone(), self.scene.directory.path().to_owned());
        let twin = tokio::task::spawn_blocking(move || Twin::run(&blueprint, &directory));
        Arc::new(twin.await.expect("a job without faults is Complete"))
    }

    /// Samples memory, and replaces an operator that ended by itself.
    async fn observe(&self) {
        loop {
            for (number, replica) in self.replicas.iter().enumerate() {
                // One that is frozen does not answer.
                if let Some(metrics) = self.metrics(replica).await {
                    replica.sample(metrics.lines().any(|line| line == "pawl_leader 1"));
                }
                if let Ok(_calm) = replica.trouble.try_lock()
                    && replica.has_ended()
                {
                    self.record.check(&format!("operator {number}"), Err("it ended by itself: see its log".to_owned()));
                    replica.replace();
                }
            }
            if let Some(pod) = self.view.running().into_iter().find(|pod| pod.job == LONG)
                && let Some(bytes) = processes::agent(&pod.uid).and_then(|agent| agent.memory())
            {
                let age = self.began.elapsed();
                self.agent.lock().unwrap().add(age, age, bytes as f64);
            }
            tokio::time::sleep(SAMPLE).await;
        }
    }

    /// The memory of the agent of the long job.
    pub fn agent(&self) -> Samples {
        self.agent.lock().unwrap().clone()
    }

    /// A gang was replaced, and this was trained again.
    pub fn lost(&self, blueprint: &Blueprint, loss: &Loss) {
        *self.losses.lock().unwrap() += 1;
        let said = format!("{}: {} items lost, {} between checkpoints", loss.attempt, loss.items, loss.interval);
        self.record.note(&said);
        // Nothing can be saved while the storage is in trouble.
        let troubled = blueprint.claim == FRAGILE && self.disk.is_troubled();
        if loss.items > loss.interval && !troubled {
            self.excess.lock().unwrap().push(said);
        }
    }

    /// Number of gangs that were replaced during training, and those that lost more than one checkpoint interval.
    pub fn losses(&self) -> (u32, Vec<String>) {
        (*self.losses.lock().unwrap(), self.excess.lock().unwrap().clone())
    }

    /// The series that an operator exports about jobs; `None` when it does not answer.
    pub async fn metrics(&self, replica: &Replica<'_>) -> Option<String> {
        get(&format!("http://{}/metrics", replica.http()?)).await
    }

    /// Checks what holds for the whole run, also after an interruption, and keeps the log of the operators.
    pub async fn close(self) {
        self.check_totals();
        let _ = std::fs::copy(self.scene.operator_log(), self.record.beside("operator.log"));
        // Nodes first: they use the disk.
        let Self { quiet, nodes, disk, replicas, .. } = self;
        drop((replicas, quiet, nodes, disk));
    }

    /// One slot: jobs run while their twin still does.
    pub async fn slot(&self, blueprint: &Blueprint) {
        let twin = self.twin(blueprint).boxed_local().shared();
        tokio::join!(twin.clone(), self.rounds(blueprint, twin.clone()));
    }
}
