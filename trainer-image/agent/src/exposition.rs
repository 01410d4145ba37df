//! Prometheus' text format: merges a trainer's metrics, without lines that would make the scrape of the pod fail.

use pawl_contract::report::unprintable;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum number of series of a trainer, over all scrapes of an agent: series that replace others count too, because
/// Prometheus stores each of them.
const MAX_SERIES: usize = 1000;
/// Maximum length of a line of a trainer, bytes.
const MAX_LINE: usize = 2048;
/// Types of metrics.
const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];
/// Suffixes of the series of a histogram or summary.
const SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// The names with the prefix `pawl_` that a trainer may export, as the built-in one does. Those of the agent and of the
/// operator would hide or replace what they measure, and mute alerts.
const OF_TRAINERS: [&str; 22] = [
    "pawl_checkpoint_failures_total",
    "pawl_checkpoint_seconds",
    "pawl_collective_seconds_total",
    "pawl_gpu_memory_bytes",
    "pawl_gpu_power_watts",
    "pawl_gpu_sm_clock_hertz",
    "pawl_gpu_temperature_celsius",
    "pawl_gpu_throttled",
    "pawl_gpu_xid",
    "pawl_loader_wait_seconds_total",
    "pawl_train_busy_seconds_total",
    "pawl_train_compile_seconds",
    "pawl_train_epoch_seconds",
    "pawl_train_float8_overflow_ratio",
    "pawl_train_float8_underflow_ratio",
    "pawl_train_gradient_norm",
    "pawl_train_learning_rate",
    "pawl_train_memory_bytes",
    "pawl_train_mfu_ratio",
    "pawl_train_skipped_updates_total",
    "pawl_train_step_seconds",
    "pawl_train_utilization_ratio",
];
/// Names under which Prometheus stores what it knows of its targets and alerts.
const OF_PROMETHEUS: [&str; 3] = ["up", "ALERTS", "ALERTS_FOR_STATE"];

/// Whether a trainer may not export a series of this name.
fn is_reserved(name: &str) -> bool {
    let base = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    let of_pawl = name.starts_with("pawl_") && !OF_TRAINERS.contains(&name) && !OF_TRAINERS.contains(&base);
    of_pawl || OF_PROMETHEUS.contains(&name) || name.starts_with("scrape_")
}

/// One metric: its comments and its series.
#[derive(Default)]
struct Family<'a> {
    help: Option<&'a str>,
    kind: Option<&'a str>,
    series: Vec<&'a str>,
}

/// The series that a trainer has exported so far.
#[derive(Debug, Default)]
pub struct Known {
    series: BTreeSet<String>,
    /// Whether the log says that it uses a reserved name.
    warned: bool,
}

impl Known {
    /// Whether `series` may be exported: it was before, or there is room for another one.
    fn admits(&mut self, series: &str) -> bool {
        self.series.contains(series) || (self.series.len() < MAX_SERIES && self.series.insert(series.to_owned()))
    }

    /// Whether a trainer may export a series of this name. The first one that it may not is logged.
    fn allows(&mut self, name: &str) -> bool {
        let reserved = is_reserved(name);
        if reserved && !self.warned {
            self.warned = true;
            tracing::warn!(name, "the trainer exports a metric with a reserved name: dropped, as all of its kind");
        }
        !reserved
    }
}

