//! A job: what it does now, and the report about it.

use super::actions::Actions;
use super::awaited::Awaited;
use super::list::address;
use super::{Live, Scripts, live, page as whole};
use crate::headline;
use crate::report::evidence::Evidence;
use crate::report::{content as report, displayable};
use crate::search::begun;
use crate::verdict::is_open;
use jiff::Timestamp;
use maud::{Markup, html};
use pawl_api::status::Stage;

/// What a page has besides the report of a job.
#[derive(Clone, Debug, Default)]
pub struct Besides {
    /// What the report does not have, and where that is.
    pub notes: Vec<String>,
    /// What the user may do with the job; `None`: nothing.
    pub actions: Option<Actions>,
    /// Whether nothing works on the job any more, although it has not ended.
    pub stopped: bool,
    /// What it shows after a time although nothing is written.
    pub awaited: Awaited,
    /// The time: what was expected before it is not expected any more.
    pub now: Timestamp,
}

/// The page of the job with this key.
pub fn page(key: &str, evidence: &Evidence, besides: &Besides, revision: &str) -> String {
    let events = format!("{}/events?from=", address(key));
    let content = html! {
        div data-curves={ (address(key)) "/curves.json" } {
            (live(Live { events: &events, revision }, &content(key, evidence, besides)))
        }
        p { a href={ (address(key)) "/status.json" } { "The status as JSON" } }
    };
    whole(key, Scripts::Charts, &content)
}

/// The live part of the page.
pub fn fragment(key: &str, evidence: &Evidence, besides: &Besides) -> String {
    displayable(content(key, evidence, besides))
}

fn content(key: &str, evidence: &Evidence, besides: &Besides) -> Markup {
    html! {
        @if besides.stopped {
            p.now { "Stopped: repeat its command, such as " code { "pawl run FILE" } ", to resume it." }
        }
        @if let Some(doing) = doing(evidence, besides) { p.now[!besides.stopped] { (doing) } }
        @for note in &besides.notes { p.muted { (note) } }
        @if let Some(actions) = &besides.actions { (actions.render(key, &evidence.job)) }
        (report(evidence, place(key, evidence)))
        @if begun(&evidence.job.spec, &evidence.status).next().is_some() {
            p { a href={ (address(key)) "/search" } { "The search alone: sort and select its trials" } }
        }
    }
}

/// The place of a job that has its name in common with others, from its key.
fn place<'a>(key: &'a str, evidence: &Evidence) -> Option<&'a str> {
    key.strip_prefix(evidence.name())?.strip_prefix('@')
}

