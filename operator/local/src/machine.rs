//! Allocation of this machine's GPUs and cores to a job.

use pawl_api::TrainingJob;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;

/// This machine does not meet the requirements of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// Fewer GPUs are visible than the trials of a search require that run at the same time.
    #[error(
        "spec.search[{stage}].parallelism: {parallelism} trials at the same time require {wanted} GPUs, {visible} are visible: use at \
         most {most}"
    )]
    TooFewForTrials {
        /// Index of the stage.
        stage: usize,
        /// Its trials at the same time.
        parallelism: u32,
        /// Number of GPUs that they require.
        wanted: u32,
        /// Number of visible GPUs.
        visible: usize,
        /// Number of trials for which there are enough.
        most: usize,
    },
    /// Fewer GPUs are visible than required.
    #[error(
        "spec.trainer: {wanted} GPUs are required (replicas x gpusPerReplica), {visible} are visible: use a machine \
         with more GPUs, lower spec.trainer.gpusPerReplica (0 trains on the CPU), or check nvidia-smi and CUDA_VISIBLE_DEVICES"
    )]
    TooFewGpus {
        /// Number of GPUs that the manifest requires.
        wanted: u32,
        /// Number of visible GPUs.
        visible: usize,
    },
    /// The number of GPUs in `--gpus` differs from that of the manifest.
    #[error(
        "--gpus: {given} GPUs given, but the manifest requires {wanted} (replicas x gpusPerReplica, times the parallelism of a \
         search): give {wanted}, or change spec.trainer"
    )]
    GpuCount {
        /// Number of GPUs that the manifest requires.
        wanted: u32,
        /// Number of GPUs in `--gpus`.
        given: usize,
    },
    /// `--gpus` names a GPU that is not visible.
    #[error("--gpus: GPU \"{name}\" is not visible: choose from {}", visible.join(","))]
    NoSuchGpu {
        /// Its name.
        name: String,
        /// The visible GPUs.
        visible: Vec<String>,
    },
}

/// The devices allocated to a job; the ranks of all replicas run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// GPUs in the order of the ranks; empty: the ranks run on the CPU. With a search that runs several trials at the
    /// same time, those of all of them.
    pub gpus: Vec<String>,
    /// Number of gangs of a search that run at the same time.
    pub gangs: usize,
    /// Name of the machine.
    pub host: String,
    /// Number of cores.
    pub cores: usize,
    /// Number of ranks of a gang.
    pub ranks: usize,
    /// Threads per rank, at least 1.
    pub threads: usize,
    /// Identifies the devices: only launches with equal placement are compared.
    pub placement: String,
}

