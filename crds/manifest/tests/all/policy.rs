//! The policy for pod templates: the CEL checks of the chart's ValidatingAdmissionPolicy, run by a CEL interpreter,
//! deny what the operator denies, and admit what it admits.

use crate::cel::to_cel;
use cel::{Context, Program, Value as Cel};
use pawl_api::{Policy, TrainingJob};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

fn evaluate(text: &str, object: &Value, variables: &HashMap<String, Cel>) -> Cel {
    let mut context = Context::default();
    context.add_variable_from_value("object", to_cel(object));
    context.add_variable_from_value("variables", Cel::from(variables.clone()));
    let program = Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    program.execute(&context).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The parts of the ValidatingAdmissionPolicy that do not depend on values of the chart.
fn admission() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/pawl/files/admission.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Whether the checks apply to a request: all match conditions hold.
fn is_checked(operation: &str, object: &Value, old: &Value) -> bool {
    let holds = |condition: &Value| {
        let mut context = Context::default();
        context.add_variable_from_value("request", to_cel(&json!({"operation": operation})));
        context.add_variable_from_value("object", to_cel(object));
        context.add_variable_from_value("oldObject", to_cel(old));
        let program = Program::compile(condition["expression"].as_str().unwrap()).unwrap();
        match program.execute(&context).unwrap() {
            Cel::Bool(holds) => holds,
            other => panic!("{condition}: {other:?}"),
        }
    };
    let conditions = admission()["matchConditions"].clone();
    let conditions = conditions.as_array().unwrap();
    assert!(!conditions.is_empty());
    conditions.iter().all(holds)
}

#[test]
fn a_stricter_policy_does_not_block_changes_of_the_metadata_of_a_job() {
    let old = job(&volume(json!({"secret": {"secretName": "db"}})));
    assert!(is_checked("CREATE", &old, &Value::Null));
    let change = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        new
    };
    let labelled = change(|job| job["metadata"]["labels"] = json!({"team": "a"}));
    assert!(!is_checked("UPDATE", &labelled, &old));
    let released = change(|job| job["metadata"]["finalizers"] = json!([]));
    assert!(!is_checked("UPDATE", &released, &old), "a job that was deleted could not go");
    assert!(!is_checked("UPDATE", &change(|job| job["status"] = json!({"stage": "Complete"})), &old));
    let edited =
        change(|job| job["spec"]["trainer"]["podTemplate"]["volumes"][0]["secret"]["secretName"] = json!("other"));
    assert!(is_checked("UPDATE", &edited, &old));
    assert!(is_checked("UPDATE", &change(|job| job["spec"]["suspend"] = json!(true)), &old));
}

/// The messages of the checks that deny `job` under `policy`.
fn denied(job: &Value, policy: &Policy) -> Vec<String> {
    let checks = admission();
    let mut variables = HashMap::new();
    for (list, entries) in serde_json::to_value(policy).unwrap().as_object().unwrap() {
        variables.insert(list.clone(), to_cel(entries));
    }
    for variable in checks["variables"].as_array().unwrap() {
        let value = evaluate(variable["expression"].as_str().unwrap(), job, &variables);
        variables.insert(variable["name"].as_str().unwrap().to_owned(), value);
    }
    let mut messages = Vec::new();
    for check in checks["validations"].as_array().unwrap() {
        match evaluate(check["expression"].as_str().unwrap(), job, &variables) {
            Cel::Bool(true) => {}
            Cel::Bool(false) => messages.push(match (check["message"].as_str(), check["messageExpression"].as_str()) {
                (Some(text), _) => text.to_owned(),
                (None, expression) => match evaluate(expression.unwrap(), job, &variables) {
                    Cel::String(text) => text.to_string(),
                    other => panic!("{check}: {other:?}"),
                },
            }),
            other => panic!("{check}: {other:?}"),
        }
    }
    messages
}

fn job(template: &Value) -> Value {
    let job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy", "namespace": "team"},
        "spec": {"workload": {"name": "ups"}, "trainer": {"podTemplate": template}},
    });
    // As after defaulting.
    serde_json::to_value(serde_json::from_value::<TrainingJob>(job).unwrap()).unwrap()
}

