//! Jobs at rest.

use crate::world::{World, done, noise, speed};
use serde_json::{Value, json};
use std::sync::Arc;

/// What rests.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Suspended from the beginning, with 50 phases: the operator writes its first status.
    Suspended,
    /// Complete, with the evidence of 50 phases.
    Finished,
    /// Complete, with 1,000 trials of a search.
    Searched,
    /// Suspended, with as much text that cannot be compressed as an object may hold.
    Incompressible,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Suspended, Self::Finished, Self::Searched, Self::Incompressible];

    /// A job of this kind.
    pub fn job(self) -> Arc<Job> {
        Arc::new(match self {
            Self::Suspended => Job::of(json!({"suspend": true, "phases": phases()}), Value::Null),
            Self::Finished => {
                let spec = json!({"phases": phases(), "analysis": {"minPairs": 7, "maxPairs": 7}});
                Job::run(spec)
            }
            Self::Searched => Job::run(json!({
                "search": [{
                    "name": "rates", "trials": 1000, "epochs": 9, "sampler": "Random",
                    "objectives": [{"metric": "loss", "goal": "Minimize"}],
                    "parameters": [
                        {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
                        {"name": "batchPerGpu", "min": "1", "max": "64"},
                    ],
                }],
            })),
            Self::Incompressible => {
                let mut state = 1_u64;
                let mut letter = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    char::from(b' ' + (state >> 58) as u8).to_string().replace(['"', '\\'], "~")
                };
                let value: String = (0..1_000_000).map(|_| letter()).collect();
                let trainer = json!({"podTemplate": {"env": [{"name": "NOISE", "value": value}]}});
                Job::of(json!({"suspend": true, "trainer": trainer}), Value::Null)
            }
        })
    }
}

fn phases() -> Vec<Value> {
    let phase = |number| {
        json!({
            "name": format!("a-rather-long-name-of-a-phase-{number}"), "numerics": "Changed", "minSpeedup": "1.02",
            "settings": {"workload": {format!("knob{number}"): number}},
            "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 4}}],
        })
    };
    (0..50).map(phase).collect()
}

/// A job, as the text of which others of the same kind are made.
pub struct Job {
    /// From its metadata's first field that follows the name and the version on.
    spec: String,
    status: String,
}

impl Job {
    fn of(spec: Value, status: Value) -> Self {
        let mut whole = json!({
            "workload": {"name": "ups"}, "settings": {"batchPerGpu": 8, "learningRate": "1e-1"}, "seeds": [1, 2, 3],
            "train": {"items": 1000},
        });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        whole["analysis"]["budgetPercent"] = json!("Unlimited");
        Self { spec: whole.to_string(), status: status.to_string() }
    }

    /// The same after it has run to its end.
    fn run(spec: Value) -> Self {
        let before = Self::of(spec, Value::Null);
        let factors = [("knob49", 1.1)];
        let trainer = move |plan: &_, _| done(plan, speed(&plan.settings, &factors) * noise(plan, 0.002));
        let mut world = World::new(serde_json::from_str(&before.spec).unwrap(), Box::new(trainer));
        for _ in 0..100_000 {
            let moved = world.decide();
            if !world.work() && !moved {
                break;
            }
        }
        assert_eq!(world.status.stage, pawl_api::status::Stage::Complete, "{:?}", world.status.failure);
        Self { status: serde_json::to_string(&world.status).unwrap(), ..before }
    }

    /// The same with the status that the operator gave it.
    pub fn with_status(&self, status: String) -> Self {
        Self { spec: self.spec.clone(), status }
    }

    /// Bytes of its JSON.
    pub fn size(&self) -> usize {
        self.text(0, 1, None).len()
    }

    /// The job of this number and resource version, with this status or its own.
    pub fn text(&self, number: usize, version: u64, status: Option<&str>) -> String {
        let Self { spec, status: own } = self;
        let status = status.unwrap_or(own);
        format!(
            r#"{{"apiVersion":"pawl.dev/v1alpha1","kind":"TrainingJob","metadata":{{"name":"a-training-job-{number}",
            "namespace":"team-of-the-tests","uid":"00000000-0000-4000-8000-{number:012}","resourceVersion":"{version}",
            "generation":1,"creationTimestamp":"2026-01-01T00:00:00Z","labels":{{"team":"tests","model":"m{number}"}},
            "managedFields":[{{"manager":"kubectl","operation":"Apply","fieldsV1":{{"f:spec":{{"f:phases":{{}}}}}}}}],
            "annotations":{{"kubectl.kubernetes.io/last-applied-configuration":"{{}}"}}}},
            "spec":{spec},"status":{status}}}"#
        )
    }
}
