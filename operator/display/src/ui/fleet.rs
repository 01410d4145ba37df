//! Sums over jobs: device hours, rollbacks by reason, gain by phase.

use super::facts::Judged;
use super::list::{Shown, filter};
use super::listed::Listed;
use super::query::Query;
use super::{Live, Scripts, live, page as whole};
use crate::numbers::{factor, short};
use crate::report::displayable;
use crate::verdict::Tone;
use maud::{Markup, html};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The page about the jobs that the query selects.
pub fn page(shown: &Shown<'_>, query: &Query, revision: &str) -> String {
    let content = html! {
        h1 { "Fleet" }
        (filter("/fleet", query))
        (live(Live { events: &query.address("/fleet/events", "from="), revision }, &content(shown, query)))
    };
    whole("Fleet", Scripts::Live, &content)
}

/// The live part of the page.
pub fn fragment(shown: &Shown<'_>, query: &Query) -> String {
    displayable(content(shown, query))
}

fn content(shown: &Shown<'_>, query: &Query) -> Markup {
    let sections = [
        ("Device hours", hours(&shown.jobs)),
        ("Rolled back, by reason", reasons(&shown.jobs)),
        ("Gain by phase", gains(&shown.jobs)),
    ];
    html! {
        @for problem in shown.problems { p.notice { (problem) } }
        p { a href=(query.address("/", "")) { (shown.jobs.len()) " of " (shown.total) " jobs" } }
        @for (title, table) in &sections {
            @if let Some(table) = table {
                section {
                    h2 { (title) }
                    div.wide role="region" aria-label=(title) tabindex="0" { (table) }
                }
            }
        }
    }
}

