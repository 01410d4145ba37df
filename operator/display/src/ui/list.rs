//! The list of jobs.

use super::listed::Listed;
use super::query::{Column, Query, STAGES};
use super::{Live, Scripts, live, page as whole};
use crate::numbers::factor;
use crate::payback::Saved;
use crate::report::displayable;
use crate::shell::quoted;
use crate::url::encode;
use crate::verdict::{Tone, stage_tone};
use jiff::Timestamp;
use maud::{Markup, html};

/// The jobs that the list shows.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Those that the query selects, in its order.
    pub jobs: Vec<&'a Listed>,
    /// How many there are.
    pub total: usize,
    /// What could not be read, and why.
    pub problems: &'a [String],
    /// Where jobs were looked for, if there are none.
    pub looked: &'a Looked,
    /// The time, by which a job is silent that changes no more.
    pub now: Timestamp,
}

/// Where jobs were looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Directories, storages, namespaces.
    pub places: Vec<String>,
    /// Directories near these that have jobs, or had some.
    pub instead: Vec<String>,
}

/// The page. `can_log_out`: whether the user has a session that they can end.
pub fn page(shown: &Shown<'_>, query: &Query, revision: &str, can_log_out: bool) -> String {
    let content = html! {
        h1 { "Jobs" }
        @if can_log_out { p { a href="/login" { "Log out, or log in as somebody else" } } }
        (filter("/", query))
        (live(Live { events: &query.address("/events", "from="), revision }, &content(shown, query)))
    };
    whole("Jobs", Scripts::Live, &content)
}

/// The form of the filter of a page.
pub(super) fn filter(path: &str, query: &Query) -> Markup {
    let state = query.state;
    html! {
        form.filter role="search" action=(path) method="get" {
            label { "Search" input type="search" name="q" value=(query.text) maxlength="200"; }
            label {
                "State"
                select name="state" {
                    option value="" { "all" }
                    @for stage in STAGES { option value=(stage) selected[state == Some(stage)] { (stage) } }
                }
            }
            input type="hidden" name="sort" value=(query.sort());
            button { "Filter" }
        }
    }
}

/// The live part of the page.
pub fn fragment(shown: &Shown<'_>, query: &Query) -> String {
    displayable(content(shown, query))
}

fn content(shown: &Shown<'_>, query: &Query) -> Markup {
    html! {
        @for problem in shown.problems { p.notice { (problem) } }
        @if shown.jobs.is_empty() {
            @if shown.total == 0 {
                (elsewhere(shown.looked))
                p {
                    "Start a job with " code { "pawl run FILE" } ", in a cluster with "
                    code { "kubectl apply -f FILE" } "."
                }
            } @else {
                p { "None of the " (shown.total) " jobs matches. " a href="/" { "Show all" } }
            }
        } @else {
            p.muted {
                (shown.jobs.len()) " of " (shown.total) " jobs · "
                a href=(query.address("/fleet", "")) { "Their device hours, rollbacks and gains" }
            }
            form action="/compare" method="get" {
                div.wide role="region" aria-label="Jobs" tabindex="0" { (table(shown, query)) }
                p { button data-least="2" { "Compare the selected jobs" } }
            }
        }
    }
}

/// A page that links the jobs with these keys, one of which was perhaps meant.
pub fn choice(title: &str, message: &str, keys: &[String]) -> String {
    let content = html! {
        h1 { (title) }
        p { (message) }
        ul { @for key in keys { li { a href=(address(key)) { (key) } } } }
    };
    whole(title, Scripts::Live, &content)
}

/// Where there are no jobs, and where there may be some.
fn elsewhere(looked: &Looked) -> Markup {
    html! {
        p { "There are no jobs yet" @if !looked.places.is_empty() { " in " (looked.places.join(", ")) } "." }
        @if !looked.instead.is_empty() {
            p { "Jobs may be in these directories below:" }
            ul { @for directory in &looked.instead { li { code { "pawl ui " (quoted(directory)) } } } }
        }
    }
}

fn table(shown: &Shown<'_>, query: &Query) -> Markup {
    html! {
        table.jobs.cards {
            thead {
                tr {
                    th scope="col" { span.unseen { "Compare" } }
                    @for column in Column::ALL { (heading(column, query)) }
                    th scope="col" { "Progress" }
                    th scope="col" { "Where" }
                }
            }
            tbody { @for job in &shown.jobs { (row(job, shown.now)) } }
        }
    }
}

