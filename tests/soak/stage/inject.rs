//! Carries the faults out.

use super::Stage;
use crate::answers::answer;
use crate::jobs::LONG;
use crate::processes::{self, Process};
use crate::view::Member;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams};
use pawl_e2e::machines::{Node, Outage};
use pawl_e2e::soak::faults::{Fault, Faults, Kind};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// What at most one fault at a time may hit.
#[derive(Default)]
pub struct Locks {
    /// A node that is cut does not end before a frozen disk is thawed: its processes hang in it.
    nodes: Mutex<()>,
    api: Mutex<()>,
    pub disk: Mutex<()>,
}

/// Processes that are stopped, until this is dropped.
struct Stopped(Vec<Process>);

impl Stopped {
    fn these(processes: Vec<Process>) -> Self {
        processes.iter().for_each(|process| process.signal(Signal::STOP));
        Self(processes)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| process.signal(Signal::CONT));
    }
}

/// A node that is disconnected, until this is dropped.
struct Unplugged(Arc<Node>);

impl Drop for Unplugged {
    fn drop(&mut self) {
        self.0.plug();
    }
}

impl Stage<'_> {
    /// Injects the faults of the seed until the time is over, and ends those that last.
    pub async fn inject(&self) {
        let faults = match Faults::of(self.options.seed, &self.options.faults) {
            Ok(faults) => faults,
            Err(why) => {
                self.record.check("the faults", Err(why));
                return;
            }
        };
        let mut lasting = FuturesUnordered::new();
        for fault in faults {
            let mut pause = std::pin::pin!(sleep(fault.after));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    Some(()) = lasting.next() => {}
                }
            }
            if self.is_over() {
                break;
            }
            lasting.push(self.one(fault));
        }
        while lasting.next().await.is_some() {}
    }

    async fn one(&self, fault: Fault) {
        match fault.kind {
            Kind::PodDeleted | Kind::PodKilled | Kind::PodEvicted | Kind::JobDeleted => self.object(fault).await,
            Kind::ContainerKilled | Kind::RankKilled | Kind::PodFrozen => self.process(fault).await,
            Kind::NodeCut | Kind::NodeUnplugged => self.node(fault).await,
            Kind::OperatorKilled | Kind::OperatorFrozen | Kind::ClockJump => self.operator(fault).await,
            Kind::ApiKilled | Kind::ApiFrozen => self.api_server(fault).await,
            Kind::DiskFull | Kind::DiskFrozen => self.storage(fault).await,
        }
    }

    /// A running pod of a job that faults may hit.
    fn victim(&self, pick: usize) -> Option<Member> {
        let pods: Vec<_> = self.view.running().into_iter().filter(|pod| pod.job != LONG).collect();
        (!pods.is_empty()).then(|| pods[pick % pods.len()].clone())
    }

    fn begins(&self, fault: Fault, target: &str) {
        let target = match fault.lasts {
            Duration::ZERO => target.to_owned(),
            lasts => format!("{target}, for {:.0} s", lasts.as_secs_f64()),
        };
        self.record.fault(&fault.kind.to_string(), &target);
    }

    /// Somebody deletes an object.
    async fn object(&self, fault: Fault) {
        let Some(pod) = self.victim(fault.pick) else { return };
        let pods = self.scene.api::<Pod>();
        let done = match fault.kind {
            Kind::PodKilled => {
                let now = DeleteParams::default().grace_period(0);
                answer(pods.delete(&pod.name, &now)).await.is_some_and(|answer| answer.is_ok())
            }
            Kind::PodEvicted => {
                answer(pods.evict(&pod.name, &EvictParams::default())).await.is_some_and(|answer| answer.is_ok())
            }
            Kind::JobDeleted => {
                let jobs = self.scene.api::<Job>();
                let pods_as_well = DeleteParams::background();
                answer(jobs.delete(&pod.attempt, &pods_as_well)).await.is_some_and(|answer| answer.is_ok())
            }
            _ => answer(pods.delete(&pod.name, &DeleteParams::default())).await.is_some_and(|answer| answer.is_ok()),
        };
        // An API server that is away deletes nothing.
        if done {
            self.begins(fault, &pod.name);
        }
    }

    /// Processes of a pod are killed or stopped.
    async fn process(&self, fault: Fault) {
        let Some(pod) = self.victim(fault.pick) else { return };
        let processes = match fault.kind {
            Kind::ContainerKilled => processes::agent(&pod.uid).into_iter().collect(),
            Kind::RankKilled => processes::ranks(&pod.uid).into_iter().take(1).collect(),
            _ => processes::trainers(&pod.uid),
        };
        if processes.is_empty() {
            return;
        }
        self.begins(fault, &pod.name);
        if fault.kind == Kind::PodFrozen {
            let _stopped = Stopped::these(processes);
            sleep(fault.lasts).await;
        } else {
            processes.iter().for_each(|process| process.signal(Signal::KILL));
        }
    }

    async fn node(&self, fault: Fault) {
        let Ok(_only) = self.locks.nodes.try_lock() else { return };
        let node = Arc::clone(&self.nodes[fault.pick % self.nodes.len()]);
        self.begins(fault, &node.name());
        if fault.kind == Kind::NodeCut {
            let cut = Arc::clone(&node);
            spawn_blocking(move || cut.cut()).await.expect("the script works");
            sleep(fault.lasts).await;
            spawn_blocking(move || node.power_on()).await.expect("the script works");
        } else {
            let unplugged = spawn_blocking(move || {
                node.unplug();
                Unplugged(node)
            });
            let _unplugged = unplugged.await.expect("the script works");
            sleep(fault.lasts).await;
        }
    }

    async fn operator(&self, fault: Fault) {
        let number = fault.pick % self.replicas.len();
        let replica = &self.replicas[number];
        let Ok(_only) = replica.trouble.try_lock() else { return };
        let name = format!("operator {number}");
        match (fault.kind, &replica.clock) {
            (Kind::OperatorKilled, _) if self.kills_operators() => {
                self.begins(fault, &name);
                replica.kill();
                sleep(fault.lasts).await;
                replica.replace();
            }
            (Kind::OperatorFrozen, _) => {
                self.begins(fault, &name);
                replica.signal(Signal::STOP);
                sleep(fault.lasts).await;
                replica.signal(Signal::CONT);
            }
            (Kind::ClockJump, Some(clock)) => {
                // From 20 minutes back to an hour ahead.
                let seconds = (fault.pick / self.replicas.len() % 4800) as i64 - 1200;
                self.begins(fault, &format!("{name} by {seconds} s"));
                clock.set(seconds);
                sleep(fault.lasts).await;
                clock.set(0);
            }
            _ => {}
        }
    }

    async fn api_server(&self, fault: Fault) {
        let Ok(_only) = self.locks.api.try_lock() else { return };
        self.begins(fault, "kube-apiserver");
        if fault.kind == Kind::ApiKilled {
            let outage = spawn_blocking(Outage::begin).await.expect("the script works");
            sleep(fault.lasts).await;
            spawn_blocking(move || outage.end()).await.expect("the script works");
        } else {
            let _stopped = Stopped::these(processes::component("kube-apiserver").into_iter().collect());
            sleep(fault.lasts).await;
        }
    }

    async fn storage(&self, fault: Fault) {
        let Ok(_only) = self.locks.disk.try_lock() else { return };
        self.disk.troubled_for(fault.lasts);
        if fault.kind == Kind::DiskFull {
            self.begins(fault, "fragile");
            let _full = self.disk.fill();
            sleep(fault.lasts).await;
            return;
        }
        let Ok(_nodes) = self.locks.nodes.try_lock() else { return };
        self.begins(fault, "fragile");
        let _frozen = self.disk.freeze();
        sleep(fault.lasts).await;
    }
}
