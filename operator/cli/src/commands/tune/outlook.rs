//! What a phase can gain at most, by what was seen of the script.

use super::profile::{Activity, Evidence, Memory, percent};
use crate::commands::init::phases::{MORE_WORKERS, MULTIPLES, Phase};

/// What is expected of a phase.
#[derive(Clone, Debug, PartialEq)]
pub enum Outlook {
    /// It is at most this much faster, and why.
    AtMost(f64, String),
    /// It cannot gain enough, and why.
    Excluded(String),
    /// Nothing bounds it, with what is known.
    Open(Option<String>),
}

/// Speedups that are not worth a measurement: `minSpeedup`, which the lower bound has to reach.
const LEAST: f64 = 1.02;
/// Beyond this, a bound says nothing.
const MOST: f64 = 10.0;
/// What a phase may gain where nothing bounds it, and the maximum for which one is preferred to another.
const OPEN: f64 = 1.5;
const PREFERRED: f64 = 2.0;
/// What computes, as opposed to loading, evaluating and saving.
const COMPUTING: [Activity; 5] =
    [Activity::Forward, Activity::Backward, Activity::Optimizer, Activity::Device, Activity::Other];

impl Outlook {
    /// The speedup by which phases are ordered.
    pub fn hope(&self) -> f64 {
        match self {
            Self::AtMost(most, _) => most.min(PREFERRED),
            Self::Open(_) => OPEN,
            Self::Excluded(_) => 1.0,
        }
    }

    /// What the user reads of it.
    pub fn ground(&self) -> Option<&str> {
        match self {
            Self::AtMost(_, ground) | Self::Excluded(ground) => Some(ground),
            Self::Open(ground) => ground.as_deref(),
        }
    }

    /// With something else that is known.
    pub fn and(self, more: Option<String>) -> Self {
        let joined = |text: Option<String>| {
            let texts: Vec<String> = text.into_iter().chain(more).collect();
            (!texts.is_empty()).then(|| texts.join("; "))
        };
        match self {
            Self::AtMost(most, text) => Self::AtMost(most, joined(Some(text)).unwrap_or_default()),
            Self::Excluded(text) => Self::Excluded(text),
            Self::Open(text) => Self::Open(joined(text)),
        }
    }

    /// Of a phase that acts on `share` of the time, which may be as much as `most`, and leaves `left(part)` of the time
    /// when `part` is what it acts on.
    fn bounded(subject: &str, share: f64, most: f64, left: impl Fn(f64) -> f64) -> Self {
        let speedup = |part: f64| 1.0 / left(part).max(1e-3);
        let (expected, bound) = (speedup(share), speedup(most));
        let text = if expected > MOST {
            format!("{subject} {}", percent(share))
        } else {
            format!("{subject} {}: at most {expected:.2}×", percent(share))
        };
        if bound < LEAST { Self::Excluded(text) } else { Self::AtMost(bound, text) }
    }
}

/// What is expected of a phase.
pub fn outlook(phase: Phase, evidence: &Evidence, accumulation: u32) -> Outlook {
    if let Some(why) = in_use(phase, evidence) {
        return Outlook::Excluded(why);
    }
    match phase {
        Phase::LoaderWorkers => loader(evidence),
        Phase::FusedOptimizer => {
            let mut optimizers = evidence.torch.iter().flat_map(|torch| &torch.optimizers);
            let name = optimizers.next().map_or("the optimizer", |optimizer| optimizer.name.as_str());
            on_host(evidence, &format!("{name} takes"), &[Activity::Optimizer])
        }
        Phase::Attention => {
            on_host(evidence, "forward and backward pass take", &[Activity::Forward, Activity::Backward])
        }
        Phase::Compile | Phase::Fsdp => computing(evidence, |part| 1.0 - part),
        Phase::Bf16 => computing(evidence, |part| 1.0 - part).and(precision(evidence)),
        // Several times the items in at least the time in which it computes now; loading takes as many times longer.
        Phase::LargerBatch => {
            let most = f64::from(MULTIPLES[MULTIPLES.len() - 1]);
            computing(evidence, |part| 1.0 - part + part / most).and(memory(evidence))
        }
        // One micro-batch takes at least as long as one of them takes now.
        Phase::OneMicroBatch => {
            let share = 1.0 / f64::from(accumulation.max(1));
            computing(evidence, |part| 1.0 - part + part * share).and(memory(evidence))
        }
        Phase::GradientCheckpointing => Outlook::Open(None),
    }
}

