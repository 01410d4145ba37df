//! Which faults are in force for this launch.

use crate::model::{as_json, holds};
use crate::script::{Fault, FaultKind, Script};
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

impl FaultKind {
    /// Whether it ends a rank.
    pub(crate) fn kills(self) -> bool {
        !matches!(self, Self::SlowLoader | Self::Slow | Self::QualityLoss)
    }

    /// Whether it is found before the first step.
    pub(crate) fn is_early(self) -> bool {
        matches!(self, Self::Unsupported | Self::InvalidPlan)
    }
}

impl Fault {
    fn applies(&self, plan: &LaunchPlan) -> bool {
        let settings = as_json(&plan.settings);
        let kind = match self.kinds.as_slice() {
            [] => plan.kind != LaunchKind::Preflight || self.fault.is_early(),
            kinds => kinds.contains(&plan.kind),
        };
        kind && self.launch.as_ref().is_none_or(|part| plan.launch.contains(part))
            && self.settings.iter().all(|c| holds(&settings, &c.setting, c.value.as_ref()))
    }
}

/// A fault that is in force.
#[derive(Clone, Debug)]
pub(crate) struct Armed {
    pub(crate) fault: Fault,
    marker: PathBuf,
    run: String,
}

impl Armed {
    /// Remembers that it happened.
    pub(crate) fn spend(&self) -> io::Result<()> {
        if self.fault.once { std::fs::write(&self.marker, &self.run) } else { Ok(()) }
    }
}

/// The faults in force. All ranks of a launch come to the same answer, in whatever order they start: what other
/// launches left counts, what this one leaves does not. `run` names this run of the launch.
pub(crate) fn armed(script: &Script, plan: &LaunchPlan, memory: &Path, run: &str) -> io::Result<Vec<Armed>> {
    let dir = memory.join("scripted-faults").join(&plan.job);
    let mut armed = Vec::new();
    for (index, fault) in script.faults.iter().enumerate().filter(|(_, fault)| fault.applies(plan)) {
        if fault.once || fault.nth.is_some() {
            std::fs::create_dir_all(&dir)?;
        }
        let marker = dir.join(format!("{index}-spent"));
        let spent = fault.once && std::fs::read_to_string(&marker).is_ok_and(|by| by != run);
        let turn = match fault.nth {
            Some(nth) => count(&dir.join(format!("{index}-runs")), run)? == nth,
            None => true,
        };
        if turn && !spent {
            armed.push(Armed { fault: fault.clone(), marker, run: run.to_owned() });
        }
    }
    Ok(armed)
}

/// Which run this is, from 1, of those that a file lists.
fn count(file: &Path, run: &str) -> io::Result<u32> {
    let known = std::fs::read_to_string(file).unwrap_or_default();
    let before: BTreeSet<&str> = known.lines().take_while(|&line| line != run).collect();
    if !known.lines().any(|line| line == run) {
        std::fs::File::options().create(true).append(true).open(file)?.write_all(format!("{run}\n").as_bytes())?;
    }
    Ok(before.len() as u32 + 1)
}
