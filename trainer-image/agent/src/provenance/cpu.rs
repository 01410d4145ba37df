//! The CPU of this machine.

use pawl_contract::provenance::Cpu;
use std::thread;

/// Its model, where the kernel names it, and the cores that this process may use.
pub(super) fn cpu() -> Cpu {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = thread::available_parallelism().ok().and_then(|cores| u32::try_from(cores.get()).ok());
    Cpu { name: name(&text), cores }
}

/// The model in the text of `/proc/cpuinfo`.
fn name(text: &str) -> Option<String> {
    let named = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "model name");
    named.map(|(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_the_first_core() {
        let text = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R): 8480\nmodel name\t: other\n";
        assert_eq!(name(text).as_deref(), Some("Intel(R) Xeon(R): 8480"));
        assert_eq!(name("processor\t: 0\nCPU part\t: 0xd40\n"), None);
    }
}