/// `own`, and every metric of `theirs` that is not in `own`. Malformed and long lines, duplicate series, series with a
/// timestamp, control characters, reserved names, and series beyond [`MAX_SERIES`] are dropped.
pub fn merged(own: String, theirs: &str, known: &mut Known) -> String {
    let taken: BTreeSet<String> = own.lines().filter_map(|line| Some(comment(line, "TYPE")?.0.to_owned())).collect();
    let mut text = own;
    for (name, Family { help, kind, series }) in families(theirs, known) {
        if series.is_empty() || taken.contains(name) {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = help.map(|help| writeln!(text, "# HELP {name} {help}"));
        let _ = kind.map(|kind| writeln!(text, "# TYPE {name} {kind}"));
        series.iter().for_each(|line| text.extend([line, "\n"]));
    }
    text
}

fn families<'a>(text: &'a str, admitted: &mut Known) -> BTreeMap<&'a str, Family<'a>> {
    let mut families = BTreeMap::<&str, Family<'_>>::new();
    let mut known = BTreeSet::new();
    let sound = |line: &&str| line.len() <= MAX_LINE && !line.contains(unprintable);
    for line in text.lines().filter(sound) {
        if let Some((name, help)) = comment(line, "HELP") {
            families.entry(name).or_default().help.get_or_insert(help);
        } else if let Some((name, kind)) = comment(line, "TYPE").filter(|(_, kind)| TYPES.contains(kind)) {
            families.entry(name).or_default().kind.get_or_insert(kind);
        } else if let Some((name, series)) = sample(line)
            && !known.contains(series)
            && admitted.allows(name)
            && admitted.admits(series)
        {
            known.insert(series);
            families.entry(family(name, &families)).or_default().series.push(line.trim_end());
        }
    }
    families
}

/// The metric to which a series of this name belongs.
fn family<'a>(name: &'a str, families: &BTreeMap<&str, Family<'_>>) -> &'a str {
    let compound =
        |base: &&str| families.get(base).is_some_and(|family| matches!(family.kind, Some("histogram" | "summary")));
    SUFFIXES.iter().filter_map(|suffix| name.strip_suffix(suffix)).find(compound).unwrap_or(name)
}

/// Name and text of a `HELP` or `TYPE` comment.
fn comment<'a>(line: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    let rest = line.strip_prefix("# ")?.strip_prefix(keyword)?.strip_prefix(' ')?;
    let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
    let whole = !name.is_empty() && after_name(name, ":").is_some_and(str::is_empty);
    (whole && escapes_hold(text, "\\n")).then_some((name, text.trim_end()))
}

/// Name, and name with labels, of a line that is a sample.
fn sample(line: &str) -> Option<(&str, &str)> {
    let behind_name = after_name(line, ":")?;
    let name = &line[..line.len() - behind_name.len()];
    let behind_labels = match behind_name.strip_prefix('{') {
        Some(labels) => after_labels(labels)?,
        None => behind_name,
    };
    let series = &line[..line.len() - behind_labels.len()];
    let number = behind_labels.strip_prefix(' ')?.trim();
    number.parse::<f64>().is_ok().then_some((name, series))
}

/// The rest after a name, which may contain `more` besides letters, digits and underscores.
fn after_name<'a>(text: &'a str, more: &str) -> Option<&'a str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || more.contains(c);
    let rest = text.trim_start_matches(allowed);
    (rest.len() < text.len() && !text.starts_with(|c: char| c.is_ascii_digit())).then_some(rest)
}

/// The rest after the brace that ends the labels.
fn after_labels(mut text: &str) -> Option<&str> {
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some(rest);
        }
        let value = after_name(text, "")?.strip_prefix("=\"")?;
        let mut escaped = false;
        let end = value.find(|c| {
            let quote = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            quote
        })?;
        if !escapes_hold(&value[..end], "\\n\"") {
            return None;
        }
        let rest = &value[end + 1..];
        text = rest.strip_prefix(',').or_else(|| rest.starts_with('}').then_some(rest))?;
    }
}

