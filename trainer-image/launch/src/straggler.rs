//! A rank that is slower than the others: one machine or device is the reason, not the settings.

use crate::collective::{CollectiveError, Gang};
use crate::gpu_reading::GpuReading;
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

/// A step, or some, of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankTime {
    /// Seconds in which the rank did not wait for others.
    pub busy: f64,
    /// The newest reading of its GPU.
    pub gpu: Option<GpuReading>,
}

/// Compares the ranks of a gang by the time in which they did not wait for others.
#[derive(Debug)]
pub struct StragglerWatch {
    seats: Vec<Seat>,
    window: Vec<RankTime>,
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
        Self { window: vec![RankTime::default(); seats.len()], seats }
    }

    /// Where each rank runs, by rank.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// Adds the times of a step, by rank.
    pub fn add(&mut self, ranks: impl IntoIterator<Item = RankTime>) {
        for (sum, step) in self.window.iter_mut().zip(ranks) {
            sum.busy += step.busy;
            sum.gpu = match (sum.gpu, step.gpu) {
                (Some(before), Some(newest)) => Some(before.and(newest)),
                (before, newest) => newest.or(before),
            };
        }
    }

    /// Describes the slowest rank of the window and its GPU, if it stands out; starts the next window. Ranks that are
    /// all as slow as each other are no stragglers: the settings are the reason. A window in which a rank measured no
    /// time of its own says nothing.
    pub fn window(&mut self) -> Option<String> {
        let fastest = self.window.iter().map(|rank| rank.busy).fold(f64::INFINITY, f64::min);
        let (rank, slowest) = self.window.iter().copied().enumerate().max_by(|a, b| a.1.busy.total_cmp(&b.1.busy))?;
        let found = (self.window.len() > 1 && fastest > 0.0 && slowest.busy > STRAGGLER * fastest).then(|| {
            let (seat, ratio) = (&self.seats[rank], slowest.busy / fastest);
            let gpu = slowest.gpu.map_or_else(String::new, |reading| format!("; its GPU: {reading}"));
            format!("rank {rank} {seat} takes {ratio:.2} times as long as the fastest rank{gpu}")
        });
        self.window.fill(RankTime::default());
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

    fn times(busy: [f64; 3]) -> [RankTime; 3] {
        busy.map(|busy| RankTime { busy, gpu: None })
    }

    #[test]
    fn the_rank_whose_own_work_takes_longer_is_named_with_its_place() {
        let mut gpus = watch(["GPU-a", "GPU-b", "GPU-c"]);
        for _ in 0..4 {
            gpus.add(times([1.0, 1.5, 1.1]));
        }
        let expected = "rank 1 on node n1, GPU-b takes 1.50 times as long as the fastest rank";
        assert_eq!(gpus.window().as_deref(), Some(expected));
        // The next window is judged by itself.
        gpus.add(times([1.0, 1.0, 1.0]));
        assert_eq!(gpus.window(), None);
        let mut cpus = watch(["", "", ""]);
        cpus.add(times([3.0, 1.0, 1.0]));
        assert!(cpus.window().is_some_and(|text| text.starts_with("rank 0 on node n0 takes 3.00")));
    }

    #[test]
    fn the_gpu_of_a_slow_rank_is_described_as_it_was_in_the_window() {
        let mut gpus = watch(["GPU-a", "GPU-b", "GPU-c"]);
        let reading = |sm_clock, throttled| GpuReading {
            sm_clock,
            max_sm_clock: 1980,
            throttled,
            temperature: 88,
            power: 350_000,
            power_limit: 700_000,
            xid: 0,
        };
        let slow = |gpu| {
            [RankTime { busy: 1.0, gpu: Some(reading(1980, 0)) }, RankTime { busy: 2.0, gpu }, times([1.0; 3])[2]]
        };
        gpus.add(slow(Some(reading(1980, 0))));
        gpus.add(slow(Some(reading(1005, 0x40))));
        gpus.add(slow(None));
        let found = gpus.window().unwrap_or_default();
        let expected = "; its GPU: SM clock 1005 of 1980 MHz, 88 °C, 350 of 700 W, throttled: HwThermalSlowdown";
        assert!(found.starts_with("rank 1 on node n1, GPU-b takes 2.00") && found.ends_with(expected), "{found}");
        gpus.add(slow(None));
        let next = gpus.window().unwrap_or_default();
        assert!(next.ends_with("the fastest rank"), "a reading belongs to its window: {next}");
    }

    #[test]
    fn ranks_that_are_all_slow_are_no_stragglers() {
        let mut ranks = watch(["", "", ""]);
        for _ in 0..4 {
            ranks.add(times([9.0, 9.4, 9.1]));
        }
        assert_eq!(ranks.window(), None);
        let mut alone = StragglerWatch::among(vec![Seat::here(None)]);
        alone.add(times([9.0; 3]));
        assert_eq!(alone.window(), None);
    }

    #[test]
    fn a_rank_without_a_time_of_its_own_is_no_measure() {
        let mut ranks = watch(["", "", ""]);
        ranks.add(times([0.0, 1.0, 1.0]));
        assert_eq!(ranks.window(), None);
    }

    #[test]
    fn a_gpu_is_named_as_by_nvidia_smi() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(gpu_uuid(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
