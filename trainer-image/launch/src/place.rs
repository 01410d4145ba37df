//! Where a rank runs.

use crate::ending::Ending;
use pawl_contract::env;

/// Variables that set the number of threads of a rank; the first that is set counts. Several ranks on one machine share
/// its CPUs only if the process that starts them sets one of these.
const THREADS: [&str; 2] = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"];

/// Threads of this rank on the CPU.
pub fn threads() -> usize {
    let set = THREADS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    set.filter(|threads| *threads > 0).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The device that the agent assigned to this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The CPU.
    Cpu,
    /// The visible GPU with this index.
    Cuda(usize),
    /// A GPU that is not present: a preflight needs none.
    AbsentGpu,
}

impl Place {
    /// Reads `PAWL_DEVICE`.
    ///
    /// # Errors
    /// [`Ending::InvalidPlan`] naming the variable when its value is invalid.
    pub fn from_env() -> Result<Self, Ending> {
        Self::parse(std::env::var(env::DEVICE).ok().as_deref())
    }

    fn parse(text: Option<&str>) -> Result<Self, Ending> {
        match text {
            None | Some("" | "cpu") => Ok(Self::Cpu),
            Some("cuda") => Ok(Self::AbsentGpu),
            Some(text) => match text.strip_prefix("cuda:").and_then(|number| number.parse().ok()) {
                Some(number) => Ok(Self::Cuda(number)),
                None => Err(Ending::InvalidPlan(format!("{}: {text}: must be cpu or cuda:N", env::DEVICE))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_names_the_place() {
        assert_eq!(Place::parse(None).unwrap(), Place::Cpu);
        assert_eq!(Place::parse(Some("cpu")).unwrap(), Place::Cpu);
        assert_eq!(Place::parse(Some("cuda:3")).unwrap(), Place::Cuda(3));
        assert_eq!(Place::parse(Some("cuda")).unwrap(), Place::AbsentGpu);
        for wrong in ["gpu", "cuda:", "cuda:-1"] {
            let message = Place::parse(Some(wrong)).unwrap_err().to_string();
            assert!(message.starts_with("PAWL_DEVICE: ") && message.contains("cuda:N"), "{message}");
        }
    }
}
