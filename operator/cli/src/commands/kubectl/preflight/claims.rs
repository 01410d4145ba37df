//! Whether the claim for checkpoints can be bound: its StorageClass, and its access mode.

use super::finding::{DryRun, Finding, Seen};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

/// Annotations of the default StorageClass; the second one is that of old clusters.
const DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
/// Access modes of a volume that pods on different nodes mount.
const SHARED: [&str; 1] = ["ReadWriteMany"];

/// Whether pods of a job may run on several nodes at the same time.
pub fn is_shared(job: &pawl_api::TrainingJob) -> bool {
    job.spec.trainer.replicas > 1 || job.spec.search.iter().any(|search| search.parallelism > 1)
}

/// The finding about the StorageClass of a claim that the operator would create: the one named, or the default. `tried`
/// is the answer to its dry run, into which admission fills the default.
pub fn class(
    namespace: &str,
    claim: &PersistentVolumeClaim,
    tried: &DryRun<PersistentVolumeClaim>,
    classes: &Seen<Vec<StorageClass>>,
    shared: bool,
) -> Finding {
    let object = format!("PersistentVolumeClaim {namespace}/{}", claim.name_any());
    let named = |claim: &PersistentVolumeClaim| claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let filled = if let DryRun::Accepted(claim) = tried { named(claim) } else { None };
    let own = named(claim);
    let of_chart =
        "set checkpoints.claim.storageClassName of the chart, or name another storage in spec.train.checkpoint.storage";
    match (own, filled, classes) {
        (Some(name), _, Seen::Found(classes)) => match classes.iter().find(|class| class.name_any() == name) {
            Some(class) => exists(object, &described(class), shared),
            None => Finding::problem(object, format!("its StorageClass {name:?} does not exist"), of_chart),
        },
        (None, _, Seen::Found(classes)) => match classes.iter().find(|class| is_default(class)) {
            Some(class) => exists(object, &described(class), shared),
            None => Finding::problem(object, "names no StorageClass, and the cluster has no default one", of_chart),
        },
        (None, Some(name), _) => exists(object, &format!("StorageClass {name}, the default,"), shared),
        (None, None, _) if matches!(tried, DryRun::Accepted(_)) => {
            Finding::problem(object, "names no StorageClass, and the cluster has no default one", of_chart)
        }
        (own, _, Seen::Unseen(why)) => {
            let which = own.map_or("a default StorageClass".to_owned(), |name| format!("StorageClass {name:?}"));
            Finding::unknown(object, format!("whether {which} exists is not checked: {why}"))
        }
        (_, _, Seen::Absent) => Finding::unknown(object, "the cluster has no StorageClasses"),
    }
}

fn described(class: &StorageClass) -> String {
    format!("StorageClass {} ({})", class.name_any(), class.provisioner)
}

/// Which access modes a StorageClass supports is not in the API.
fn exists(object: String, class: &str, shared: bool) -> Finding {
    if shared {
        let message =
            format!("{class} exists; whether its volumes support ReadWriteMany is known only to its provisioner");
        return Finding::unknown(object, message);
    }
    Finding::ok(object, format!("{class} exists"))
}

fn is_default(class: &StorageClass) -> bool {
    DEFAULT.iter().any(|name| class.annotations().get(*name).is_some_and(|value| value == "true"))
}

/// Whether pods on several nodes can mount a claim: one that would be created, or that exists.
pub fn access(namespace: &str, claim: &PersistentVolumeClaim, shared: bool) -> Option<Finding> {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    if !shared || modes.iter().any(|mode| SHARED.contains(&mode.as_str())) {
        return None;
    }
    Some(Finding::problem(
        format!("PersistentVolumeClaim {namespace}/{}", claim.name_any()),
        format!("has the access mode {}, and pods of several nodes write to it", modes.join(", ")),
        "use a claim with ReadWriteMany (checkpoints.claim.accessMode of the chart), or one pod at a time",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult::{self, Ok as Exists, Problem, Unknown};
    use serde_json::{Value, json};

    fn claim(class: Option<&str>, mode: &str) -> PersistentVolumeClaim {
        let spec = json!({"storageClassName": class, "accessModes": [mode]});
        serde_json::from_value(json!({"metadata": {"name": "toy-storage"}, "spec": spec})).unwrap()
    }

    fn classes(default: &str) -> Seen<Vec<StorageClass>> {
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": default});
        let class = json!({"metadata": {"name": "fast", "annotations": annotations}, "provisioner": "csi"});
        Seen::Found(vec![serde_json::from_value::<StorageClass>(class).unwrap()])
    }

    #[test]
    fn the_class_has_to_exist() {
        let blind = || Seen::Unseen("you may not list storageclasses.storage.k8s.io".to_owned());
        let untried = || DryRun::Unseen("you may not create persistentvolumeclaims".to_owned());
        let accepted = |class| DryRun::Accepted(claim(class, "ReadWriteOnce"));
        type Case<'a> = (Option<&'a str>, DryRun<PersistentVolumeClaim>, Seen<Vec<StorageClass>>, CheckResult);
        let cases: [Case<'_>; 9] = [
            (Some("fast"), untried(), classes("false"), Exists),
            (Some("slow"), accepted(Some("slow")), classes("true"), Problem),
            (None, untried(), classes("true"), Exists),
            (None, untried(), classes("false"), Problem),
            // Admission fills in the default, which needs no right to read classes.
            (None, accepted(Some("fast")), blind(), Exists),
            (None, accepted(None), blind(), Problem),
            (None, untried(), blind(), Unknown),
            (Some("slow"), accepted(Some("slow")), blind(), Unknown),
            (None, untried(), Seen::Absent, Unknown),
        ];
        for (number, (name, tried, classes, expected)) in cases.into_iter().enumerate() {
            let found = class("team", &claim(name, "ReadWriteOnce"), &tried, &classes, false);
            assert_eq!(found.result, expected, "case {number}: {found:?}");
        }
        let shared = class("team", &claim(None, "ReadWriteMany"), &untried(), &classes("true"), true);
        assert!(shared.result == Unknown && shared.message.contains("ReadWriteMany"), "{shared:?}");
        let shared = class("team", &claim(None, "ReadWriteMany"), &accepted(Some("fast")), &blind(), true);
        assert_eq!(shared.result, Unknown);
    }

    #[test]
    fn pods_of_several_nodes_need_a_shared_volume() {
        let found = |mode, shared| access("team", &claim(None, mode), shared).map(|finding| finding.result);
        assert_eq!(found("ReadWriteOnce", false), None);
        assert_eq!(found("ReadWriteOnce", true), Some(Problem));
        assert_eq!(found("ReadWriteMany", true), None);
        let job = |spec: Value| {
            is_shared(&serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap())
        };
        assert!(!job(json!({"workload": {"name": "ups"}})));
        assert!(job(json!({"workload": {"name": "ups"}, "trainer": {"replicas": 2}})));
    }
}