impl Machine {
    /// Allocates the GPUs `chosen` (`--gpus`) to `job`, or the first visible ones.
    ///
    /// # Errors
    /// [`MachineError`] when too few GPUs are visible, or `chosen` does not match the manifest.
    pub fn allocate(job: &TrainingJob, chosen: Option<&[String]>) -> Result<Self, MachineError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::allocate_from(job, chosen, &visible_gpus(), cores, &host())
    }

    fn allocate_from(
        job: &TrainingJob,
        chosen: Option<&[String]>,
        visible: &[String],
        cores: usize,
        host: &str,
    ) -> Result<Self, MachineError> {
        let trainer = &job.spec.trainer;
        let stages = job.spec.search.iter().enumerate().map(|(index, search)| (search.parallelism.max(1), index));
        let (gangs, stage) = stages.max_by_key(|(gangs, index)| (*gangs, std::cmp::Reverse(*index))).unwrap_or((1, 0));
        let one = trainer.replicas.saturating_mul(trainer.gpus_per_replica);
        let wanted = one.saturating_mul(gangs);
        let gpus = match chosen {
            Some(chosen) if chosen.len() != wanted as usize => {
                return Err(MachineError::GpuCount { wanted, given: chosen.len() });
            }
            Some(chosen) => {
                // Only indices can be checked here; the driver checks UUIDs (GPU-.., MIG-..).
                let unknown = |name: &&String| name.bytes().all(|b| b.is_ascii_digit()) && !visible.contains(name);
                if let Some(name) = chosen.iter().find(unknown) {
                    return Err(MachineError::NoSuchGpu { name: name.clone(), visible: visible.to_vec() });
                }
                chosen.to_vec()
            }
            None if visible.len() < wanted as usize && visible.len() >= one as usize => {
                let most = visible.len() / one.max(1) as usize;
                return Err(MachineError::TooFewForTrials {
                    stage,
                    parallelism: gangs,
                    wanted,
                    visible: visible.len(),
                    most,
                });
            }
            None if visible.len() < wanted as usize => {
                let wanted = one;
                return Err(MachineError::TooFewGpus { wanted, visible: visible.len() });
            }
            None => visible[..wanted as usize].to_vec(),
        };
        let ranks = trainer.world_size().max(1) as usize;
        let machine = Self {
            gpus,
            gangs: gangs as usize,
            host: host.to_owned(),
            cores,
            ranks,
            threads: 1,
            placement: String::new(),
        };
        Ok(machine.part(0..one as usize, 1))
    }

    /// These devices of the machine, of which there are `parts`.
    fn part(&self, gpus: Range<usize>, parts: usize) -> Self {
        let threads = (self.cores / (self.ranks * parts)).max(1);
        let own = self.gpus.get(gpus).unwrap_or_default();
        let devices =
            if own.is_empty() { format!("cpu:{}x{threads}", self.ranks) } else { format!("gpu:{}", own.join(",")) };
        Self { placement: format!("{}/{devices}", self.host), threads, ..self.clone() }
    }

    /// The number of gangs among which the devices are divided while one with this plan runs: those of a search,
    /// otherwise 1.
    pub fn shares(&self, plan: &AttemptPlan) -> usize {
        if plan.launches.iter().any(|launch| launch.kind == LaunchKind::Search) { self.gangs } else { 1 }
    }

    /// The devices for this plan: share number `index`. On the CPU, each gang gets an equal share of the cores, at
    /// least one core for each rank; nothing else limits their number there, so that more gangs than cores only slow
    /// one another down.
    pub fn share(&self, plan: &AttemptPlan, index: usize) -> Self {
        let one = self.gpus.len() / self.gangs.max(1);
        let from = index * one;
        let part = self.part(from..from + one, self.shares(plan));
        Self { gpus: self.gpus.get(from..from + one).unwrap_or_default().to_vec(), ..part }
    }

    /// `plan` for a single agent that runs the ranks of all replicas, in the same order.
    pub fn single_agent_plan(&self, plan: &AttemptPlan) -> AttemptPlan {
        AttemptPlan {
            replicas: 1,
            ranks_per_replica: plan.ranks(),
            gpus_per_replica: plan.replicas * plan.gpus_per_replica,
            ..plan.clone()
        }
    }

    /// Environment variables of every rank: equal shares of the cores, so that both arms of a pair have equal
    /// conditions.
    pub fn environment(&self) -> Vec<(String, String)> {
        ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"].map(|name| (name.to_owned(), self.threads.to_string())).to_vec()
    }
}

/// The GPUs in `CUDA_VISIBLE_DEVICES`, or else those that the driver lists.
pub fn visible_gpus() -> Vec<String> {
    match std::env::var_os("CUDA_VISIBLE_DEVICES") {
        Some(shown) => listed(&shown),
        None => (0..driver_gpus(Path::new("/proc/driver/nvidia/gpus"))).map(|index| index.to_string()).collect(),
    }
}

/// The devices in a value of `CUDA_VISIBLE_DEVICES`, up to the first invalid one, such as -1, as in CUDA.
fn listed(shown: &OsStr) -> Vec<String> {
    let shown = shown.to_string_lossy();
    let names = shown.split(',').map(str::trim).take_while(|name| !name.is_empty() && !name.starts_with('-'));
    names.map(str::to_owned).collect()
}

