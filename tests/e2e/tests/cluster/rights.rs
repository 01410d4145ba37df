//! Who may do what: an editor of TrainingJobs is an editor of TrainingJobs, and nothing more.

use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::job::{toy, training};
use pawl_e2e::operator::write_kubeconfig;
use pawl_e2e::programs::{repository, run, succeed};
use pawl_e2e::scene::{SCENE, stage};
use pawl_e2e::{Scene, scene};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The rules of a role of the chart that holds no template in them.
pub fn chart_role(name: &str) -> Vec<Value> {
    let template = std::fs::read_to_string(repository().join("charts/pawl/templates/userroles.yaml")).unwrap();
    let from = template.split_once(&format!("name: {name}\n")).expect("the chart has the role").1;
    let rules = from.split_once("\nrules:\n").unwrap().1;
    let rules = rules.split("\n---").next().unwrap().split("{{").next().unwrap();
    serde_saphyr::from_str(rules).unwrap()
}

/// A service account of the scene with a role of the chart, and its kubeconfig.
pub fn person(scene: &Scene, role: &str) -> PathBuf {
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

/// The chart's ValidatingAdmissionPolicy with a policy, for the namespace of the scene.
fn admission(scene: &Scene, policy: &Value) -> [Value; 2] {
    let file = std::fs::read_to_string(repository().join("charts/pawl/files/admission.yaml")).unwrap();
    let checks: Value = serde_saphyr::from_str(&file).unwrap();
    let lists = policy.as_object().unwrap().iter();
    let mut variables: Vec<_> =
        lists.map(|(name, entries)| json!({"name": name, "expression": entries.to_string()})).collect();
    variables.extend(checks["variables"].as_array().unwrap().iter().cloned());
    let group = "admissionregistration.k8s.io/v1";
    let metadata = json!({"name": scene.namespace, "labels": {SCENE: scene.namespace}});
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}});
    let policy = json!({
        "apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": ["pawl.dev"], "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"], "resources": ["trainingjobs"]}]},
            "variables": variables, "validations": checks["validations"],
        },
    });
    let binding = json!({
        "apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata,
        "spec": {"policyName": scene.namespace, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": here}},
    });
    [policy, binding]
}

/// A pod template with a volume.
fn volume(source: Value) -> Value {
    let mut volume = json!({"name": "v"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"volumes": [volume]})
}

/// What a user could reach through the pods of the operator, beyond what a TrainingJob is for.
fn foreign_references() -> Vec<(&'static str, Value)> {
    let variable = json!({"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]});
    let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
    let from = json!([{"secretRef": {"name": "db"}}]);
    let sidecar = |name: &str, environment: Value| {
        let mut container = json!({"name": "s", "image": "s", "restartPolicy": "Always"});
        container[name] = environment;
        json!({"initContainers": [container]})
    };
    vec![
        ("secret-in-env", variable.clone()),
        ("secret-in-sidecar", sidecar("env", variable["env"].clone())),
        ("secrets-in-env", json!({"envFrom": from})),
        ("secrets-in-sidecar", sidecar("envFrom", from)),
        ("secret-volume", volume(json!({"secret": {"secretName": "db"}}))),
        ("projected-secret", projected(json!({"secret": {"name": "db"}}))),
        ("api-token", projected(json!({"serviceAccountToken": {"path": "token"}}))),
        ("csi-secret", volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "db"}}}))),
        ("host-path", volume(json!({"hostPath": {"path": "/etc"}}))),
        ("nfs", volume(json!({"nfs": {"server": "s", "path": "/"}}))),
        ("service-account", json!({"serviceAccountName": "pawl"})),
        ("priority", json!({"priorityClassName": "system-node-critical"})),
        ("runtime", json!({"runtimeClassName": "privileged"})),
        ("pull-secret", json!({"imagePullSecrets": [{"name": "db"}]})),
        ("ids", json!({"securityContext": {"runAsUser": 1, "supplementalGroups": [0]}})),
    ]
}

