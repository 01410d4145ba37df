//! Jobs beside each other.

use crate::columns::lay_out;
use crate::jobs::{Entry, names};
use crate::manifest;
use crate::numbers::{factor, interval, percent_change, short, signed};
use crate::plain::plain;
use crate::provenance;
use crate::report::pairs::comparisons;
use crate::summary::alarms;
use crate::together::{is_current, is_product};
use crate::verdict;
use pawl_api::status::{PhaseStatus, QualityStatus, Speedup};
use pawl_api::{TrainingJobSpec, TrainingJobStatus};
use pawl_contract::decimal::Decimal;
use std::collections::{BTreeMap, BTreeSet};

/// The row of the program that is trained.
pub const WORKLOAD: &str = "workload";

/// Where what is compared comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The user wrote it.
    Manifest,
    /// Pawl measured or decided it.
    Result,
    /// A setting in effect.
    Settings,
}

impl Group {
    /// All of them, as displayed.
    pub const ALL: [Self; 3] = [Self::Manifest, Self::Result, Self::Settings];

    /// Its heading.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Manifest => "In the manifest",
            Self::Result => "Result",
            Self::Settings => "Settings in effect",
        }
    }
}

/// What is compared between jobs, and its value in each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Where it comes from.
    pub group: Group,
    /// Such as `phase compile`.
    pub name: String,
    /// One for each job, in their order; empty where a job has none.
    pub values: Vec<String>,
    /// Whether the jobs differ in it.
    pub differs: bool,
}

