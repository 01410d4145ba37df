//! The rest of a cluster: the Job controller, the kubelets and the garbage collector, one small step at a time; and
//! trainers that find what a script says.

use crate::api::{Id, Store};
use pawl_contract::exit::Outcome;
use pawl_contract::measured::{Measured, Validation};
use pawl_contract::plan::{AttemptPlan, LaunchKind, LaunchPlan};
use pawl_contract::report::{LaunchResult, fold};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn of_kind(store: &Store, kind: &str) -> Vec<(Id, Value)> {
    store.objects.iter().filter(|((plural, ..), _)| plural == kind).map(|(id, o)| (id.clone(), o.clone())).collect()
}

fn owner(object: &Value, kind: &str) -> Option<String> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["kind"] == kind)?;
    Some(owner["uid"].as_str()?.to_owned())
}

fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or("Pending")
}

/// Whether a pod's container runs or may come to run.
pub fn alive(pod: &Value) -> bool {
    !matches!(phase(pod), "Succeeded" | "Failed")
}

/// One step of everything that is not the operator.
pub fn step(store: &mut Store) {
    collect_garbage(store);
    run_pods(store);
    make_pods(store);
}

/// The gangs of which a pod is alive, as attempt and uid of the batch Job.
pub fn gangs_alive(store: &Store) -> BTreeSet<(String, String)> {
    let pods = of_kind(store, "pods");
    let living = pods.iter().filter(|(_, pod)| alive(pod));
    living
        .map(|(_, pod)| {
            let label = |name: &str| pod["metadata"]["labels"][name].as_str().unwrap().to_owned();
            (label("pawl.dev/attempt"), label("batch.kubernetes.io/controller-uid"))
        })
        .collect()
}

fn make_pods(store: &mut Store) {
    for ((_, namespace, name), job) in of_kind(store, "jobs") {
        let uid = job["metadata"]["uid"].as_str().unwrap().to_owned();
        let made = job["status"]["startTime"].is_string();
        if made || !job["metadata"]["deletionTimestamp"].is_null() || job["spec"]["suspend"] == true {
            continue;
        }
        let mut started = job.clone();
        started["status"]["startTime"] = json!(jiff::Timestamp::now().to_string());
        store.put(("jobs".to_owned(), namespace.clone(), name.clone()), started);
        for index in 0..job["spec"]["completions"].as_u64().unwrap() {
            let mut labels = job["spec"]["template"]["metadata"]["labels"].clone();
            labels["batch.kubernetes.io/job-name"] = json!(name);
            labels["batch.kubernetes.io/controller-uid"] = json!(uid);
            labels["batch.kubernetes.io/job-completion-index"] = json!(index.to_string());
            let pod_name = format!("{name}-{index}-{uid}");
            let pod = json!({
                "metadata": {"name": pod_name, "labels": labels, "ownerReferences": [{"kind": "Job", "uid": uid}],
                    "annotations": job["spec"]["template"]["metadata"]["annotations"]},
                "spec": {"volumes": job["spec"]["template"]["spec"]["volumes"]},
                "status": {"phase": "Pending"},
            });
            store.create(("pods".to_owned(), namespace.clone(), pod_name), pod);
        }
    }
}

