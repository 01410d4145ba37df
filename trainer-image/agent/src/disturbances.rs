//! What else happens on the machine of a launch while it is measured, by what Linux counts: pressure stalls (for how
//! long some process of the machine had to wait), the CPU time of other programs, the limit of the container.
//!
//! It is counted at the beginning and at the end, so that watching takes no time from the launch. What a kernel or a
//! container does not show is not observed.

use crate::cgroup;
use crate::processes::{MachineTicks, ticks_of_tree};
use pawl_contract::measured::Disturbance;
use pawl_contract::plan::WindowLimit;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pressure stalls; absent in kernels that are built without them, or started with `psi=0`.
const PRESSURE: &str = "/proc/pressure";
/// The container's CPU limit in version 1 of cgroups.
const VERSION_1: &str = "/sys/fs/cgroup/cpu/cpu.stat";
/// Least time of which the share of other programs is known: a kernel may count by its clock, 100 times a second.
const LEAST: Duration = Duration::from_millis(500);

/// Where the kernel counts.
#[derive(Clone, Debug)]
struct Sources {
    pressure: PathBuf,
    /// `cpu.stat` of the cgroup of this process.
    limits: Vec<PathBuf>,
}

/// What was counted since some time in the past. Absent: it is not shown here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    cpu: Option<Duration>,
    memory: Option<Duration>,
    io: Option<Duration>,
    limit: Option<Periods>,
    time: Option<CpuTime>,
}

/// Periods in which a CPU limit was enforced.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Periods {
    all: u64,
    throttled: u64,
}

/// CPU time, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CpuTime {
    machine: MachineTicks,
    /// Of the agent and of what it has started.
    own: u64,
}

/// The part of a launch that is counted.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Part {
    Whole,
    Training,
    Window,
}

/// What disturbs a launch.
#[derive(Clone, Debug)]
pub(crate) struct Disturbances {
    sources: Sources,
    part: Part,
    since: Instant,
    before: Counts,
    /// When the warm-up of a window began, and what was counted then.
    warmup: Option<(Instant, Counts)>,
    /// When the part was over, and what was counted then.
    over: Option<(Instant, Counts)>,
}

impl Disturbances {
    /// From now on.
    pub(crate) fn start() -> Self {
        let limits = cgroup::files("cpu.stat").chain([PathBuf::from(VERSION_1)]).collect();
        Self::start_with(Sources { pressure: PathBuf::from(PRESSURE), limits })
    }

    fn start_with(sources: Sources) -> Self {
        let (since, before) = (Instant::now(), sources.counts());
        Self { part: Part::Whole, since, before, warmup: None, over: None, sources }
    }

    /// Counts anew once the launch has begun to train, and once its warm-up is over: what disturbs the beginning of a
    /// process is not measured. Returns whether it does.
    pub(crate) fn follow(&mut self, step: u64, warmup_steps: u64, limit: Option<WindowLimit>) -> bool {
        let lasted = (step, self.since.elapsed().as_secs_f64());
        let is_long = |limit: WindowLimit| limit.is_reached(lasted, limit.warmup_steps);
        let is_warm = step >= warmup_steps || self.part == Part::Training && limit.is_some_and(is_long);
        let part = match step {
            0 => Part::Whole,
            _ if is_warm => Part::Window,
            _ => Part::Training,
        };
        let is_new = part > self.part;
        if is_new {
            self.warmup = Some((self.since, self.before)).filter(|_| self.part == Part::Training);
            (self.part, self.since, self.before) = (part, Instant::now(), self.sources.counts());
        }
        is_new
    }

    /// Counts no further: the measurement is over.
    pub(crate) fn end(&mut self) {
        self.over = self.over.or_else(|| Some((Instant::now(), self.sources.counts())));
    }

    /// Fills in the shares of the time so far that the trainer does not report itself. Those of the CPU time are of the
    /// window, or of the window and its warm-up where it alone is too short.
    pub(crate) fn add_to(&self, disturbance: &mut Disturbance) {
        let (end, after) = self.over.unwrap_or_else(|| (Instant::now(), self.sources.counts()));
        let from = |since: Instant, before: &Counts| before.shares(&after, end.saturating_duration_since(since));
        let found = from(self.since, &self.before);
        // In a window that is long enough the share is absent because the CPU time of a process is no longer counted.
        let is_short = end.saturating_duration_since(self.since) < LEAST;
        let cpus = match self.warmup {
            Some((since, before)) if is_short => from(since, &before),
            _ => found.clone(),
        };
        disturbance.cpu_pressure = disturbance.cpu_pressure.or(found.cpu_pressure);
        disturbance.memory_pressure = disturbance.memory_pressure.or(found.memory_pressure);
        disturbance.io_pressure = disturbance.io_pressure.or(found.io_pressure);
        disturbance.other_cpu_share = disturbance.other_cpu_share.or(cpus.other_cpu_share);
        disturbance.idle_cpu_share = disturbance.idle_cpu_share.or(cpus.idle_cpu_share);
        disturbance.cpu_throttled_share = disturbance.cpu_throttled_share.or(found.cpu_throttled_share);
    }
}