impl Compared {
    /// A result, in which those jobs differ that have different `values`. An empty one is not known yet of a job that
    /// has not ended; one that has ended differs by it from those with a value.
    fn new(entries: &[Entry<'_>], name: &str, values: Vec<String>) -> Self {
        let known: BTreeSet<&String> = values.iter().filter(|value| !value.is_empty()).collect();
        let is_without = entries.iter().zip(&values).any(|(entry, value)| value.is_empty() && entry.is_ended());
        let differs = known.len() > 1 || known.len() == 1 && is_without;
        Self { group: Group::Result, name: name.to_owned(), values, differs }
    }
}

/// Two jobs beside each other: in what their manifests differ, how they ended, their verdicts, their settings, their
/// trainings, and what they were measured with. A row that differs begins with `≠`. Lines are truncated to `width`
/// columns if given.
pub fn compare(a: Entry<'_>, b: Entry<'_>, width: Option<usize>) -> String {
    let entries = [a, b];
    let mut names = names(&entries).into_iter();
    let head = [String::new(), String::new(), names.next().unwrap_or_default(), names.next().unwrap_or_default()];
    let all = compared(&entries);
    let line = |row: &Compared| {
        let mark = if row.differs { "≠" } else { "" };
        let mut values = row.values.iter().cloned();
        [mark.to_owned(), row.name.clone(), values.next().unwrap_or_default(), values.next().unwrap_or_default()]
    };
    let mut lines = vec![head];
    for group in Group::ALL {
        let mut rows = all.iter().filter(|row| row.group == group).map(line).peekable();
        if rows.peek().is_some() {
            lines.push([String::new(), group.heading().to_uppercase(), String::new(), String::new()]);
            lines.extend(rows);
        }
    }
    lay_out(&lines, width)
}

/// In what the manifests of jobs differ, how they ended, their verdicts, settings, trainings and costs, what at least
/// one of them has, and in what else they were measured with they differ.
pub fn compared(entries: &[Entry<'_>]) -> Vec<Compared> {
    let statuses: Vec<TrainingJobStatus> = entries.iter().map(|entry| plain(entry.status)).collect();
    let row = |name: &str, value: &dyn Fn(&TrainingJobStatus) -> Option<String>| {
        Compared::new(entries, name, statuses.iter().map(|status| value(status).unwrap_or_default()).collect())
    };
    let own = |name: &str, value: &dyn Fn(&Entry<'_>) -> Option<String>| {
        Compared::new(entries, name, entries.iter().map(|entry| value(entry).unwrap_or_default()).collect())
    };
    let data = own("data", &|entry| {
        Some(provenance::data(entry.measured_with).map_or_else(|| "not known".to_owned(), |data| plain(&data)))
    });
    let differs = provenance::differ(entries.iter().filter_map(|entry| provenance::newest_data(entry.measured_with)));
    let has_alarms = statuses.iter().any(|status| alarms(status).next().is_some());
    let workload = own(WORKLOAD, &|entry| Some(entry.workload()));
    let mut rows = vec![Compared { group: Group::Manifest, ..workload }];
    rows.extend(manifests(entries));
    rows.extend([
        Compared { differs, ..data },
        row("stage", &|status| Some(status.stage.to_string())),
        row("alarms", &|status| Some(of_alarms(status)).filter(|_| has_alarms)),
        row("speedup", &of_speedup),
    ]);
    let phases = statuses.iter().flat_map(|status| &status.phases);
    for name in distinct(phases.map(|phase| phase.name.as_str())) {
        rows.push(row(&format!("phase {name}"), &|status| {
            status.phases.iter().find(|phase| phase.name == name).map(|phase| of_phase(phase, status))
        }));
    }
    rows.push(row("all together", &|status| {
        let bundle = status.bundle.as_ref()?;
        let word = verdict::word(bundle.state, status.stage);
        let measured = measured(word, bundle.speedup.as_ref(), &bundle.reason, bundle.quality.as_ref());
        Some(if is_current(bundle, status) { measured } else { format!("{measured}; with earlier settings") })
    }));
    rows.push(own("pairs seen disturbed", &disturbed));
    rows.extend(settings(entries, &statuses));
    rows.extend(trained(entries, &statuses));
    rows.push(trained_in(entries));
    rows.push(row("device hours", &|status| {
        Some(format!("{} h", short(status.cost.as_ref()?.gpu_hours.as_ref()?.value())))
    }));
    rows.extend(measured_with(entries));
    rows.retain(|row| row.values.iter().any(|value| !value.is_empty()));
    rows
}

/// The fields in which the manifests differ.
fn manifests(entries: &[Entry<'_>]) -> Vec<Compared> {
    let specs: Vec<&TrainingJobSpec> = entries.iter().map(|entry| &entry.job.spec).collect();
    let row = |(name, values)| Compared { group: Group::Manifest, name, values, differs: true };
    manifest::different(&specs).into_iter().map(row).collect()
}

/// Conditions that need attention, without their messages. That there are none is known of every job.
fn of_alarms(status: &TrainingJobStatus) -> String {
    let alarms: Vec<String> = alarms(status).map(|alarm| format!("{}: {}", alarm.type_, alarm.reason)).collect();
    if alarms.is_empty() { "none".to_owned() } else { alarms.join("; ") }
}

/// On how many disturbed pairs the verdicts rest, of how many of which that is known, and of how many it is not: `2 of
/// 6; 3 not known`.
fn disturbed(entry: &Entry<'_>) -> Option<String> {
    let (spec, status) = (&entry.job.spec, entry.status);
    let (mut all, mut disturbed, mut unknown) = (0, 0, 0);
    for comparison in comparisons(spec, status) {
        let Some(speedup) = comparison.speedup else { continue };
        let calm = comparison.counted().filter(|pair| pair.observed && pair.disturbed.is_none()).count();
        let calm = u32::try_from(calm).unwrap_or(u32::MAX);
        all += speedup.pairs;
        disturbed += speedup.disturbed;
        // Not known either of a pair whose launches the status does not have any more.
        unknown += speedup.pairs.saturating_sub(speedup.disturbed.saturating_add(calm));
    }
    match (all, unknown) {
        (0, _) => None,
        (_, 0) => Some(format!("{disturbed} of {all}")),
        _ if unknown == all => Some(format!("not known ({all} pair{})", if all == 1 { "" } else { "s" })),
        _ => Some(format!("{disturbed} of {}; {unknown} not known", all - unknown)),
    }
}

/// In what the attempts that trained a model differ. Of a job of which that is not known, an empty value says nothing.
fn trained_in(entries: &[Entry<'_>]) -> Compared {
    let parts = |entry: &Entry<'_>| provenance::parts(entry.measured_with, entry.status.training.as_ref());
    let values: Vec<String> = entries.iter().map(|entry| parts(entry).unwrap_or_default()).collect();
    let known: Vec<Entry<'_>> = entries.iter().filter(|entry| !entry.measured_with.is_empty()).copied().collect();
    let of_known = known.iter().map(|entry| parts(entry).unwrap_or_default()).collect();
    let differs = Compared::new(&known, "", of_known).differs;
    Compared { differs, ..Compared::new(entries, "trained in", values) }
}

/// What was measured with, in which those jobs differ of which it is known.
fn measured_with(entries: &[Entry<'_>]) -> Vec<Compared> {
    let sides: Vec<Option<BTreeMap<String, String>>> =
        entries.iter().map(|entry| Some(provenance::each(entry.provenance()?).into_iter().collect())).collect();
    let known = entries.iter().filter_map(Entry::provenance).flat_map(provenance::each);
    let mut names: Vec<String> = Vec::new();
    for (name, _) in known {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let differs = |name: &String| {
        let mut values = sides.iter().flatten().map(|side| side.get(name));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let value = |side: &Option<BTreeMap<String, String>>, name: &String| {
        side.as_ref().and_then(|side| side.get(name)).cloned().unwrap_or_default()
    };
    let different = names.into_iter().filter(differs);
    let values = |name: &String| sides.iter().map(|side| value(side, name)).collect();
    different.map(|name| Compared { differs: true, ..Compared::new(entries, &name, values(&name)) }).collect()
}

/// `names` without repetitions, in the order in which each is first.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(*name)).collect()
}

/// The speedup of the job, and that it was not measured if it is a product.
fn of_speedup(status: &TrainingJobStatus) -> Option<String> {
    let speedup = factor(status.speedup.as_ref()?.value());
    Some(if is_product(status) { speedup + ", the product of the phases" } else { speedup })
}

/// The verdict on a phase, its speedup, the reason, and the quality.
fn of_phase(phase: &PhaseStatus, status: &TrainingJobStatus) -> String {
    let phrase = verdict::phrase(phase, status.stage);
    measured(&phrase, phase.speedup.as_ref(), &phase.reason, phase.quality.as_ref())
}

fn measured(verdict: &str, speedup: Option<&Speedup>, reason: &str, quality: Option<&QualityStatus>) -> String {
    let figures = speedup.map(|speedup| {
        let bounds = interval(speedup).map(|bounds| format!(" {bounds}")).unwrap_or_default();
        format!(" {}{bounds}", factor(speedup.estimate.value()))
    });
    let verdict = format!("{verdict}{}", figures.unwrap_or_default());
    let reason = Some(reason).filter(|reason| !reason.is_empty()).map(str::to_owned);
    let parts: Vec<String> = [Some(verdict), reason, quality.map(of_quality)].into_iter().flatten().collect();
    parts.join("; ")
}

/// The differences from the baseline: `validation loss +0.0015, upper bound +0.0082, accuracy -0.3 %`.
fn of_quality(quality: &QualityStatus) -> String {
    let upper = quality.loss_delta_upper.as_ref().map(|upper| format!(", upper bound {}", signed(upper.value())));
    let loss = format!("validation loss {}{}", signed(quality.loss_delta.value()), upper.unwrap_or_default());
    let metric = |(name, increase): (&String, &Decimal)| {
        Some(format!("{name} {}", percent_change(1.0, 1.0 + increase.value())?))
    };
    std::iter::once(loss).chain(quality.metrics.iter().filter_map(metric)).collect::<Vec<_>>().join(", ")
}

/// The settings in effect in which the jobs differ.
fn settings(entries: &[Entry<'_>], statuses: &[TrainingJobStatus]) -> Vec<Compared> {
    let effective = entries.iter().zip(statuses).map(|(entry, status)| {
        let settings = status.effective_settings.clone();
        settings.unwrap_or_else(|| plain(&entry.job.spec.settings)).flat()
    });
    let sides: Vec<BTreeMap<String, String>> = effective.collect();
    let names: BTreeSet<&String> = sides.iter().flat_map(BTreeMap::keys).collect();
    let value =
        |side: &BTreeMap<String, String>, name: &str| side.get(name).cloned().unwrap_or_else(|| "default".to_owned());
    let row = |name: &String| Compared {
        group: Group::Settings,
        ..Compared::new(entries, name, sides.iter().map(|side| value(side, name)).collect())
    };
    names.into_iter().map(row).filter(|row| row.differs).collect()
}

/// Beginning of the row of a metric.
const VALIDATION: &str = "validation ";

/// What the trainings did. Evaluations after other items are not the same result, so these are said.
fn trained(entries: &[Entry<'_>], statuses: &[TrainingJobStatus]) -> Vec<Compared> {
    let of = |status: &TrainingJobStatus| {
        let Some(training) = &status.training else { return Vec::new() };
        let measured = &training.measured;
        let mut facts = vec![("items".to_owned(), short(measured.items as f64))];
        facts.extend(measured.items_per_second.as_ref().map(|rate| ("items/s".to_owned(), short(rate.value()))));
        if let Some(validation) = &measured.validation {
            let at = short(validation.items as f64);
            let value = |value: &Decimal| format!("{} at {at} items", short(value.value()));
            facts.extend(validation.metrics.iter().map(|(name, it)| (format!("{VALIDATION}{name}"), value(it))));
        }
        facts
    };
    let sides: Vec<Vec<(String, String)>> = statuses.iter().map(of).collect();
    let value = |facts: &[(String, String)], name: &str| {
        facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let row = |name: &str| Compared::new(entries, name, sides.iter().map(|facts| value(facts, name)).collect());
    let names = distinct(sides.iter().flatten().map(|(name, _)| name.as_str()));
    // Metrics that not all trained jobs have cannot be compared: a row each would hide what can.
    let in_all = |name: &str| sides.iter().all(|facts| facts.is_empty() || !value(facts, name).is_empty());
    let (of_all, others): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| !name.starts_with(VALIDATION) || in_all(name));
    let other = |facts: &Vec<(String, String)>| {
        let own = facts.iter().filter(|(name, _)| others.contains(&name.as_str()));
        own.map(|(name, value)| format!("{} {value}", &name[VALIDATION.len()..])).collect::<Vec<_>>().join(", ")
    };
    let others = Compared::new(entries, "other validation metrics", sides.iter().map(other).collect());
    of_all.into_iter().map(row).chain([others]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::{entry, job};
    use crate::provenance::{MeasuredWith, TrainLaunch};
    use pawl_api::TrainingJob;
    use pawl_contract::provenance::Provenance;
    use serde_json::{Value, json};
    use std::slice;

    #[test]
    fn what_differs_between_two_jobs_is_marked() {
        let phase = |estimate: &str| json!([{"name": "compile", "state": "Accepted", "speedup": {"estimate": estimate, "pairs": 3}}]);
        let training = json!({"items": 64, "validation": {"items": 64, "metrics": {"loss": "0.5"}}});
        let one = job(
            "one",
            json!({"phases": phase("1.5"), "effectiveSettings": {"compile": "Graph"}, "training": training}),
        );
        let other = job("other", json!({"phases": phase("1.2"), "training": training}));
        let text = compare(entry(&one), entry(&other), None);
        let line =
            |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(line("phase compile").starts_with('≠') && line("phase compile").contains("accepted 1.50×"), "{text}");
        assert!(line("  compile ").contains("Graph") && line("validation loss").starts_with(' '), "{text}");
        assert!(compare(entry(&one), entry(&one), None).lines().all(|line| !line.contains('≠')));
    }

    #[test]
    fn what_the_user_changed_is_apart_from_what_pawl_accepted() {
        let phases = json!([{"name": "graph", "state": "Accepted",
            "speedup": {"estimate": "1.5", "pairs": 4, "disturbed": 3}}]);
        let job = |seed: u32, status: Value| -> (TrainingJob, TrainingJobStatus) {
            let spec = json!({"workload": {"name": "ups"}, "seeds": [seed]});
            let job = json!({"metadata": {"name": "toy"}, "spec": spec});
            (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
        };
        let jobs = [job(42, json!({"phases": phases, "speedup": "1.5"})), job(52, json!({}))];
        let rows = compared(&jobs.each_ref().map(entry));
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        assert_eq!((row("seeds").group, row("seeds").values.join(" ")), (Group::Manifest, "42 52".to_owned()));
        assert!(row("seeds").differs && row("speedup").group == Group::Result);
        assert!(!row("speedup").differs && !row("phase graph").differs, "the second job has none yet: {rows:?}");
        assert_eq!(row("pairs seen disturbed").values, ["3 of 3; 1 not known", ""]);
        let [a, b] = &jobs;
        let text = compare(entry(a), entry(b), None);
        let places = ["IN THE MANIFEST", "seeds", "RESULT", "speedup"].map(|part| text.find(part).unwrap());
        assert!(places.is_sorted(), "{text}");
    }

    /// The values of a row, and whether the jobs differ in it.
    fn row_of(jobs: &[(TrainingJob, TrainingJobStatus)], name: &str) -> Option<(String, bool)> {
        let rows = compared(&jobs.iter().map(entry).collect::<Vec<_>>());
        rows.into_iter().find(|row| row.name == name).map(|row| (row.values.join(" | "), row.differs))
    }

    #[test]
    fn a_pair_of_which_it_is_not_known_is_not_called_calm() {
        let launch = |pair: u32, arm: &str, disturbance: &Value| {
            let mut launch = json!({"name": format!("{arm}-{pair}"), "kind": "Measure", "arm": arm, "pair": pair,
                "seed": 42, "outcome": "Done", "itemsPerSecond": "100"});
            launch.as_object_mut().unwrap().extend(disturbance.as_object().unwrap().clone());
            launch
        };
        let phases = |disturbances: &[Value], disturbed: usize| {
            let pair = |(it, pair): (&Value, u32)| ["Control", "Candidate"].map(|arm| launch(pair, arm, it));
            let launches: Vec<Value> = disturbances.iter().zip(0..).flat_map(pair).collect();
            let speedup = json!({"estimate": "1", "pairs": disturbances.len(), "disturbed": disturbed});
            let phase = json!({"name": "a", "state": "Accepted", "speedup": speedup, "launches": launches});
            json!({"stage": "Complete", "phases": [phase]})
        };
        let (unknown, calm) = (json!({}), json!({"otherCpuShare": "0.01", "idleCpuShare": "0.9"}));
        let of = |disturbances: &[Value], disturbed: usize| {
            row_of(&[job("a", phases(disturbances, disturbed))], "pairs seen disturbed").unwrap().0
        };
        assert_eq!(of(&[unknown.clone(), unknown.clone()], 0), "not known (2 pairs)");
        assert_eq!(of(&[calm.clone(), calm.clone()], 0), "0 of 2");
        assert_eq!(of(&[calm.clone(), unknown, calm], 0), "0 of 2; 1 not known");
    }

    #[test]
    fn phases_that_failed_for_other_reasons_or_by_other_numbers_differ() {
        let of = |reason: &str, loss: &str| {
            let quality = json!({"lossDelta": loss, "seeds": 3, "items": 8192, "metrics": {"accuracy": "-0.03"}});
            let phase = json!({"name": "a", "state": "RolledBack", "reason": reason, "quality": quality});
            job("a", json!({"stage": "Complete", "phases": [phase]}))
        };
        let (reason, loss) = ("QualityBelowThreshold", "0.02");
        let both = |other| row_of(&[of(reason, loss), other], "phase a").unwrap();
        let text = "rolled back; QualityBelowThreshold; validation loss +0.02, accuracy -3.0 %";
        assert_eq!(both(of(reason, loss)), (format!("{text} | {text}"), false));
        assert!(both(of("OutOfMemory", loss)).1 && both(of(reason, "0.03")).1);
    }

    #[test]
    fn alarms_and_the_items_of_evaluations_are_compared() {
        let of = |conditions: Value, items: u64| {
            let training = json!({"items": items, "validation": {"items": items, "metrics": {"loss": "0.5"}}});
            job("a", json!({"stage": "Training", "conditions": conditions, "training": training}))
        };
        let slow = json!([{"type": "Degraded", "status": "True", "reason": "SlowMachine", "message": "slow",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let jobs = [of(slow, 64), of(json!([]), 128)];
        assert_eq!(row_of(&jobs, "alarms").unwrap(), ("Degraded: SlowMachine | none".to_owned(), true));
        assert_eq!(row_of(&jobs[1..], "alarms"), None);
        let loss = row_of(&jobs, "validation loss").unwrap();
        assert_eq!(loss, ("0.5 at 64 items | 0.5 at 128 items".to_owned(), true));
    }

    #[test]
    fn what_a_job_that_has_ended_does_not_have_is_a_difference() {
        let with = || job("a", json!({"stage": "Complete", "speedup": "1.5"}));
        let differs = |stage: &str| row_of(&[with(), job("b", json!({"stage": stage}))], "speedup").unwrap().1;
        assert!(differs("Complete") && differs("Failed"));
        for stage in ["Pending", "Optimizing", "Training", "Suspended"] {
            assert!(!differs(stage), "{stage}: it is not known yet");
        }
    }

    #[test]
    fn several_jobs_are_compared_by_what_one_of_them_has() {
        let job = |name: &str, batch: u32| {
            let settings = json!({"batchPerGpu": batch});
            job(name, json!({"effectiveSettings": settings, "cost": {"gpuHours": "2"}}))
        };
        let jobs = [job("a", 8), job("b", 8), job("c", 16)];
        let rows = compared(&jobs.each_ref().map(entry));
        let row = |name: &str| rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        assert_eq!((row("batchPerGpu").values.join(" "), row("batchPerGpu").differs), ("8 8 16".to_owned(), true));
        assert!(!row("device hours").differs && rows.iter().all(|row| row.name != "all together"), "{rows:?}");
    }

    fn attempt(number: u32, provenance: &Provenance) -> MeasuredWith {
        let (attempt, provenance) = (format!("toy-{number}"), provenance.clone());
        MeasuredWith { attempt, provenance, judges: false, trains: vec![TrainLaunch::default()] }
    }

    #[test]
    fn jobs_on_other_data_and_in_other_parts_say_so() {
        let workload = json!({"command": ["python", "b.py"], "args": ["--token=hf_17"]});
        let script = json!({"metadata": {"name": "b"}, "spec": {"workload": workload}});
        let trained = json!({"training": {"segments": [{"toItems": 64}]}});
        let jobs = [job("a", trained.clone()), (serde_json::from_value(script).unwrap(), job("b", trained).1)];
        let of = |driver: &str, hash: &str| {
            let found = json!({"driver": driver, "data": {"hashed": "Content", "hash": hash}});
            serde_json::from_value::<Provenance>(found).unwrap()
        };
        let (old, new) = (attempt(1, &of("570", "0b")), attempt(2, &of("580", "0b")));
        let rows = |first: &[MeasuredWith], second: &[MeasuredWith]| {
            let [a, b] = &jobs;
            compared(&[Entry { measured_with: first, ..entry(a) }, Entry { measured_with: second, ..entry(b) }])
        };
        let all = rows(&[old.clone(), new.clone()], &[]);
        let values = |name: &str| all.iter().find(|row| row.name == name).map(|row| row.values.join("; "));
        assert_eq!(values("workload").as_deref(), Some("ups; python b.py --token=***"));
        assert_eq!(values("data").as_deref(), Some("contents 0b; not known"));
        assert!(all.iter().all(|row| row.name != "data" || !row.differs), "they may be the same");
        assert_eq!(values("trained in").as_deref(), Some("2 attempts, which differ in driver; "));
        let same = rows(slice::from_ref(&new), slice::from_ref(&new));
        assert!(same.iter().filter(|row| row.differs).all(|row| row.name == "workload"), "{same:?}");
        let other = rows(&[new], &[attempt(1, &of("580", "0c"))]);
        assert!(other.iter().any(|row| row.name == "data" && row.differs));
    }

    #[test]
    fn the_machine_and_the_versions_are_compared_where_they_are_known() {
        let jobs = ["a", "b", "c"].map(|name| job(name, json!({})));
        let provenance = |driver: &str, torch: &str| {
            let found = json!({"driver": driver, "cuda": "13.0", "libraries": {"torch": torch}});
            serde_json::from_value::<Provenance>(found).unwrap()
        };
        let [one, other] = [provenance("570", "2.8"), provenance("580", "2.8")];
        let with = |known: [Option<&Provenance>; 3]| {
            let attempts = known.map(|provenance| provenance.map(|found| attempt(1, found)));
            let with = |(job, attempts)| Entry { measured_with: Option::as_slice(attempts), ..entry(job) };
            let entries: Vec<Entry<'_>> = jobs.iter().zip(&attempts).map(with).collect();
            let usual = ["workload", "data", "stage"];
            let rows = compared(&entries).into_iter().filter(|row| !usual.contains(&row.name.as_str()));
            rows.map(|row| format!("{}: {}", row.name, row.values.join(", "))).collect::<Vec<_>>()
        };
        assert_eq!(with([Some(&one), None, Some(&other)]), ["driver: 570, , 580"]);
        assert!(with([Some(&one), None, Some(&one)]).is_empty() && with([Some(&one), None, None]).is_empty());
    }
}