fn volume(source: Value) -> Value {
    let mut volume = json!({"name": "v"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    json!({"volumes": [volume]})
}

/// What a job may not refer to without a policy: the pod template, the field that is denied, and a policy that allows
/// it.
fn references() -> Vec<(Value, &'static str, Value)> {
    let variable = json!({"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]});
    let projected = |source: Value| volume(json!({"projected": {"sources": [source]}}));
    let token = json!({"serviceAccountToken": {"path": "token"}});
    let mut account = projected(token.clone());
    account["serviceAccountName"] = "builder".into();
    let published = volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "db"}}}));
    let secrets = json!({"allowedSecrets": ["db"]});
    let from = json!({"envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "db"}}]});
    let beside = |environment: &Value| {
        let mut container = json!({"name": "proxy", "image": "proxy", "restartPolicy": "Always"});
        container.as_object_mut().unwrap().extend(environment.as_object().unwrap().clone());
        json!({"initContainers": [{"name": "fetch", "image": "fetch"}, container]})
    };
    vec![
        (beside(&variable), "initContainers[1].env[0].valueFrom.secretKeyRef.name", secrets.clone()),
        (beside(&from), "initContainers[1].envFrom[1].secretRef.name", json!({"allowedSecrets": ["team/db"]})),
        (from, "envFrom[1].secretRef.name", secrets.clone()),
        (variable.clone(), "env[0].valueFrom.secretKeyRef.name", secrets.clone()),
        (variable.clone(), "env[0].valueFrom.secretKeyRef.name", json!({"allowedSecrets": ["team/db"]})),
        (variable.clone(), "env[0].valueFrom.secretKeyRef.name", json!({"allowedSecrets": ["team/*"]})),
        (variable, "env[0].valueFrom.secretKeyRef.name", json!({"allowedSecrets": ["*"]})),
        (volume(json!({"secret": {"secretName": "db"}})), "volumes[0].secret.secretName", secrets.clone()),
        (published, "volumes[0].csi.nodePublishSecretRef.name", secrets),
        (
            projected(json!({"secret": {"name": "db"}})),
            "volumes[0].projected",
            json!({"allowedVolumeTypes": ["projected"], "allowedSecrets": ["db"]}),
        ),
        (
            account,
            "volumes[0].projected",
            json!({"allowedVolumeTypes": ["projected"], "allowedServiceAccounts": ["builder"]}),
        ),
        (
            volume(json!({"hostPath": {"path": "/data/set"}})),
            "volumes[0].hostPath.path",
            json!({"allowedHostPaths": ["/data"]}),
        ),
        (volume(json!({"hostPath": {"path": "/etc"}})), "volumes[0].hostPath.path", json!({"allowedHostPaths": ["/"]})),
        (
            volume(json!({"nfs": {"server": "s", "path": "/"}})),
            "volumes[0].nfs",
            json!({"allowedVolumeTypes": ["nfs"]}),
        ),
        (volume(json!({"image": {"reference": "i"}})), "volumes[0].image", json!({"allowedVolumeTypes": ["image"]})),
        (
            volume(json!({"downwardAPI": {"items": []}})),
            "volumes[0].downwardAPI",
            json!({"allowedVolumeTypes": ["downwardAPI"]}),
        ),
        (
            json!({"imagePullSecrets": [{"name": "pull"}]}),
            "imagePullSecrets[0].name",
            json!({"allowedImagePullSecrets": ["pull"]}),
        ),
        (
            json!({"imagePullSecrets": [{"name": "pull"}]}),
            "imagePullSecrets[0].name",
            json!({"allowedSecrets": ["pull"]}),
        ),
        (
            json!({"serviceAccountName": "builder"}),
            "serviceAccountName",
            json!({"allowedServiceAccounts": ["builder"]}),
        ),
        (
            json!({"priorityClassName": "system-node-critical"}),
            "priorityClassName",
            json!({"allowedPriorityClasses": ["team/system-node-critical"]}),
        ),
        (json!({"runtimeClassName": "nvidia"}), "runtimeClassName", json!({"allowedRuntimeClasses": ["nvidia"]})),
        (
            json!({"securityContext": {"runAsUser": 7}}),
            "securityContext.runAsUser",
            json!({"allowedIds": [{"min": 7, "max": 7}]}),
        ),
        (
            json!({"securityContext": {"runAsGroup": 1, "fsGroup": 2, "supplementalGroups": [3]}}),
            "securityContext.runAsGroup",
            json!({"allowedIds": [{"min": 1, "max": 2}, {"min": 3, "max": 9}]}),
        ),
    ]
}

fn policy(value: Value) -> Policy {
    serde_json::from_value(value).unwrap()
}

fn both(template: &Value, policy: &Policy) -> (Vec<String>, Vec<String>) {
    let job = job(template);
    let typed: TrainingJob = serde_json::from_value(job.clone()).unwrap();
    (policy.problems(&typed).iter().map(ToString::to_string).collect(), denied(&job, policy))
}

#[test]
fn references_are_denied_unless_the_policy_names_them() {
    for (template, field, allows) in references() {
        let (operator, admission) = both(&template, &Policy::default());
        assert!(operator[0].starts_with(&format!("spec.trainer.podTemplate.{field}")), "{field}: {operator:?}");
        assert!(!admission.is_empty(), "{template}");
        for message in operator.iter().chain(&admission) {
            assert!(message.contains("chart") && message.contains("spec.trainer.podTemplate"), "{message}");
        }
        let allowed = both(&template, &policy(allows.clone()));
        assert_eq!(allowed, (vec![], vec![]), "{template} under {allows}");
    }
}

#[test]
fn similar_names_are_not_allowed() {
    let secret = |name: &str| volume(json!({"secret": {"secretName": name}}));
    let from = |name: &str| json!({"envFrom": [{"secretRef": {"name": name}}]});
    let others = json!({"allowedSecrets": ["db", "other/db-2", "other/*"]});
    let host = |path: &str| volume(json!({"hostPath": {"path": path}}));
    let token = volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}));
    let mut token_of_default = token.clone();
    token_of_default["serviceAccountName"] = "default".into();
    let apparmor = json!({"annotations": {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}});
    let everything = json!({
        "allowedSecrets": ["*"], "allowedServiceAccounts": ["*"], "allowedVolumeTypes": ["projected"],
        "allowedHostPaths": ["/"], "allowedPriorityClasses": ["*"], "allowedRuntimeClasses": ["*"],
        "allowedIds": [{"min": 0, "max": 2147483647}],
    });
    for (template, given) in [
        (secret("db-2"), others.clone()),
        (secret(""), json!({"allowedSecrets": ["db"]})),
        (from(""), json!({"allowedSecrets": ["db"]})),
        (
            json!({"initContainers": [{"name": "a", "image": "a", "envFrom": [{"secretRef": {"name": "db-2"}}]}]}),
            others.clone(),
        ),
        (
            json!({"initContainers": [{"name": "a", "image": "a", "env": [{"name": "K", "valueFrom": {"secretKeyRef":
                {"name": "db-2", "key": "k"}}}]}]}),
            others,
        ),
        (host("/database"), json!({"allowedHostPaths": ["/data"]})),
        (host("/data/../etc"), json!({"allowedHostPaths": ["/data"]})),
        (host("/data/.."), json!({"allowedHostPaths": ["/data"]})),
        (json!({"securityContext": {"supplementalGroups": [10, 0]}}), json!({"allowedIds": [{"min": 1, "max": 10}]})),
        (json!({"serviceAccountName": "builder"}), json!({"allowedServiceAccounts": ["other/builder"]})),
        (json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}), json!({"allowedImagePullSecrets": ["a"]})),
        // A Secret for pulling images is not one to read.
        (secret("pull"), json!({"allowedImagePullSecrets": ["pull"]})),
        (token, everything.clone()),
        (token_of_default, everything.clone()),
        (apparmor, everything),
    ] {
        let (operator, admission) = both(&template, &policy(given.clone()));
        assert_eq!(operator.len(), 1, "{template} under {given}: {operator:?}");
        assert_eq!(admission.len(), 1, "{template} under {given}: {admission:?}");
    }
}

