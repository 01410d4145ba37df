//! The GPUs of an attempt and their driver: as `nvidia-smi` lists them, or else as the driver's files do, which have no
//! memory size.

use super::Inquiry;
use crate::files::read_bounded;
use pawl_contract::provenance::Gpu;
use std::collections::BTreeSet;
use std::path::Path;

/// Where the driver describes itself.
const DRIVER: &str = "/proc/driver/nvidia";
/// Maximum size of a file there, bytes.
const MAX_FILE: u64 = 64 << 10;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The GPUs.
    pub(super) gpu: Option<Gpu>,
    /// Version of the driver.
    pub(super) driver: Option<String>,
}

/// The `count` GPUs with these names, separated by commas, as `CUDA_VISIBLE_DEVICES` has them; `None`: the first ones.
pub(super) fn found(names: Option<&str>, count: u32, inquiry: &Inquiry) -> Found {
    let mut command = inquiry.program("nvidia-smi");
    command.args(["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]);
    command.args(names.map(|names| format!("--id={names}")));
    let listed = inquiry.ask(command).and_then(|text| of_list(&text, count));
    listed.unwrap_or_else(|| of_files(Path::new(DRIVER), count))
}

/// Those in the output of `nvidia-smi`; `None` where it lists none.
fn of_list(text: &str, count: u32) -> Option<Found> {
    let lines = text.lines().take(count as usize);
    let fields = lines.filter_map(|line| {
        let mut fields = line.rsplitn(3, ',').map(str::trim);
        let (driver, memory, name) = (fields.next()?, fields.next()?, fields.next()?);
        Some((name, memory.parse::<u64>().ok().map(|mebibytes| mebibytes << 20), driver))
    });
    let fields: Vec<_> = fields.collect();
    let (_, memory_bytes, driver) = fields.first()?;
    let name = models(fields.iter().map(|(name, _, _)| *name));
    Some(Found {
        gpu: Some(Gpu { name, memory_bytes: *memory_bytes, count: Some(count) }),
        driver: Some((*driver).to_owned()),
    })
}

/// Those in the files of the driver.
fn of_files(driver: &Path, count: u32) -> Found {
    let text = |path: &Path| String::from_utf8(read_bounded(path, MAX_FILE).ok()?).ok();
    let gpus = std::fs::read_dir(driver.join("gpus")).into_iter().flatten().filter_map(Result::ok);
    let described: Vec<String> = gpus.filter_map(|gpu| text(&gpu.path().join("information"))).collect();
    let model = |text: &String| text.lines().find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()));
    let names: Vec<String> = described.iter().filter_map(model).collect();
    let gpu = Gpu { name: models(names.iter().map(String::as_str)), memory_bytes: None, count: Some(count) };
    Found { gpu: Some(gpu), driver: text(&driver.join("version")).and_then(|text| version(&text)) }
}

/// The models among these names; `None` without one.
fn models<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The version in the driver's description of itself.
fn version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_from_the_list_of_the_driver() {
        let text = "NVIDIA H200, 143771, 580.65.06\nNVIDIA H200, 143771, 580.65.06\nNVIDIA L4, 23034, 580.65.06\n";
        let gpu = |name: &str, count| {
            let (name, memory_bytes) = (Some(name.to_owned()), Some(143_771 << 20));
            Some(Gpu { name, memory_bytes, count: Some(count) })
        };
        let driver = Some("580.65.06".to_owned());
        assert_eq!(of_list(text, 2), Some(Found { gpu: gpu("NVIDIA H200", 2), driver }));
        assert_eq!(of_list(text, 3).unwrap().gpu, gpu("NVIDIA H200, NVIDIA L4", 3));
        assert_eq!(of_list("No devices were found\n", 2), None);
    }

    #[test]
    fn or_from_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let gpu = folder.path().join("gpus/0000:01:00.0");
        std::fs::create_dir_all(&gpu).unwrap();
        std::fs::write(gpu.join("information"), "Model: \t\t NVIDIA H200\nIRQ:   \t\t 71\n").unwrap();
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (a@b)";
        std::fs::write(folder.path().join("version"), format!("{version}\nGCC version: 13.3.0\n")).unwrap();
        let gpu = Gpu { name: Some("NVIDIA H200".to_owned()), memory_bytes: None, count: Some(1) };
        let expected = Found { gpu: Some(gpu), driver: Some("580.65.06".to_owned()) };
        assert_eq!(of_files(folder.path(), 1), expected);
        let absent = of_files(&folder.path().join("none"), 1);
        assert_eq!((absent.gpu.unwrap().name, absent.driver), (None, None));
    }
}
