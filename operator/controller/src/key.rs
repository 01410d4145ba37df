//! How the operator identifies a job.

use kube::ResourceExt;
use kube::runtime::reflector::{Lookup, ObjectRef};

/// Namespace and name of a `TrainingJob`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// The key of `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a job.
    pub fn of(job: &impl ResourceExt) -> Self {
        Self::new(job.namespace().unwrap_or_default(), job.name_any())
    }

    /// The key as a reference into a store.
    pub fn reference<K: Lookup<DynamicType = ()>>(&self) -> ObjectRef<K> {
        ObjectRef::new(&self.name).within(&self.namespace)
    }
}
