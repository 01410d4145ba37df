//! What attempts were measured with, in words.

use crate::numbers::bytes;
use pawl_api::status::TrainingStatus;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::provenance::{Build, Cpu, Data, Gpu, Hashed, OtherPods, Provenance, Source};
use pawl_contract::record::Record;
use std::collections::BTreeSet;

/// Attempts that are named one by one.
const NAMED: usize = 3;
/// Values of a fact that are shown, the newest.
const VALUES: usize = 8;
/// Digits of a commit, and of a hash, that are shown.
const DIGITS: usize = 12;

/// An attempt that measured or trained, and what with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredWith {
    /// Name of the attempt.
    pub attempt: String,
    /// Machine, versions and source.
    pub provenance: Provenance,
    /// Whether it measured for the ladder.
    pub judges: bool,
    /// Its launches that train.
    pub trains: Vec<TrainLaunch>,
}

/// A launch that trains a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainLaunch {
    /// Its name.
    pub launch: String,
    /// Directory of its checkpoints in the storage; `None`: the storage itself.
    pub directory: Option<String>,
}

impl TrainLaunch {
    fn of(launch: &LaunchPlan) -> Self {
        let directory = launch.checkpoint.as_ref().and_then(|policy| policy.directory.clone());
        Self { launch: launch.launch.clone(), directory }
    }

    /// Whether a part of the model that `training` trains is this launch's, as far as its parts name their launches.
    fn is_of(&self, training: &TrainingStatus) -> bool {
        let mut parts = training.segments.iter().filter(|part| part.to_items > part.from_items);
        self.directory == training.directory
            && parts.any(|part| part.merged || part.launches.is_empty() || part.launches.contains(&self.launch))
    }
}

impl MeasuredWith {
    /// The attempt that runs these launches; `None` when nothing is known of it, and for one that only checks settings.
    pub fn new<'a>(
        attempt: &str,
        launches: impl IntoIterator<Item = &'a LaunchPlan>,
        provenance: Option<Provenance>,
    ) -> Option<Self> {
        let launches: Vec<&LaunchPlan> = launches.into_iter().collect();
        let judges = launches.iter().any(|launch| matches!(launch.kind, LaunchKind::Measure | LaunchKind::Quality));
        let trains = launches.iter().filter(|launch| launch.kind == LaunchKind::Train);
        let trains = trains.map(|launch| TrainLaunch::of(launch)).collect();
        let provenance = provenance.filter(|_| launches.iter().any(|launch| launch.kind != LaunchKind::Preflight))?;
        Some(Self { attempt: attempt.to_owned(), provenance, judges, trains })
    }

    /// The attempt of a record.
    pub fn recorded(record: &Record) -> Option<Self> {
        Self::new(&record.begun.attempt, record.planned(), record.provenance())
    }
}

/// Something that attempts were measured with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Such as `GPU` or `torch`.
    pub name: String,
    /// Its values, the newest first, each with the attempts that had it. Attempts of which it is not known are left
    /// out.
    pub values: Vec<(String, Vec<String>)>,
}

impl Fact {
    /// The value; where there is more than one, each with its attempts, and of many the newest and the number of the
    /// others.
    pub fn texts(&self) -> Vec<String> {
        let several = self.values.len() > 1;
        let text = |(value, attempts): &(String, Vec<String>)| match several {
            true => format!("{value} ({})", listed(attempts)),
            false => value.clone(),
        };
        let more = self.values.len().saturating_sub(VALUES);
        let more = (more > 0).then(|| format!("and {more} more"));
        self.values.iter().take(VALUES).map(text).chain(more).collect()
    }
}

/// All that is known of what these attempts were measured with, oldest first.
pub fn facts(attempts: &[MeasuredWith]) -> Vec<Fact> {
    collected(attempts.iter().map(|it| (it.attempt.as_str(), all(&it.provenance))))
}