/// What the script does already.
fn in_use(phase: Phase, evidence: &Evidence) -> Option<String> {
    let torch = evidence.torch.as_ref()?;
    let dtypes = || torch.optimizers.iter().flat_map(|optimizer| &optimizer.dtypes);
    match phase {
        Phase::FusedOptimizer => {
            let fused = torch.optimizers.iter().find(|optimizer| optimizer.fused)?;
            Some(format!("its {} is fused already", fused.name))
        }
        Phase::Compile => torch.compiled.then(|| "a module is compiled already".to_owned()),
        Phase::Bf16 => {
            let computes = torch.autocast.as_deref() == Some("bfloat16") || dtypes().any(|dtype| dtype == "bfloat16");
            computes.then(|| "it computes in bfloat16 already".to_owned())
        }
        Phase::LoaderWorkers
        | Phase::Attention
        | Phase::LargerBatch
        | Phase::OneMicroBatch
        | Phase::GradientCheckpointing
        | Phase::Fsdp => None,
    }
}

/// How it computes now.
fn precision(evidence: &Evidence) -> Option<String> {
    let torch = evidence.torch.as_ref()?;
    let dtypes: Vec<&str> = torch.optimizers.first()?.dtypes.iter().map(String::as_str).collect();
    let autocast =
        torch.autocast.as_ref().map_or("no autocast was seen".to_owned(), |dtype| format!("autocast to {dtype}"));
    Some(format!("its parameters are {}, {autocast}", dtypes.join(" and ")))
}

/// The part of the memory that it uses now.
fn memory(evidence: &Evidence) -> Option<String> {
    let Memory { peak, total } = evidence.torch.as_ref()?.memory?;
    Some(format!("it uses {} of the GPU's memory", percent(peak as f64 / total.max(1) as f64)))
}

fn loader(evidence: &Evidence) -> Outlook {
    let Some(shares) = &evidence.shares else { return Outlook::Open(None) };
    let workers = evidence.torch.iter().flat_map(|torch| &torch.loaders).map(|loader| loader.workers).max();
    if workers.is_none() && shares.of(Activity::Data) == 0.0 {
        return Outlook::Open(None);
    }
    let cores = evidence.cores as f64;
    let busy = evidence.load.map_or(0.0, |load| load.process + load.others) / cores;
    let more = f64::from(MORE_WORKERS);
    // Their work is not less, only more of it at the same time.
    let left = |part: f64| match workers.unwrap_or(0) {
        0 => (1.0 - part).max(part / more),
        workers => (1.0 - part).max(f64::from(workers) / more),
    };
    let (share, most) = (shares.of(Activity::Data), shares.at_most(&[Activity::Data]));
    let found = Outlook::bounded("a step waits for data for", share, most, left);
    match found {
        Outlook::AtMost(bound, _) if bound.min(1.0 / busy.max(1e-3)) < LEAST => {
            Outlook::Excluded(format!("all {cores} cores are busy: more workers would share them"))
        }
        Outlook::AtMost(bound, text) => Outlook::AtMost(bound.min(1.0 / busy.max(1e-3)), text),
        found => found,
    }
}

/// Of a phase that shortens activities of the host. Where a GPU computes, the time of the host does not bound it.
fn on_host(evidence: &Evidence, subject: &str, activities: &[Activity]) -> Outlook {
    let has_gpu = evidence.gpu.is_some() || evidence.torch.as_ref().is_some_and(|torch| torch.memory.is_some());
    match (&evidence.shares, &evidence.torch) {
        (Some(shares), Some(_)) if !has_gpu => {
            let share = activities.iter().map(|activity| shares.of(*activity)).sum();
            Outlook::bounded(subject, share, shares.at_most(activities), |part| 1.0 - part)
        }
        _ => Outlook::Open(None),
    }
}

/// Of a phase that shortens everything other than loading, evaluating and saving.
fn computing(evidence: &Evidence, left: impl Fn(f64) -> f64) -> Outlook {
    let Some(shares) = &evidence.shares else { return Outlook::Open(None) };
    // A script of which nothing is recognized may do anything.
    let is_known = evidence.torch.is_some() || shares.seconds.keys().any(|activity| *activity != Activity::Other);
    if !is_known {
        return Outlook::Open(None);
    }
    let share = COMPUTING.iter().map(|activity| shares.of(*activity)).sum();
    Outlook::bounded("it acts on", share, shares.at_most(&COMPUTING), left)
}
