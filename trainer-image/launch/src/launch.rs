//! Input of a rank: its plan and its environment.

use crate::ending::Ending;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::{CONTRACT_VERSION, env};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A launch as one rank sees it.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The launch's plan.
    pub plan: LaunchPlan,
    /// This rank.
    pub rank: u32,
    /// Ranks in the gang.
    pub world_size: u32,
    /// File of the report.
    pub report: Option<PathBuf>,
    /// File of rank 0's progress.
    pub progress: Option<PathBuf>,
    /// URL of the checkpoint storage.
    pub checkpoints: Option<String>,
    /// Data directory of the workload.
    pub data: PathBuf,
    /// File of rank 0's metrics.
    pub metrics: Option<PathBuf>,
}

impl Launch {
    /// Reads the environment of the contract and the plan that it names. Unset variables default to rank 0 of 1 with
    /// its data in the current directory.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`], naming the variable or the field.
    pub fn from_env() -> Result<Self, Ending> {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = text(env::PLAN).ok_or_else(|| invalid(env::PLAN, "is not set: name the launch's plan.json"))?;
        let (rank, world_size) = (number(env::RANK)?.unwrap_or(0), number(env::WORLD_SIZE)?.unwrap_or(1));
        if rank >= world_size {
            return Err(invalid(env::RANK, &format!("{rank} is not below {} = {world_size}", env::WORLD_SIZE)));
        }
        Ok(Self {
            plan: read_plan(Path::new(&path))?,
            rank,
            world_size,
            report: text(env::REPORT).map(PathBuf::from),
            progress: text(env::PROGRESS).map(PathBuf::from).filter(|_| rank == 0),
            checkpoints: text(env::CHECKPOINTS),
            data: data_directory(),
            metrics: text(env::METRICS).map(PathBuf::from).filter(|_| rank == 0),
        })
    }
}

/// Data directory of the workload: `PAWL_DATA`, else `data` in the current directory.
pub fn data_directory() -> PathBuf {
    let named = std::env::var_os(env::DATA).filter(|path| !path.is_empty());
    named.map_or_else(|| PathBuf::from("data"), PathBuf::from)
}

/// Directory of the persistent kernel cache: `PAWL_KERNEL_CACHE`, else `kernels` in the data directory.
pub fn kernel_cache(data: &Path) -> PathBuf {
    let named = std::env::var_os("PAWL_KERNEL_CACHE").filter(|path| !path.is_empty());
    named.map_or_else(|| data.join("kernels"), PathBuf::from)
}

/// Reads a plan and checks its version.
///
/// # Errors
/// [`Ending::InvalidPlan`], naming the file and the field.
pub fn read_plan(path: &Path) -> Result<LaunchPlan, Ending> {
    let wrong = |problem: String| Ending::InvalidPlan(format!("{}: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let plan: LaunchPlan = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if plan.contract != CONTRACT_VERSION {
        let version = plan.contract;
        return Err(wrong(format!("contract: {version}, this trainer keeps {CONTRACT_VERSION}: use a matching image")));
    }
    Ok(plan)
}

fn number<T: FromStr>(name: &str) -> Result<Option<T>, Ending> {
    match std::env::var(name) {
        Ok(text) => text.parse().map(Some).map_err(|_| invalid(name, &format!("{text:?} is not a number in range"))),
        Err(_) => Ok(None),
    }
}

fn invalid(variable: &str, problem: &str) -> Ending {
    Ending::InvalidPlan(format!("environment variable {variable} {problem}"))
}
