//! An operator with nothing to do writes nothing.

use kube::api::PostParams;
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_e2e::audit::Audit;
use pawl_e2e::job::toy;
use pawl_e2e::scene::stage;
use pawl_e2e::{Operator, scene};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_hundred_jobs_cause_no_write_in_two_minutes() {
    scene(async |scene| {
        let _operator = scene.operator().await;
        let mut names = Vec::new();
        for number in 0..100 {
            let name = format!("rest-{number}");
            let job = toy(|job| {
                job["metadata"]["name"] = name.as_str().into();
                job["spec"]["phases"] = json!([]);
                match number % 20 {
                    // Some are complete, some failed, most are suspended.
                    0 => job["spec"]["train"]["items"] = 64.into(),
                    // What the API server lets through and the operator does not.
                    1..5 => {
                        job["spec"]["trainer"]["podTemplate"] = json!({"env": [{"name": "PAWL_RANK", "value": "0"}]});
                    }
                    _ => job["spec"]["suspend"] = true.into(),
                }
            });
            let job: TrainingJob = serde_json::from_value(job).unwrap();
            scene.api().create(&PostParams::default(), &job).await.unwrap();
            names.push(name);
        }
        for name in &names {
            let rests = |job: &TrainingJob| matches!(stage(job), Stage::Complete | Stage::Failed | Stage::Suspended);
            scene.job_until(name, "to be at rest", Duration::from_secs(120), rests).await;
        }
        // A job is Complete before its gang is gone, which a busy node takes its time for.
        for name in &names {
            let nothing = async || (scene.count_owned(name).await == 0).then_some(());
            scene.until(&format!("the gang of {name} to be gone"), Duration::from_secs(60), nothing).await;
        }
        // Events of the last ones.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let audit = Audit::now();
        tokio::time::sleep(Duration::from_secs(120)).await;
        let user = Operator::user(scene);
        let writes = audit.count(&scene.namespace, &user);
        assert!(writes.is_empty(), "{writes:?}");
        // The audit log does see this operator.
        assert!(audit.writes(&scene.namespace).iter().any(|write| write.user() == user), "no lease was renewed");
    });
}