#[test]
fn what_needs_no_policy_is_admitted() {
    let sources = [
        json!({"persistentVolumeClaim": {"claimName": "c"}}),
        json!({"configMap": {"name": "c"}}),
        json!({"emptyDir": {}}),
        json!({"csi": {"driver": "d"}}),
        json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
    ];
    let others = [
        json!({}),
        json!({"serviceAccountName": "default"}),
        json!({"annotations": {"note": "x"}, "labels": {"team": "a"}, "schedulerName": "volcano"}),
        json!({"env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        ]}),
        json!({"envFrom": [{"configMapRef": {"name": "c"}}], "imagePullPolicy": "Always"}),
        json!({"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}]}),
        json!({"initContainers": [{"name": "a", "image": "a", "env": [{"name": "A", "value": "1"}], "envFrom":
            [{"configMapRef": {"name": "c"}}], "restartPolicy": "Always"}]}),
    ];
    for template in sources.into_iter().map(volume).chain(others) {
        assert_eq!(both(&template, &Policy::default()), (vec![], vec![]), "{template}");
    }
}

#[test]
fn the_schema_has_no_other_types_of_volumes() {
    let definition = pawl_api::definition();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let volume = schema
        .pointer("/properties/spec/properties/trainer/properties/podTemplate/properties/volumes/items/properties")
        .unwrap();
    let mut types: Vec<_> = volume.as_object().unwrap().keys().map(String::as_str).collect();
    types.sort_unstable();
    let known = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "hostPath",
        "image",
        "name",
        "nfs",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    assert_eq!(types, known);
}
