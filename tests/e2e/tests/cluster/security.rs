//! The pods of a job live under the `restricted` Pod Security Standard, and hold no token of the API.

use pawl_e2e::job::toy;
use pawl_e2e::programs::{kubectl, succeed};
use pawl_e2e::scene;
use serde_json::json;
use std::time::Duration;

#[test]
fn trainer_pods_pass_the_restricted_standard_without_an_api_token() {
    scene(async |scene| {
        let restricted = ["enforce", "warn"].map(|mode| format!("pod-security.kubernetes.io/{mode}=restricted"));
        succeed(kubectl(&["label", "namespace", &scene.namespace]).args(restricted));
        let _operator = scene.operator().await;
        scene.apply(&toy(|job| {
            job["spec"]["phases"] = json!([]);
            job["spec"]["train"]["items"] = 1280.into();
        }));
        let pods = scene
            .until("a pod", Duration::from_secs(60), async || {
                Some(scene.pods("toy").await).filter(|pods| !pods.is_empty())
            })
            .await;
        for pod in &pods {
            let spec = pod.spec.as_ref().unwrap();
            assert_eq!(spec.automount_service_account_token, Some(false));
            let volumes = spec.volumes.iter().flatten();
            let tokens = volumes.filter(|volume| volume.projected.is_some()).count();
            assert_eq!(tokens, 0, "{:?}", spec.volumes);
        }
        scene.complete("toy", Duration::from_secs(120)).await;
    });
}
