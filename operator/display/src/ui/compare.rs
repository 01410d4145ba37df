//! Jobs beside each other.

use super::list::address;
use super::page as whole;
use crate::jobs::{Compared, Entry, compared};
use maud::{Markup, html};

/// The page of these jobs, each with its key.
pub fn page(jobs: &[(&str, Entry<'_>)]) -> String {
    let entries: Vec<Entry<'_>> = jobs.iter().map(|(_, entry)| *entry).collect();
    let rows = compared(&entries);
    let content = html! {
        h1 { "Compared" }
        p.muted { "A row that differs begins with ≠." }
        div.wide role="region" aria-label="Jobs beside each other" tabindex="0" {
            table.compared {
                thead {
                    tr {
                        th scope="col" { "" }
                        @for (key, _) in jobs { th scope="col" { a href=(address(key)) { (key) } } }
                    }
                }
                tbody { @for row in &rows { (line(row)) } }
            }
        }
    };
    whole("Compared", &content)
}

fn line(row: &Compared) -> Markup {
    html! {
        tr.changed[row.differs()] {
            th scope="row" { @if row.differs() { "≠ " } (row.name) }
            @for value in &row.values { td { (value) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::{TrainingJob, TrainingJobStatus};
    use serde_json::{Value, json};

    fn job(name: &str, status: Value) -> (TrainingJob, TrainingJobStatus) {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}});
        (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
    }

    #[test]
    fn three_jobs_stand_beside_each_other() {
        let hostile = "<b>x</b>";
        let jobs = [
            job("one", json!({"stage": "Complete", "speedup": "1.5"})),
            job("two", json!({"stage": "Complete", "speedup": "1.2"})),
            job("three", json!({"stage": "Complete", "phases": [{"name": hostile, "state": "Accepted"}]})),
        ];
        let keys = ["one", "two@a/b", "three"];
        let entries = jobs.each_ref().map(|(job, status)| Entry { job, status, place: "", provenance: None });
        let paired: Vec<(&str, Entry<'_>)> = keys.into_iter().zip(entries).collect();
        let text = page(&paired);
        for part in [
            r#"<a href="/jobs/two%40a%2Fb">two@a/b</a>"#,
            r#"<tr class=""><th scope="row">stage</th>"#,
            r#"<tr class="changed"><th scope="row">≠ speedup</th><td>1.50×</td><td>1.20×</td><td></td></tr>"#,
            "phase &lt;b&gt;x&lt;/b&gt;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains(hostile), "{text}");
    }
}
