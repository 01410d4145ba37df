//! What a script did while it was observed: its time by what its main thread does, the cores it used, and how busy the
//! GPU was.

use pawl_agent::Usage;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Looks at the main thread from within; the name is the one that Python imports by itself.
const HOOK: (&str, &str) = ("sitecustomize.py", include_str!("profile/sitecustomize.py"));
/// Names the file for what was seen.
const OUT: &str = "PAWL_TUNE_PROFILE";
const FOLLOWED: &str = "PAWL_TUNE_SCRIPT";
const SEARCH: &str = "PYTHONPATH";

/// What the main thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// Loads the next batch, or waits for it.
    Data,
    /// The forward pass of a module of PyTorch.
    Forward,
    /// The backward pass.
    Backward,
    /// The step of an optimizer.
    Optimizer,
    /// Waits for results of the GPU.
    Device,
    /// Evaluates.
    Evaluation,
    /// Writes or reads a checkpoint.
    Checkpoint,
    /// Anything else, such as the script's own code.
    Other,
}

impl Activity {
    /// As the user reads it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Data => "waiting for data",
            Self::Forward => "forward pass",
            Self::Backward => "backward pass",
            Self::Optimizer => "optimizer",
            Self::Device => "waiting for the GPU",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoints",
            Self::Other => "other code",
        }
    }
}

/// What was found of PyTorch in the process.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Torch {
    /// Its version.
    pub version: String,
    /// Its data loaders.
    pub loaders: Vec<Loader>,
    /// Its optimizers.
    pub optimizers: Vec<Optimizer>,
    /// The dtype of autocast, where it is on.
    pub autocast: Option<String>,
    /// Whether a module is compiled.
    pub compiled: bool,
    /// Memory of the GPU.
    pub memory: Option<Memory>,
}

impl Torch {
    /// The newest look, with what only an earlier one has seen: objects may be gone.
    fn after(self, before: Self) -> Self {
        let is_compiled = self.compiled || before.compiled;
        Self {
            loaders: if self.loaders.is_empty() { before.loaders } else { self.loaders },
            optimizers: if self.optimizers.is_empty() { before.optimizers } else { self.optimizers },
            autocast: self.autocast.or(before.autocast),
            compiled: is_compiled,
            memory: self.memory.or(before.memory),
            version: self.version,
        }
    }

    /// A line for the user.
    fn explained(&self) -> String {
        let mut text = format!("PyTorch {}", self.version);
        for Optimizer { name, parameters, dtypes, .. } in &self.optimizers {
            let _ = write!(text, ", {name} of {parameters} parameters in {}", dtypes.join(" and "));
        }
        text.push_str(&self.autocast.iter().map(|dtype| format!(", autocast to {dtype}")).collect::<String>());
        text.push_str(if self.compiled { ", compiled" } else { "" });
        if let Some(Memory { peak, total }) = self.memory {
            let share = percent(peak as f64 / total.max(1) as f64);
            let _ = write!(text, ", at most {share} of the GPU's memory");
        }
        text
    }
}

/// A data loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Loader {
    /// Its worker processes.
    pub workers: u32,
}

/// An optimizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Optimizer {
    /// Its class.
    pub name: String,
    /// Whether one kernel updates all parameters.
    pub fused: bool,
    /// Number of elements of the parameters.
    pub parameters: u64,
    /// Their dtypes.
    pub dtypes: Vec<String>,
}

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Memory {
    /// Most that was allocated.
    pub peak: u64,
    /// All of it.
    pub total: u64,
}

/// A line of the hook.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Message {
    Torch {
        torch: Torch,
    },
    Sums {
        /// Seconds since 1970.
        at: f64,
        seconds: BTreeMap<Activity, f64>,
        places: BTreeMap<String, f64>,
        samples: u64,
    },
}

/// The time of the main thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// Seconds of each activity.
    pub seconds: BTreeMap<Activity, f64>,
    /// How often it was looked at.
    pub samples: u64,
    /// The line of the script's own files in which it was longest, and its share.
    pub place: Option<(String, f64)>,
}

