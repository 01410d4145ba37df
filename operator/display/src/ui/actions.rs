//! What a user may do with a job of a cluster, each asked for again in a dialog. Without scripts, nothing can be done.

use super::list::address;
use maud::{Markup, html};
use pawl_api::TrainingJob;
use pawl_api::spec::Pin;

/// Values of a pin that can be chosen.
pub const PINS: [Pin; 3] = [Pin::Accepted, Pin::RolledBack, Pin::DryRun];
/// Removes a pin.
pub const NO_PIN: &str = "none";
/// Stands for all phases. No phase has this name, which is no name of Kubernetes.
pub const ALL_PHASES: &str = "*";

/// What forms need that a server accepts.
#[derive(Clone, Debug)]
pub struct Actions {
    /// What only pages of the server know, so that no other website can make a form that it accepts.
    pub token: String,
}

impl Actions {
    /// Buttons and dialogs for the job with this key.
    pub(super) fn render(&self, key: &str, job: &TrainingJob) -> Markup {
        let form = Form { token: &self.token, key, uid: job.metadata.uid.as_deref().unwrap_or_default() };
        let phases: Vec<(&str, Option<Pin>)> =
            job.spec.phases.iter().map(|phase| (phase.name.as_str(), phase.pin)).collect();
        html! {
            section.actions aria-label="Actions" {
                @if job.spec.suspend {
                    (form.dialog("resume", "Resume", &html! { p { "The job continues where it stopped." } }))
                } @else {
                    (form.dialog("suspend", "Suspend", &html! {
                        p { "The job stops after a checkpoint, and releases all devices." }
                    }))
                }
                @if !phases.is_empty() {
                    (form.dialog("rollback", "Roll back", &html! {
                        p { "The phase is pinned to RolledBack: not applied, without measurement." }
                        (choice(&phases, Some("all phases: train with the baseline")))
                        (warning())
                    }))
                    (form.dialog("pin", "Pin", &html! {
                        p { "A manual override of the measured verdict." }
                        (choice(&phases, None))
                        label {
                            "To"
                            select name="to" {
                                option value=(Pin::Accepted) { "Accepted: apply it, without measurement" }
                                option value=(Pin::RolledBack) { "RolledBack: do not apply it, without measurement" }
                                option value=(Pin::DryRun) { "DryRun: measure it, but do not apply it" }
                                option value=(NO_PIN) { "no pin: the measurement decides" }
                            }
                        }
                        (warning())
                    }))
                }
            }
        }
    }
}

/// A later `kubectl apply` writes what the manifest says.
fn warning() -> Markup {
    html! {
        p.muted { "Set " code { "pin:" } " in the manifest too, or the next kubectl apply of it removes this pin." }
    }
}

/// The phases with their pins.
fn choice(phases: &[(&str, Option<Pin>)], all: Option<&str>) -> Markup {
    html! {
        label {
            "Phase"
            select name="phase" {
                @for (name, pin) in phases {
                    option value=(name) { (name) @if let Some(pin) = pin { ", pinned to " (pin) } }
                }
                @if let Some(all) = all { option value=(ALL_PHASES) { (all) } }
            }
        }
    }
}

/// What the forms of a job have in common.
struct Form<'a> {
    token: &'a str,
    key: &'a str,
    uid: &'a str,
}

impl Form<'_> {
    /// A button, and the dialog that it opens.
    fn dialog(&self, action: &str, title: &str, content: &Markup) -> Markup {
        let id = format!("{action}-dialog");
        html! {
            button type="button" data-dialog=(id) aria-label={ (title) "…" } { (title) "…" }
            dialog id=(id) aria-labelledby={ (id) "-title" } {
                form method="post" action={ (address(self.key)) "/actions/" (action) } {
                    h2 id={ (id) "-title" } { (title) " " (self.key) "?" }
                    (content)
                    input type="hidden" name="token" value=(self.token);
                    input type="hidden" name="uid" value=(self.uid);
                    p {
                        button { (title) } " "
                        button type="button" data-close=(id) aria-label={ "Cancel: " (title) } { "Cancel" }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(suspend: bool) -> String {
        let job = json!({"metadata": {"name": "toy", "uid": "u-1"}, "spec": {"workload": {"name": "ups"},
            "suspend": suspend, "phases": [{"name": "graph", "settings": {"compile": "Graph"}, "pin": "DryRun"}]}});
        let job: TrainingJob = serde_json::from_value(job).unwrap();
        Actions { token: "t-1".to_owned() }.render("toy@team", &job).into_string()
    }

    #[test]
    fn each_action_is_a_form_that_is_sent_from_its_dialog() {
        let text = render(false);
        assert_eq!(text.matches("<dialog").count(), 3, "{text}");
        for action in ["suspend", "rollback", "pin"] {
            assert!(text.contains(&format!(r#"method="post" action="/jobs/toy%40team/actions/{action}""#)), "{text}");
            assert!(text.contains(&format!(r#"data-dialog="{action}-dialog""#)), "{text}");
        }
        assert_eq!(text.matches(r#"name="token" value="t-1""#).count(), 3, "{text}");
        assert_eq!(text.matches(r#"name="uid" value="u-1""#).count(), 3, "{text}");
        assert!(text.contains("graph, pinned to DryRun"), "{text}");
        assert!(!text.contains("/actions/resume\""), "it is not suspended: {text}");
    }

    #[test]
    fn a_suspended_job_can_be_resumed() {
        let text = render(true);
        assert!(text.contains("/actions/resume\"") && !text.contains("/actions/suspend\""), "{text}");
    }

    #[test]
    fn every_pin_can_be_chosen() {
        let text = render(false);
        for pin in PINS {
            assert!(text.contains(&format!(r#"<option value="{pin}">"#)), "{text}");
        }
    }
}
