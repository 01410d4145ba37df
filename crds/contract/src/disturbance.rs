//! What else happened on the machine of a launch, and when others caused it.
//!
//! Shares are about the time in which a launch was measured, and say nothing of its speed. Pressure on CPUs, memory and
//! disks, a CPU limit, and a GPU that is too hot may be what the settings of a launch do: they are compared with other
//! launches of the same settings only. What comes from outside is compared with a fixed share, the same for every pair.

use crate::measured::Disturbance;
use std::fmt;

/// Name of the field that says how many CPUs were left idle, which is no disturbance.
pub const IDLE_CPU: &str = "idleCpuShare";

/// A kind of disturbance: a field of [`Disturbance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisturbanceKind {
    /// `cpuPressure`.
    CpuPressure,
    /// `memoryPressure`.
    MemoryPressure,
    /// `ioPressure`.
    IoPressure,
    /// `otherCpuShare`.
    OtherCpu,
    /// `cpuThrottledShare`.
    CpuThrottled,
    /// `throttledShare`.
    GpuThrottled,
    /// `sharedGpuShare`.
    SharedGpu,
}

/// Above it, beyond what the launches left idle, other programs are more than the background of a machine, which takes
/// 1 to 3 % of two cores; they can take about as much of the speed of a launch that uses all cores.
const OTHER_CPU: f64 = 0.1;
/// Above it, it is more than one look in five. A GPU is looked at once a second: in a window of some seconds, a single
/// look is chance.
const GPU: f64 = 0.2;

impl DisturbanceKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::CpuPressure,
        Self::MemoryPressure,
        Self::IoPressure,
        Self::OtherCpu,
        Self::CpuThrottled,
        Self::GpuThrottled,
        Self::SharedGpu,
    ];

    /// Name of its field.
    pub const fn field(self) -> &'static str {
        match self {
            Self::CpuPressure => "cpuPressure",
            Self::MemoryPressure => "memoryPressure",
            Self::IoPressure => "ioPressure",
            Self::OtherCpu => "otherCpuShare",
            Self::CpuThrottled => "cpuThrottledShare",
            Self::GpuThrottled => "throttledShare",
            Self::SharedGpu => "sharedGpuShare",
        }
    }

    /// The share above which a launch is disturbed from outside; `None` for what the launch may do itself.
    const fn most(self) -> Option<f64> {
        match self {
            Self::OtherCpu => Some(OTHER_CPU),
            Self::SharedGpu => Some(GPU),
            Self::CpuPressure
            | Self::MemoryPressure
            | Self::IoPressure
            | Self::CpuThrottled
            // A candidate that computes more is hotter.
            | Self::GpuThrottled => None,
        }
    }
}

/// What happened, after the word "while".
impl fmt::Display for DisturbanceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CpuPressure => "programs waited for CPUs",
            Self::MemoryPressure => "programs waited for memory",
            Self::IoPressure => "programs waited for disks",
            Self::OtherCpu => "other programs used the CPUs",
            Self::CpuThrottled => "the CPU limit of the container stopped it",
            Self::GpuThrottled => "the GPU lowered its clocks for its temperature or power supply",
            Self::SharedGpu => "other programs used the GPU",
        })
    }
}

impl<N> Disturbance<N> {
    /// The share of a kind.
    pub fn share(&self, kind: DisturbanceKind) -> Option<&N> {
        let Self {
            cpu_pressure,
            memory_pressure,
            io_pressure,
            other_cpu_share,
            cpu_throttled_share,
            throttled_share,
            shared_gpu_share,
            idle_cpu_share: _,
        } = self;
        let share = match kind {
            DisturbanceKind::CpuPressure => cpu_pressure,
            DisturbanceKind::MemoryPressure => memory_pressure,
            DisturbanceKind::IoPressure => io_pressure,
            DisturbanceKind::OtherCpu => other_cpu_share,
            DisturbanceKind::CpuThrottled => cpu_throttled_share,
            DisturbanceKind::GpuThrottled => throttled_share,
            DisturbanceKind::SharedGpu => shared_gpu_share,
        };
        share.as_ref()
    }
}

