//! What a user pastes to keep the result of a job: the settings into a manifest, or the command of a script into a
//! shell.

use super::evidence::Evidence;
use crate::settings::{Difference, differences};
use crate::shell;
use maud::{Markup, html};
use pawl_api::TrainingJob;
use pawl_api::status::{PhaseState, PhaseStatus};
use pawl_contract::provenance::without_secrets;
use pawl_contract::settings::Settings;
use pawl_contract::template::{Name, Places, Rendered, Values, is_template, references, render};
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
    let open = if is_open { " Some phases are still open." } else { "" };
    Some(match command {
        Some(words) => html! {
            p { "Your command with the accepted changes." (hidden(words)) (open) }
            pre.paste { (shell::line(&without_secrets(words))) }
        },
        None => html! {
            p { "This replaces spec.settings of your manifest." (open) }
            pre.paste { (manifest(accepted)) }
            @if let Some(again) = again(&status.phases) { p.muted { (again) } }
            @if !job.spec.workload.command.is_empty() { (script(job, accepted)) }
        },
    })
}

/// What becomes of the phases of a manifest whose settings these replace, if they stay there: the hash of a verdict's
/// inputs has the settings below the phase. These are others for all phases but those after the last accepted one.
fn again(phases: &[PhaseStatus]) -> Option<String> {
    let is_accepted = |phase: &PhaseStatus| phase.state == PhaseState::Accepted;
    let last = phases.iter().rposition(is_accepted)?;
    let names = |phases: &[PhaseStatus], accepted: bool| -> Option<String> {
        let of_state = phases.iter().filter(|phase| is_accepted(phase) == accepted);
        let names: Vec<&str> = of_state.map(|phase| phase.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let (before, after) = phases.split_at(last + 1);
    let skipped = names(before, true)?;
    let skipped = format!("If the phases stay in spec.phases: {skipped}: skipped, as these settings contain them");
    let again = names(before, false).map(|names| format!("{names}: measured again, on top of these settings"));
    let elsewhere =
        names(after, false).map(|names| format!("{names}: the verdict stays in this job, and a new job measures it"));
    let all: Vec<String> = [Some(skipped), again, elsewhere].into_iter().flatten().collect();
    Some(all.join("; ") + ". Delete those that you do not want judged once more.")
}

/// What is to be said of a command whose secret values are hidden.
fn hidden(words: &[String]) -> &'static str {
    let is_hidden = without_secrets(words) != words;
    if is_hidden { " *** stands for values that may be secret: put them back." } else { "" }
}

/// How the settings reach the script of `job`, and its command with them if nothing else is in its placeholders.
fn script(job: &TrainingJob, accepted: &Settings) -> Markup {
    let rendered = filled(job, accepted);
    let of_command = rendered.filter(|rendered| !rendered.consumed.is_empty());
    html! {
        p {
            @if has_placeholders(job) {
                "The command of this job gets settings where it has placeholders, such as "
                code { "$(settings.batchPerGpu)" } "; what has none must be read by the program, with the Python \
                package pawl_launch."
            } @else {
                "The command of this job has no placeholder such as " code { "$(settings.batchPerGpu)" } ": its program \
                must read these settings from its plan, as the Python package pawl_launch does, or they change nothing."
            }
        }
        @if let Some(rendered) = of_command {
            @let unused = unused(&rendered, job, accepted);
            p {
                "The same as a command." (hidden(&rendered.command))
                @if !unused.is_empty() { " Not in it, since no placeholder has them: " (unused.join(", ")) "." }
            }
            pre.paste { (shell::line(&without_secrets(&rendered.command))) }
            @let variables: Vec<&str> = job.spec.trainer.pod_template.env.iter().map(|it| it.name.as_str()).collect();
            @if !variables.is_empty() {
                p.muted { "Without the variables of trainer.podTemplate.env: " (variables.join(", ")) "." }
            }
        }
    }
}

/// Whether a setting is in a placeholder of the command of `job`, or of a variable of its environment.
fn has_placeholders(job: &TrainingJob) -> bool {
    let workload = &job.spec.workload;
    let variables = job.spec.trainer.pod_template.env.iter().filter_map(|it| it.value.as_ref());
    let words = workload.command.iter().chain(&workload.args).chain(variables);
    let found = words.filter_map(|word| references(word).ok()).flatten();
    found.into_iter().any(|(name, _)| matches!(name, Name::Setting(_) | Name::Workload(_)))
}

/// The command of `job` with the settings `accepted`; `None` if something else is to be filled in: what only a launch
/// has, such as its directories, or a variable of its environment. Several processes have more to be started with than
/// a command.
fn filled(job: &TrainingJob, accepted: &Settings) -> Option<Rendered> {
    let workload = &job.spec.workload;
    let command = [&workload.command[..], &workload.args[..]].concat();
    let is_setting = |(name, _): &(Name, bool)| matches!(name, Name::Setting(_) | Name::Workload(_));
    if !command.iter().all(|word| references(word).is_ok_and(|found| found.iter().all(is_setting))) {
        return None;
    }
    let preview = pawl_decision::preview(job);
    if preview.world_size() > 1 || preview.script.env.values().any(|value| is_template(value)) {
        return None;
    }
    let mut plan = preview.launches.first()?.clone();
    plan.settings = accepted.clone();
    let (places, variable) = (Places::default(), |_: &str| None);
    let values = Values { plan: &plan, world_size: preview.world_size(), places: &places, variable: &variable };
    render(&command, &Default::default(), &values).ok().filter(|rendered| rendered.unset.is_empty())
}

/// The accepted changes that are in no placeholder.
fn unused(rendered: &Rendered, job: &TrainingJob, accepted: &Settings) -> Vec<String> {
    let changed = differences(&job.spec.settings, accepted).into_iter().filter(Difference::changed);
    changed.map(|setting| setting.name).filter(|name| !rendered.consumed.contains(name)).collect()
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

    /// The page of a job whose program is this command, after `graph` was accepted.
    fn of_script(command: &[&str], args: &[&str]) -> String {
        of_trainer(&json!({"gpusPerReplica": 0}), command, args)
    }

    /// The same with this trainer.
    fn of_trainer(trainer: &Value, command: &[&str], args: &[&str]) -> String {
        let spec = json!({"workload": {"command": command, "args": args}, "settings": {"batchPerGpu": 8},
            "trainer": trainer, "phases": [{"name": "graph", "settings": {"compile": "Graph"}}]});
        let job = serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap();
        let status = json!({"effectiveSettings": {"batchPerGpu": 16, "compile": "Graph"},
            "phases": [{"name": "graph", "state": "Accepted"}]});
        let status = serde_json::from_value(status).unwrap();
        section(&Evidence::new(job, status, Vec::new(), Vec::new())).unwrap().into_string()
    }

    #[test]
    fn the_settings_of_a_script_are_a_command_too_where_its_placeholders_are_settings() {
        let page = of_script(
            &["python", "train.py", "--out=my runs"],
            &["--batch=$(settings.batchPerGpu)", "$(settings.compile=Graph:+--compile)"],
        );
        let command = "python train.py '--out=my runs' --batch=16 --compile</pre>";
        assert!(page.contains(&format!("<pre class=\"paste\">{command}")), "{page}");
        assert!(page.contains("pawl_launch") && !page.contains("Not in it"), "{page}");
        let page = of_script(&["python", "train.py", "--batch=$(settings.batchPerGpu)", "--token=x17"], &[]);
        assert!(page.contains("Not in it, since no placeholder has them: compile.") && !page.contains("x17"), "{page}");
    }

    #[test]
    fn several_processes_are_no_command_and_variables_of_the_manifest_are_named_without_values() {
        let of = |trainer: Value| of_trainer(&trainer, &["train", "--batch=$(settings.batchPerGpu)"], &[]);
        let one = of(json!({"gpusPerReplica": 0}));
        assert!(one.contains("The same as a command.") && !one.contains("Without the variables"), "{one}");
        for several in [json!({"gpusPerReplica": 0, "replicas": 2}), json!({"gpusPerReplica": 2})] {
            let page = of(several);
            assert!(!page.contains("The same as a command") && page.contains("pawl_launch"), "{page}");
        }
        let env = json!([{"name": "MODE", "value": "x17"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef":
            {"name": "hub", "key": "token"}}}]);
        let page = of(json!({"gpusPerReplica": 0, "podTemplate": {"env": env}}));
        assert!(page.contains("Without the variables of trainer.podTemplate.env: MODE, TOKEN."), "{page}");
        assert!(!page.contains("x17") && !page.contains("hub"), "{page}");
    }

    #[test]
    fn a_command_of_which_only_a_launch_knows_a_part_is_left_out() {
        let batch = "--batch=$(settings.batchPerGpu)";
        for command in [&["train", batch, "--steps=$(launch.steps)"][..], &["train", batch, "$(HOME)"], &["train"]] {
            let page = of_script(command, &[]);
            assert!(!page.contains("The same as a command") && page.contains("pawl_launch"), "{command:?}: {page}");
            assert_eq!(page.matches("class=\"paste\"").count(), 1, "{command:?}: {page}");
        }
    }

    #[test]
    fn what_becomes_of_judged_phases_is_said_once_settings_replace_the_baseline() {
        let phase = |name: &str, state: &str| json!({"name": name, "state": state});
        let phases = [phase("slow", "RolledBack"), phase("graph", "Accepted"), phase("late", "Inconclusive")];
        let status = json!({"effectiveSettings": {"batchPerGpu": 16}, "phases": phases});
        let page = of(status.clone(), None).unwrap();
        let said = "graph: skipped, as these settings contain them; slow: measured again, on top of these settings; late: the verdict \
             stays in this job, and a new job measures it.";
        assert!(page.contains(said), "{page}");
        assert!(page.contains("graph: skipped") && !page.contains("pawl_launch"), "{page}");
        assert!(!of(status, Some(&["train"])).unwrap().contains("measured again"), "a command has no phases");
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
