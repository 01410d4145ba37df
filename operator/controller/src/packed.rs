//! How `TrainingJob`s are kept between decisions: the metadata that the watch needs, and the whole object as compressed
//! JSON.
//!
//! A job with 50 phases is 10 KiB of JSON before it begins and 60 KiB at its end: 230 to 500 KiB as typed values, 1 to
//! 6 KiB compressed. It is opened to be decided on, and at no other time.

use crate::compressed::Compressed;
use crate::reading::Guarded;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Most bytes of compressed JSON that are kept of a job: those of a job with a thousand trials are a third of it. A
/// larger one is read from the API server when it is decided on, so that no content takes the memory of all other jobs.
const MOST: usize = 32 << 10;
/// Annotation that repeats the whole manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A `TrainingJob` between decisions. Clones share its text.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Name, namespace, uid, resource version, generation and time of deletion.
    metadata: ObjectMeta,
    edition: u64,
    is_under_way: bool,
    text: Option<Compressed>,
}

impl Packed {
    /// The job, or what is wrong with it. `None`: it is too large to be kept, and has to be read again.
    pub fn open(&self) -> Option<Guarded> {
        // What cannot be opened, which does not happen, is read again too.
        self.text.as_ref()?.open()
    }

    /// Differs after a change of the spec, the labels or the annotations, and after no other.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// Whether something is still to be decided about it, by its stage.
    pub fn is_under_way(&self) -> bool {
        self.is_under_way
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if let Some(metadata) = value["metadata"].as_object_mut() {
            // They are never read.
            metadata.remove("managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove(LAST_APPLIED);
            }
        }
        let all = ObjectMeta::deserialize(&value["metadata"]).map_err(serde::de::Error::custom)?;
        let mut hasher = DefaultHasher::new();
        (&all.generation, &all.labels, &all.annotations).hash(&mut hasher);
        let ObjectMeta { name, namespace, uid, resource_version, generation, deletion_timestamp, .. } = all;
        let stage = Stage::deserialize(&value["status"]["stage"]).unwrap_or_default();
        let is_under_way = !matches!(stage, Stage::Complete | Stage::Failed | Stage::Suspended);
        let text = Compressed::new(&value).filter(|text| text.size() <= MOST);
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            generation,
            deletion_timestamp,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, edition: hasher.finish(), is_under_way, text })
    }
}

impl Resource for Packed {
    type DynamicType = ();
    type Scope = <TrainingJob as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        TrainingJob::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        TrainingJob::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        TrainingJob::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        TrainingJob::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Job;
    use serde_json::json;

    fn job() -> Value {
        json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {
                "name": "toy", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
                "labels": {"team": "a"}, "annotations": {"note": "b", LAST_APPLIED: "{}"},
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"workload": {"name": "ups"}, "later": 1},
            "status": {"attempts": 3},
        })
    }

    fn packed(job: Value) -> Packed {
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn what_is_opened_is_what_was_read() {
        let packed = packed(job());
        let Some(Guarded(Ok(opened))) = packed.open() else { panic!("it can be read") };
        let Guarded(Ok(Job { job: mut read, unknown })) = serde_json::from_value(job()).unwrap() else { panic!() };
        read.metadata.managed_fields = None;
        read.metadata.annotations.as_mut().unwrap().remove(LAST_APPLIED);
        assert_eq!(serde_json::to_value(&opened.job).unwrap(), serde_json::to_value(&read).unwrap());
        assert_eq!(opened.unknown, unknown);
        assert_eq!(opened.unknown.ignored(), "spec.later");
        for (kept, of) in [(packed.meta(), "the metadata"), (&opened.job.metadata, "the job")] {
            assert_eq!(kept.uid.as_deref(), Some("u"), "{of}");
            assert_eq!(kept.resource_version.as_deref(), Some("7"), "{of}");
            assert!(kept.deletion_timestamp.is_some(), "{of}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_job_is_found_when_it_is_opened() {
        let mut wrong = job();
        wrong["spec"]["settings"] = json!({"compile": "Turbo"});
        let Some(Guarded(Err(unreadable))) = packed(wrong).open() else { panic!("a later version knows it") };
        assert!(unreadable.problem.contains("Turbo"), "{}", unreadable.problem);
        assert_eq!(unreadable.metadata.name.as_deref(), Some("toy"));
    }

    #[test]
    fn only_a_person_makes_another_edition() {
        let before = packed(job()).edition();
        let after = |path: &str, new: Value| {
            let mut job = job();
            *job.pointer_mut(path).unwrap() = new;
            packed(job).edition()
        };
        assert_eq!(after("/status", json!({"attempts": 4})), before);
        assert_eq!(after("/metadata/resourceVersion", json!("8")), before);
        assert_eq!(after("/metadata/managedFields", json!([])), before);
        assert_ne!(after("/metadata/generation", json!(3)), before);
        assert_ne!(after("/metadata/labels", json!({"team": "b"})), before);
        assert_ne!(after("/metadata/annotations/note", json!("c")), before);
    }

    /// Text that cannot be compressed, as large as an object may be.
    #[test]
    fn no_content_takes_more_than_its_share() {
        let mut large = job();
        let digits = |at: u32| format!("{:x}", scrambled(at));
        large["spec"]["trainer"] = json!({"image": (0..100_000).map(digits).collect::<String>()});
        let packed = packed(large);
        assert!(packed.open().is_none());
        assert_eq!(packed.meta().name.as_deref(), Some("toy"));
    }

    fn scrambled(at: u32) -> u64 {
        let mut hasher = DefaultHasher::new();
        at.hash(&mut hasher);
        hasher.finish()
    }
}
