//! What an attempt was measured with: machine, versions and source, for people and for whoever repeats it. No decision
//! depends on it.

mod command;
mod data;
mod nodes;

pub use command::{redacted, without_secrets};
pub use data::{Data, Hashed};
pub use nodes::OtherPods;

use crate::text::{truncated, unprintable};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest text other than the command line, bytes.
pub const MAX_TEXT: usize = 256;
/// Longest command line, bytes.
pub const MAX_COMMAND: usize = 2_048;
/// Maximum number of libraries, and of features.
pub const MAX_LIBRARIES: usize = 32;

/// GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Its model; of several models all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Memory of one, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Their number on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// A CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpu {
    /// Its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of cores that the attempt may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
}

/// A revision of a Git repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The commit, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether files that Git tracks had changes that are in no commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
}

/// A build of Pawl.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Its optional features.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
}

/// Machine, versions and source. What is absent is not known.
///
/// The agent of the first pod collects it once for an attempt. What only a program knows, it adds to the report of its
/// launch ([`Provenance::whole`]), and so does that agent with the pods that differ from its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// The GPUs of the attempt on this machine; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// The CPU of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Version of the GPU's driver, such as `580.65.06`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CUDA version of the program's libraries, such as `13.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// Versions of what the program consists of, by name: `python`, `torch`, ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub libraries: BTreeMap<String, String>,
    /// The Git repository that contains the script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Reference of the pod's image, as its template has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The build of Pawl.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pawl: Option<Build>,
    /// Command line of the launches with its placeholders, which stand for settings and for variables of the
    /// environment. `***` stands for the values of options with the name of a secret, such as `--token` or `--api-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The data, as its program reports them.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// Pods of the gang that are known to differ from the first one; set by the agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_pods: Vec<OtherPods>,
}

impl Provenance {
    /// What an agent has `collected` for an attempt, with what the reports of its launches add, oldest first, within
    /// the limits; `None` when nothing is known.
    pub fn whole<'a>(collected: Option<&Self>, reported: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let known = reported.into_iter().fold(collected.cloned().unwrap_or_default(), Self::with);
        (known != Self::default()).then(|| known.bounded())
    }

    /// This with what `other` knows, which has precedence.
    fn with(self, other: &Self) -> Self {
        let Self { gpu, cpu, driver, cuda, libraries, source, image, pawl, command, data, other_pods } = other.clone();
        let known = self.gpu.unwrap_or_default();
        let gpu = gpu.map(|gpu| Gpu {
            name: gpu.name.or(known.name.clone()),
            memory_bytes: gpu.memory_bytes.or(known.memory_bytes),
            // A program sees the one that it uses.
            count: known.count.or(gpu.count),
        });
        Self {
            gpu: gpu.or((known != Gpu::default()).then_some(known)),
            cpu: cpu.or(self.cpu),
            driver: driver.or(self.driver),
            cuda: cuda.or(self.cuda),
            libraries: self.libraries.into_iter().chain(libraries).collect(),
            source: source.or(self.source),
            image: image.or(self.image),
            pawl: pawl.or(self.pawl),
            command: command.or(self.command),
            data: data.or(self.data),
            other_pods: if other_pods.is_empty() { self.other_pods } else { other_pods },
        }
    }

    /// This with its texts and their numbers cut to the limits, on one line each and without characters that a terminal
    /// obeys. Empty texts are left out.
    #[must_use]
    pub fn bounded(self) -> Self {
        let text = |text: Option<String>| text.and_then(|text| line(&text, MAX_TEXT));
        let gpu = self.gpu.map(|gpu| Gpu { name: text(gpu.name), ..gpu });
        let cpu = self.cpu.map(|cpu| Cpu { name: text(cpu.name), ..cpu });
        let libraries = self.libraries.into_iter();
        let libraries =
            libraries.filter_map(|(name, version)| Some((line(&name, MAX_TEXT)?, line(&version, MAX_TEXT)?)));
        Self {
            gpu: gpu.filter(|gpu| *gpu != Gpu::default()),
            cpu: cpu.filter(|cpu| *cpu != Cpu::default()),
            driver: text(self.driver),
            cuda: text(self.cuda),
            libraries: libraries.take(MAX_LIBRARIES).collect(),
            source: self.source.map(|source| Source { commit: text(source.commit), ..source }),
            image: text(self.image),
            pawl: self.pawl.map(|build| Build {
                version: line(&build.version, MAX_TEXT).unwrap_or_default(),
                features: build.features.iter().filter_map(|name| line(name, MAX_TEXT)).take(MAX_LIBRARIES).collect(),
            }),
            command: self.command.and_then(|command| line(&command, MAX_COMMAND)),
            data: self.data.and_then(|data| {
                let hash = line(&data.hash, MAX_TEXT)?;
                Some(Data { from: text(data.from), hash, ..data })
            }),
            other_pods: self.other_pods.into_iter().take(nodes::MAX_KINDS).map(OtherPods::bounded).collect(),
        }
    }
}

