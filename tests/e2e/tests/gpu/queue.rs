//! Kueue lends the GPUs, and takes them back.

use crate::faults::{checkpointed, training};
use pawl_api::status::Stage;
use pawl_e2e::gpus::{Gpus, LONGEST};
use pawl_e2e::job::status;
use pawl_e2e::kueue::{self, Queue};
use pawl_e2e::scene::{scene, stage};

#[test]
fn a_job_that_loses_its_gpu_to_an_urgent_one_ends_with_the_same_model() {
    scene(async |scene| {
        let gpus = Gpus::here();
        let queue = Queue::of(scene, 1).await;
        // The same training: only one of the two is interrupted.
        for (name, labels) in [("patient", kueue::queued()), ("urgent", queue.urgent())] {
            let mut job = training(gpus, name);
            job["metadata"]["labels"] = labels;
            scene.claim(name);
            scene.apply(&job);
            if name == "patient" {
                scene.healthy_until(name, "to checkpoint", LONGEST, |job| checkpointed(job) > 0).await;
            }
        }
        scene.complete("urgent", LONGEST).await;
        assert_ne!(stage(&scene.job("patient").await), Stage::Complete, "it has waited for the other one");
        let patient = scene.complete("patient", LONGEST).await;
        assert_eq!(status(&patient).training.as_ref().unwrap().restarts, 0, "a queue is no failure");
        let events = scene.events("patient").await;
        assert!(events.iter().any(|(reason, _)| reason == "Preempted"), "{events:#?}");
        let result = async |name| {
            let training = scene.status(name).await["training"].clone();
            (training["steps"].clone(), training["items"].clone(), training["validation"].clone())
        };
        assert_eq!(result("patient").await, result("urgent").await);
    });
}