fn driver_gpus(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, |entries| entries.filter_map(Result::ok).count())
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::plan::GangSize;

    fn job(replicas: u32, gpus: u32) -> TrainingJob {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy"},
            "spec": {"workload": {"name": "ups"}, "trainer": {"replicas": replicas, "gpusPerReplica": gpus}},
        }))
        .unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn gpus_are_the_chosen_or_the_first_visible_ones_and_never_too_few() {
        let visible = names(&["0", "1", "2", "3"]);
        let allot = |gpus, chosen: Option<&[&str]>| {
            let chosen = chosen.map(names);
            Machine::allocate_from(&job(1, gpus), chosen.as_deref(), &visible, 8, "host").map(|machine| machine.gpus)
        };
        assert_eq!(allot(2, None), Ok(names(&["0", "1"])));
        assert_eq!(allot(2, Some(&["3", "1"])), Ok(names(&["3", "1"])));
        assert_eq!(allot(8, None), Err(MachineError::TooFewGpus { wanted: 8, visible: 4 }));
        assert_eq!(allot(2, Some(&["0"])), Err(MachineError::GpuCount { wanted: 2, given: 1 }));
        assert!(matches!(allot(1, Some(&["7"])), Err(MachineError::NoSuchGpu { .. })));
        assert_eq!(listed(OsStr::new("2,GPU-1, -1,3")), names(&["2", "GPU-1"]));
    }

    /// A job with a search that runs `parallelism` trials at the same time, and the plan of one of its trials.
    fn searching(gpus: u32, parallelism: u32) -> (TrainingJob, AttemptPlan) {
        let mut job = job(1, gpus);
        let search = serde_json::json!([{"name": "a", "trials": 20, "epochs": 1, "parallelism": parallelism,
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1"}]}]);
        job.spec.search = serde_json::from_value(search).unwrap();
        let launch = serde_json::json!({"contract": 1, "job": "toy", "attempt": "toy-1", "launch": "l", "kind": "Search",
            "workload": {}, "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0});
        let plan = serde_json::json!({"contract": 1, "job": "toy", "attempt": "toy-1", "replicas": 1, "ranksPerReplica": 1,
            "gpusPerReplica": gpus, "launches": [launch], "stopOnFailure": true});
        (job, serde_json::from_value(plan).unwrap())
    }

    #[test]
    fn trials_that_run_at_the_same_time_divide_the_gpus_and_too_few_are_refused() {
        let visible = names(&["0", "1", "2", "3", "4"]);
        let (job, plan) = searching(2, 2);
        let machine = Machine::allocate_from(&job, None, &visible, 8, "host").unwrap();
        assert_eq!(machine.shares(&plan), 2);
        let shares = [0, 1].map(|index| machine.share(&plan, index));
        assert_eq!(shares.each_ref().map(|share| share.gpus.clone()), [names(&["0", "1"]), names(&["2", "3"])]);
        assert_eq!(shares.each_ref().map(|share| share.placement.as_str()), ["host/gpu:0,1", "host/gpu:2,3"]);
        let measured = AttemptPlan { launches: Vec::new(), ..plan };
        assert_eq!((machine.shares(&measured), machine.share(&measured, 0).gpus), (1, names(&["0", "1"])));
        let refused = Machine::allocate_from(&searching(2, 3).0, None, &visible, 8, "host").unwrap_err().to_string();
        assert_eq!(
            refused,
            "spec.search[0].parallelism: 3 trials at the same time require 6 GPUs, 5 are visible: use at most 2"
        );
        let refused = Machine::allocate_from(&searching(2, 2).0, Some(&names(&["0", "1"])), &visible, 8, "host");
        assert_eq!(refused, Err(MachineError::GpuCount { wanted: 4, given: 2 }));
    }

    #[test]
    fn trials_that_run_at_the_same_time_divide_the_cores() {
        let (job, plan) = searching(0, 4);
        let machine = Machine::allocate_from(&job, None, &[], 8, "host").unwrap();
        assert_eq!(machine.threads, 8, "what is measured has all cores");
        let shares = [0, 3].map(|index| machine.share(&plan, index));
        assert!(shares.iter().all(|share| share.threads == 2 && share.gpus.is_empty()));
        let (job, plan) = searching(0, 20);
        let machine = Machine::allocate_from(&job, None, &[], 8, "host").unwrap();
        assert_eq!(machine.share(&plan, 19).threads, 1, "at least one");
    }

    #[test]
    fn ranks_on_the_cpu_share_the_cores_equally() {
        for (ranks, cores, threads) in [(1, 8, 8), (2, 8, 4), (3, 8, 2), (16, 8, 1)] {
            let machine = Machine::allocate_from(&job(ranks, 0), None, &[], cores, "host").unwrap();
            assert_eq!(machine.threads, threads);
            let environment = machine.environment();
            assert!(environment.contains(&("OMP_NUM_THREADS".to_owned(), threads.to_string())));
        }
    }

    #[test]
    fn the_replicas_of_a_gang_become_ranks_of_one_agent() {
        let machine = Machine::allocate_from(&job(2, 2), None, &names(&["0", "1", "2", "3"]), 8, "host").unwrap();
        let plan = AttemptPlan {
            contract: 1,
            job: "toy".to_owned(),
            attempt: "toy-1".to_owned(),
            replicas: 2,
            ranks_per_replica: 2,
            gpus_per_replica: 2,
            checks: None,
            command: Vec::new(),
            script: Default::default(),
            gather_seconds: None,
            launches: Vec::new(),
            stop_on_failure: true,
            events: Vec::new(),
        };
        let gathered = machine.single_agent_plan(&plan);
        assert_eq!((gathered.replicas, gathered.ranks_per_replica, gathered.gpus_per_replica), (1, 4, 4));
        assert_eq!(gathered.world_size(), plan.world_size());
        // A preflight in one rank remains one rank, with the world size of the whole gang.
        let whole = GangSize { replicas: 2, ranks_per_replica: 2, gpus_per_replica: 2 };
        let check = AttemptPlan { replicas: 1, ranks_per_replica: 1, gpus_per_replica: 0, checks: Some(whole), ..plan };
        let gathered = machine.single_agent_plan(&check);
        assert_eq!((gathered.ranks(), gathered.gpus_per_replica, gathered.world_size()), (1, 0, 4));
    }
}