impl Shares {
    /// The part of the time of an activity, from 0 to 1.
    pub fn of(&self, activity: Activity) -> f64 {
        let all: f64 = self.seconds.values().sum();
        self.seconds.get(&activity).copied().unwrap_or_default() / all.max(1e-9)
    }

    /// At most this part, in all but some of a hundred observations: looks that saw it are few, or none.
    pub fn at_most(&self, activities: &[Activity]) -> f64 {
        let share: f64 = activities.iter().map(|activity| self.of(*activity)).sum();
        let looks = self.samples.max(1) as f64;
        let seen = share * looks;
        ((seen + 2.0 + 2.0 * (seen + 1.0).sqrt()) / looks).min(1.0)
    }
}

/// Cores that were busy on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// With the main thread.
    pub main_thread: f64,
    /// With the whole process.
    pub process: f64,
    /// With the processes that it has started.
    pub others: f64,
    /// The number of these.
    pub running: usize,
    /// With other programs of the machine.
    pub foreign: f64,
}

/// Where the time between the first and the last step goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Of the main thread; `None`: it was not seen from within.
    pub shares: Option<Shares>,
    /// Of the cores; `None`: too short.
    pub load: Option<Load>,
    /// Cores of this machine.
    pub cores: usize,
    /// The part of the time in which the GPU was busy.
    pub gpu: Option<f64>,
    /// What was found of PyTorch.
    pub torch: Option<Torch>,
}

/// The directory of the hook and the file that it writes.
#[derive(Debug)]
pub struct Hook {
    directory: PathBuf,
    out: PathBuf,
}

impl Hook {
    /// Writes the hook into `directory`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let directory = std::fs::canonicalize(directory)?;
        std::fs::write(directory.join(HOOK.0), HOOK.1)?;
        let out = directory.join("profile.jsonl");
        match std::fs::remove_file(&out) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(Self { directory, out }),
        }
    }

    /// The variables with which Python imports it, and by which it follows `script` instead of its launcher.
    pub fn variables(&self, script: &Path) -> [(&'static str, std::ffi::OsString); 3] {
        let mut search = self.directory.clone().into_os_string();
        if let Some(own) = std::env::var_os(SEARCH) {
            search.push(":");
            search.push(own);
        }
        [(SEARCH, search), (OUT, self.out.clone().into_os_string()), (FOLLOWED, script.as_os_str().to_owned())]
    }

    /// What it has written.
    pub fn read(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }
}

/// What was seen between two times, in seconds since `began`. `profile`: the lines of the hook; `gpu`: the time in
/// which it was busy, over the seconds since 1970.
pub fn evidence(
    profile: &str,
    began: SystemTime,
    usage: &[Usage],
    gpu: &[(f64, f64)],
    (from, to): (f64, f64),
) -> Evidence {
    let epoch = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut shares = Shares::default();
    let mut places: BTreeMap<String, f64> = BTreeMap::new();
    let mut torch: Option<Torch> = None;
    for message in profile.lines().filter_map(|line| serde_json::from_str(line).ok()) {
        match message {
            Message::Torch { torch: found } => torch = Some(found.after(torch.unwrap_or_default())),
            Message::Sums { at, seconds, places: lines, samples } if (from..=to).contains(&(at - epoch)) => {
                shares.samples += samples;
                seconds.into_iter().for_each(|(what, time)| *shares.seconds.entry(what).or_default() += time);
                lines.into_iter().for_each(|(line, time)| *places.entry(line).or_default() += time);
            }
            Message::Sums { .. } => {}
        }
    }
    let all: f64 = places.values().sum();
    let longest = places.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    shares.place = longest.map(|(line, time)| (line, time / all.max(1e-9)));
    Evidence {
        shares: (shares.samples > 0).then_some(shares),
        load: load(usage, from, to),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        gpu: rate(gpu.iter().copied(), epoch + from, epoch + to),
        torch,
    }
}

