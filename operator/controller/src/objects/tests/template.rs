use super::*;

/// What a person or the administrator changes of a gang's pods is seen in its hash, and nothing that the plan or the
/// status has.
#[test]
fn a_template_hash_changes_with_what_people_say_about_the_pods() {
    let hash = |trains: bool, change: fn(&mut Value)| {
        let made = Made::new(change);
        template_hash(&made.job, &made.pods, trains)
    };
    let before = hash(true, |_| {});
    assert_eq!(
        before, "d57672cc4559819e",
        "with another one an upgrade of the operator replaces every gang that waits"
    );
    let changes: [fn(&mut Value); 8] = [
        |job| job["spec"]["trainer"]["podTemplate"] = json!({"nodeSelector": {"zone": "a"}}),
        |job| job["spec"]["trainer"]["podTemplate"] = json!({"resources": {"limits": {"memory": "1Gi"}}}),
        |job| job["spec"]["trainer"]["image"] = json!("trainer:2"),
        |job| job["spec"]["lifecycle"] = json!({"checkpointGrace": "5m"}),
        |job| job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "q"}),
        |job| job["spec"]["train"] = json!({"checkpoint": {"storage": "pvc://models/toy"}}),
        |job| {
            job["spec"]["trainer"]["podTemplate"] = json!({"initContainers": [{"name": "fetch", "image": "fetch:2"}]})
        },
        |job| job["spec"]["trainer"]["podTemplate"] = json!({"envFrom": [{"secretRef": {"name": "s3"}}]}),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_ne!(hash(true, change), before, "change {number}");
    }
    assert_eq!(hash(false, changes[3]), hash(false, |_| {}), "only a training saves a checkpoint");
    let others: [fn(&mut Value); 4] = [
        |job| job["metadata"]["generation"] = json!(7),
        |job| job["metadata"]["labels"] = json!({"team": "a"}),
        |job| job["spec"]["settings"] = json!({"batchPerGpu": 4}),
        |job| job["status"] = json!({"training": {"stopSeconds": 400}}),
    ];
    for other in others {
        assert_eq!(hash(true, other), before);
    }
    let annotations = Made::new(|_| {}).gang().spec.unwrap().template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["pawl.dev/template-hash"], hash(false, |_| {}));
}

#[test]
fn a_template_hash_changes_with_the_defaults_of_the_chart_that_are_set() {
    let made = Made::new(|_| {});
    let before = template_hash(&made.job, &made.pods, true);
    let defaults = PodDefaults { security_context: PodSecurity::default(), ..PodDefaults::default() };
    assert_ne!(template_hash(&made.job, &defaults, true), before);
    // As the chart gives those that are not set.
    let unset = json!({
        "securityContext": {"runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "emptyDirs": {"work": "100Gi", "data": "200Gi", "tmp": "50Gi"}, "imagePullSecrets": [],
        "runtimeClassName": "", "priorityClassName": "", "nodeSelector": {}, "tolerations": [],
        "labels": {}, "annotations": {}, "env": [],
    });
    let with = |name: &str, value: Value| {
        let mut defaults = unset.clone();
        defaults[name] = value;
        template_hash(&made.job, &defaults.to_string().parse().unwrap(), true)
    };
    assert_eq!(with("tolerations", json!([])), before);
    for (name, value) in [
        ("imagePullSecrets", json!([{"name": "registry"}])),
        ("runtimeClassName", json!("nvidia")),
        ("priorityClassName", json!("research")),
        ("nodeSelector", json!({"pool": "gpus"})),
        ("tolerations", json!([{"key": "gpus", "operator": "Exists"}])),
        ("labels", json!({"cost-center": "7"})),
        ("annotations", json!({"sidecar.istio.io/inject": "false"})),
        ("env", json!([{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}])),
    ] {
        assert_ne!(with(name, value), before, "{name}");
    }
}