/// Name and value of each thing that is known: machine, versions, source.
pub fn all(provenance: &Provenance) -> Vec<(String, String)> {
    let libraries = provenance.libraries.iter().map(|(name, version)| format!("{name} {version}"));
    let libraries = libraries.collect::<Vec<_>>().join(", ");
    let libraries = present([("libraries", Some(libraries).filter(|text| !text.is_empty()))]);
    let data = present([("data", provenance.data.as_ref().map(of_data))]);
    machine(provenance).into_iter().chain(libraries).chain(origin(provenance)).chain(data).collect()
}

/// As [`all`], with the libraries one by one and without the data, for comparisons.
pub fn each(provenance: &Provenance) -> Vec<(String, String)> {
    let libraries = provenance.libraries.clone();
    machine(provenance).into_iter().chain(libraries).chain(origin(provenance)).collect()
}

/// The devices, what drives them, and the pods where these are others.
fn machine(provenance: &Provenance) -> Vec<(String, String)> {
    let Provenance { gpu, cpu, driver, cuda, other_pods, .. } = provenance;
    let facts = [
        ("GPU", gpu.as_ref().and_then(of_gpu)),
        ("CPU", cpu.as_ref().and_then(of_cpu)),
        ("driver", driver.clone()),
        ("CUDA", cuda.clone()),
        ("other pods", of_others(other_pods)),
    ];
    present(facts).collect()
}