/// The growth of a sum per second between two times.
fn rate(sums: impl Iterator<Item = (f64, f64)> + Clone, from: f64, to: f64) -> Option<f64> {
    let mut within = sums.filter(|(at, _)| (from..=to).contains(at));
    let first = within.next()?;
    let last = within.last()?;
    (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0))
}

fn load(usage: &[Usage], from: f64, to: f64) -> Option<Load> {
    let of = |value: fn(&Usage) -> f64| rate(usage.iter().map(|look| (look.at, value(look))), from, to);
    let running = usage.iter().filter(|look| (from..=to).contains(&look.at)).map(|look| look.running).max()?;
    let (process, others) = (of(|look| look.process)?, of(|look| look.others)?);
    let foreign = (of(|look| look.machine)? - process - others).max(0.0);
    Some(Load { main_thread: of(|look| look.main_thread)?, process, others, running, foreign })
}

/// What bounds a script, and what shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Batches come too late.
    Data,
    /// Evaluations take much of the time.
    Evaluation,
    /// Checkpoints take much of the time.
    Checkpoints,
    /// The host starts kernels more slowly than the GPU computes them.
    Launches,
    /// The GPU.
    Device,
    /// All cores are busy.
    Cores,
    /// One core is busy.
    OneCore,
    /// It waits for something else.
    Waiting,
    /// Other programs use the cores.
    Foreign,
}

/// A part of the time that is worth a line.
const MUCH: f64 = 0.2;
/// A part of the time in which something is busy that bounds the script.
const BUSY: f64 = 0.8;
/// Busy cores of a script that waits for most of the time.
const IDLE: f64 = 0.5;
/// A part of the cores that other programs use, with which the load of the script says nothing.
const FOREIGN: f64 = 0.4;