impl Sources {
    /// What was counted until now.
    fn counts(&self) -> Counts {
        let read = |file: &Path| std::fs::read_to_string(file).ok();
        let stalled = |name: &str| some(&read(&self.pressure.join(name))?);
        Counts {
            cpu: stalled("cpu"),
            memory: stalled("memory"),
            io: stalled("io"),
            limit: self.limits.iter().find_map(|file| periods(&read(file)?)),
            time: MachineTicks::now().map(|machine| CpuTime { machine, own: ticks_of_tree() }),
        }
    }
}

/// Total time with stalls of some process: `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, in microseconds, is the
/// first line.
fn some(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_whitespace().find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

/// The periods in `cpu.stat`, which version 1 and 2 give the same names.
fn periods(text: &str) -> Option<Periods> {
    let count = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Periods { all: count("nr_periods ")?, throttled: count("nr_throttled ")? })
}

impl Counts {
    /// The shares of the time `wall` from these counts to `after`.
    fn shares(&self, after: &Self, wall: Duration) -> Disturbance {
        let stalls = |before: Option<Duration>, after: Option<Duration>| {
            share(after?.checked_sub(before?)?.as_secs_f64(), wall.as_secs_f64())
        };
        let limit = self.limit.zip(after.limit);
        let time = self.time.zip(after.time).filter(|_| wall >= LEAST);
        Disturbance {
            cpu_pressure: stalls(self.cpu, after.cpu),
            memory_pressure: stalls(self.memory, after.memory),
            io_pressure: stalls(self.io, after.io),
            other_cpu_share: time.and_then(|(before, after)| others(&before, &after)),
            idle_cpu_share: time.and_then(|(before, after)| idle(&before, &after)),
            cpu_throttled_share: limit.and_then(|(before, after)| {
                let throttled = after.throttled.checked_sub(before.throttled)?;
                share(throttled as f64, after.all.checked_sub(before.all)? as f64)
            }),
            ..Disturbance::default()
        }
    }
}

/// The share of the CPU time that programs took which the agent has not started.
fn others(before: &CpuTime, after: &CpuTime) -> Option<f64> {
    let programs = after.machine.programs.checked_sub(before.machine.programs)?;
    // Ticks are rounded differently there.
    let others = programs.saturating_sub(after.own.checked_sub(before.own)?);
    share(others as f64, after.machine.all.checked_sub(before.machine.all)? as f64)
}

/// The share of the CPU time that nothing took.
fn idle(before: &CpuTime, after: &CpuTime) -> Option<f64> {
    let all = after.machine.all.checked_sub(before.machine.all)?;
    let idle = all.checked_sub(after.machine.busy.checked_sub(before.machine.busy)?)?;
    share(idle as f64, all as f64)
}

