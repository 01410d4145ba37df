//! Throughput: step times, waits and busy time over the measurement window of a report.

use pawl_contract::measured::Spread;
use pawl_contract::plan::{UTILIZATION_SECONDS, WindowLimit};
use pawl_contract::steady::{EXTENSIONS, is_drained, is_steady};
use std::time::{Duration, Instant};

/// Minimum duration of a window of the guard, to limit the noise of windows of short steps.
const LEAST_WINDOW: Duration = Duration::from_secs(2);
/// Minimum number of steps in a window of the guard.
const LEAST_STEPS: u64 = 10;
/// Maximum number of steps by which a window is made longer at once.
const MOST_STEPS: f64 = 1e6;
/// Minimum duration of a window whose GPU utilization is reported: what the driver averages reaches up to a second
/// beyond its start.
const UTILIZATION: Duration = Duration::from_secs(UTILIZATION_SECONDS);

/// Times of one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTime {
    /// From its first batch to its aggregated loss; excludes evaluations and checkpoints, which run between steps.
    pub wall: Duration,
    /// Waiting for data.
    pub loader: Duration,
    /// Waiting for other ranks.
    pub collective: Duration,
    /// Busy time of the device; on the CPU, the CPU time of all threads of this process.
    pub busy: Duration,
    /// Time in which the device accessed optimizer state in host memory.
    pub offload: Duration,
}

/// Times since the start of a launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Waiting for data.
    pub loader: Duration,
    /// Waiting for other ranks.
    pub collective: Duration,
    /// As [`StepTime::busy`].
    pub busy: Duration,
    /// As [`StepTime::offload`].
    pub offload: Duration,
}

/// The devices of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// So many CPUs, whose busy time is exact.
    Cpus(usize),
    /// One GPU. The driver averages its busy time over a sixth of a second to a second before each reading.
    Gpu,
}

/// Step times since the end of the warm-up, and the current window.
#[derive(Debug)]
pub struct Throughput {
    step_items: u64,
    warmup: u64,
    devices: Option<Devices>,
    seen: u64,
    /// Steps and time of the warm-up, as long as it lasts, or of the steps that count.
    stage: (u64, Duration),
    total: StepTime,
    steps: Vec<f64>,
    /// Batches that the loaders had prepared at the start of the steps that count, and after the newest one.
    prepared: Option<(u64, u64)>,
    window: (u64, Duration),
    windows: u64,
    newest: Option<f64>,
}

impl Throughput {
    /// For steps of `step_items` items, of which the first `warmup` do not count, on these devices; `None` when their
    /// busy time is unknown.
    pub fn new(step_items: u64, warmup: u64, devices: Option<Devices>) -> Self {
        Self {
            step_items,
            warmup,
            devices,
            seen: 0,
            stage: (0, Duration::ZERO),
            total: StepTime::default(),
            steps: Vec::new(),
            prepared: None,
            window: (0, Duration::ZERO),
            windows: 0,
            newest: None,
        }
    }

    /// Adds a step. Returns true when it completes a window of the guard.
    pub fn add(&mut self, time: StepTime) -> bool {
        self.seen += 1;
        self.stage = (self.stage.0 + 1, self.stage.1 + time.wall);
        if self.seen <= self.warmup {
            if self.seen == self.warmup {
                self.stage = (0, Duration::ZERO);
            }
            return false;
        }
        self.steps.push(time.wall.as_secs_f64());
        self.total.wall += time.wall;
        self.total.loader += time.loader;
        self.total.collective += time.collective;
        self.total.busy += time.busy;
        self.total.offload += time.offload;
        let (steps, wall) = (self.window.0 + 1, self.window.1 + time.wall);
        let full = steps >= LEAST_STEPS && wall >= LEAST_WINDOW;
        if full {
            self.newest = Some((steps * self.step_items) as f64 / wall.as_secs_f64());
            self.windows += 1;
        }
        self.window = if full { (0, Duration::ZERO) } else { (steps, wall) };
        full
    }

    /// Notes the number of batches that the loaders have prepared for later steps.
    pub fn prepared(&mut self, batches: u64) {
        if self.seen >= self.warmup {
            let (first, _) = self.prepared.unwrap_or((batches, batches));
            self.prepared = Some((first, batches));
        }
    }

    /// Notes that new loaders have started, which have prepared nothing yet.
    pub fn loaders_restarted(&mut self) {
        self.prepared = None;
    }

    /// Whether the speed is that of a steady state: the halves of the steps that count agree, and a step of `batches`
    /// batches does not use up what the loaders had prepared. `None` when there are too few steps to tell.
    pub fn is_steady(&self, batches: u64) -> Option<bool> {
        let used = batches * self.steps.len() as u64;
        if self.prepared.is_some_and(|(before, after)| is_drained(before, after, used)) {
            return Some(false);
        }
        is_steady(&spans(&self.steps))
    }