/// For a field that is to be read whatever a program has written in it: what is not of its type is absent.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    Value::deserialize(deserializer).map(|value| serde_json::from_value(value).ok())
}

/// `text` on one line of at most `limit` bytes; `None` when nothing is left of it.
fn line(text: &str, limit: usize) -> Option<String> {
    let line: String = text.chars().map(|c| if unprintable(c) { ' ' } else { c }).collect();
    let line = truncated(line.trim(), limit);
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Begun;
    use crate::report::Report;
    use serde_json::json;

    fn full() -> Provenance {
        Provenance {
            gpu: Some(Gpu { name: Some("H200".to_owned()), memory_bytes: Some(141 << 30), count: Some(2) }),
            cpu: Some(Cpu { name: Some("Xeon".to_owned()), cores: Some(16) }),
            driver: Some("580.65.06".to_owned()),
            cuda: Some("13.0".to_owned()),
            libraries: [("torch".to_owned(), "2.8.0".to_owned())].into(),
            source: Some(Source { commit: Some("0badcafe".to_owned()), dirty: Some(true) }),
            image: Some("example.com/train@sha256:12".to_owned()),
            pawl: Some(Build { version: "0.1.0".to_owned(), features: vec!["cuda".to_owned()] }),
            command: Some("python train.py --lr=$(settings.learningRate)".to_owned()),
            data: Some(Data { from: Some("/data".to_owned()), hashed: Hashed::Sample, hash: "0badcafe".to_owned() }),
            other_pods: vec![OtherPods {
                pods: vec![1],
                count: 1,
                provenance: Provenance { driver: Some("570".to_owned()), ..Provenance::default() },
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_and_what_is_not_known_is_not_written() {
        let text = serde_json::to_string(&full()).unwrap();
        assert_eq!(serde_json::from_str::<Provenance>(&text).unwrap(), full());
        assert_eq!(full().bounded(), full());
        assert_eq!(serde_json::to_string(&Provenance::default()).unwrap(), "{}");
        let later = r#"{"hashed": "Later", "hash": "0b", "size": 7}"#;
        assert_eq!(serde_json::from_str::<Data>(later).unwrap().hashed, Hashed::Other);
        let later = r#"{"gpu": {"name": "H200", "board": 7}, "weather": "fine"}"#;
        assert_eq!(serde_json::from_str::<Provenance>(later).unwrap().gpu.unwrap().name.as_deref(), Some("H200"));
    }

    #[test]
    fn one_of_another_form_leaves_reports_and_records_readable() {
        let with = |provenance: &str| {
            let report = format!(
                r#"{{"contract": 1, "launch": "l", "kind": "Measure", "rank": 0, "outcome": "Done",
                     "provenance": {provenance}}}"#
            );
            let begun = format!(r#"{{"format": 1, "job": "toy", "attempt": "toy-1", "provenance": {provenance}}}"#);
            let report = serde_json::from_str::<Report>(&report).unwrap().provenance;
            assert_eq!(serde_json::from_str::<Begun>(&begun).unwrap().provenance, report);
            report
        };
        assert_eq!(with(&serde_json::to_string(&full()).unwrap()), Some(full()));
        for malformed in ["null", "7", r#""H200""#, r#"{"libraries": ["torch"]}"#, r#"{"gpu": {"count": -1}}"#] {
            assert_eq!(with(malformed), None, "{malformed}");
        }
        let without = Provenance { data: None, ..full() };
        let mut written = serde_json::to_value(full()).unwrap();
        for malformed in [json!({"hash": "0b"}), json!({"hashed": "Content"}), json!("0b")] {
            written["data"] = malformed;
            assert_eq!(with(&written.to_string()).as_ref(), Some(&without), "the rest is read");
        }
    }

    #[test]
    fn texts_are_bounded_and_on_one_line() {
        let long = || "é".repeat(10_000);
        let libraries = (0..1_000).map(|number| (format!("{number}{}", long()), long())).collect();
        let found = Provenance {
            driver: Some(" \n\u{1b} ".to_owned()),
            cuda: Some("13\u{202e}.0\n".to_owned()),
            command: Some(long()),
            pawl: Some(Build { version: long(), features: vec![long(); 1_000] }),
            gpu: Some(Gpu { name: Some(long()), ..Gpu::default() }),
            cpu: Some(Cpu { name: Some("\t".to_owned()), cores: None }),
            data: Some(Data { from: Some(long()), hashed: Hashed::Content, hash: long() }),
            other_pods: vec![OtherPods { pods: vec![1; 1_000], count: 1_000, provenance: full() }; 1_000],
            libraries,
            ..full()
        }
        .bounded();
        assert_eq!((found.driver.as_deref(), found.cuda.as_deref(), &found.cpu), (None, Some("13 .0"), &None));
        assert!(found.libraries.len() == MAX_LIBRARIES && found.command.as_ref().unwrap().len() == MAX_COMMAND);
        // Of each kind: its text at most.
        let of_others = nodes::MAX_KINDS * 4 * (MAX_TEXT + 64);
        let most = 3 * MAX_LIBRARIES * (MAX_TEXT + 8) + 10 * (MAX_TEXT + 64) + MAX_COMMAND + of_others;
        assert!(serde_json::to_vec(&found).unwrap().len() < most);
    }

    #[test]
    fn reports_add_what_only_a_program_knows() {
        let collected = Provenance {
            gpu: Some(Gpu { name: Some("NVIDIA H200".to_owned()), memory_bytes: None, count: Some(2) }),
            libraries: [("torch".to_owned(), "2.8.0".to_owned()), ("numpy".to_owned(), "2.1".to_owned())].into(),
            ..Provenance::default()
        };
        let reported = Provenance {
            gpu: Some(Gpu { name: None, memory_bytes: Some(7), count: Some(1) }),
            cuda: Some("12.8".to_owned()),
            libraries: [("torch".to_owned(), "2.8.0+cu128".to_owned())].into(),
            ..Provenance::default()
        };
        let whole = Provenance::whole(Some(&collected), [&reported]).unwrap();
        let gpu = Gpu { name: Some("NVIDIA H200".to_owned()), memory_bytes: Some(7), count: Some(2) };
        assert_eq!((whole.gpu, whole.cuda.as_deref()), (Some(gpu), Some("12.8")));
        assert_eq!((whole.libraries["torch"].as_str(), whole.libraries["numpy"].as_str()), ("2.8.0+cu128", "2.1"));
        assert_eq!(Provenance::whole(Some(&collected), []), Some(collected));
        assert_eq!(Provenance::whole(None, []), None);
    }
}
