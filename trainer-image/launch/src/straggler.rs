//! A rank that is slower than the others: one machine or device is the reason, not the settings.

use crate::collective::{CollectiveError, Gang};
use serde::{Deserialize, Serialize};

/// Ratio to the fastest rank's time over a window above which a rank counts as a straggler.
const STRAGGLER: f64 = 1.3;

/// Where a rank runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Name of the node, or of the machine.
    pub node: String,
    /// UUID of the GPU; empty on the CPU.
    pub device: String,
}

impl Seat {
    /// The place of this rank, on the GPU with this UUID. On a cluster the node is that of the pod.
    pub fn here(device: Option<String>) -> Self {
        let node = std::env::var(pawl_contract::env::NODE_NAME).ok().filter(|name| !name.is_empty());
        let node = node.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
        Self { node, device: device.unwrap_or_default() }
    }
}

/// The UUID of a GPU as `nvidia-smi -L` lists it: `GPU-` and hexadecimal digits in groups.
pub fn gpu_uuid(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]);
    format!("GPU-{}", groups.join("-"))
}

impl std::fmt::Display for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.device.is_empty() {
            true => write!(f, "on node {}", self.node),
            false => write!(f, "on node {}, {}", self.node, self.device),
        }
    }
}

/// Compares the ranks of a gang by the time in which they did not wait for others.
#[derive(Debug)]
pub struct StragglerWatch {
    seats: Vec<Seat>,
    busy: Vec<f64>,
}

impl StragglerWatch {
    /// Exchanges the places of all ranks: `mine` is that of this rank.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn new(gang: &Gang, mine: &Seat) -> Result<Self, CollectiveError> {
        Ok(Self::among(gang.gather(mine)?))
    }

    fn among(seats: Vec<Seat>) -> Self {
        Self { busy: vec![0.0; seats.len()], seats }
    }

    /// Adds the seconds of a step in which each rank did not wait for others, by rank.
    pub fn add(&mut self, busy: impl IntoIterator<Item = f64>) {
        self.busy.iter_mut().zip(busy).for_each(|(sum, seconds)| *sum += seconds);
    }

    /// Describes the slowest rank of the window, if it stands out; starts the next window. Ranks that are all as slow as each other
    /// are no stragglers: the settings are the reason. A window in which a rank measured no time of its own says nothing.
    pub fn window(&mut self) -> Option<String> {
        let fastest = self.busy.iter().copied().fold(f64::INFINITY, f64::min);
        let (rank, slowest) = self.busy.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let found = (self.busy.len() > 1 && fastest > 0.0 && slowest > STRAGGLER * fastest).then(|| {
            let seat = &self.seats[rank];
            format!("rank {rank} {seat} takes {:.2} times as long as the fastest rank", slowest / fastest)
        });
        self.busy.fill(0.0);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(devices: [&str; 3]) -> StragglerWatch {
        let seat = |(rank, device): (usize, &str)| Seat { node: format!("n{rank}"), device: device.to_owned() };
        StragglerWatch::among(devices.into_iter().enumerate().map(seat).collect())
    }

    #[test]
    fn the_rank_whose_own_work_takes_longer_is_named_with_its_place() {
        let mut gpus = watch(["GPU-a", "GPU-b", "GPU-c"]);
        for _ in 0..4 {
            gpus.add([1.0, 1.5, 1.1]);
        }
        let expected = "rank 1 on node n1, GPU-b takes 1.50 times as long as the fastest rank";
        assert_eq!(gpus.window().as_deref(), Some(expected));
        // The next window is judged by itself.
        gpus.add([1.0, 1.0, 1.0]);
        assert_eq!(gpus.window(), None);
        let mut cpus = watch(["", "", ""]);
        cpus.add([3.0, 1.0, 1.0]);
        assert!(cpus.window().is_some_and(|text| text.starts_with("rank 0 on node n0 takes 3.00")));
    }

    #[test]
    fn ranks_that_are_all_slow_are_no_stragglers() {
        let mut ranks = watch(["", "", ""]);
        for _ in 0..4 {
            ranks.add([9.0, 9.4, 9.1]);
        }
        assert_eq!(ranks.window(), None);
        let mut alone = StragglerWatch::among(vec![Seat::here(None)]);
        alone.add([9.0]);
        assert_eq!(alone.window(), None);
    }

    #[test]
    fn a_rank_without_a_time_of_its_own_is_no_measure() {
        let mut ranks = watch(["", "", ""]);
        ranks.add([0.0, 1.0, 1.0]);
        assert_eq!(ranks.window(), None);
    }

    #[test]
    fn a_gpu_is_named_as_by_nvidia_smi() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(gpu_uuid(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