/// Whether every backslash stands before one of `allowed`.
fn escapes_hold(text: &str, allowed: &str) -> bool {
    let mut escaped = false;
    let hold = text.chars().all(|c| {
        let fine = !escaped || allowed.contains(c);
        escaped = c == '\\' && !escaped;
        fine
    });
    hold && !escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(own: String, theirs: &str) -> String {
        merged(own, theirs, &mut Known::default())
    }

    #[test]
    fn a_trainers_metrics_are_added_as_they_are() {
        let theirs = "# HELP t_seconds Of \\\\ a step.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"1\"} 2\n\
                      t_seconds_bucket{le=\"+Inf\"} 3\nt_seconds_sum 4.5\nt_seconds_count 3\nt_untyped{a=\"x\\\"},\"} NaN\n";
        let own = "# TYPE own counter\nown 1\n".to_owned();
        assert_eq!(fresh(own.clone(), theirs), format!("{own}{theirs}"));
        assert_eq!(fresh(own.clone(), ""), own);
    }

    #[test]
    fn what_would_spoil_a_scrape_is_left_out() {
        let own = "# HELP own Ours.\n# TYPE own gauge\nown 1\n".to_owned();
        for spoiling in [
            "own 2",
            "# TYPE own counter\nown{a=\"b\"} 2",
            "1name 1",
            "name",
            "name one",
            "name 1 1700000000000",
            "name{a=\"b} 1",
            "name{a=b} 1",
            "name{a=\"\\x\"} 1",
            "name{=\"b\"} 1",
            "name{a=\"b\"}1",
            "{a=\"b\"} 1",
            "# TYPE name gauge",
            "# TYPE name rubbish",
            "\u{0}\u{1}",
            "<html>",
            "name{a=\"\u{1b}[31m\"} 1",
            "name{a=\"\u{202e}\"} 1",
        ] {
            assert_eq!(fresh(own.clone(), spoiling), own, "{spoiling}");
        }
        // Only the truncated line is lost, a series counts once, and the series of a metric are grouped.
        let mixed = "a{x=\"1\"} 1\nb 2\na{x=\"1\"} 3\na{x=\"2\"} 4\nc{x=";
        assert_eq!(fresh(String::new(), mixed), "a{x=\"1\"} 1\na{x=\"2\"} 4\nb 2\n");
    }

    #[test]
    fn a_trainer_cannot_speak_for_operator_agent_or_prometheus() {
        for reserved in [
            "pawl_leader 1",
            "# TYPE pawl_reconcile_duration_seconds histogram\npawl_reconcile_duration_seconds_count 9",
            "pawl_job_condition{namespace=\"n\",job=\"victim\",condition=\"Failed\"} 1",
            // The agent exports it once there is a loss.
            "pawl_train_loss 7",
            "up 0",
            "ALERTS{alertname=\"x\",alertstate=\"firing\"} 1",
            "ALERTS_FOR_STATE 1",
            "scrape_duration_seconds 1",
        ] {
            assert_eq!(fresh(String::new(), reserved), "", "{reserved}");
        }
        let own = "pawl_train_mfu_ratio 0.4\npawl_train_step_seconds_sum 4\nups_train_loss 7\n";
        assert_eq!(fresh(String::new(), own), own);
    }

    #[test]
    fn the_names_of_trainers_are_those_of_the_built_in_one() {
        let source = include_str!("../../launch/src/metrics.rs");
        let literals = source.split('"').filter(|text| {
            text.starts_with("pawl_") && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        });
        assert_eq!(literals.collect::<BTreeSet<_>>(), OF_TRAINERS.into_iter().collect());
    }

    #[test]
    fn a_trainer_cannot_flood_the_scrape() {
        let flood = |prefix: &str| (0..100_000).map(|i| format!("name{{{prefix}=\"{i}\"}} 1\n")).collect::<String>();
        let mut known = Known::default();
        assert_eq!(merged(String::new(), &flood("a"), &mut known).lines().count(), MAX_SERIES);
        // Nor Prometheus, with other series at each scrape; those that it has exported before remain.
        assert_eq!(merged(String::new(), &flood("b"), &mut known), "");
        assert_eq!(merged(String::new(), "name{a=\"7\"} 2\nnew 1", &mut known), "name{a=\"7\"} 2\n");
        let long = format!("name{{a=\"{}\"}} 1", "x".repeat(MAX_LINE));
        assert_eq!(merged(String::new(), &long, &mut Known::default()), "");
    }
}