/// Fields of pods that a TrainingJob does not have: the API server refuses them in every case.
fn absent_fields() -> Vec<Value> {
    vec![
        json!({"hostNetwork": true}),
        json!({"hostPID": true}),
        json!({"hostIPC": true}),
        json!({"nodeName": "node-1"}),
        json!({"automountServiceAccountToken": true}),
        json!({"securityContext": {"privileged": true}}),
        json!({"containers": [{"name": "s", "image": "s"}]}),
        json!({"initContainers": [{"name": "s", "image": "s", "securityContext": {"privileged": true}}]}),
        json!({"initContainers": [{"name": "s", "image": "s", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
        json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
        volume(json!({"iscsi": {"targetPortal": "p", "iqn": "i", "lun": 0}})),
        volume(json!({"cephfs": {"monitors": ["m"]}})),
    ]
}

fn with_template(name: &str, template: &Value) -> Value {
    toy(|job| {
        job["metadata"]["name"] = name.into();
        job["spec"]["trainer"]["podTemplate"] = template.clone();
    })
}

/// The policy of the chart by default, which allows no reference.
fn empty_policy() -> Value {
    json!({
        "allowedSecrets": [], "allowedImagePullSecrets": [], "allowedServiceAccounts": [], "allowedPriorityClasses": [],
        "allowedRuntimeClasses": [], "allowedHostPaths": [], "allowedVolumeTypes": [], "allowedIds": [],
    })
}

/// The jobs with references of others, which exist already, fail without a pod.
async fn refused_by_the_operator(scene: &Scene) {
    let _operator = scene.operator().await;
    for (name, _) in foreign_references() {
        let failed = |job: &TrainingJob| stage(job) == Stage::Failed;
        let job = scene.job_until(name, "to be refused", Duration::from_secs(30), failed).await;
        let failure = job.status.unwrap().failure.unwrap();
        assert_eq!(failure.reason, "NotAllowed", "{name}: {}", failure.message);
        assert!(failure.message.contains("spec.trainer.podTemplate"), "{name}: {}", failure.message);
        assert_eq!(scene.count_owned(name).await, 0, "{name} has objects");
    }
}

#[test]
fn an_editor_of_jobs_reaches_no_secret_account_or_node_through_the_operator() {
    scene(async |scene| {
        let editor = person(scene, "pawl-edit");
        let apply = |manifest: &Value| {
            let file = scene.directory.path().join("job.json");
            std::fs::write(&file, manifest.to_string()).unwrap();
            let mut command = scene.kubectl(&["apply", "--kubeconfig"]);
            run(command.arg(&editor).arg("-f").arg(file))
        };
        for template in absent_fields() {
            let answer = apply(&with_template("absent", &template));
            let refusal = String::from_utf8_lossy(&answer.stderr).into_owned();
            assert!(!answer.status.success() && refusal.contains("unknown field"), "{template}: {refusal}");
        }

        // The chart's admission policy refuses the others at apply.
        let [policy, binding] = admission(scene, &empty_policy());
        scene.apply(&policy);
        scene.apply(&binding);
        let denied = |name: &str, template: &Value| {
            let answer = apply(&with_template(name, template));
            let refusal = String::from_utf8_lossy(&answer.stderr).into_owned();
            (!answer.status.success()).then_some(refusal)
        };
        let references = foreign_references();
        let (_, first) = &references[0];
        // A binding takes effect within seconds. What is there already would be unchanged, and no request.
        let look = async || {
            let refusal = denied("secret-in-env", first);
            succeed(&mut scene.kubectl(&["delete", "trainingjobs", "--all"]));
            refusal
        };
        scene.until("the admission policy", Duration::from_secs(30), look).await;
        for (name, template) in foreign_references() {
            let refusal = denied(name, &template).unwrap_or_else(|| panic!("{name} is accepted"));
            let told = refusal.contains("spec.trainer.podTemplate") && refusal.contains("chart");
            assert!(told, "{name}: {refusal}");
        }
        let mut own = volume(json!({"configMap": {"name": "c"}}));
        own["serviceAccountName"] = "default".into();
        let answer = apply(&toy(|job| {
            job["metadata"]["name"] = "own".into();
            job["spec"]["suspend"] = true.into();
            job["spec"]["trainer"]["podTemplate"] = own;
        }));
        assert!(answer.status.success(), "{answer:?}");
        let kinds = "validatingadmissionpolicybindings,validatingadmissionpolicies";
        succeed(&mut scene.kubectl(&["delete", kinds, &scene.namespace]));
        scene
            .until("the admission policy to be gone", Duration::from_secs(30), async || {
                denied("secret-in-env", first).is_none().then_some(())
            })
            .await;

        // Without it, the operator refuses them: no batch Job is created for any of them.
        for (name, template) in foreign_references() {
            assert_eq!(denied(name, &template), None, "{name}");
        }
        refused_by_the_operator(scene).await;
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
