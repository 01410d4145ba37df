//! The object: metadata, spec and status under one kind.

use crate::spec::TrainingJobSpec;
use crate::status::{AttemptStatus, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

/// Annotation with the attempts, as [`restart_of`] names them, separated by commas, that are to be replaced by new
/// ones: `kubectl pawl restart`.
pub const RESTART: &str = "pawl.dev/restart";

/// An attempt in the annotation [`RESTART`]: its name, and when it was started.
pub fn restart_of(attempt: &AttemptStatus) -> String {
    format!("{}/{}", attempt.name, attempt.started)
}

/// A training job: what to train, a baseline, an ordered list of optimization phases, and gates.
///
/// It implements [`Resource`] and [`Metadata`], so that `kube`'s client accepts it; this crate does not depend on a
/// client.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TrainingJob {
    /// Name, namespace, labels, and the fields that the API server sets.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: TrainingJobSpec,
    /// The observed state and the decisions; absent before the first decision.
    #[serde(default)]
    pub status: Option<TrainingJobStatus>,
}

impl TrainingJob {
    /// A job named `name` with `spec`, and without a namespace and a status.
    pub fn new(name: &str, spec: TrainingJobSpec) -> Self {
        Self { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, spec, status: None }
    }
}

impl Resource for TrainingJob {
    const API_VERSION: &'static str = "pawl.dev/v1alpha1";
    const GROUP: &'static str = "pawl.dev";
    const KIND: &'static str = "TrainingJob";
    const VERSION: &'static str = "v1alpha1";
    const URL_PATH_SEGMENT: &'static str = "trainingjobs";
    type Scope = NamespaceResourceScope;
}

impl Metadata for TrainingJob {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Serializes `apiVersion` and `kind` too, which are constants of the type.
impl Serialize for TrainingJob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct(Self::KIND, 4 + usize::from(self.status.is_some()))?;
        object.serialize_field("apiVersion", Self::API_VERSION)?;
        object.serialize_field("kind", Self::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.spec)?;
        match &self.status {
            Some(status) => object.serialize_field("status", status)?,
            None => object.skip_field("status")?,
        }
        object.end()
    }
}