/// `pods 1, 3: GPU L4, driver 570; pod 2: driver 575`.
fn of_others(others: &[OtherPods]) -> Option<String> {
    let of_kind = |kind: &OtherPods| {
        let facts = machine(&kind.provenance).into_iter().map(|(name, value)| format!("{name} {value}"));
        let named = kind.pods.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let more = (kind.count as usize).saturating_sub(kind.pods.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let pods = if kind.count == 1 { "pod" } else { "pods" };
        format!("{pods} {named}{more}: {}", facts.collect::<Vec<_>>().join(", "))
    };
    (!others.is_empty()).then(|| others.iter().map(of_kind).collect::<Vec<_>>().join("; "))
}

/// Where the program came from.
fn origin(provenance: &Provenance) -> Vec<(String, String)> {
    let Provenance { source, image, pawl, command, .. } = provenance;
    let facts = [
        ("commit", source.as_ref().and_then(revision)),
        ("image", image.clone()),
        ("Pawl", pawl.as_ref().map(build)),
        ("command", command.clone()),
    ];
    present(facts).collect()
}

fn present<const N: usize>(facts: [(&str, Option<String>); N]) -> impl Iterator<Item = (String, String)> {
    facts.map(|(name, value)| (name.to_owned(), value)).into_iter().filter_map(|(name, value)| Some((name, value?)))
}

fn of_gpu(gpu: &Gpu) -> Option<String> {
    let name = gpu.name.as_deref()?;
    let count = gpu.count.filter(|count| *count > 1).map(|count| format!("{count} × ")).unwrap_or_default();
    let memory = gpu.memory_bytes.map(|memory| format!(", {}", bytes(memory))).unwrap_or_default();
    Some(format!("{count}{name}{memory}"))
}

fn of_cpu(cpu: &Cpu) -> Option<String> {
    let cores = cpu.cores.map(|cores| format!("{cores} {}", if cores == 1 { "core" } else { "cores" }));
    let parts: Vec<String> = cpu.name.iter().cloned().chain(cores).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The newest data of these attempts, oldest first: `/data/pde, contents 0badcafe0bad`; of those that differ in it, the
/// others are left out. `None` when nothing is known of any.
pub fn data(attempts: &[MeasuredWith]) -> Option<String> {
    newest_data(attempts).map(of_data)
}

/// The newest data of these attempts, oldest first.
pub(crate) fn newest_data(attempts: &[MeasuredWith]) -> Option<&Data> {
    attempts.iter().rev().find_map(|it| it.provenance.data.as_ref())
}

/// Whether these are known to be different data. Hashes of different kinds say nothing about each other, and the same
/// data may have several fingerprints.
fn differs(a: &Data, b: &Data) -> bool {
    let compares = match a.hashed {
        Hashed::Generator | Hashed::Content | Hashed::Sample | Hashed::Names => a.hashed == b.hashed,
        Hashed::Fingerprint | Hashed::Other => false,
    };
    compares && a.hash != b.hash
}

/// Whether any two of these are known to be different data.
pub(crate) fn differ<'a>(data: impl IntoIterator<Item = &'a Data>) -> bool {
    let all: Vec<&Data> = data.into_iter().collect();
    all.iter().enumerate().any(|(index, data)| all[..index].iter().any(|earlier| differs(earlier, data)))
}

fn of_data(Data { from, hashed, hash }: &Data) -> String {
    let short = hash.get(..DIGITS).unwrap_or(hash);
    let from = from.as_deref().map(|from| format!("{from}, ")).unwrap_or_default();
    match hashed {
        Hashed::Generator => format!("generated, configuration and seed {short}"),
        Hashed::Content => format!("{from}contents {short}"),
        Hashed::Sample => format!("{from}parts of the contents {short}"),
        Hashed::Names => format!("{from}names and sizes {short}"),
        Hashed::Fingerprint => format!("{from}fingerprint {short}"),
        Hashed::Other => format!("{from}hash {short}"),
    }
}

fn revision(source: &Source) -> Option<String> {
    let commit = source.commit.as_deref()?;
    let short = commit.get(..DIGITS).unwrap_or(commit);
    Some(match source.dirty {
        Some(true) => format!("{short}, and changes that are in no commit"),
        Some(false) => short.to_owned(),
        None => format!("{short}; whether there were changes is not known"),
    })
}

/// The version of a build, and the optional features that it was built with: `0.1.0, built with: cluster, s3`.
pub fn build(build: &Build) -> String {
    match build.features.is_empty() {
        true => build.version.clone(),
        false => format!("{}, built with: {}", build.version, build.features.join(", ")),
    }
}

fn listed(attempts: &[String]) -> String {
    let named = attempts.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match attempts.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Facts of several attempts, oldest first, in the order in which the newest has them.
fn collected<'a>(attempts: impl DoubleEndedIterator<Item = (&'a str, Vec<(String, String)>)>) -> Vec<Fact> {
    let mut found: Vec<Fact> = Vec::new();
    for (attempt, facts) in attempts.rev() {
        for (name, value) in facts {
            let known = found.iter().position(|fact| fact.name == name);
            let index = known.unwrap_or_else(|| {
                found.push(Fact { name, values: Vec::new() });
                found.len() - 1
            });
            let values = &mut found[index].values;
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, attempts)) => attempts.insert(0, attempt.to_owned()),
                None => values.push((value, vec![attempt.to_owned()])),
            }
        }
    }
    found
}

/// What is to be known where attempts of one ladder ran on different devices or with different versions; `None` where
/// they did not.
pub fn warning(attempts: &[MeasuredWith]) -> Option<String> {
    let compared = |provenance: &Provenance| {
        let Provenance { gpu, cpu, driver, cuda, libraries, .. } = provenance;
        let models = [
            ("GPU", gpu.as_ref().and_then(|gpu| gpu.name.clone())),
            ("CPU", cpu.as_ref().and_then(|cpu| cpu.name.clone())),
            ("driver", driver.clone()),
            ("CUDA", cuda.clone()),
        ];
        present(models).chain(libraries.clone()).collect::<Vec<_>>()
    };
    let judging: Vec<&MeasuredWith> = attempts.iter().filter(|it| it.judges).collect();
    let different = different(&judging, compared);
    (!different.is_empty()).then(|| {
        format!(
            "Attempts that measured differ in {}. Both launches of a pair that measured speed ran in one attempt, so \
             that each verdict on speed holds for what its own attempt had. Runs that were compared for their quality \
             may be of different attempts, and the product of speedups that were measured with different ones need \
             not hold for any one of them.",
            different.join(", ")
        )
    })
}

