//! The search of a job: its stages, whose trials are sorted by a column and selected by their settings and values.

use super::list::address;
use super::{Live, Scripts, live, page as whole};
use crate::report::displayable;
use crate::report::evidence::Evidence;
pub use crate::report::search::columns::{Order, OrderError};
use crate::report::search::section as stages;
use crate::url::encode;
use maud::{Markup, html};

/// The page of the job with this key.
pub fn page(key: &str, evidence: &Evidence, order: &Order, revision: &str) -> String {
    let title = format!("Search of {key}");
    let events = format!("{}/search/events?sort={}&from=", address(key), encode(&order.text()));
    let content = html! {
        h1 { (title) }
        p { a href=(address(key)) { "The job" } }
        (live(Live { events: &events, revision }, &content(evidence, order)))
    };
    whole(&title, Scripts::Brush, &content)
}

/// The live part of the page.
pub fn fragment(evidence: &Evidence, order: &Order) -> String {
    displayable(content(evidence, order))
}

fn content(evidence: &Evidence, order: &Order) -> Markup {
    html! {
        @match stages(evidence, Some(order)) {
            Some(stages) => section { (stages) },
            None if evidence.job.spec.search.is_empty() => {
                p { "This job has no search: add spec.search to its manifest." }
            }
            None => p { "The search has not started yet: it follows the phases." },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn evidence(trials: Value) -> Evidence {
        let objectives = json!([{"metric": "loss", "goal": "Minimize"},
            {"metric": "itemsPerSecond", "goal": "Maximize"}]);
        let parameters = json!([{"name": "batchPerGpu", "min": "1", "max": "64"},
            {"name": "workload.optimizer", "values": ["sgd", "adam"]}]);
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}, "search": [
            {"name": "quick", "trials": 4, "epochs": 3, "objectives": objectives, "parameters": parameters},
        ]}});
        let status = json!({"stage": "Searching", "search": [
            {"name": "quick", "inputHash": "x", "trials": trials, "pareto": [0, 1]},
        ]});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        Evidence::new(job, status, Vec::new(), Vec::new())
    }

    /// Numbers of the trials in the table, in its order.
    fn rows(evidence: &Evidence, sort: &str) -> Vec<String> {
        let text = fragment(evidence, &Order::parse(sort, evidence).unwrap());
        let table = text.split_once("<tbody>").unwrap().1;
        table.split("data-trial=\"").skip(1).map(|row| row.split_once('"').unwrap().0.to_owned()).collect()
    }

    #[test]
    fn trials_are_sorted_by_a_column_and_those_without_a_value_come_last() {
        let found = evidence(json!(["C;;0.5,90;;;8,0", "C;;0.25,70;;;16,1", "O;;;;;64,1", "C;;4,80;;;2,0"]));
        for (sort, expected) in [
            ("", ["0", "1", "2", "3"]),
            ("-trial", ["3", "2", "1", "0"]),
            ("value.loss", ["1", "0", "3", "2"]),
            ("-value.loss", ["3", "0", "1", "2"]),
            ("-value.itemsPerSecond", ["0", "3", "1", "2"]),
            ("parameter.batchPerGpu", ["3", "0", "1", "2"]),
            ("parameter.workload.optimizer", ["1", "2", "0", "3"]),
            ("-state", ["2", "0", "1", "3"]),
        ] {
            assert_eq!(rows(&found, sort), expected, "{sort}");
        }
        let error = Order::parse("-value.size", &found).unwrap_err().to_string();
        assert!(error.starts_with("sort: \"value.size\"") && error.contains("trial, state, value.loss"), "{error}");
    }

    #[test]
    fn a_page_has_the_table_the_figures_and_what_a_brush_needs() {
        let found = evidence(json!(["C;;0.5,90;;;8,0", "C;;0.25,70;;;16,1"]));
        let text = page("toy", &found, &Order::parse("-value.loss", &found).unwrap(), "r1");
        for part in [
            r#"data-events="/jobs/toy/search/events?sort=-value.loss&amp;from=" data-revision="r1""#,
            r#"aria-sort="descending"><a href="?sort=value.loss">loss"#,
            r#"<a href="?sort=parameter.batchPerGpu">batchPerGpu"#,
            r#"data-axis="batchPerGpu""#,
            r#"data-axis="loss""#,
            r#"" data-trial="1" d="M"#,
            "Pareto set of loss and itemsPerSecond",
            "/assets/brush.js",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("<details>"), "the trials are displayed: {text}");
    }

    #[test]
    fn without_a_search_the_page_says_so() {
        let mut found = evidence(json!([]));
        found.status.search.clear();
        assert!(fragment(&found, &Order::parse("", &found).unwrap()).contains("has not started"));
        found.job.spec.search.clear();
        assert!(fragment(&found, &Order::parse("", &found).unwrap()).contains("spec.search"));
    }
}
