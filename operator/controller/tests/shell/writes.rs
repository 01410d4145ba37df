//! What a job costs the API server: the writes of the operator for a gang from its start to its end.

use crate::api::Api;
use crate::cluster;
use crate::operator::Operator;
use crate::service::reconcile;
use rstest::rstest;
use serde_json::json;
use std::collections::BTreeMap;

/// The job of `tests/scale`: pods check the baseline of a foreign trainer, and there is nothing to train.
#[rstest]
#[case::a_gang(8)]
#[case::one_pod(1)]
#[tokio::test(start_paused = true)]
async fn a_job_of_one_attempt_costs_these_writes_and_no_others(#[case] replicas: u32) {
    let api = Api::default();
    let job = json!({
        "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "toy", "namespace": "default", "generation": 1},
        "spec": {
            "workload": {"command": ["trainer"]},
            "trainer": {"image": "trainer:1", "replicas": replicas, "gpusPerReplica": 1},
        },
    });
    let id = ("trainingjobs".to_owned(), "default".to_owned(), "toy".to_owned());
    api.store().create(id.clone(), job);
    let before = api.store().version;
    let mut operator = Operator::start(&api, before);
    for _ in 0..60 {
        reconcile(&mut operator, &api).await;
        cluster::step(&mut api.store());
    }
    let store = api.store();
    assert_eq!(store.objects[&id]["status"]["stage"], "Complete");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for write in store.writes.iter().chain(&store.refused) {
        let (verb, path) = write.split_once(' ').unwrap();
        let kind = path.split('/').skip_while(|part| *part != "default").nth(1).unwrap();
        *counts.entry(format!("{verb} {kind}")).or_default() += 1;
    }
    let expected = [
        // The intent, and the end.
        ("PATCH trainingjobs", 2),
        ("POST jobs", 1),
        ("DELETE jobs", 1),
        ("POST events", 1),
    ];
    // The pods of a gang trust each other, and find each other: by an object of some gangs, and one of the namespace.
    let together = [("POST secrets", 1), ("PATCH services", 1)].into_iter().filter(|_| replicas > 1);
    let expected = expected.into_iter().chain(together).map(|(write, count)| (write.to_owned(), count)).collect();
    assert_eq!(counts, expected, "{:#?}", store.writes);
}