    /// Whether the steps are still those of the warm-up.
    pub fn is_warming_up(&self) -> bool {
        self.seen < self.warmup
    }

    /// Whether the warm-up, or else the window, has lasted as long as `limit` says.
    pub fn has_lasted(&self, limit: &WindowLimit) -> bool {
        let least = if self.is_warming_up() { limit.warmup_steps } else { limit.window_steps };
        limit.is_reached((self.stage.0, self.stage.1.as_secs_f64()), least.max(1))
    }

    /// Counts the steps so far as warm-up, too.
    pub fn restart(&mut self) {
        (self.warmup, self.total) = (self.seen, StepTime::default());
        self.stage = (0, Duration::ZERO);
        self.steps.clear();
        self.prepared = self.prepared.map(|(_, newest)| (newest, newest));
    }

    /// Number of steps that count.
    pub fn counted(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Steps by which the window must be longer to last for `seconds`, by the time of those so far.
    pub fn steps_short_of(&self, seconds: f64) -> u64 {
        let (wall, steps) = (self.total.wall.as_secs_f64(), self.steps.len() as f64);
        if wall >= seconds || wall <= 0.0 {
            0
        } else {
            ((seconds - wall) / wall * steps).ceil().clamp(1.0, MOST_STEPS) as u64
        }
    }

    /// Items per second since the end of the warm-up.
    pub fn items_per_second(&self) -> Option<f64> {
        self.share(self.step_items as f64 * self.steps.len() as f64)
    }

    /// Items per second of the newest window; before there is one, since the end of the warm-up.
    pub fn newest(&self) -> Option<f64> {
        self.newest.or_else(|| self.items_per_second())
    }

    /// Number of complete windows so far.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Distribution of the step times.
    pub fn step_seconds(&self) -> Option<Spread> {
        let mut sorted = self.steps.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |quantile: f64| sorted.get((quantile * (sorted.len().max(1) - 1) as f64).round() as usize).copied();
        Some(Spread { p10: at(0.1)?, median: at(0.5)?, p90: at(0.9)? })
    }

    /// Fraction of the time that steps waited for data.
    pub fn loader_share(&self) -> Option<f64> {
        self.share(self.total.loader.as_secs_f64())
    }

    /// Fraction of the time that steps waited for other ranks.
    pub fn collective_share(&self) -> Option<f64> {
        self.share(self.total.collective.as_secs_f64())
    }

    /// Fraction of the time in which the device accessed optimizer state in host memory.
    pub fn offload_share(&self) -> Option<f64> {
        self.share(self.total.offload.as_secs_f64())
    }

    /// Fraction of the device's time (of all CPUs together) that was busy; of a GPU `None` for a window that is too
    /// short to tell.
    pub fn utilization(&self) -> Option<f64> {
        let devices = match self.devices? {
            Devices::Gpu if self.total.wall < UTILIZATION => return None,
            Devices::Gpu => 1,
            Devices::Cpus(count) => count.max(1),
        };
        self.share(self.total.busy.as_secs_f64() / devices as f64).map(|share| share.min(1.0))
    }

    fn share(&self, part: f64) -> Option<f64> {
        let wall = self.total.wall.as_secs_f64();
        (wall > 0.0).then(|| part / wall)
    }
}

/// The windows of a measurement: one that is not steady is replaced by another one, [`EXTENSIONS`] times at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Windows {
    extensions: u64,
    unsteady: bool,
}

impl Windows {
    /// Ends a window, `steady` on all ranks or not. Returns whether another one follows.
    pub fn extends(&mut self, steady: bool) -> bool {
        self.unsteady = !steady;
        let more = self.unsteady && self.extensions < EXTENSIONS;
        self.extensions += u64::from(more);
        more
    }

    /// What a report says of the last window: only that it was not steady.
    pub fn steady(&self) -> Option<bool> {
        self.unsteady.then_some(false)
    }
}

/// Steps that were measured together: on a GPU only the time of several steps is known, which all of them have then.
fn spans(steps: &[f64]) -> Vec<(u64, f64)> {
    steps.chunk_by(|a, b| a == b).map(|equal| (equal.len() as u64, equal.iter().sum())).collect()
}

/// Measures a step from its start to [`Stopwatch::stop`].
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    before: Totals,
}

impl Stopwatch {
    /// Starts, given the totals at the start.
    pub fn start(before: Totals) -> Self {
        Self { start: Instant::now(), before }
    }

    /// The time since the start, given the totals now.
    pub fn stop(&self, now: Totals) -> StepTime {
        let Totals { loader, collective, busy, offload } = now;
        StepTime {
            wall: self.start.elapsed(),
            loader: loader.saturating_sub(self.before.loader),
            collective: collective.saturating_sub(self.before.collective),
            busy: busy.saturating_sub(self.before.busy),
            offload: offload.saturating_sub(self.before.offload),
        }
    }
}

