//! What the watches report, compactly: for each `TrainingJob` its attempts, and of each its batch Job, ConfigMap and
//! pods.
//!
//! Nothing else of a pod is kept, so that memory does not grow with pods' size. What is deleted in the cluster is
//! remembered here as gone until the decision core has taken it in ([`Facts::release`](crate::jobs::Facts::release)):
//! how a pod ended is evidence.

mod gang;
mod hindrance;
mod pod;

pub(crate) use gang::manager;
pub use gang::{Finished, GangFacts, PlanFacts, labelled, owner};
pub use hindrance::{Cause, FAILED_CREATE, Hindrance, Kind};
pub use pod::{NodeSeen, PodEnd, PodFacts, Stand};

use jiff::Timestamp;
use pawl_contract::attempt::AttemptName;

/// What is known of one attempt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttemptFacts {
    /// `<job>-<number>`.
    pub name: String,
    /// Its batch Job.
    pub gang: Option<GangFacts>,
    /// The ConfigMap that holds its plan.
    pub plan: Option<PlanFacts>,
    /// Its pods, by index; several of one index when their batch Jobs differ.
    pub pods: Vec<PodFacts>,
    /// Why the API server refused pods of its batch Job when the operator last asked.
    pub refusal: Option<Hindrance>,
    /// When that changed on which decisions depend.
    pub changed: Option<Timestamp>,
    /// Its results are in the status: what is gone of it is not remembered.
    pub released: bool,
}

impl AttemptFacts {
    /// The batch Job, unless it is gone.
    pub fn live_gang(&self) -> Option<&GangFacts> {
        self.gang.as_ref().filter(|gang| !gang.gone)
    }

    /// The batch Job, while it makes pods and lets them run.
    pub fn working_gang(&self) -> Option<&GangFacts> {
        self.live_gang().filter(|gang| !gang.deleting && gang.finished.is_none())
    }

    /// The batch Job, if not all of its pods have been made although nothing holds them back.
    pub fn incomplete_gang(&self) -> Option<&GangFacts> {
        self.working_gang().filter(|gang| !gang.suspended && self.own_pods().count() < gang.replicas as usize)
    }

    /// Pods of the newest batch Job.
    pub fn own_pods(&self) -> impl Iterator<Item = &PodFacts> {
        let uid = self.gang.as_ref().map(|gang| gang.uid.as_str());
        self.pods.iter().filter(move |pod| uid.is_none_or(|uid| uid == pod.gang_uid))
    }

    /// Pods that run or may come to run, also those of an older batch Job of this name.
    pub fn alive(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.iter().filter(|pod| pod.alive())
    }

    /// Number of the attempt; 0 when its name has none.
    pub fn number(&self) -> u32 {
        AttemptName::number_of(&self.name)
    }

    /// Drops what no longer exists.
    pub(crate) fn drop_gone(&mut self) {
        self.pods.retain(|pod| !pod.gone);
        self.gang.take_if(|gang| gang.gone);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gang.is_none() && self.plan.is_none() && self.pods.is_empty()
    }
}