/// What disturbed the launches of a pair from outside, and its share in the launch that had more of it; of several
/// kinds, the one with the largest share. `None`: they were not disturbed, or nothing was observed.
///
/// Both launches are looked at together: how many CPUs one leaves idle depends on its settings, and on its speed.
///
/// ```
/// use pawl_contract::disturbance::{DisturbanceKind, from_outside};
/// use pawl_contract::measured::Disturbance;
///
/// let observed = |other: f64, idle: f64| Disturbance {
///     cpu_pressure: Some(0.9),
///     other_cpu_share: Some(other),
///     idle_cpu_share: Some(idle),
///     ..Disturbance::default()
/// };
/// let calm = observed(0.02, 0.4);
/// assert_eq!(from_outside([&calm, &observed(0.41, 0.05)]), Some((DisturbanceKind::OtherCpu, 0.41)));
/// assert_eq!(from_outside([&calm, &observed(0.41, 0.35)]), None);
/// ```
pub fn from_outside(pair: [&Disturbance; 2]) -> Option<(DisturbanceKind, f64)> {
    let observed = |share: &dyn Fn(&Disturbance) -> Option<f64>, of_both: fn(f64, f64) -> f64| {
        pair.iter().filter_map(|launch| share(launch)).reduce(of_both)
    };
    let idle = observed(&|launch| launch.idle_cpu_share, f64::min).unwrap_or(0.0);
    let disturbed = |kind: DisturbanceKind| {
        let share = observed(&|launch| launch.share(kind).copied(), f64::max)?;
        let taken = if kind == DisturbanceKind::OtherCpu { share - idle } else { share };
        kind.most().filter(|most| taken > *most).map(|_| (kind, share))
    };
    DisturbanceKind::ALL.into_iter().filter_map(disturbed).max_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_kind() {
        let ones = Disturbance {
            cpu_pressure: Some(0.01),
            memory_pressure: Some(0.02),
            io_pressure: Some(0.03),
            other_cpu_share: Some(0.04),
            cpu_throttled_share: Some(0.05),
            throttled_share: Some(0.06),
            shared_gpu_share: Some(0.07),
            idle_cpu_share: Some(0.08),
        };
        let json = serde_json::to_value(&ones).unwrap();
        assert_eq!(json.as_object().unwrap().len(), DisturbanceKind::ALL.len() + 1);
        assert_eq!(json[IDLE_CPU], 0.08);
        for kind in DisturbanceKind::ALL {
            assert_eq!(json[kind.field()].as_f64().as_ref(), ones.share(kind), "{kind:?}");
        }
    }

    #[test]
    fn what_a_launch_may_do_itself_is_no_disturbance_from_outside() {
        let all = |share: f64| Disturbance {
            cpu_pressure: Some(share),
            memory_pressure: Some(share),
            io_pressure: Some(share),
            cpu_throttled_share: Some(share),
            throttled_share: Some(share),
            ..Disturbance::default()
        };
        let calm = Disturbance::default();
        assert_eq!((from_outside([&all(1.0), &calm]), from_outside([&calm, &calm])), (None, None));
        let shared = Disturbance { shared_gpu_share: Some(0.5), other_cpu_share: Some(0.3), ..all(1.0) };
        for pair in [[&shared, &calm], [&calm, &shared]] {
            assert_eq!(from_outside(pair), Some((DisturbanceKind::SharedGpu, 0.5)));
        }
        let chance = Disturbance { shared_gpu_share: Some(0.2), ..all(0.0) };
        let unknown = Disturbance { shared_gpu_share: Some(f64::NAN), ..all(0.0) };
        assert_eq!((from_outside([&chance, &calm]), from_outside([&unknown, &calm])), (None, None));
    }

    #[test]
    fn neighbors_disturb_where_a_launch_of_the_pair_needs_their_cpus() {
        let observed = |other: f64, idle: f64| Disturbance {
            other_cpu_share: Some(other),
            idle_cpu_share: Some(idle),
            ..Disturbance::default()
        };
        let modest = observed(0.5, 0.45);
        assert_eq!(from_outside([&modest, &modest]), None);
        // The other launch of the pair, such as with more workers, would have used the idle CPUs.
        for pair in [[&modest, &observed(0.3, 0.0)], [&observed(0.3, 0.0), &modest]] {
            assert_eq!(from_outside(pair), Some((DisturbanceKind::OtherCpu, 0.5)));
        }
    }
}