/// CPU time of all threads of this process.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(milliseconds: u64) -> StepTime {
        let wall = Duration::from_millis(milliseconds);
        StepTime { wall, loader: wall / 4, collective: wall / 10, busy: wall, offload: wall / 20 }
    }

    #[test]
    fn only_steps_after_the_warm_up_count() {
        let mut throughput = Throughput::new(8, 2, Some(Devices::Cpus(2)));
        for milliseconds in [900, 900, 100, 200, 100] {
            throughput.add(step(milliseconds));
        }
        assert_eq!(throughput.items_per_second(), Some(24.0 / 0.4));
        assert_eq!(throughput.step_seconds(), Some(Spread { p10: 0.1, median: 0.1, p90: 0.2 }));
        assert_eq!((throughput.loader_share(), throughput.utilization()), (Some(0.25), Some(0.5)));
        assert!(throughput.offload_share().is_some_and(|share| (share - 0.05).abs() < 1e-9));
        assert_eq!(Throughput::new(8, 2, Some(Devices::Cpus(2))).items_per_second(), None, "no step, no speed");
    }

    #[test]
    fn a_warm_up_or_a_queue_that_empties_is_not_steady() {
        let times = |slower: &dyn Fn(u64) -> u64, prepared: &dyn Fn(u64) -> u64| {
            let mut throughput = Throughput::new(8, 0, None);
            throughput.prepared(prepared(0));
            for index in 0..50 {
                // No two of a real clock are equal.
                let wall = Duration::from_micros(100_000 + 7 * (index * 31 % 50) + slower(index));
                throughput.add(StepTime { wall, ..StepTime::default() });
                throughput.prepared(prepared(index + 1));
            }
            throughput
        };
        let steady = times(&|_| 0, &|_| 64);
        assert_eq!(steady.is_steady(1), Some(true));
        let mut warm = times(&|index| 100_000 / (1 + index), &|_| 64);
        assert_eq!(warm.is_steady(1), Some(false));
        // Equal steps, while the loaders are half as fast.
        assert_eq!(times(&|_| 0, &|index| 64 - index / 2).is_steady(1), Some(false));
        let mut windows = Windows::default();
        assert_eq!((0..9).filter(|_| windows.extends(false)).count(), 4);
        assert_eq!((windows.steady(), windows.extends(true), windows.steady()), (Some(false), false, None));
        warm.restart();
        assert_eq!((warm.is_steady(1), warm.items_per_second()), (None, None));
        warm.add(step(100));
        assert_eq!(warm.items_per_second(), Some(80.0));
    }

    #[test]
    fn slow_steps_end_a_warm_up_and_a_window_by_time() {
        let limit = WindowLimit { seconds: 20.0, warmup_steps: 5, window_steps: 13 };
        // At which step after the previous one.
        let lasts = |throughput: &mut Throughput, milliseconds| {
            (1..=100).find(|_| {
                throughput.add(step(milliseconds));
                throughput.has_lasted(&limit)
            })
        };
        let mut slow = Throughput::new(8, 20, None);
        assert_eq!((lasts(&mut slow, 2400), slow.is_warming_up()), (Some(9), true), "21.6 s");
        slow.restart();
        assert_eq!((lasts(&mut slow, 2400), slow.is_warming_up()), (Some(13), false), "31.2 s");
        slow.restart();
        assert_eq!(lasts(&mut slow, 500), Some(40), "as does another window");
        let mut quick = Throughput::new(8, 20, None);
        assert_eq!(lasts(&mut quick, 250), Some(20 + 80), "its warm-up ends by steps");
    }

    #[test]
    fn the_utilization_of_a_gpu_needs_a_window_of_ten_seconds() {
        let mut throughput = Throughput::new(8, 1, Some(Devices::Gpu));
        assert_eq!(throughput.steps_short_of(10.0), 0, "without a step there is no time of one");
        (0..51).for_each(|_| _ = throughput.add(step(16)));
        assert_eq!((throughput.utilization(), throughput.steps_short_of(0.0)), (None, 0), "0.8 s");
        let missing = throughput.steps_short_of(10.0);
        assert_eq!(missing, 575);
        (0..missing).for_each(|_| _ = throughput.add(step(16)));
        assert_eq!((throughput.utilization(), throughput.steps_short_of(10.0)), (Some(1.0), 0));
    }

    #[test]
    fn windows_are_long_enough_to_mean_something() {
        let mut throughput = Throughput::new(8, 0, Some(Devices::Cpus(1)));
        let full: Vec<bool> = (0..22).map(|_| throughput.add(step(150))).collect();
        assert_eq!(full.iter().position(|full| *full), Some(13), "2 s of 150 ms steps");
        let mut throughput = Throughput::new(8, 0, Some(Devices::Cpus(1)));
        let full: Vec<bool> = (0..22).map(|_| throughput.add(step(1000))).collect();
        assert_eq!(full.iter().filter(|full| **full).count(), 2, "10 steps at least");
        assert_eq!((throughput.windows(), throughput.newest()), (2, Some(8.0)));
    }
}