/// The current activity, the progress, and when the training will probably end; `None` for a job that has ended or is
/// suspended. Of a job that stopped: the activity in which it did. Of one of which nothing was heard for long: since
/// when.
fn doing(evidence: &Evidence, besides: &Besides) -> Option<String> {
    let &Besides { stopped, awaited, now, .. } = besides;
    let minute = |time: Timestamp| time.strftime("%Y-%m-%d %H:%M UTC");
    let status = &evidence.status;
    if !is_open(status.stage) {
        return None;
    }
    let mut doing: Vec<String> = stopped.then(|| "when it stopped".to_owned()).into_iter().collect();
    doing.push(headline::render(status, evidence.job.spec.analysis.max_pairs));
    // The activity of a search says its progress.
    if !status.progress.is_empty() && status.stage != Stage::Searching {
        doing.push(status.progress.clone());
    }
    doing.extend(awaited.end(now).map(|end| format!("ends about {}", minute(end))));
    doing.extend(awaited.silent_since(now).map(|since| format!("no news since {}", minute(since))));
    Some(doing.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventRecord;
    use serde_json::{Value, json};

    const ETA: &str = "2026-01-02T03:04:05Z";

    fn evidence(name: &str, status: Value, events: Value) -> Evidence {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}, "phases": [
            {"name": "graph", "settings": {"compile": "Graph"}},
        ]}});
        let events: Vec<EventRecord> = serde_json::from_value(events).unwrap();
        let status = serde_json::from_value(status).unwrap();
        Evidence::new(serde_json::from_value(job).unwrap(), status, events, Vec::new())
    }

    #[test]
    fn a_running_job_says_what_it_does() {
        let phase = json!({"name": "graph", "state": "Measuring", "speedup": {"estimate": "1.31", "pairs": 2}});
        let attempt = json!({"name": "toy-1", "purpose": "Speed", "phase": "graph"});
        let measuring = evidence(
            "toy",
            json!({"stage": "Optimizing", "progress": "phase 1/1", "phases": [phase], "attempt": attempt}),
            json!([]),
        );
        let text = page("toy", &measuring, &Besides::default(), "r1");
        assert!(text.contains("measuring graph: 1.31× after 2 of at most"), "{text}");
        assert!(text.contains(" · phase 1/1"), "{text}");
        assert!(text.contains(r#"data-events="/jobs/toy/events?from=" data-revision="r1""#), "{text}");
        assert!(text.contains("/jobs/toy/status.json") && text.contains("being measured"), "{text}");
        assert!(text.contains(r#"<div data-curves="/jobs/toy/curves.json"><div id="live""#), "{text}");
        let scripts = ["/assets/ui.js", "/assets/uplot.js", "/assets/charts.js"];
        let scripts = scripts.map(|script| text.find(script).unwrap());
        assert!(scripts.is_sorted(), "charts.js needs uPlot: {text}");

        let training = json!({"stage": "Training", "progress": "41%", "training": {"items": 64, "eta": ETA}});
        let training = evidence("toy", training, json!([]));
        let awaited = Awaited::new(&training.status, false, None);
        let text = fragment("toy", &training, &Besides { awaited, ..Besides::default() });
        assert!(text.contains("training · 41% · ends about 2026-01-02 03:04 UTC"), "{text}");
        let text = fragment("toy", &evidence("toy", json!({"stage": "Complete"}), json!([])), &Besides::default());
        assert!(!text.contains("class=\"now\"") && !text.contains("/jobs/toy/search"), "{text}");
    }

    #[test]
    fn a_job_that_stopped_says_how_it_is_resumed() {
        let training = json!({"stage": "Training", "progress": "41%", "training": {"items": 64, "eta": ETA}});
        let training = evidence("toy", training, json!([]));
        let awaited = Awaited::new(&training.status, true, None);
        let stopped = Besides { stopped: true, awaited, ..Besides::default() };
        let text = fragment("toy", &training, &stopped);
        assert!(text.contains(r#"<p class="now">Stopped: repeat its command"#), "{text}");
        assert!(text.contains("when it stopped · 0/0 phases evaluated · training · 41%"), "{text}");
        assert!(!text.contains("ends about") && text.matches(r#"class="now""#).count() == 1, "{text}");
    }

    #[test]
    fn a_job_that_changes_no_more_does_not_end_in_the_past() {
        let training = json!({"stage": "Training", "progress": "19%", "training": {"items": 64, "eta": ETA}});
        let of = |now: &str, stopped: bool| {
            let written = Some("2026-01-02T03:00:00Z".parse().unwrap());
            let training = evidence("toy", training.clone(), json!([]));
            let awaited = Awaited::new(&training.status, stopped, written);
            let besides = Besides { now: now.parse().unwrap(), awaited, stopped, ..Besides::default() };
            fragment("toy", &training, &besides)
        };
        let text = of("2026-01-02T03:03:00Z", false);
        assert!(text.contains("ends about 2026-01-02 03:04 UTC") && !text.contains("no news"), "{text}");
        let text = of("2026-01-03T00:00:00Z", false);
        assert!(text.contains("19% · no news since 2026-01-02 03:00 UTC") && !text.contains("ends about"), "{text}");
        let text = of("2026-01-03T00:00:00Z", true);
        assert!(text.contains("Stopped:") && !text.contains("no news"), "said twice: {text}");
    }

    #[test]
    fn a_job_whose_name_others_have_is_titled_with_its_place() {
        let evidence = evidence("toy", json!({"stage": "Complete"}), json!([]));
        let text = page("toy@runs/toy", &evidence, &Besides::default(), "r1");
        assert!(text.contains("<title>toy@runs/toy · Pawl</title>"), "{text}");
        assert!(text.contains(r#"<h1>toy <span class="muted">@runs/toy</span> <span"#), "{text}");
        let text = page("toy", &evidence, &Besides::default(), "r1");
        assert!(text.contains("<title>toy · Pawl</title>") && text.contains("<h1>toy <span class=\"badge"), "{text}");
    }

    #[test]
    fn the_search_is_linked_once_it_has_begun() {
        let search = json!([{"name": "quick", "trials": 4, "epochs": 3,
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "batchPerGpu", "min": "1", "max": "64"}]}]);
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}, "search": search}});
        let job = || serde_json::from_value(job.clone()).unwrap();
        let of = |status: Value| {
            let status = serde_json::from_value(status).unwrap();
            fragment("a@b", &Evidence::new(job(), status, Vec::new(), Vec::new()), &Besides::default())
        };
        let link = r#"<a href="/jobs/a%40b/search">"#;
        assert!(!of(json!({"stage": "Optimizing"})).contains(link));
        let search = json!([{"name": "quick", "inputHash": "x", "trials": ["C;;0.5;;;8"]}]);
        assert!(of(json!({"stage": "Searching", "search": search})).contains(link));
    }

    #[test]
    fn hostile_texts_stay_text() {
        let hostile = "</main><script>alert(1)</script>\u{1b}";
        let status = json!({"stage": "Optimizing", "progress": hostile, "phases": [
            {"name": hostile, "state": "RolledBack", "reason": hostile, "message": hostile},
        ]});
        let events = json!([{"time": "2026-01-02T03:04:05Z", "reason": hostile, "message": hostile}]);
        let text = page(hostile, &evidence(hostile, status, events), &Besides::default(), "r1");
        assert!(text.contains("alert(1)") && !text.contains("<script>") && !text.contains('\u{1b}'), "{text}");
        assert_eq!(text.matches("</main>").count(), 1, "{text}");
    }

    #[test]
    fn notes_are_text_and_actions_are_drawn_only_where_there_are_some() {
        let evidence = evidence("toy", json!({"stage": "Training"}), json!([]));
        let notes = vec!["<b>no curves</b>".to_owned()];
        let without = fragment("toy", &evidence, &Besides { notes, ..Besides::default() });
        assert!(without.contains("&lt;b&gt;no curves") && !without.contains("<dialog"), "{without}");
        let actions = Some(Actions { token: "t".to_owned() });
        let with = page("toy", &evidence, &Besides { actions, ..Besides::default() }, "r1");
        assert!(with.contains(r#"action="/jobs/toy/actions/suspend""#), "{with}");
    }
}
