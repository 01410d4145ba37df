//! Jobs beside each other.

use super::differences;
use super::list::address;
use super::{Scripts, page as whole};
use crate::compared::{Compared, Group, WORKLOAD, compared};
use crate::jobs::Entry;
use crate::numbers::factor;
use crate::report::curves::{self, Curves};
use crate::report::evidence::Evidence;
use crate::report::measurement::{Measurement, measurements};
use crate::report::of_result;
use crate::sentence::sentence;
use crate::together::{is_current, is_product};
use crate::url::encode;
use crate::verdict;
use maud::{Markup, html};

/// Most jobs that the page is for: each has its own line in the curves.
pub const MOST: usize = curves::JOBS.len();

/// The page of these jobs, each with its key; `all`: also the rows in which they do not differ.
pub fn page(jobs: &[(&str, &Evidence)], all: bool) -> String {
    let rows = compared(&jobs.iter().map(|(_, evidence)| entry(evidence)).collect::<Vec<_>>());
    let (shown, equal): (Vec<_>, Vec<_>) = rows.iter().partition(|row| all || row.differs);
    let keys: Vec<String> = jobs.iter().map(|(key, _)| format!("job={}", encode(key))).collect();
    let figures: Vec<Markup> = curves::compared(jobs).iter().filter_map(Curves::figure).collect();
    let is_apart = rows.iter().any(|row| row.differs && row.name == WORKLOAD);
    let table = html! {
        p.muted {
            "≠: the jobs differ in this row; where a cell is empty, a job that has ended has no such value. \
             What is not known yet of a job that has not ended is no difference."
        }
        (selected(&format!("/compare?{}", keys.join("&")), all, equal.len()))
        (rows_of(&shown, jobs))
    };
    let content = html! {
        h1 { "Compared" }
        @if is_apart {
            p {
                b { "These jobs do not train the same." } " Each speedup is over the baseline of its own job, and metrics \
                of different workloads cannot be compared."
            }
        }
        (results(jobs))
        h2 { "What differs" }
        (differences::list(jobs, &rows, is_apart))
        @if is_apart {
            details open[all] {
                summary { "Row by row" }
                (table)
            }
        } @else { (table) }
        @if !figures.is_empty() {
            section data-curves={ "/compare/curves.json?" (keys.join("&")) } {
                h2 { "Training" }
                div.two { @for figure in &figures { (figure) } }
            }
        }
    };
    whole("Compared", Scripts::Charts, &content)
}

/// The rows, those of the results first: what the jobs reached is what they are compared for.
fn rows_of(shown: &[&Compared], jobs: &[(&str, &Evidence)]) -> Markup {
    html! {
        div.wide role="region" aria-label="Jobs beside each other" tabindex="0" {
            table.compared.cards {
                thead {
                    tr {
                        td {}
                        @for (key, _) in jobs { th scope="col" { a href=(address(key)) { (key) } } }
                    }
                }
                @for group in [Group::Result, Group::Settings, Group::Manifest] {
                    @if shown.iter().any(|row| row.group == group) {
                        tbody {
                            tr { th.group scope="rowgroup" colspan=(jobs.len() + 1) { (group.heading()) } }
                            @for row in shown.iter().filter(|row| row.group == group) { (line(row, jobs)) }
                        }
                    }
                }
            }
        }
    }
}

/// What each job has reached, in a sentence, and how good the measurement of that is.
fn results(jobs: &[(&str, &Evidence)]) -> Markup {
    let result = |evidence: &Evidence| {
        let measurement = of_result(evidence, &measurements(evidence)).map(Measurement::mark);
        let sentence = sentence(&evidence.job, &evidence.status);
        let measurement = measurement.filter(|_| sentence.is_some());
        (sentence.unwrap_or_else(|| unfinished(evidence)), measurement)
    };
    html! {
        ul {
            @for (key, evidence) in jobs {
                @let (sentence, measurement) = result(evidence);
                li {
                    b { a href=(address(key)) { (key) } } ": " (sentence)
                    @if let Some(measurement) = measurement { " · Speed measurement: " (measurement) }
                }
            }
        }
    }
}

/// How far a job is of which no sentence says a result: `no result yet: Optimizing, phase 7/7. The accepted phases
/// multiply to 4.79×.`
fn unfinished(evidence: &Evidence) -> String {
    let status = &evidence.status;
    let progress = Some(status.progress.as_str()).filter(|progress| !progress.is_empty());
    let progress = progress.map(|progress| format!(", {progress}")).unwrap_or_default();
    let result = match &status.bundle {
        _ if status.phases.is_empty() => "",
        Some(bundle) if !is_current(bundle, status) => "the settings in effect were not measured together: ",
        _ if verdict::is_ended(status.stage) => "no result: ",
        _ => "no result yet: ",
    };
    let product = status.speedup.as_ref().filter(|_| is_product(status)).map(|product| factor(product.value()));
    let product = product.map(|product| format!(" The accepted phases multiply to {product}.")).unwrap_or_default();
    format!("{result}{}{progress}.{product}", status.stage)
}

/// Which rows are shown, and a link to the others.
fn selected(address: &str, all: bool, hidden: usize) -> Markup {
    html! {
        p {
            @if all {
                "All rows. " a href=(address) { "Differences only" }
            } @else {
                "Differences only"
                @match hidden {
                    0 => ".",
                    1 => { ", without 1 equal row. " a href={ (address) "&all=1" } { "All rows" } }
                    _ => { ", without " (hidden) " equal rows. " a href={ (address) "&all=1" } { "All rows" } }
                }
            }
        }
    }
}

/// The job as it is compared.
fn entry(evidence: &Evidence) -> Entry<'_> {
    let Evidence { job, status, measured_with, .. } = evidence;
    Entry { job, status, place: "", measured_with, stopped: false }
}

