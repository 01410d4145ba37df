//! What a job adds to the sums over jobs.

use crate::jobs::Entry;
use crate::payback;
use crate::verdict::{Tone, tone};
use pawl_api::status::{PhaseStatus, Purpose};

/// What a job cost, and the verdicts on its phases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Whether its devices are GPUs; otherwise they are processes.
    pub on_gpus: bool,
    /// Device hours of the verdicts on phases: checks, pairs, quality.
    pub judging: f64,
    /// Device hours of searches.
    pub search: f64,
    /// Device hours of training.
    pub training: f64,
    /// Device hours saved compared with training with the baseline, after all others; `None` before both speeds are
    /// known.
    pub saved: Option<f64>,
    /// The verdicts.
    pub phases: Vec<Judged>,
}

/// The verdict on a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Name of the phase.
    pub name: String,
    /// Its state.
    pub tone: Tone,
    /// Reason of its state, in one CamelCase word.
    pub reason: String,
    /// Its speedup, a ratio.
    pub speedup: Option<f64>,
}

impl Judged {
    fn new(phase: &PhaseStatus) -> Self {
        Self {
            name: phase.name.clone(),
            tone: tone(phase.state),
            reason: phase.reason.clone(),
            speedup: phase.speedup.as_ref().map(|speedup| speedup.estimate.value()),
        }
    }
}

impl Facts {
    /// Those of a job.
    pub fn new(entry: Entry<'_>) -> Self {
        let mut facts = Self {
            on_gpus: entry.job.spec.trainer.gpus_per_replica > 0,
            saved: payback::saved(entry.job, entry.status),
            phases: entry.status.phases.iter().map(Judged::new).collect(),
            ..Self::default()
        };
        for (purpose, milliseconds) in entry.status.cost.iter().flat_map(|cost| &cost.purposes) {
            let hours = match purpose {
                Purpose::Train => &mut facts.training,
                Purpose::Search => &mut facts.search,
                Purpose::Preflight | Purpose::Speed | Purpose::Quality | Purpose::Bundle | Purpose::LeaveOneOut => {
                    &mut facts.judging
                }
            };
            *hours += *milliseconds as f64 / 3.6e6;
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn device_time_is_summed_by_what_it_was_for() {
        let hour = 3_600_000;
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"},
            "trainer": {"replicas": 2, "gpusPerReplica": 4}}});
        let purposes = json!({"Preflight": hour, "Speed": 2 * hour, "Search": hour, "Train": 10 * hour});
        // 8 GPUs; the baseline takes 2 hours for the items, the training 1.25.
        let status = json!({"stage": "Complete", "baseline": {"itemsPerSecond": "100"},
            "training": {"items": 720_000, "itemsPerSecond": "160"}, "cost": {"purposes": purposes},
            "phases": [{"name": "graph", "state": "RolledBack", "reason": "NoEffect"}]});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        let facts = Facts::new(Entry { job: &job, status: &status, place: "", measured_with: &[], stopped: false });
        assert!(facts.on_gpus);
        assert_eq!((facts.judging, facts.search, facts.training), (3.0, 1.0, 10.0));
        assert_eq!(facts.saved, Some(2.0));
        let graph = &facts.phases[0];
        assert_eq!((graph.tone, graph.reason.as_str(), graph.speedup), (Tone::Bad, "NoEffect", None));
        let new = Entry { job: &job, status: &Default::default(), place: "", measured_with: &[], stopped: false };
        assert_eq!(Facts::new(new).saved, None);
    }
}