/// What the devices did, those that are GPUs and those that are processes apart.
fn hours(jobs: &[&Listed]) -> Option<Markup> {
    let kinds = [("GPU hours", true), ("process hours", false)].map(|(name, on_gpus)| {
        let of_kind: Vec<&Listed> = jobs.iter().copied().filter(|job| job.facts.on_gpus == on_gpus).collect();
        (name, of_kind)
    });
    let sum = |jobs: &[&Listed], hours: fn(&Listed) -> f64| short(jobs.iter().map(|job| hours(job)).sum());
    (!jobs.is_empty()).then(|| {
        html! {
            table {
                thead {
                    tr {
                        th scope="col" { "unit" } th.n scope="col" { "jobs" } th.n scope="col" { "judging phases" }
                        th.n scope="col" { "searching" } th.n scope="col" { "training" }
                        th.n scope="col" { "saved, net" } th scope="col" { "note" }
                    }
                }
                tbody {
                    @for (name, jobs) in kinds.iter().filter(|(_, jobs)| !jobs.is_empty()) {
                        @let known = jobs.iter().filter(|job| job.facts.saved.is_some()).count();
                        @let trained = jobs.iter().filter(|job| job.facts.training > 0.0).count();
                        tr {
                            th scope="row" { (name) }
                            td.n { (jobs.len()) }
                            td.n { (sum(jobs, |job| job.facts.judging)) }
                            td.n { (sum(jobs, |job| job.facts.search)) }
                            td.n { (sum(jobs, |job| job.facts.training)) }
                            td.n { @if known > 0 { (sum(jobs, |job| job.facts.saved.unwrap_or_default())) } }
                            td.muted {
                                @if known > 0 && known < jobs.len() {
                                    "saved: known of " (known) " of the " (trained) " that trained"
                                }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// The jobs and the number of their phases that were rolled back for each reason, the most frequent first.
fn reasons(jobs: &[&Listed]) -> Option<Markup> {
    let mut found: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for (job, phase) in judged(jobs).filter(|(_, phase)| phase.tone == Tone::Bad) {
        let (phases, jobs) = found.entry(&phase.reason).or_default();
        *phases += 1;
        jobs.insert(&job.key);
    }
    let mut rows: Vec<(&str, usize, usize)> =
        found.into_iter().map(|(reason, (phases, jobs))| (reason, phases, jobs.len())).collect();
    rows.sort_by_key(|(_, phases, _)| Reverse(*phases));
    let row = |(reason, phases, jobs): (&str, usize, usize)| {
        let reason = if reason.is_empty() { "not known" } else { reason };
        (reason.to_owned(), vec![phases.to_string(), jobs.to_string()])
    };
    table(&["reason", "phases", "jobs"], rows.into_iter().map(row).collect())
}

/// The verdicts on the phases of one name.
#[derive(Default)]
struct Gain {
    accepted: usize,
    /// Those that were measured where it was accepted.
    speedups: Vec<f64>,
    rolled_back: usize,
    unclear: usize,
}

impl Gain {
    /// The geometric mean of the speedups.
    fn mean(&self) -> Option<f64> {
        let logarithms: f64 = self.speedups.iter().map(|speedup| speedup.ln()).sum();
        (!self.speedups.is_empty()).then(|| (logarithms / self.speedups.len() as f64).exp())
    }
}

/// How phases of each name ended, and their speedups; those that were accepted most often first.
fn gains(jobs: &[&Listed]) -> Option<Markup> {
    let mut found: BTreeMap<&str, Gain> = BTreeMap::new();
    for (_, phase) in judged(jobs) {
        let gain = found.entry(&phase.name).or_default();
        match phase.tone {
            Tone::Good => {
                gain.accepted += 1;
                gain.speedups.extend(phase.speedup.filter(|speedup| *speedup > 0.0));
            }
            Tone::Bad => gain.rolled_back += 1,
            Tone::Unclear => gain.unclear += 1,
            Tone::Idle | Tone::Total => {}
        }
    }
    let mut rows: Vec<(&str, Gain)> = found.into_iter().collect();
    rows.sort_by_key(|(_, gain)| Reverse(gain.accepted));
    let row = |(name, gain): (&str, Gain)| {
        let extreme = |better: fn(f64, f64) -> f64| gain.speedups.iter().copied().reduce(better);
        let counts = [gain.accepted, gain.rolled_back, gain.unclear].map(|count| count.to_string());
        let speedups = [gain.mean(), extreme(f64::min), extreme(f64::max)];
        let speedups = speedups.map(|speedup| speedup.map(factor).unwrap_or_default());
        (name.to_owned(), [counts, speedups].concat())
    };
    let heads = ["phase", "accepted", "rolled back", "no verdict", "mean speedup where accepted", "from", "to"];
    table(&heads, rows.into_iter().map(row).collect())
}

/// A table of names, each with its numbers; `None` without rows.
fn table(heads: &[&str], rows: Vec<(String, Vec<String>)>) -> Option<Markup> {
    (!rows.is_empty()).then(|| {
        html! {
            table {
                thead {
                    tr {
                        @for (column, head) in heads.iter().enumerate() { th.n[column > 0] scope="col" { (head) } }
                    }
                }
                tbody {
                    @for (name, numbers) in &rows {
                        tr { th scope="row" { (name) } @for number in numbers { td.n { (number) } } }
                    }
                }
            }
        }
    })
}

/// All phases with their jobs.
fn judged<'a>(jobs: &'a [&Listed]) -> impl Iterator<Item = (&'a Listed, &'a Judged)> {
    jobs.iter().flat_map(|job| job.facts.phases.iter().map(move |phase| (*job, phase)))
}

#[cfg(test)]
mod tests {
    use super::super::list::Looked;
    use super::*;
    use crate::jobs::Entry;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn listed(name: &str, gpus: u32, phases: Value, more: Value) -> Listed {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"},
            "trainer": {"gpusPerReplica": gpus}}});
        let mut status = json!({"stage": "Complete", "phases": phases});
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        Listed::new(Entry { job: &job, status: &status, place: ".pawl/toy", measured_with: &[], stopped: false }, None)
    }

    fn phase(name: &str, state: &str, reason: &str, speedup: &str) -> Value {
        json!({"name": name, "state": state, "reason": reason, "speedup": {"estimate": speedup, "pairs": 3}})
    }

    /// Cells of the row that begins with `name`.
    fn row(text: &str, name: &str) -> Vec<String> {
        let heading = format!("<th scope=\"row\">{name}</th>");
        let rest = text.split_once(&heading).unwrap_or_else(|| panic!("{name}: {text}")).1;
        let cells = rest.split("</tr>").next().unwrap().split("</td>");
        cells.filter_map(|cell| Some(cell.rsplit_once('>')?.1.to_owned())).collect()
    }

    fn jobs() -> [Listed; 3] {
        let hours = |judging: u64, training: u64| {
            let purposes = json!({"Speed": judging * 3_600_000, "Train": training * 3_600_000});
            json!({"cost": {"purposes": purposes}, "training": {"items": 3600, "itemsPerSecond": "1"},
                "baseline": {"itemsPerSecond": "0.25"}})
        };
        let slow = phase("slow", "RolledBack", "NoEffect", "1");
        // What it saved is not known, since its baseline was not measured.
        let unmeasured = json!({"cost": {"purposes": {"Train": 5 * 3_600_000}}, "training": {"items": 3600}});
        let hostile = phase("graph", "RolledBack", "<script>x</script>", "1");
        [
            listed("a", 1, json!([phase("graph", "Accepted", "", "2"), slow]), hours(1, 10)),
            listed("b", 1, json!([phase("graph", "Accepted", "", "8"), slow]), unmeasured),
            listed("c", 0, json!([hostile, phase("slow", "Inconclusive", "", "1")]), hours(2, 20)),
        ]
    }

    static NOWHERE: Looked = Looked { places: Vec::new(), instead: Vec::new() };

    fn shown<'a>(jobs: &'a [Listed], query: &Query) -> Shown<'a> {
        Shown {
            jobs: query.select(jobs.iter()),
            total: jobs.len(),
            problems: &[],
            looked: &NOWHERE,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn hours_reasons_and_gains_are_summed_over_jobs() {
        let (jobs, query) = (jobs(), Query::default());
        let text = page(&shown(&jobs, &query), &query, "r1");
        // Of a and c, the baseline takes 4 hours, and the training 1.
        assert_eq!(row(&text, "GPU hours"), ["2", "1", "0", "15", "2", "saved: known of 1 of the 2 that trained"]);
        assert_eq!(row(&text, "process hours")[..5], ["1", "2", "0", "20", "1"]);
        assert_eq!(row(&text, "NoEffect")[..2], ["2", "2"]);
        assert_eq!(row(&text, "&lt;script&gt;x&lt;/script&gt;")[..2], ["1", "1"]);
        assert_eq!(row(&text, "graph")[..6], ["2", "1", "0", "4.00×", "2.00×", "8.00×"]);
        assert_eq!(row(&text, "slow")[..6], ["0", "2", "1", "", "", ""]);
        assert!(text.find("NoEffect") < text.find("&lt;script"), "the most frequent first: {text}");
        assert!(text.contains(r#"data-events="/fleet/events?from=""#) && !text.contains("<script>x"), "{text}");
    }

    #[test]
    fn only_the_jobs_of_the_filter_count() {
        let jobs = jobs();
        let query = Query { text: "b".to_owned(), ..Query::default() };
        let text = page(&shown(&jobs, &query), &query, "r1");
        assert_eq!(row(&text, "GPU hours")[..5], ["1", "0", "0", "5", ""]);
        assert!(text.contains(r#"data-events="/fleet/events?q=b&amp;from=""#), "{text}");
        assert!(!text.contains("process hours") && text.contains(r#"<a href="/?q=b">1 of 3 jobs</a>"#), "{text}");
        let none = Query { text: "none".to_owned(), ..Query::default() };
        assert!(!fragment(&shown(&jobs, &none), &none).contains("<table"));
    }
}