/// Two digits say enough, and are short in messages.
fn share(part: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| ((part / of).min(1.0) * 1e2).round() / 1e2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_total_of_some_is_read() {
        let text = "some avg10=99.34 avg60=99.47 avg300=95.68 total=10078916853\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(some(text), Some(Duration::from_micros(10_078_916_853)));
        for wrong in ["", "full total=7", "some avg10=0.00", "some total=-1", "some total=many"] {
            assert_eq!(some(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_periods_of_a_limit_are_read_and_absent_without_one() {
        let limited = "usage_usec 5\nnr_periods 40\nnr_throttled 10\nthrottled_usec 99\n";
        assert_eq!(periods(limited), Some(Periods { all: 40, throttled: 10 }));
        assert_eq!(periods("usage_usec 5\nuser_usec 3\nsystem_usec 2\n"), None);
        let unused = Counts { limit: periods(limited), ..Counts::default() };
        assert_eq!(unused.shares(&unused, SECOND), Disturbance::default(), "no period has passed");
        let used = Counts { limit: Some(Periods { all: 50, throttled: 13 }), ..Counts::default() };
        assert_eq!(unused.shares(&used, SECOND).cpu_throttled_share, Some(0.3));
    }

    #[test]
    fn other_programs_are_those_that_the_agent_has_not_started() {
        let time = |programs, all, own| {
            let machine = MachineTicks { busy: programs, programs, all };
            Counts { time: Some(CpuTime { machine, own }), ..Counts::default() }
        };
        let before = time(1000, 5000, 300);
        let others = |own, wall| before.shares(&time(1300, 5400, own), wall).other_cpu_share;
        assert_eq!(others(600, SECOND), Some(0.0));
        assert_eq!(others(604, SECOND), Some(0.0), "the counts are rounded");
        assert_eq!(others(436, SECOND), Some(0.41));
        assert_eq!(others(436, LEAST / 2), None, "that is too short");
        assert_eq!(others(299, SECOND), None, "a process has left the tree");
        assert_eq!(before.shares(&time(1300, 5400, 436), SECOND).idle_cpu_share, Some(0.25));
    }

    #[test]
    fn shares_are_of_the_time_since_the_start_and_absent_where_the_kernel_gives_none() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, total: u64| {
            std::fs::write(directory.path().join(name), format!("some avg10=0.00 total={total}\n")).unwrap();
        };
        write("cpu", 1_000_000);
        write("io", 5_000_000);
        let sources = || Sources { pressure: directory.path().to_owned(), limits: vec![directory.path().join("none")] };
        let began = Disturbances { since: Instant::now() - 10 * SECOND, ..Disturbances::start_with(sources()) };
        write("cpu", 3_500_000);
        let mut found = Disturbance { throttled_share: Some(0.5), ..Disturbance::default() };
        began.add_to(&mut found);
        assert!((found.cpu_pressure.unwrap() - 0.25).abs() < 0.01, "{found:?}");
        let other = (found.io_pressure, found.memory_pressure, found.cpu_throttled_share, found.throttled_share);
        assert_eq!(other, (Some(0.0), None, None, Some(0.5)));
        // What the trainer itself reports counts.
        let mut own = Disturbance { cpu_pressure: Some(0.1), ..Disturbance::default() };
        began.add_to(&mut own);
        assert_eq!(own.cpu_pressure, Some(0.1));
    }

    #[test]
    fn the_window_alone_is_counted_as_soon_as_it_is_known_and_nothing_after_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let write = |total: u64| {
            std::fs::write(directory.path().join("cpu"), format!("some avg10=0.00 total={total}\n")).unwrap();
        };
        let mut now = 0;
        let mut pass = |milliseconds: u64| {
            now += milliseconds * 1000;
            write(now);
        };
        pass(1);
        let sources = Sources { pressure: directory.path().to_owned(), limits: Vec::new() };
        let mut watched = Disturbances::start_with(sources);
        let stalled = |watched: &Disturbances| {
            let mut found = Disturbance::default();
            Disturbances { since: Instant::now() - SECOND, ..watched.clone() }.add_to(&mut found);
            (found.cpu_pressure.unwrap() * 10.0).round() as u32
        };
        pass(900);
        assert_eq!(stalled(&watched), 9);
        assert!(!watched.follow(0, 5, None), "it has not begun to train");
        assert_eq!(stalled(&watched), 9);
        assert!(watched.follow(1, 5, None));
        pass(500);
        assert!(!watched.follow(2, 5, None), "it warms up");
        assert_eq!(stalled(&watched), 5);
        assert!(watched.follow(7, 5, None));
        pass(300);
        assert!(!watched.follow(8, 5, None), "it is the window");
        assert_eq!(stalled(&watched), 3);
        watched.end();
        pass(400);
        watched.end();
        assert_eq!(watched.before.shares(&watched.over.unwrap().1, SECOND).cpu_pressure, Some(0.3));
    }

    #[test]
    fn a_window_that_is_too_short_has_the_cpu_time_of_others_with_its_warmup() {
        let at = |programs, all, own| {
            let machine = MachineTicks { busy: programs, programs, all };
            Counts { time: Some(CpuTime { machine, own }), ..Counts::default() }
        };
        let sources = Sources { pressure: PathBuf::from("/none"), limits: Vec::new() };
        let start = Instant::now();
        let watched = Disturbances {
            since: start + 3 * SECOND,
            before: at(550, 600, 300),
            warmup: Some((start + 2 * SECOND, at(300, 400, 200))),
            over: Some((start + 3 * SECOND + LEAST / 2, at(600, 700, 350))),
            ..Disturbances::start_with(sources)
        };
        let shares = |watched: &Disturbances| {
            let mut found = Disturbance::default();
            watched.add_to(&mut found);
            (found.other_cpu_share, found.idle_cpu_share)
        };
        assert_eq!(shares(&watched), (Some(0.5), Some(0.0)), "of the window and its warm-up");
        let long = Disturbances { over: Some((start + 4 * SECOND, at(600, 700, 350))), ..watched.clone() };
        assert_eq!(shares(&long), (Some(0.0), Some(0.5)), "of the window alone");
        let fewer = Disturbances { over: Some((start + 4 * SECOND, at(600, 700, 299))), ..watched.clone() };
        assert_eq!(shares(&fewer), (None, Some(0.5)), "a process has left the tree");
        let short = Disturbances { warmup: None, ..watched };
        assert_eq!(shares(&short), (None, None));
    }

    /// More threads than CPUs: some of them wait.
    #[test]
    fn this_machine_reports_that_its_cpus_are_overloaded() {
        if !Path::new(PRESSURE).exists() {
            return;
        }
        let watched = Disturbances::start();
        let until = Instant::now() + Duration::from_millis(600);
        std::thread::scope(|scope| {
            let threads = 2 + 2 * std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..threads {
                scope.spawn(move || while Instant::now() < until {});
            }
        });
        let mut found = Disturbance::default();
        watched.add_to(&mut found);
        assert!(found.cpu_pressure.unwrap() > 0.3 && found.memory_pressure.is_some(), "{found:?}");
    }
}