/// What is to be known where pods of one gang have different machines; `None` where none are known to.
pub fn mixed(attempts: &[MeasuredWith]) -> Option<String> {
    let kinds = attempts.iter().flat_map(|it| &it.provenance.other_pods).map(|kind| &kind.provenance);
    let names = kinds.flat_map(|pod| {
        let Provenance { gpu, cpu, driver, .. } = pod;
        [("GPU", gpu.is_some()), ("CPU", cpu.is_some()), ("driver", driver.is_some())]
    });
    let names: BTreeSet<&str> = names.filter(|(_, differs)| *differs).map(|(name, _)| name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "Pods of one gang differ in {}. A gang is as fast as its slowest pod, so that its numbers hold for such a \
             gang only.",
            names.into_iter().collect::<Vec<_>>().join(", ")
        )
    })
}

/// What is to be known where the model was trained by several attempts with different machines, versions, programs or
/// data: `2 attempts, which differ in CPU, Pawl`. `None` where they did not differ. The model is that of `training`:
/// attempts of one before it, which another model followed, do not count.
pub fn parts(attempts: &[MeasuredWith], training: Option<&TrainingStatus>) -> Option<String> {
    let is_part = |it: &&MeasuredWith| training.is_some_and(|of| it.trains.iter().any(|launch| launch.is_of(of)));
    let training: Vec<&MeasuredWith> = attempts.iter().filter(is_part).collect();
    let different = different(&training, each);
    (!different.is_empty()).then(|| format!("{} attempts, which differ in {}", training.len(), different.join(", ")))
}