fn run_pods(store: &mut Store) {
    let pods = of_kind(store, "pods");
    for (id, mut pod) in pods.clone() {
        let deleted = !pod["metadata"]["deletionTimestamp"].is_null();
        let label = |name: &str| pod["metadata"]["labels"][name].as_str().unwrap().to_owned();
        let (gang, index) =
            (label("batch.kubernetes.io/controller-uid"), label("batch.kubernetes.io/job-completion-index"));
        match (phase(&pod), deleted) {
            ("Succeeded" | "Failed", true) | ("Pending", true) => store.remove(&id),
            ("Succeeded" | "Failed", false) => {}
            ("Running", true) => {
                end(&mut pod, 30, "");
                store.put(id, pod);
            }
            ("Running", false) => {
                // The gang meets before anything runs: when all of its pods do.
                let peers = pods
                    .iter()
                    .filter(|(_, peer)| peer["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] == gang);
                let met = peers.clone().all(|(_, peer)| phase(peer) != "Pending");
                // Agents end together, and the kubelets report it one after another: that of the first rank first in
                // every second gang, last in the others.
                let is_first =
                    |pod: &Value| pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "0";
                let leads = gang.bytes().map(u32::from).sum::<u32>() % 2 == 0;
                let before = |peer: &Value| is_first(peer) == leads && is_first(peer) != is_first(&pod);
                let follows = peers.clone().any(|(_, peer)| before(peer) && phase(peer) == "Running");
                if met && !follows {
                    // It was read when the pod began, whatever is deleted since.
                    let plan: AttemptPlan =
                        serde_json::from_value(pod["read"].clone()).expect("a pod that runs has its plan");
                    if store.held && plan.launches.iter().any(|launch| launch.kind == LaunchKind::Train) {
                        continue;
                    }
                    let message = if index == "0" { fold(&results(&plan)) } else { String::new() };
                    end(&mut pod, 0, &message);
                    store.put(id, pod);
                }
            }
            _ => {
                if let Some(plan) = mounted(store, &id, &gang) {
                    mount_tokens(store, &id.1, &pod, &gang);
                    pod["read"] = serde_json::to_value(plan).unwrap();
                    pod["spec"]["nodeName"] = json!(format!("node-{index}"));
                    pod["status"] = json!({"phase": "Running", "podIP": format!("10.0.0.{index}"),
                        "containerStatuses": [{"name": "trainer", "state": {"running": {}}}]});
                    store.put(id, pod);
                }
            }
        }
    }
}

/// A token is of one gang for ever: also of one whose pods are gone.
fn mount_tokens(store: &mut Store, namespace: &str, pod: &Value, gang: &str) {
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        let Some(secret) = volume["secret"]["secretName"].as_str() else { continue };
        let token = format!("{namespace}/{secret}/{}", volume["secret"]["items"][0]["key"]);
        let first = store.tokens.entry(token).or_insert_with(|| gang.to_owned());
        assert_eq!(*first, gang, "a pod must never mount the token of another gang");
    }
}

/// The plan that a pod mounts, once all that it mounts is there.
pub fn mounted(store: &Store, (_, namespace, name): &Id, gang: &str) -> Option<AttemptPlan> {
    let pod = &store.objects[&("pods".to_owned(), namespace.clone(), name.clone())];
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let mut plan = None;
    for volume in volumes {
        if !volume["downwardAPI"].is_null() {
            plan = serde_json::from_str(pod["metadata"]["annotations"]["pawl.dev/plan"].as_str()?).unwrap();
        }
        if let Some(map) = volume["configMap"]["name"].as_str() {
            let map = store.objects.get(&("configmaps".to_owned(), namespace.clone(), map.to_owned()))?;
            assert_eq!(owner(map, "Job").as_deref(), Some(gang), "a pod must never read the plan of another gang");
            plan = serde_json::from_str(map["data"]["plan.json"].as_str()?).unwrap();
        }
        if let Some(secret) = volume["secret"]["secretName"].as_str() {
            let there = store.objects.get(&("secrets".to_owned(), namespace.clone(), secret.to_owned()))?;
            let key = volume["secret"]["items"][0]["key"].as_str().unwrap();
            assert!(there["data"][key].is_string(), "{secret} has no token {key}");
        }
        if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
            store.objects.get(&("persistentvolumeclaims".to_owned(), namespace.clone(), claim.to_owned()))?;
        }
    }
    plan
}

pub fn end(pod: &mut Value, code: i32, message: &str) {
    pod["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
    pod["status"]["containerStatuses"] = json!([{"name": "trainer",
        "state": {"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }, "message": message}}}]);
}

pub fn collect_garbage(store: &mut Store) {
    let jobs = of_kind(store, "jobs");
    let uids: BTreeSet<String> =
        jobs.iter().map(|(_, job)| job["metadata"]["uid"].as_str().unwrap().to_owned()).collect();
    for (id, job) in &jobs {
        let uid = job["metadata"]["uid"].as_str();
        if job["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let pods = of_kind(store, "pods");
        let own: Vec<_> = pods.into_iter().filter(|(_, pod)| owner(pod, "Job").as_deref() == uid).collect();
        if own.is_empty() {
            store.remove(id);
        }
        for (id, pod) in own {
            store.mark_deleted(id, pod);
        }
    }
    for kind in ["configmaps", "secrets"] {
        for (id, object) in of_kind(store, kind) {
            if owner(&object, "Job").is_none_or(|uid| uids.contains(&uid)) {
                store.orphans.remove(&id);
                continue;
            }
            let steps = store.orphans.entry(id.clone()).or_default();
            *steps += 1;
            if *steps > store.garbage_after {
                store.orphans.remove(&id);
                store.remove(&id);
            }
        }
    }
    for (id, pod) in of_kind(store, "pods") {
        if owner(&pod, "Job").is_some_and(|uid| !uids.contains(&uid)) {
            store.mark_deleted(id, pod);
        }
    }
}

fn results(plan: &AttemptPlan) -> Vec<LaunchResult> {
    plan.launches.iter().map(result).collect()
}

/// What a launch finds: some settings are faster, one is slower.
fn result(launch: &LaunchPlan) -> LaunchResult {
    let settings = serde_json::to_value(&launch.settings).unwrap();
    let mut speed = 100.0;
    if settings["compile"] == "Graph" {
        speed *= 1.5;
    }
    if settings["activationCheckpointing"] == "Full" {
        speed *= 0.7;
    }
    if settings["batchPerGpu"] == 4 {
        speed *= 1.2;
    }
    // Launches vary a little, and the same launch varies the same.
    let noise = launch.seed as f64 * 1e-4;
    let trains = matches!(launch.kind, LaunchKind::Train);
    let validation = Validation { items: 40, metrics: [("loss".to_owned(), 0.4)].into() };
    let measured = Measured {
        steps: 10,
        items: launch.budget.items.unwrap_or(40),
        items_per_second: (launch.kind != LaunchKind::Preflight).then_some(speed * (1.0 + noise)),
        loss: Some(0.5),
        validation: trains.then_some(validation),
        peak_memory_bytes: Some(1 << 20),
        predicted_memory_bytes: Some(1 << 20),
        wall_seconds: Some(1.0),
        ..Measured::default()
    };
    LaunchResult { measured, ..LaunchResult::bare(&launch.launch, Outcome::Done) }
}
