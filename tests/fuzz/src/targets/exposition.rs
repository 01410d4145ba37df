//! The metrics of a foreign trainer, in Prometheus' text format.

use pawl_agent::exposition::{Known, merged};

const OWN: &str = "# HELP pawl_agent_ranks Ranks.\n# TYPE pawl_agent_ranks gauge\npawl_agent_ranks 2\n";

/// The agent's own metrics stay as they are, what is added is sound and bounded, and a second scrape adds the same.
pub fn run(input: &[u8]) {
    let theirs = String::from_utf8_lossy(input);
    let mut known = Known::default();
    let text = merged(OWN.to_owned(), &theirs, &mut known);
    let added = text.strip_prefix(OWN).expect("the own metrics come first");
    assert!(
        !samples(added).any(|line| line.split(['{', ' ']).next() == Some("pawl_agent_ranks")),
        "a trainer replaced a metric of the agent"
    );
    for line in added.lines() {
        assert!(!line.contains(char::is_control) && line.len() <= 4096, "{line:?}");
        let value = line.rsplit(' ').next().unwrap_or_default();
        assert!(line.starts_with("# ") || value.parse::<f64>().is_ok(), "{line:?}");
    }
    assert!(samples(added).count() <= 1000, "too many series");
    assert_eq!(merged(OWN.to_owned(), &theirs, &mut known), text, "a second scrape differs");
    let again = merged(String::new(), added, &mut Known::default());
    assert_eq!(sorted(&again), sorted(added), "what was exported is not accepted");
}

fn samples(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = samples(text).collect();
    lines.sort_unstable();
    lines
}
