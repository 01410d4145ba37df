//! Checks of the pod template: fields that Pawl sets must be absent, and every mount needs a volume.

use super::{Problem, quoted};
use crate::spec::Trainer;

/// Variables that the trainer contract sets.
const RESERVED: [&str; 5] = ["MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE"];

pub(super) fn check(trainer: &Trainer) -> Vec<Problem> {
    let pod = &trainer.pod_template;
    let at = "spec.trainer.podTemplate";
    let mut problems = Vec::new();
    for (i, variable) in pod.env.iter().enumerate() {
        let name = variable.name.as_str();
        if RESERVED.contains(&name) || name.starts_with("PAWL_") {
            let message = "is set by Pawl for each rank";
            problems.push(Problem::new(format!("{at}.env[{i}].name"), quoted(name), message, "remove it"));
        }
        if variable.value.is_some() && variable.value_from.is_some() {
            let field = format!("{at}.env[{i}].valueFrom");
            problems.push(Problem::new(field, "", "is mutually exclusive with value", "keep one of them"));
        }
    }
    for (i, volume) in pod.volumes.iter().enumerate() {
        let sources = serde_json::to_value(volume).ok().and_then(|v| v.as_object().map(|o| o.len() - 1)).unwrap_or(0);
        if sources != 1 {
            let message = format!("has {sources} sources");
            let remedy = "set exactly one, such as persistentVolumeClaim or emptyDir";
            problems.push(Problem::new(format!("{at}.volumes[{i}]"), quoted(&volume.name), message, remedy));
        }
    }
    for (i, mount) in pod.volume_mounts.iter().enumerate() {
        if !pod.volumes.iter().any(|v| v.name == mount.name) {
            let field = format!("{at}.volumeMounts[{i}].name");
            problems.push(Problem::new(field, quoted(&mount.name), "is not a volume of this pod", "add it to volumes"));
        }
        if !mount.mount_path.starts_with('/') {
            let field = format!("{at}.volumeMounts[{i}].mountPath");
            problems.push(Problem::new(field, quoted(&mount.mount_path), "is not an absolute path", "start it with /"));
        }
    }
    for (list, quantities) in pod.resources.iter().flat_map(|r| [("limits", &r.limits), ("requests", &r.requests)]) {
        if quantities.as_ref().is_some_and(|q| q.contains_key(&trainer.gpu_resource)) {
            problems.push(Problem::new(
                format!("{at}.resources.{list}.{}", trainer.gpu_resource),
                "",
                "is set by Pawl from gpusPerReplica",
                "remove it",
            ));
        }
    }
    problems
}