/// The heading of a column, which sorts by it.
fn heading(column: Column, query: &Query) -> Markup {
    let sorted = query.sorted_by(column).parameters();
    let order = (query.column == column).then_some(if query.descending { "descending" } else { "ascending" });
    let arrow = match order {
        Some("descending") => " ▼",
        Some(_) => " ▲",
        None => "",
    };
    html! {
        th.n[column.is_number()] scope="col" aria-sort=[order] {
            a href={ "/?" (sorted) } { (column.heading()) span aria-hidden="true" { (arrow) } }
        }
    }
}

fn row(job: &Listed, now: Timestamp) -> Markup {
    let saved = job.saved.map(Saved::word);
    html! {
        tr {
            td data-name="Compare" {
                input type="checkbox" name="job" value=(job.key) aria-label={ "Compare " (job.key) };
            }
            th scope="row" {
                a href=(address(&job.key)) { (job.name) }
                @if job.key != job.name { " " span.muted { (job.place) } }
            }
            td data-name=(Column::State.heading()) {
                span.badge.(stage_tone(job.stage).class()) { (job.stage) }
                @if job.stopped { " " span.badge.(Tone::Unclear.class()) { "stopped" } }
                @if let Some(since) = job.awaited.silent_since(now) {
                    " " span.badge.(Tone::Unclear.class()) { "no news since " (time(Some(since))) }
                }
            }
            td.n data-name=(Column::Speedup.heading()) { (job.speedup.map(factor).unwrap_or_default()) }
            td.n data-name=(Column::Saved.heading()) { (saved.unwrap_or_default()) }
            td.n data-name=(Column::Phases.heading()) {
                @if job.phases > 0 { (job.accepted) " of " (job.phases) }
                @if job.rolled_back > 0 { ", " (job.rolled_back) " rolled back" }
            }
            td.n data-name=(Column::Started.heading()) { (time(job.started)) }
            td.n data-name=(Column::Changed.heading()) { (time(job.changed)) }
            td data-name="Progress" { (job.progress) }
            td data-name="Where" { (job.place) }
        }
    }
}

/// Address of the page of the job with this key.
pub(super) fn address(key: &str) -> String {
    format!("/jobs/{}", encode(key))
}