impl Evidence {
    /// What bounds the script; `None`: nothing alone, or it was not seen.
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        let share = |activity| self.shares.as_ref().map_or(0.0, |shares| shares.of(activity));
        for (activity, found) in [
            (Activity::Data, Bottleneck::Data),
            (Activity::Evaluation, Bottleneck::Evaluation),
            (Activity::Checkpoint, Bottleneck::Checkpoints),
        ] {
            if share(activity) >= MUCH {
                return Some(found);
            }
        }
        if let Some(gpu) = self.gpu {
            let is_device = gpu >= BUSY || share(Activity::Device) >= MUCH;
            return Some(if is_device { Bottleneck::Device } else { Bottleneck::Launches });
        }
        if self.torch.as_ref().is_some_and(|torch| torch.memory.is_some()) {
            // How busy the GPU is is not known.
            return (share(Activity::Device) >= MUCH).then_some(Bottleneck::Device);
        }
        let load = self.load?;
        let all = load.process + load.others;
        match () {
            () if load.foreign >= FOREIGN * self.cores as f64 => Some(Bottleneck::Foreign),
            () if all >= BUSY * self.cores as f64 => Some(Bottleneck::Cores),
            () if load.main_thread >= BUSY => Some(Bottleneck::OneCore),
            () if all <= IDLE => Some(Bottleneck::Waiting),
            () => None,
        }
    }

    /// Lines for the user.
    pub fn explained(&self) -> String {
        let mut text = String::new();
        if let Some(shares) = &self.shares {
            let mut parts: Vec<(Activity, f64)> = shares.seconds.keys().map(|&what| (what, shares.of(what))).collect();
            parts.sort_by(|a, b| b.1.total_cmp(&a.1));
            let parts: Vec<String> =
                parts.iter().map(|(what, share)| format!("{} {}", what.words(), percent(*share))).collect();
            let _ = write!(text, "time: {}", parts.join(", "));
            if let Some((line, share)) = &shares.place {
                let _ = write!(text, "; longest in {line}, {}", percent(*share));
            }
            text.push('\n');
        }
        if let Some(load) = &self.load {
            let Load { main_thread, process, others, running, foreign } = load;
            let all = process + others;
            let _ =
                write!(text, "load: {all:.1} of {} cores busy, the main thread {}", self.cores, percent(*main_thread));
            if *running > 0 {
                let _ = write!(text, ", {running} other processes {others:.1} cores");
            }
            if *foreign >= FOREIGN {
                let _ = write!(text, ", other programs {foreign:.1} cores");
            }
            text.push_str(&self.gpu.map(|busy| format!("; the GPU {}", percent(busy))).unwrap_or_default());
            text.push('\n');
        }
        if let Some(torch) = &self.torch {
            let _ = writeln!(text, "{}", torch.explained());
        }
        if let Some(found) = self.bottleneck() {
            let _ = writeln!(text, "bound by {}", self.reason(found));
        }
        text
    }

    fn reason(&self, found: Bottleneck) -> String {
        let loaders = self.torch.iter().flat_map(|torch| &torch.loaders).map(|loader| loader.workers).max();
        match found {
            Bottleneck::Data => match loaders {
                Some(0) => "its data loader, which has no workers: batches are loaded between the steps".to_owned(),
                Some(workers) => format!("its data loader: {workers} workers load more slowly than the steps need"),
                None => "its data: batches are loaded between the steps".to_owned(),
            },
            Bottleneck::Evaluation => "its evaluations: evaluate less often, or on fewer items".to_owned(),
            Bottleneck::Checkpoints => "its checkpoints: save less often".to_owned(),
            Bottleneck::Launches => "the host: the GPU waits for the next kernel".to_owned(),
            Bottleneck::Device => "the GPU".to_owned(),
            Bottleneck::Cores => "the cores of this machine".to_owned(),
            Bottleneck::OneCore => "one core: its main thread computes".to_owned(),
            Bottleneck::Foreign => {
                "nothing that is known: other programs use the cores, and disturb what is measured".to_owned()
            }
            Bottleneck::Waiting => {
                "something that is neither its data nor a core: it sleeps, or waits for a disk or the network"
                    .to_owned()
            }
        }
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    let percent = share * 1e2;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::time::Duration;

    fn began() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1000)
    }

    /// Both processes use a core each, from second 1 to 3.
    fn usage(main_thread: f64, others: f64, running: usize) -> Vec<Usage> {
        let look = |tenth: u32| {
            let at = f64::from(tenth) / 10.0;
            let (process, others) = (main_thread * at, others * at);
            Usage { at, main_thread: process, process, others, running, machine: 100.0 + process + others + 0.25 * at }
        };
        (0..40).map(look).collect()
    }

    #[test]
    fn what_happens_before_the_first_and_after_the_last_step_does_not_count() {
        let profile = r#"
{"at": 1000.5, "seconds": {"other": 9.0}, "places": {"train.py:1": 9.0}, "samples": 50}
{"torch": {"version": "2.9", "loaders": [{"workers": 2}], "optimizers": [], "autocast": "bfloat16", "compiled": false}}
{"at": 1001.5, "seconds": {"data": 0.3, "backward": 0.1}, "places": {"train.py:7": 0.3, "train.py:9": 0.1}, "samples": 40}
{"at": 1002.5, "seconds": {"data": 0.3, "optimizer": 0.1}, "places": {"train.py:7": 0.4}, "samples": 40}
{"torch": {"version": "2.9", "loaders": [], "optimizers": [], "autocast": null, "compiled": false, "memory": {"peak": 1, "total": 2}}}
{"at": 1003.5, "seconds": {"checkpoint": 5.0}, "places": {}, "samples": 9}
{"at": 1002.0, "seco"#;
        let gpu: Vec<(f64, f64)> =
            (0..40).map(|tenth| (1000.0 + f64::from(tenth) / 10.0, f64::from(tenth) / 20.0)).collect();
        let evidence = evidence(profile, began(), &usage(0.5, 1.5, 2), &gpu, (1.0, 3.0));
        let shares = evidence.shares.as_ref().unwrap();
        assert_eq!(shares.samples, 80);
        assert!((shares.of(Activity::Data) - 0.75).abs() < 1e-9 && shares.of(Activity::Checkpoint) == 0.0);
        assert_eq!(shares.place.as_ref().map(|(line, _)| line.as_str()), Some("train.py:7"));
        let torch = evidence.torch.as_ref().unwrap();
        assert_eq!(
            (torch.loaders.len(), torch.autocast.as_deref(), torch.memory.is_some()),
            (1, Some("bfloat16"), true)
        );
        let load = evidence.load.unwrap();
        assert!((load.main_thread - 0.5).abs() < 1e-6 && (load.others - 1.5).abs() < 1e-6 && load.running == 2);
        assert!((load.foreign - 0.25).abs() < 1e-6);
        assert!((evidence.gpu.unwrap() - 0.5).abs() < 1e-6);
        assert_eq!(evidence.bottleneck(), Some(Bottleneck::Data));
        let text = evidence.explained();
        assert!(text.contains("bound by its data loader: 2 workers load more slowly than the steps need"), "{text}");
    }

    #[rstest]
    #[case::data(&[(Activity::Data, 0.4), (Activity::Backward, 0.6)], 1.0, None, Some(Bottleneck::Data))]
    #[case::evaluation(&[(Activity::Evaluation, 0.4), (Activity::Backward, 0.6)], 1.0, None, Some(Bottleneck::Evaluation))]
    #[case::checkpoints(&[(Activity::Checkpoint, 0.4), (Activity::Backward, 0.6)], 1.0, None, Some(Bottleneck::Checkpoints))]
    #[case::launches(&[(Activity::Forward, 1.0)], 1.0, Some(0.3), Some(Bottleneck::Launches))]
    #[case::gpu(&[(Activity::Forward, 1.0)], 1.0, Some(0.95), Some(Bottleneck::Device))]
    #[case::waits_for_the_gpu(&[(Activity::Device, 0.7), (Activity::Forward, 0.3)], 1.0, Some(0.5), Some(Bottleneck::Device))]
    #[case::one_core(&[(Activity::Other, 1.0)], 0.97, None, Some(Bottleneck::OneCore))]
    #[case::all_cores(&[(Activity::Backward, 1.0)], 3.9, None, Some(Bottleneck::Cores))]
    #[case::nothing_is_busy(&[(Activity::Other, 1.0)], 0.05, None, Some(Bottleneck::Waiting))]
    #[case::neither(&[(Activity::Other, 1.0)], 0.7, None, None)]
    fn a_bottleneck_is_named(
        #[case] seconds: &[(Activity, f64)],
        #[case] busy: f64,
        #[case] gpu: Option<f64>,
        #[case] expected: Option<Bottleneck>,
    ) {
        let seconds = seconds.iter().copied().collect();
        let shares = Some(Shares { seconds, samples: 400, place: None });
        let load = Some(Load { main_thread: busy.min(1.0), process: busy, ..Load::default() });
        let evidence = Evidence { shares, load, cores: 4, gpu, torch: None };
        assert_eq!(evidence.bottleneck(), expected);
    }

    #[test]
    fn a_script_whose_cores_others_use_does_not_wait_for_a_disk() {
        let load = Some(Load { main_thread: 0.3, process: 0.4, foreign: 1.6, ..Load::default() });
        let evidence = Evidence { load, cores: 2, ..Evidence::default() };
        assert_eq!(evidence.bottleneck(), Some(Bottleneck::Foreign));
        let text = evidence.explained();
        assert!(text.contains("other programs 1.6 cores") && text.contains("nothing that is known"), "{text}");
    }

    #[test]
    fn few_looks_bound_a_share_less_than_many() {
        let of = |samples| Shares { seconds: BTreeMap::from([(Activity::Other, 1.0)]), samples, place: None };
        assert!(of(50).at_most(&[Activity::Data]) > 0.05 && of(1000).at_most(&[Activity::Data]) < 0.01);
        assert!(of(50).at_most(&[Activity::Other]) >= 1.0);
    }
}
