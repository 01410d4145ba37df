//! What a user pastes to keep the result of a job: the settings into a manifest, or the command of a script into a
//! shell.

use super::evidence::Evidence;
use crate::shell;
use maud::{Markup, html};
use pawl_contract::provenance::without_secrets;
use pawl_contract::settings::Settings;
use serde_json::json;

/// The heading, which says where it is pasted.
pub const fn title(evidence: &Evidence) -> &'static str {
    if evidence.command.is_some() { "Paste into your shell" } else { "Paste into your manifest" }
}

/// The block to paste; `None` for a job that neither judges nor searches.
pub fn section(evidence: &Evidence) -> Option<Markup> {
    let Evidence { job, status, command, .. } = evidence;
    if job.spec.phases.is_empty() && job.spec.search.is_empty() {
        return None;
    }
    let baseline = &job.spec.settings;
    let accepted = status.effective_settings.as_ref().unwrap_or(baseline);
    let is_open = status.phases.iter().any(|phase| !phase.state.is_final());
    if accepted == baseline {
        let nothing =
            if is_open { "Nothing so far: no change was accepted yet." } else { "Nothing: no change was accepted." };
        return Some(html! { p { (nothing) } });
    }
    let (what, text) = match command {
        Some(words) => {
            let shown = without_secrets(words);
            let hidden = if shown == *words { "" } else { " *** stands for values that may be secret: put them back." };
            (format!("Your command with the accepted changes.{hidden}"), shell::line(&shown))
        }
        None => ("This replaces spec.settings of your manifest.".to_owned(), manifest(accepted)),
    };
    Some(html! {
        p { (what) @if is_open { " Some phases are still open." } }
        pre.paste { (text) }
    })
}

/// The part of a manifest that has these settings.
fn manifest(settings: &Settings) -> String {
    let part = json!({"spec": {"settings": settings}});
    // JSON is YAML.
    serde_saphyr::to_string(&part).unwrap_or_else(|_| part.to_string()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn of(status: Value, command: Option<&[&str]>) -> Option<String> {
        let spec = json!({"workload": {"name": "ups"}, "settings": {"batchPerGpu": 8},
            "phases": [{"name": "graph", "settings": {"compile": "Graph"}}]});
        let job = serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap();
        let evidence = Evidence::new(job, serde_json::from_value(status).unwrap(), Vec::new(), Vec::new());
        let command = command.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        section(&evidence.with_command(command)).map(Markup::into_string)
    }

    fn block(page: &str) -> &str {
        page.split_once("<pre class=\"paste\">").unwrap().1.split_once("</pre>").unwrap().0
    }

    #[test]
    fn settings_are_a_part_of_a_manifest_which_reads_as_they_were() {
        let settings = json!({"batchPerGpu": 8, "compile": "Graph", "learningRate": "0.001", "nccl": {"NCCL_A": "1"}});
        let page = of(json!({"effectiveSettings": settings, "phases": [{"name": "graph", "state": "Accepted"}]}), None);
        let page = page.unwrap();
        let text = block(&page).replace("&quot;", "\"");
        assert!(text.starts_with("spec:\n  settings:\n") && text.contains("\n    compile: Graph\n"), "{text}");
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), json!({"spec": {"settings": settings}}));
        assert!(!page.contains("still open"), "{page}");
    }

    #[test]
    fn a_command_is_quoted_and_has_no_secrets() {
        let status =
            json!({"effectiveSettings": {"batchPerGpu": 16}, "phases": [{"name": "graph", "state": "Measuring"}]});
        let page = of(status.clone(), Some(&["env", "HF_TOKEN=x17", "train", "--out", "my runs"])).unwrap();
        assert_eq!(block(&page), "env 'HF_TOKEN=***' train --out 'my runs'");
        assert!(page.contains("put them back") && page.contains("still open"), "{page}");
        let page = of(status, Some(&["train", "--batch=16"])).unwrap();
        assert!(!page.contains("secret"), "{page}");
    }

    #[test]
    fn nothing_is_pasted_where_nothing_was_accepted() {
        let baseline = json!({"batchPerGpu": 8});
        let status =
            |state: &str| json!({"effectiveSettings": baseline, "phases": [{"name": "graph", "state": state}]});
        assert_eq!(of(status("RolledBack"), None).unwrap(), "<p>Nothing: no change was accepted.</p>");
        assert!(of(status("Measuring"), None).unwrap().contains("so far"));
        let job = serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"}}}));
        let trained = Evidence::new(job.unwrap(), Default::default(), Vec::new(), Vec::new());
        assert!(section(&trained).is_none(), "only trained");
    }
}
