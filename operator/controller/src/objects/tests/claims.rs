//! The claim for checkpoints that the operator creates.

use super::*;

fn claims_of(made: &Made) -> Vec<String> {
    let volumes = made.pod().volumes.unwrap().into_iter();
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name)).collect()
}

#[test]
fn a_job_without_storage_gets_a_claim_that_outlives_it() {
    let made = without_storage(|_| {});
    let claim = claim(&made.blueprint()).unwrap();
    assert_eq!(claim.name_any(), "toy-storage");
    assert_eq!(claim.owner_references(), [], "it is not deleted with the job");
    assert_eq!(claim.labels().get(names::ATTEMPT), None, "nor with an attempt");
    let spec = claim.spec.unwrap();
    assert_eq!(spec.access_modes.unwrap(), ["ReadWriteMany"], "the pods of a gang may run on several nodes");
    assert_eq!(
        (spec.resources.unwrap().requests.unwrap()["storage"].0.as_str(), spec.storage_class_name),
        ("50Gi", None)
    );
    assert_eq!(claims_of(&made), ["toy-storage"]);
    let trainer = made.trainer();
    let location = "/pawl/checkpoints/checkpoints/team/toy/job-uid";
    assert_eq!(variable(&trainer, "PAWL_CHECKPOINTS").as_deref(), Some(location));
    assert_eq!(variable(&trainer, "PAWL_DATA").as_deref(), Some("/pawl/checkpoints/data/$(PAWL_POD_INDEX)"));
    assert_eq!(variable(&trainer, "PAWL_CACHES").as_deref(), Some("/pawl/checkpoints/cache"));
    let defined = |name: &str| trainer.env.iter().flatten().position(|variable| variable.name == name);
    assert!(defined("PAWL_POD_INDEX") < defined("PAWL_DATA"), "Kubernetes expands only variables defined before");
}

#[test]
fn caches_are_in_the_claim_unless_they_have_a_home_or_the_pod_has_no_claim() {
    let caches = |made: &Made| variable(&made.trainer(), "PAWL_CACHES");
    let mut made = without_storage(|_| {});
    assert!(caches(&made).is_some());
    made.plan.launches = vec![launch("Preflight")];
    assert_eq!(caches(&made), None, "it does not mount the claim");
    let home = json!({"env": [{"name": "HOME", "value": "/home/me"}]});
    assert_eq!(caches(&without_storage(|job| job["spec"]["trainer"]["podTemplate"] = home)), None);
    let storage = |url: &str| {
        caches(&without_storage(|job| job["spec"]["train"] = json!({"items": 100, "checkpoint": {"storage": url}})))
    };
    assert_eq!(["s3://bucket/runs", "pvc://shared/runs", "None"].map(storage), [None, None, None]);
}

#[test]
fn the_claim_is_made_as_configured() {
    let mut made = without_storage(|job| job["spec"]["trainer"]["replicas"] = json!(1));
    assert_eq!(claim(&made.blueprint()).unwrap().spec.unwrap().access_modes.unwrap(), ["ReadWriteOnce"]);
    let parallel = without_storage(|job| {
        job["spec"]["trainer"]["replicas"] = json!(1);
        job["spec"]["search"] = json!([{"name": "a", "trials": 4, "epochs": 1, "parallelism": 2,
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1"}]}]);
    });
    let modes = claim(&parallel.blueprint()).unwrap().spec.unwrap().access_modes.unwrap();
    assert_eq!(modes, ["ReadWriteMany"], "its gangs may run on different nodes");
    made.storage.claim = Claim {
        size: "2Ti".parse().unwrap(),
        class: Some("fast".to_owned()),
        access_mode: Some("ReadWriteOncePod".to_owned()),
        retention: Retention::Delete,
    };
    let claim = claim(&made.blueprint()).unwrap();
    assert_eq!(claim.owner_references()[0].name, "toy");
    let spec = claim.spec.unwrap();
    assert_eq!(spec.access_modes.unwrap(), ["ReadWriteOncePod"]);
    assert_eq!(
        (spec.resources.unwrap().requests.unwrap()["storage"].0.as_str(), spec.storage_class_name.as_deref()),
        ("2Ti", Some("fast"))
    );
}

#[rstest]
#[case::named(json!("pvc://models/run"), "Claim")]
#[case::object_store(json!("s3://bucket"), "Claim")]
#[case::none(json!("None"), "Claim")]
#[case::no_claims(json!(null), "None")]
#[case::shared(json!(null), "pvc://models")]
#[case::a_claim_of_that_name(json!("pvc://toy-storage"), "s3://bucket")]
fn no_other_storage_makes_a_claim(#[case] storage: Value, #[case] default: &str) {
    let mut made = Made::new(|job| job["spec"]["train"] = json!({"checkpoint": {"storage": storage}}));
    made.storage.default = default.parse().unwrap();
    pawl_decision::storage::fill(&mut made.job, &made.storage.default);
    assert_eq!(claim(&made.blueprint()), None);
    assert_eq!(variable(&made.trainer(), "PAWL_DATA").as_deref(), Some("/pawl/data"));
}

#[test]
fn a_preflight_does_not_bind_the_claim_to_a_node_without_gpus() {
    let mut made = without_storage(|_| {});
    made.plan.launches = vec![launch("Preflight")];
    assert_eq!((claims_of(&made), claim(&made.blueprint())), (vec![], None));
    assert_eq!(mount(&made.trainer(), "/pawl/checkpoints").len(), 1, "the directory exists");
}

#[test]
fn checkpoints_of_a_job_that_wants_no_storage_end_with_the_pod() {
    let trainer = Made::new(|job| job["spec"]["train"] = json!({"checkpoint": {"storage": "None"}})).trainer();
    let work = variable(&trainer, "PAWL_WORK_DIR").unwrap();
    assert_eq!(variable(&trainer, "PAWL_CHECKPOINTS"), Some(format!("{work}/checkpoints")));
    assert!(mount(&trainer, paths::CHECKPOINTS).is_empty());
}

#[test]
fn a_gang_that_measures_for_a_training_proves_the_claim_that_no_preflight_mounts() {
    let proves = |made: &Made| variable(&made.trainer(), "PAWL_PROVES_STORAGE");
    let trains = |job: &mut Value| job["spec"]["train"] = json!({"items": 100});
    assert_eq!(proves(&without_storage(trains)).as_deref(), Some("true"));
    let mut check = without_storage(trains);
    check.plan.launches = vec![launch("Preflight")];
    assert_eq!(proves(&check), None, "it does not mount the claim");
    assert_eq!(proves(&without_storage(|job| job["spec"]["train"] = json!({}))), None, "nothing is saved");
    let named =
        |job: &mut Value| job["spec"]["train"] = json!({"items": 100, "checkpoint": {"storage": "pvc://own/runs"}});
    assert_eq!(proves(&without_storage(named)), None, "the preflight has proven it");
}