/// Names of the facts in which attempts differ, the data last.
fn different(attempts: &[&MeasuredWith], facts: impl Fn(&Provenance) -> Vec<(String, String)>) -> Vec<String> {
    let facts = collected(attempts.iter().map(|it| (it.attempt.as_str(), facts(&it.provenance))));
    let data = differ(attempts.iter().filter_map(|it| it.provenance.data.as_ref())).then(|| "data".to_owned());
    facts.into_iter().filter(|fact| fact.values.len() > 1).map(|fact| fact.name).chain(data).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn measured(number: u32, gpu: &str, torch: &str, judges: bool) -> MeasuredWith {
        let provenance = json!({
            "gpu": {"name": gpu, "memoryBytes": 141u64 << 30, "count": 2}, "cpu": {"name": "Xeon", "cores": 1},
            "libraries": {"torch": torch}, "source": {"commit": "0123456789abcdef0123", "dirty": true},
            "pawl": {"version": "0.1.0", "features": ["cuda", "s3"]},
        });
        let provenance = serde_json::from_value(provenance).unwrap();
        let trains = if judges { Vec::new() } else { vec![launch("train-0badcafe", None)] };
        MeasuredWith { attempt: format!("toy-{number}"), provenance, judges, trains }
    }

    fn launch(name: &str, directory: Option<&str>) -> TrainLaunch {
        TrainLaunch { launch: name.to_owned(), directory: directory.map(str::to_owned) }
    }

    /// A training of 64 items by `launches`.
    fn training(directory: Option<&str>, launches: &[&str]) -> TrainingStatus {
        let segments = json!([{"toItems": 64, "launches": launches}]);
        serde_json::from_value(json!({"directory": directory, "segments": segments})).unwrap()
    }

    #[test]
    fn pods_that_differ_from_the_first_are_named_with_what_they_have() {
        let mut attempt = measured(1, "H200", "2.8", true);
        assert_eq!(mixed(std::slice::from_ref(&attempt)), None);
        attempt.provenance.other_pods = serde_json::from_value(json!([
            {"pods": [1, 3], "count": 9, "provenance": {"gpu": {"name": "L4", "count": 2}, "driver": "570"}},
            {"pods": [2], "count": 1, "provenance": {"driver": "575"}},
        ]))
        .unwrap();
        let facts = all(&attempt.provenance);
        let others = facts.iter().find(|(name, _)| name == "other pods").map(|(_, value)| value.as_str());
        assert_eq!(others, Some("pods 1, 3 and 7 more: GPU 2 × L4, driver 570; pod 2: driver 575"));
        assert!(mixed(&[attempt]).unwrap().starts_with("Pods of one gang differ in GPU, driver. "));
    }

    #[test]
    fn what_differs_between_attempts_says_in_which() {
        let attempts: Vec<_> = (1..=6).map(|number| measured(number, "H200", "2.8", true)).collect();
        let texts = |attempts: &[MeasuredWith], name: &str| {
            facts(attempts).iter().find(|fact| fact.name == name).map(Fact::texts).unwrap_or_default()
        };
        assert_eq!(texts(&attempts, "GPU"), ["2 × H200, 141 GiB"]);
        assert_eq!(texts(&attempts, "CPU"), ["Xeon, 1 core"]);
        assert_eq!(texts(&attempts, "commit"), ["0123456789ab, and changes that are in no commit"]);
        assert_eq!(texts(&attempts, "Pawl"), ["0.1.0, built with: cuda, s3"]);
        assert!(texts(&attempts, "driver").is_empty());
        let other: Vec<_> = attempts.into_iter().chain([measured(7, "L4", "2.8", true)]).collect();
        let both = ["2 × L4, 141 GiB (toy-7)", "2 × H200, 141 GiB (toy-1, toy-2, toy-3 and 3 more)"];
        assert_eq!(texts(&other, "GPU"), both);
        assert_eq!(texts(&other, "libraries"), ["torch 2.8"]);
        let each: Vec<_> = (1..=10).map(|number| measured(number, &format!("GPU {number}"), "2.8", true)).collect();
        let shown = texts(&each, "GPU");
        assert_eq!((shown.len(), shown[0].as_str()), (9, "2 × GPU 10, 141 GiB (toy-10)"));
        assert_eq!(shown[8], "and 2 more");
    }

    #[test]
    fn only_what_measured_with_other_models_or_versions_is_warned_about() {
        let two = |gpu: &str, torch: &str, judges: bool| {
            warning(&[measured(1, "H200", "2.8", true), measured(2, gpu, torch, judges)])
        };
        assert_eq!(two("H200", "2.8", true), None);
        assert_eq!(two("L4", "2.9", false), None, "a training is in no pair");
        let text = two("L4", "2.9", true).unwrap();
        assert!(text.starts_with("Attempts that measured differ in GPU, torch. Both launches of a pair"), "{text}");
        let mut unknown = measured(2, "H200", "2.8", true);
        unknown.provenance = Provenance::default();
        assert_eq!(warning(&[measured(1, "H200", "2.8", true), unknown]), None, "of an earlier version");
    }

    #[test]
    fn a_training_in_parts_says_in_what_they_differ() {
        let attempts = [measured(1, "L4", "2.7", true), measured(2, "H200", "2.8", false)];
        let training = training(None, &["train-0badcafe"]);
        let parts = |attempts: &[MeasuredWith]| parts(attempts, Some(&training));
        assert_eq!(parts(&attempts), None, "only one of them trained");
        let mut again = measured(3, "H200", "2.8", false);
        assert_eq!(parts(&[attempts[1].clone(), again.clone()]), None);
        again.provenance.pawl = Some(Build { version: "0.2.0".to_owned(), features: Vec::new() });
        again.provenance.libraries = [("torch".to_owned(), "2.9".to_owned())].into();
        let text = parts(&[attempts[1].clone(), again]);
        assert_eq!(text.as_deref(), Some("2 attempts, which differ in torch, Pawl"));
    }

    #[test]
    fn attempts_of_an_earlier_training_did_not_train_the_model() {
        let trained = |number, gpu: &str, name: &str, directory| MeasuredWith {
            trains: vec![launch(name, directory)],
            ..measured(number, gpu, "2.8", false)
        };
        let first = trained(1, "L4", "train-0badcafe", None);
        // The script was edited: the launch has the same name.
        let second = trained(2, "H200", "train-0badcafe", Some("pawl-training-2"));
        let third = trained(3, "L40S", "train-0badcafe", Some("pawl-training-2"));
        let restarted = training(Some("pawl-training-2"), &["train-0badcafe"]);
        assert_eq!(parts(&[first.clone(), second.clone()], Some(&restarted)), None);
        let text = parts(&[first.clone(), second, third], Some(&restarted));
        assert_eq!(text.as_deref(), Some("2 attempts, which differ in GPU"));
        // What the other one trained is not in the model.
        let other = trained(2, "H200", "train-0b", None);
        assert_eq!(parts(&[first, other], Some(&training(None, &["train-0b"]))), None);
    }

    #[test]
    fn data_are_named_by_their_hash_and_what_it_is_of() {
        let with = |data: serde_json::Value| {
            let mut attempt = measured(1, "L4", "2.8", true);
            attempt.provenance.data = Some(serde_json::from_value(data).unwrap());
            attempt
        };
        let generated = with(json!({"hashed": "Generator", "hash": "0123456789abcdef"}));
        let files = with(json!({"from": "/data", "hashed": "Sample", "hash": "0123456789abcdef"}));
        assert_eq!(data(&[measured(1, "L4", "2.8", true)]), None);
        let unknown = measured(2, "L4", "2.8", true);
        let text = data(&[files.clone(), generated, unknown]);
        assert_eq!(text.as_deref(), Some("generated, configuration and seed 0123456789ab"));
        assert_eq!(data(&[files]).as_deref(), Some("/data, parts of the contents 0123456789ab"));
    }

    #[test]
    fn data_differ_by_known_hashes_of_one_kind() {
        let with = |number, from: Option<&str>, hashed: &str, hash: &str| {
            let data = json!({"from": from, "hashed": hashed, "hash": hash});
            let mut attempt = measured(number, "L4", "2.8", true);
            attempt.provenance.data = Some(serde_json::from_value(data).unwrap());
            attempt
        };
        let first = with(1, Some("/data"), "Content", "0b");
        let differs = |other| {
            let judged = [first.clone(), other];
            let trained = judged.clone().map(|it| MeasuredWith { trains: vec![launch("t", None)], ..it });
            let text = parts(&trained, Some(&training(None, &["t"])));
            let warned = warning(&judged).is_some_and(|text| text.contains("differ in data."));
            assert_eq!(text.as_deref(), warned.then_some("2 attempts, which differ in data"));
            warned
        };
        assert!(differs(with(2, Some("/data"), "Content", "0c")));
        assert!(!differs(with(2, Some("/mnt"), "Content", "0b")), "the same elsewhere");
        assert!(!differs(with(2, Some("/data"), "Names", "0c")), "they were not read to the end");
        let fingerprints = [with(1, None, "Fingerprint", "0b"), with(2, None, "Fingerprint", "0c")];
        assert_eq!(warning(&fingerprints), None, "of two machines");
        assert_eq!(warning(&[with(1, None, "Later", "0b"), with(2, None, "Later", "0c")]), None);
    }

    #[test]
    fn an_attempt_that_only_checks_is_on_other_machines() {
        let launch = |kind: &str| {
            let launch = json!({"contract": 1, "job": "toy", "attempt": "toy-1", "launch": "l", "kind": kind,
                "workload": {}, "settings": {}, "seed": 1, "budget": {}, "hangTimeoutSeconds": 1.0});
            serde_json::from_value::<LaunchPlan>(launch).unwrap()
        };
        let of = |kinds: &[&str]| {
            let launches: Vec<_> = kinds.iter().map(|kind| launch(kind)).collect();
            MeasuredWith::new("toy-1", &launches, Some(Provenance::default())).map(|it| it.judges)
        };
        assert_eq!(of(&["Preflight"]), None);
        assert_eq!((of(&["Preflight", "Measure"]), of(&["Train"])), (Some(true), Some(false)));
    }
}
