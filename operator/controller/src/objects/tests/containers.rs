use super::*;

fn templated(template: Value) -> Made {
    Made::new(|job| job["spec"]["trainer"]["podTemplate"] = template)
}

#[test]
fn init_containers_and_sidecars_come_after_the_agent_and_keep_the_restricted_standard() {
    let made = Made::new(|job| {
        job["spec"]["workload"] = json!({"command": ["train"]});
        job["spec"]["trainer"]["podTemplate"] = json!({
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [
                {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always", "imagePullPolicy": "Never",
                    "env": [{"name": "HOME", "value": "/var/proxy"}]},
                {"name": "fetch", "image": "fetch:1", "command": ["fetch"], "args": ["all"], "workingDir": "/data",
                    "envFrom": [{"configMapRef": {"name": "sources"}}], "resources": {"limits": {"memory": "1Gi"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            ],
        });
    });
    let all = made.pod().init_containers.unwrap();
    let names: Vec<&str> = all.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["agent", "proxy", "fetch"]);
    let restricted = &all[0].security_context;
    assert!(all.iter().all(|container| container.security_context == *restricted && container.image.is_some()));
    let restarted: Vec<_> = all.iter().map(|container| container.restart_policy.as_deref()).collect();
    assert_eq!(restarted, [None, Some("Always"), None]);

    let (proxy, fetch) = (&all[1], &all[2]);
    assert_eq!(proxy.image_pull_policy.as_deref(), Some("Never"));
    assert_eq!(variable(proxy, "HOME").as_deref(), Some("/var/proxy"));
    assert_eq!(json!([fetch.command, fetch.args]), json!([["fetch"], ["all"]]));
    assert_eq!(fetch.working_dir.as_deref(), Some("/data"));
    assert_eq!(json!(fetch.env_from), json!([{"configMapRef": {"name": "sources"}}]));
    assert_eq!(json!(fetch.resources), json!({"limits": {"memory": "1Gi"}}));
    // The root file system cannot be written.
    assert_eq!(variable(fetch, "HOME").as_deref(), Some("/tmp"));
    assert_eq!((mount(fetch, "/data")[0].name.as_str(), mount(fetch, "/tmp")[0].name.as_str()), ("data", "pawl-tmp"));
    assert_eq!(fetch.volume_mounts.as_ref().unwrap().len(), 2, "neither the token nor the work of the agent");
}

#[test]
fn a_directory_of_the_jobs_own_for_temporary_files_is_that_of_its_init_containers() {
    let volume = json!({"name": "scratch", "emptyDir": {}});
    let mount_of = |own: Value| {
        let made = templated(json!({
            "volumes": [volume, {"name": "own", "emptyDir": {}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
            "initContainers": [{"name": "fetch", "image": "fetch:1", "volumeMounts": own}],
        }));
        let container = made.pod().init_containers.unwrap().remove(0);
        mount(&container, "/tmp").iter().map(|mount| mount.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(mount_of(json!([])), ["scratch"]);
    assert_eq!(mount_of(json!([{"name": "own", "mountPath": "/tmp"}])), ["own"]);
}

#[test]
fn the_trainer_gets_variables_of_whole_secrets_and_its_image_as_asked_for() {
    let sources = json!([{"prefix": "S3_", "secretRef": {"name": "s3"}}]);
    let made = templated(json!({"envFrom": sources, "imagePullPolicy": "Always"}));
    let trainer = made.trainer();
    assert_eq!(json!(trainer.env_from), sources);
    assert_eq!(trainer.image_pull_policy.as_deref(), Some("Always"));
    let reading = reader(&made.job, "s3://models/toy", "pawl:1", &made.pods).spec.unwrap().containers.remove(0);
    assert_eq!(json!(reading.env_from), sources, "the credentials of the storage may be among them");
    let plain = Made::new(|_| {}).trainer();
    assert_eq!((plain.env_from, plain.image_pull_policy), (None, None));
}

#[test]
fn gpus_of_a_claim_are_no_extended_resource() {
    let mut made = Made::new(|job| {
        job["spec"]["trainer"]["gpuResource"] = "gpus".into();
        job["spec"]["trainer"]["podTemplate"] = json!({
            "resourceClaims": [
                {"name": "gpus", "resourceClaimTemplateName": "one-h100"},
                {"name": "network", "resourceClaimTemplateName": "hca"},
            ],
            "resources": {"limits": {"memory": "1Gi"}, "claims": [{"name": "network", "request": "fast"}]},
        });
    });
    let claims = |made: &Made| {
        let pod = made.pod();
        let names = pod.resource_claims.unwrap_or_default().into_iter().map(|claim| claim.name).collect::<Vec<_>>();
        (names, json!(made.trainer().resources))
    };
    let network = json!({"name": "network", "request": "fast"});
    let expected = json!({"limits": {"memory": "1Gi"}, "claims": [network, {"name": "gpus"}]});
    assert_eq!(claims(&made), (vec!["gpus".to_owned(), "network".to_owned()], expected));
    assert_eq!(made.pod().tolerations, None, "the name of a claim is no taint");
    // A preflight takes no GPUs from others.
    made.plan.gpus_per_replica = 0;
    let expected = json!({"limits": {"memory": "1Gi"}, "claims": [network]});
    assert_eq!(claims(&made), (vec!["network".to_owned()], expected));
}

/// Kueue reads the topology that a gang needs from the annotations of the pod template.
#[test]
fn a_topology_request_for_kueue_reaches_the_pod_template_of_the_batch_job() {
    let name = "kueue.x-k8s.io/podset-required-topology";
    let made = Made::new(|job| {
        job["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "q"});
        job["spec"]["trainer"]["podTemplate"] = json!({"annotations": {name: "cloud.provider.com/topology-block"}});
    });
    let template = made.gang().spec.unwrap().template.metadata.unwrap();
    assert_eq!(template.annotations.unwrap()[name], "cloud.provider.com/topology-block");
}
