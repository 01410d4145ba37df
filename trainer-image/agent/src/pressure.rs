//! Pressure stall information of Linux: for how long some process of the machine had to wait for a CPU or for memory.

use pawl_contract::measured::Disturbance;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the kernel reports it; absent in kernels that are built without it, or started with `psi=0`.
const DIRECTORY: &str = "/proc/pressure";

/// The stalls since a launch began.
#[derive(Debug)]
pub(crate) struct Pressure {
    directory: PathBuf,
    start: Instant,
    cpu: Option<Duration>,
    memory: Option<Duration>,
}

impl Pressure {
    /// From now on.
    pub(crate) fn start() -> Self {
        Self::start_in(Path::new(DIRECTORY))
    }

    fn start_in(directory: &Path) -> Self {
        let (cpu, memory) = (stalled(directory, "cpu"), stalled(directory, "memory"));
        Self { directory: directory.to_owned(), start: Instant::now(), cpu, memory }
    }

    /// Fills in the shares of the time so far with stalls.
    pub(crate) fn add_to(&self, disturbance: &mut Disturbance) {
        let wall = self.start.elapsed().as_secs_f64();
        let share = |name: &str, before: Option<Duration>| {
            let stalled = stalled(&self.directory, name)?.checked_sub(before?)?;
            // Two digits say enough, and are short in messages.
            (wall > 0.0).then(|| ((stalled.as_secs_f64() / wall).min(1.0) * 1e2).round() / 1e2)
        };
        disturbance.cpu_pressure = disturbance.cpu_pressure.or_else(|| share("cpu", self.cpu));
        disturbance.memory_pressure = disturbance.memory_pressure.or_else(|| share("memory", self.memory));
    }
}

/// Total time with stalls of some process, since the start of the machine.
fn stalled(directory: &Path, name: &str) -> Option<Duration> {
    parsed(&std::fs::read_to_string(directory.join(name)).ok()?)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, in microseconds, is the first line.
fn parsed(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_whitespace().find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_some_is_read() {
        let text = "some avg10=99.34 avg60=99.47 avg300=95.68 total=10078916853\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parsed(text), Some(Duration::from_micros(10_078_916_853)));
        for wrong in ["", "full total=7", "some avg10=0.00", "some total=-1", "some total=many"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn shares_are_of_the_time_since_the_start_and_absent_where_the_kernel_gives_none() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, total: u64| {
            std::fs::write(directory.path().join(name), format!("some avg10=0.00 total={total}\n")).unwrap();
        };
        write("cpu", 1_000_000);
        let pressure =
            Pressure { start: Instant::now() - Duration::from_secs(10), ..Pressure::start_in(directory.path()) };
        write("cpu", 3_500_000);
        let mut found = Disturbance { throttled_share: Some(0.5), ..Disturbance::default() };
        pressure.add_to(&mut found);
        assert!((found.cpu_pressure.unwrap() - 0.25).abs() < 0.01, "{found:?}");
        assert_eq!((found.memory_pressure, found.throttled_share), (None, Some(0.5)));
        // What the trainer itself reports counts.
        let mut own = Disturbance { cpu_pressure: Some(0.1), ..Disturbance::default() };
        pressure.add_to(&mut own);
        assert_eq!(own.cpu_pressure, Some(0.1));
    }

    /// More threads than CPUs: some of them wait.
    #[test]
    fn this_machine_reports_that_its_cpus_are_overloaded() {
        if !Path::new(DIRECTORY).exists() {
            return;
        }
        let pressure = Pressure::start();
        let until = Instant::now() + Duration::from_millis(600);
        std::thread::scope(|scope| {
            let threads = 2 + 2 * std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..threads {
                scope.spawn(move || while Instant::now() < until {});
            }
        });
        let mut found = Disturbance::default();
        pressure.add_to(&mut found);
        assert!(found.cpu_pressure.unwrap() > 0.3 && found.memory_pressure.is_some(), "{found:?}");
    }
}