/// A time of UTC to the minute; nothing when it is not known.
fn time(time: Option<Timestamp>) -> Markup {
    html! {
        @if let Some(time) = time { time datetime=(time) { (time.strftime("%Y-%m-%d %H:%M")) } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::listed::distinguish;
    use super::*;
    use crate::jobs::Entry;
    use serde_json::{Value, json};

    /// A job, made of its entry and the time at which its status was written.
    fn made(name: &str, status: Value, stopped: bool, make: impl Fn(Entry<'_>, Option<Timestamp>) -> Listed) -> Listed {
        let job = json!({"metadata": {"name": name}, "spec": {"workload": {"name": "ups"}}});
        let (job, status) = (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap());
        let entry = Entry { job: &job, status: &status, place: ".pawl/toy", measured_with: &[], stopped };
        make(entry, Timestamp::from_second(0).ok())
    }

    fn listed(name: &str, status: Value) -> Listed {
        made(name, status, false, Listed::new)
    }

    static NOWHERE: Looked = Looked { places: Vec::new(), instead: Vec::new() };

    fn shown<'a>(jobs: &'a [Listed], problems: &'a [String], query: &Query) -> Shown<'a> {
        let now = Timestamp::from_second(0).unwrap();
        Shown { jobs: query.select(jobs.iter()), total: jobs.len(), problems, looked: &NOWHERE, now }
    }

    #[test]
    fn a_job_is_a_row_with_its_figures() {
        let phases = json!([{"name": "a", "state": "Accepted"}, {"name": "b", "state": "RolledBack"}]);
        let status = json!({"stage": "Complete", "speedup": "1.5", "progress": "100%", "phases": phases,
            "cost": {"savedPercent": "12.3"}, "startTime": "2026-01-02T03:04:05Z"});
        let jobs = [listed("toy", status)];
        let query = Query::parse("sort=-speedup").unwrap();
        let text = page(&shown(&jobs, &[], &query), &query, "r1", false);
        for part in [
            r#"<a href="/jobs/toy">toy</a>"#,
            r#"<td data-name="State"><span class="badge good">Complete</span>"#,
            "1.50×",
            "+12 %",
            "1 of 2, 1 rolled back",
            r#"<td class="n" data-name="Started (UTC)"><time datetime="2026-01-02T03:04:05Z">2026-01-02 03:04</time>"#,
            "1970-01-01 00:00</time>",
            r#"aria-sort="descending"><a href="/?sort=speedup">Speedup"#,
            r#"data-events="/events?sort=-speedup&amp;from=" data-revision="r1""#,
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.matches("aria-sort").count(), 1, "{text}");
    }

    #[test]
    fn jobs_of_the_same_name_are_shown_with_their_directory() {
        let mut jobs = [listed("toy", json!({})), listed("toy", json!({})), listed("other", json!({}))];
        jobs[1].place = "runs/toy".to_owned();
        distinguish(jobs.iter_mut());
        let query = Query::default();
        let text = page(&shown(&jobs, &[], &query), &query, "r1", false);
        for place in [".pawl/toy", "runs/toy"] {
            assert!(text.contains(&format!(r#">toy</a> <span class="muted">{place}</span>"#)), "{text}");
        }
        assert!(text.contains(">other</a></th>"), "{text}");
    }

    #[test]
    fn a_job_that_stopped_says_so() {
        let mut jobs = [listed("toy", json!({"stage": "Optimizing"})), listed("other", json!({"stage": "Optimizing"}))];
        jobs[0].stopped = true;
        let query = Query::default();
        let text = fragment(&shown(&jobs, &[], &query), &query);
        assert_eq!(text.matches(r#"<span class="badge unclear">stopped</span>"#).count(), 1, "{text}");
    }

    #[test]
    fn a_job_that_changes_no_more_says_since_when_but_not_that_it_stopped_too() {
        let training = || json!({"stage": "Training"});
        let jobs = [
            made("stopped", training(), true, Listed::new),
            made("in-a-storage", training(), false, Listed::recorded),
            listed("measured", json!({"stage": "Optimizing"})),
            listed("silent", training()),
        ];
        let query = Query::default();
        let page = |now: i64| {
            let now = Timestamp::from_second(now).unwrap();
            fragment(&Shown { now, ..shown(&jobs, &[], &query) }, &query)
        };
        assert!(!page(3_600).contains("no news"));
        let text = page(7_200);
        let silent =
            r#"<span class="badge unclear">no news since <time datetime="1970-01-01T00:00:00Z">1970-01-01 00:00"#;
        assert_eq!(text.matches(silent).count(), 1, "the one that stopped says that: {text}");
        let row = text.split("<tr>").find(|row| row.contains("/jobs/silent")).unwrap();
        assert!(row.contains(silent), "{text}");
        assert!(text.contains(r#"<span class="badge unclear">stopped</span>"#), "{text}");
    }

    #[test]
    fn judging_that_is_not_paid_back_is_words_and_sorted_by_its_share() {
        let cost = |percent: &str| json!({"cost": {"savedPercent": percent}});
        let jobs = [listed("much", cost("-4820")), listed("little", cost("-12")), listed("none", cost("3.4"))];
        let query = Query::parse("sort=saved").unwrap();
        let text = page(&shown(&jobs, &[], &query), &query, "r1", false);
        assert_eq!(text.matches(">not yet paid back<").count(), 2, "{text}");
        let places = ["much", "little", "none"].map(|name| text.find(&format!("/jobs/{name}\"")).unwrap());
        assert!(places.is_sorted() && text.contains(">+3 %<") && !text.contains("4820"), "{text}");
    }

    #[test]
    fn hostile_names_and_messages_stay_text() {
        let hostile = "\"><script>alert(1)</script>\u{1b}\u{202e}/../x";
        let jobs = [listed(hostile, json!({"progress": hostile}))];
        let problems = [hostile.to_owned()];
        let query = Query { text: "<script>".to_owned(), ..Query::default() };
        let text = page(&shown(&jobs, &problems, &query), &query, "r1", false);
        assert!(text.contains("alert(1)") && !text.contains("<script>"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        assert!(text.contains("/jobs/%22%3E%3Cscript%3E") && text.contains("%2F..%2Fx\""), "{text}");
    }

    #[test]
    fn an_empty_list_says_what_to_do() {
        let query = Query { text: "nothing".to_owned(), ..Query::default() };
        let (places, instead) = (vec!["/runs".to_owned()], vec!["/runs/<a b>/.pawl".to_owned()]);
        let looked = Looked { places, instead };
        let text = page(&Shown { looked: &looked, ..shown(&[], &[], &query) }, &query, "", false);
        for part in ["pawl run FILE", "no jobs yet in /runs.", "pawl ui '/runs/&lt;a b&gt;/.pawl'"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let jobs = [listed("toy", json!({}))];
        let text = fragment(&shown(&jobs, &[], &query), &query);
        assert!(text.contains("None of the 1 jobs matches") && text.contains(r#"href="/""#), "{text}");
    }
}
