//! Who may do what: an editor of TrainingJobs is an editor of TrainingJobs, and nothing more.

use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::job::{toy, training};
use pawl_e2e::operator::write_kubeconfig;
use pawl_e2e::programs::{repository, run, succeed};
use pawl_e2e::scene::stage;
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The rules of a role of the chart that holds no template in them.
fn chart_role(name: &str) -> Vec<Value> {
    let template = std::fs::read_to_string(repository().join("charts/pawl/templates/userroles.yaml")).unwrap();
    let from = template.split_once(&format!("name: {name}\n")).expect("the chart has the role").1;
    let rules = from.split_once("\nrules:\n").unwrap().1;
    let rules = rules.split("\n---").next().unwrap().split("{{").next().unwrap();
    serde_saphyr::from_str(rules).unwrap()
}

/// A service account of the scene with a role of the chart, and its kubeconfig.
fn person(scene: &Scene, role: &str) -> PathBuf {
    scene.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": role}}));
    scene.allow(role, chart_role(role));
    let token = succeed(&mut scene.kubectl(&["create", "token", role, "--duration=1h"]));
    let path = scene.directory.path().join(format!("{role}.kubeconfig"));
    write_kubeconfig(&path, token.trim(), None);
    path
}

#[test]
fn an_editor_of_jobs_can_do_nothing_else() {
    scene(async |scene| {
        let editor = person(scene, "pawl-edit");
        let kubectl = |arguments: &[&str]| -> Command {
            let mut command = scene.kubectl(&[]);
            command.arg("--kubeconfig").arg(&editor).args(arguments);
            command
        };
        let file = scene.directory.path().join("toy.json");
        std::fs::write(&file, toy(|job| job["spec"]["suspend"] = true.into()).to_string()).unwrap();
        succeed(kubectl(&["apply", "-f"]).arg(&file));
        succeed(&mut kubectl(&["get", "trainingjob", "toy"]));
        succeed(&mut kubectl(&["patch", "trainingjob", "toy", "--type=merge", "-p", r#"{"spec":{"seeds":[1]}}"#]));
        succeed(&mut kubectl(&["delete", "trainingjob", "toy"]));

        // All that it may do here, as the API server sees it.
        let may = succeed(&mut kubectl(&["auth", "can-i", "--list", "--no-headers"]));
        let foreign: Vec<_> = may
            .lines()
            .filter(|line| !line.starts_with(' ') && !line.starts_with("trainingjobs.pawl.dev"))
            // What anybody may: ask about itself.
            .filter(|line| !line.starts_with("self"))
            .filter(|line| !line.starts_with("trainingjobs.pawl.dev/status") || !line.contains("[get]"))
            .collect();
        assert!(foreign.is_empty(), "{foreign:#?}");
        for question in [
            "patch trainingjobs.pawl.dev --subresource=status",
            "create pods",
            "create pods --subresource=exec",
            "create jobs.batch",
            "get secrets",
            "get configmaps",
        ] {
            let mut command = kubectl(&["auth", "can-i"]);
            let answer = run(command.args(question.split(' ')));
            assert!(!answer.status.success(), "an editor may {question}");
        }
        let elsewhere =
            run(Command::new("kubectl").arg("--kubeconfig").arg(&editor).args(["-n", "default", "get", "tj"]));
        assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("Forbidden"), "{elsewhere:?}");
    });
}

#[test]
fn the_operator_needs_no_right_that_the_chart_does_not_give() {
    scene(async |scene| {
        let operator = scene.operator().await;
        // A gang with a token and a claim, suspended, resumed, and deleted.
        scene.apply(&training("all", 4, |job| job["spec"]["trainer"]["replicas"] = 2.into()));
        scene
            .until("pods", Duration::from_secs(60), async || (!scene.pods("all").await.is_empty()).then_some(()))
            .await;
        scene.patch_spec("all", json!({"suspend": true})).await;
        let suspended = |job: &TrainingJob| stage(job) == Stage::Suspended;
        scene.job_until("all", "to be suspended", Duration::from_secs(60), suspended).await;
        scene.patch_spec("all", json!({"suspend": false})).await;
        scene.complete("all", Duration::from_secs(120)).await;
        let log = operator.log();
        assert!(!log.to_lowercase().contains("forbidden"), "{log}");
    });
}