fn line(row: &Compared, jobs: &[(&str, &Evidence)]) -> Markup {
    html! {
        tr.changed[row.differs] {
            th scope="row" { @if row.differs { "≠ " } (row.name) }
            @for ((key, _), value) in jobs.iter().zip(&row.values) { td data-name=(key) { (value) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn job(name: &str, status: Value) -> Evidence {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        Evidence::new(job, status, Vec::new(), Vec::new())
    }

    fn compared(jobs: &[(&str, Evidence)]) -> String {
        shown(jobs, true)
    }

    fn shown(jobs: &[(&str, Evidence)], all: bool) -> String {
        let jobs: Vec<(&str, &Evidence)> = jobs.iter().map(|(key, evidence)| (*key, evidence)).collect();
        page(&jobs, all)
    }

    #[test]
    fn only_differences_are_shown_and_all_rows_are_a_link_away() {
        let jobs = ["1.5", "1.2"].map(|speedup| job("toy", json!({"stage": "Complete", "speedup": speedup})));
        let [one, two] = jobs;
        let jobs = [("a&b", one), ("two", two)];
        let (some, all) = (shown(&jobs, false), shown(&jobs, true));
        // Workload, data and stage.
        assert!(some.contains("≠ speedup") && some.contains(", without 3 equal rows."), "{some}");
        assert!(some.contains(r#"<a href="/compare?job=a%26b&amp;job=two&amp;all=1">All rows</a>"#), "{some}");
        assert!(!some.contains(">stage<") && !some.contains("In the manifest"), "{some}");
        assert!(all.contains(">stage<") && all.contains(r#"<a href="/compare?job=a%26b&amp;job=two">"#), "{all}");
        let places = ["Result", "speedup", "In the manifest", "workload"].map(|part| all.find(part).unwrap());
        assert!(places.is_sorted(), "{all}");
    }

    #[test]
    fn the_result_of_each_job_is_a_sentence() {
        let speedup = json!({"estimate": "1.3", "lower": "1.2", "upper": "1.4", "pairs": 2});
        let phase = |state: &str| json!([{"name": "graph", "state": state, "speedup": speedup}]);
        let of = |state: &str| job("toy", json!({"stage": "Complete", "phases": phase(state)}));
        let text = compared(&[("one", of("Accepted")), ("two", of("RolledBack")), ("three", of("Measuring"))]);
        let list = text.split_once("<ul>").unwrap().1.split_once("</ul>").unwrap().0;
        assert!(list.contains("one</a></b>: 1.30 times as fast as the baseline (at least 1.20)."), "{list}");
        assert!(list.contains("Speed measurement: <span") && list.contains("weak: few pairs"), "{list}");
        assert!(
            list.contains("two</a></b>: No phase was accepted.</li>")
                && list.contains("three</a></b>: no result: Complete.</li>"),
            "{list}"
        );
    }

    #[test]
    fn jobs_that_do_not_train_the_same_are_compared_by_their_results_first() {
        let of = |workload: &str| {
            let mut evidence = job("toy", json!({"stage": "Complete"}));
            evidence.job.spec.workload.name = Some(workload.to_owned());
            evidence
        };
        let rows = "<details><summary>Row by row</summary>";
        let apart = [("a", of("ups")), ("b", of("forex"))];
        let text = shown(&apart, false);
        assert!(text.contains("These jobs do not train the same.") && text.contains(rows), "{text}");
        let places = ["</b>: Complete.", rows, "<table"].map(|part| text.find(part).unwrap());
        assert!(places.is_sorted(), "{text}");
        // Who asks for all rows sees them.
        assert!(shown(&apart, true).contains("<details open>"));
        assert!(!shown(&[("a", of("ups")), ("b", of("ups"))], false).contains("<details"));
    }

    #[test]
    fn three_jobs_stand_beside_each_other() {
        let hostile = "<b>x</b>";
        let text = compared(&[
            ("one", job("one", json!({"stage": "Complete", "speedup": "1.5"}))),
            ("two@a/b", job("two", json!({"stage": "Complete", "speedup": "1.2"}))),
            ("three", job("three", json!({"stage": "Complete", "phases": [{"name": hostile, "state": "Accepted"}]}))),
        ]);
        for part in [
            r#"<a href="/jobs/two%40a%2Fb">two@a/b</a>"#,
            r#"<tr class=""><th scope="row">stage</th>"#,
            r#"<th class="group" scope="rowgroup" colspan="4">In the manifest</th>"#,
            r#"<tr class="changed"><th scope="row">≠ speedup</th><td data-name="one">1.50×</td>"#,
            "phase &lt;b&gt;x&lt;/b&gt;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains(hostile) && !text.contains("data-curves"), "none has trained: {text}");
    }

    #[test]
    fn each_job_has_a_line_in_the_curves() {
        let evaluation = |items: u64, loss: &str| json!({"items": items, "metrics": {"loss": loss}});
        let trained = |name: &str| {
            let (first, last) = (evaluation(0, "4"), evaluation(64, "2"));
            let training = json!({"items": 64, "firstValidation": first, "validation": last});
            job(name, json!({"stage": "Complete", "training": training}))
        };
        let text = compared(&[("one", trained("one")), ("b&c", trained("b&c"))]);
        for part in [
            r#"data-curves="/compare/curves.json?job=one&amp;job=b%26c""#,
            r#"data-chart="validation""#,
            r#"<path class="series c0""#,
            r#"<path class="series c1""#,
            r#"<span class="key c1"></span>b&amp;c"#,
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains(r#"data-chart="loss""#), "there is no training loss: {text}");
    }
}
