//! What goes with the batch Job: plan, tokens, and the Service of the namespace.

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pawl_api::TrainingJobStatus;
use pawl_contract::happened::Happened;

/// A program in a pod reads what is mounted there: a Secret has tokens of other gangs too.
#[test]
fn pods_mount_the_token_of_their_gang_and_no_other_one() {
    let mounted = Made::new(|_| {}).pod().volumes.unwrap().into_iter().find_map(|volume| volume.secret).unwrap();
    assert_eq!(mounted.secret_name.as_deref(), Some(TOKEN));
    let files: Vec<_> = mounted.items.unwrap().into_iter().map(|item| (item.key, item.path)).collect();
    assert_eq!(files, [("7".to_owned(), "token".to_owned())]);
    assert_eq!(names::token_secret("0123456789abcdef"), TOKEN);
}

#[test]
fn nobody_can_change_plan_and_tokens_and_both_go_with_their_owners() {
    let made = Made::new(|_| {});
    let plan = plan(&made.blueprint(), GANG_UID).unwrap();
    let random = BTreeMap::from([("7".to_owned(), Token::random().unwrap())]);
    let tokens = tokens("team", TOKEN, &job_owner(&made.job), &random);
    assert_eq!((plan.immutable, tokens.immutable), (Some(true), Some(true)));
    let of = |metadata: &ObjectMeta| {
        let owner = metadata.owner_references.as_ref().unwrap()[0].clone();
        (metadata.name.clone().unwrap(), metadata.namespace.clone().unwrap(), owner.kind, owner.name, owner.uid)
    };
    let named = |all: [&str; 5]| all.map(str::to_owned).into();
    assert_eq!(of(&plan.metadata), named(["toy-3", "team", "Job", "toy-3", GANG_UID]));
    assert_eq!(of(&tokens.metadata), named([TOKEN, "team", "TrainingJob", "toy", "job-uid"]));
    assert_eq!(tokens.metadata.labels.unwrap()["pawl.dev/job"], "toy");
    let read: AttemptPlan = serde_json::from_str(&plan.data.unwrap()["plan.json"]).unwrap();
    assert_eq!(read, made.plan);
    assert!(tokens.data.unwrap()["7"].0.len() >= 32);
}

/// The pods read either as the same file.
#[test]
fn a_short_plan_goes_with_the_pods_and_a_long_one_has_an_object_of_its_own() {
    let volume =
        |made: &Made| made.pod().volumes.unwrap().into_iter().find(|volume| volume.name == "pawl-plan").unwrap();
    let carried = |made: &Made| {
        let annotations = made.gang().spec.unwrap().template.metadata.unwrap().annotations.unwrap();
        annotations.get("pawl.dev/plan").and_then(|text| serde_json::from_str::<AttemptPlan>(text).ok())
    };
    let mut made = Made::new(|job| {
        job["spec"]["trainer"]["podTemplate"] = json!({"annotations": {"pawl.dev/plan": "theirs"}});
    });
    assert_eq!(carried(&made).as_ref(), Some(&made.plan));
    let file = volume(&made).downward_api.unwrap().items.unwrap().remove(0);
    let field = file.field_ref.unwrap().field_path;
    assert_eq!((file.path.as_str(), field.as_str()), ("plan.json", "metadata.annotations['pawl.dev/plan']"));
    assert_eq!(variable(&made.trainer(), "PAWL_ATTEMPT_PLAN").as_deref(), Some("/etc/pawl/plan/plan.json"));

    made.plan.launches = (0..40).map(|_| launch("Measure")).collect();
    assert_eq!(carried(&made), None);
    // What happened to the job makes no object of its own.
    made.plan.launches = vec![launch("Measure")];
    let (reason, message) = ("Paused".to_owned(), "x".repeat(8 * 1024));
    made.plan.events = vec![Happened { time: 1, warning: false, reason, message, phase: None }];
    assert_eq!(carried(&made).as_ref(), Some(&made.plan));
    made.plan.launches = (0..40).map(|_| launch("Measure")).collect();
    assert_eq!(volume(&made).config_map.unwrap().name, "toy-3");
}

#[test]
fn an_attempt_that_may_be_the_last_is_given_the_record_of_the_job_beside_its_plan() {
    let given = |train: Value, kind: &str| {
        let mut made = Made::new(|job| {
            job["spec"]["train"] = train;
            job["spec"]["train"]["checkpoint"]["storage"] = "s3://models".into();
        });
        made.plan.launches = vec![launch(kind)];
        record(&made.job, &TrainingJobStatus::default(), &made.plan).map(|text| (made, text))
    };
    assert!(given(json!({"items": 10}), "Measure").is_none() && given(json!({}), "Preflight").is_none());
    assert!(given(json!({}), "Measure").is_some(), "of a job that does not train");
    let (made, text) = given(json!({"items": 10}), "Train").unwrap();
    let blueprint = Blueprint { record: Some(&text), ..made.blueprint() };
    assert_eq!(carries_plan(&blueprint), None);
    let data = plan(&blueprint, GANG_UID).unwrap().data.unwrap();
    assert_eq!((&data["status.json"], data.len()), (&text, 2));
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&read["format"], &read["job"]["metadata"]["uid"]), (&json!(1), &json!("job-uid")));
    let volumes = gang(&blueprint).spec.unwrap().template.spec.unwrap().volumes.unwrap();
    let volume = volumes.into_iter().find(|volume| volume.name == "pawl-plan").unwrap();
    assert_eq!(volume.config_map.unwrap().name, "toy-3");
}

#[test]
fn one_headless_service_names_the_first_pods_of_all_gangs() {
    let service = service("team").spec.unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    let mut pods = Made::new(|_| {}).gang().spec.unwrap().template.metadata.unwrap().labels.unwrap();
    let selector = service.selector.unwrap();
    let mut selected = |index: &str| {
        // The Job controller says so on each pod.
        pods.insert("batch.kubernetes.io/job-completion-index".to_owned(), index.to_owned());
        selector.iter().all(|(name, value)| pods.get(name) == Some(value))
    };
    assert_eq!([selected("0"), selected("1")], [true, false]);
}
