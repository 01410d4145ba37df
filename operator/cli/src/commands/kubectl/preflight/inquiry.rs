//! Reads the cluster for a preflight, and dry-runs. Nothing is changed, and what may not be read is an observation.

use super::finding::{DryRun, Seen};
use super::operators::{Operator, Operators, SELECTOR, Trace};
use super::queue::{LocalQueue, Queue};
use super::references::{Reference, Referent};
use crate::commands::kubectl::error::ClusterError;
use crate::commands::kubectl::session::{JOBS, MANAGER, Session};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::error::DiscoveryError;
use kube::{Resource, discovery};
use pawl_api::TrainingJob;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// The group of Kueue.
const KUEUE: &str = "kueue.x-k8s.io";
/// Codes of answers that say that an object would not be created. The rights were asked for before.
const REFUSALS: [u16; 5] = [400, 403, 409, 422, 500];

/// What an operator has to be allowed in a namespace, of all its rights: verb, group, resource, and for people.
const NEEDED: [(&str, &str, &str, &str); 2] = [
    ("list", "pawl.dev", "trainingjobs", "list trainingjobs.pawl.dev"),
    ("create", "batch", "jobs", "create jobs.batch"),
];

/// Asks the cluster on behalf of the user.
pub struct Inquiry<'a>(pub &'a Session);

impl Inquiry<'_> {
    /// What was read; missing permission is an observation, an unreachable cluster an error.
    fn seen<T>(answer: Result<Option<T>, ClusterError>) -> Result<Seen<T>, ClusterError> {
        match answer {
            Ok(Some(object)) => Ok(Seen::Found(object)),
            Ok(None) => Ok(Seen::Absent),
            Err(ClusterError::Forbidden { verb, resource, .. }) => Ok(Seen::Unseen(may_not(verb, resource))),
            Err(other) => Err(other),
        }
    }

    /// All objects of a kind, in the namespace if it has one.
    pub async fn list<K>(&self, api: Api<K>, resource: &'static str) -> Result<Seen<Vec<K>>, ClusterError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let answer = self.0.ask(self.0.request("list", resource), api.list(&ListParams::default())).await;
        Self::seen(answer.map(|list| Some(list.items)))
    }

    /// An API of the namespace.
    pub fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.0.client.clone(), &self.0.namespace)
    }

    /// Whether the user may do this in the namespace; as an observation, why not.
    async fn may(
        &self,
        verb: &'static str,
        group: &str,
        resource: &str,
        full: &'static str,
    ) -> Result<Seen<()>, ClusterError> {
        let review = SelfSubjectAccessReview {
            metadata: ObjectMeta::default(),
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes(&self.0.namespace, verb, group, resource)),
                non_resource_attributes: None,
            },
            status: None,
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.0.client.clone());
        let request = self.0.request("create", "selfsubjectaccessreviews.authorization.k8s.io");
        let answer = self.0.ask(request, reviews.create(&PostParams::default(), &review)).await;
        Ok(match Self::seen(answer.map(Some))? {
            Seen::Found(review) if review.status.as_ref().is_some_and(|status| status.allowed) => Seen::Found(()),
            Seen::Found(_) | Seen::Absent => Seen::Unseen(may_not(verb, full)),
            Seen::Unseen(why) => Seen::Unseen(why),
        })
    }

    /// Tries to create an object of the namespace.
    pub async fn create<K>(&self, object: &K, full: &'static str) -> Result<DryRun<K>, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Serialize + DeserializeOwned + Debug,
    {
        if let Seen::Unseen(why) = self.may("create", &K::group(&()), &K::plural(&()), full).await? {
            return Ok(DryRun::Unseen(why));
        }
        let api: Api<K> = self.api();
        let parameters = PostParams { dry_run: true, field_manager: Some(MANAGER.to_owned()) };
        let tried = refusable(api.create(&parameters, object));
        Ok(answered(self.0.ask(self.0.request("create", full), tried).await?))
    }

    /// Tries to create the job, or to apply it when there is one of its name.
    pub async fn apply(&self, job: &TrainingJob) -> Result<DryRun<TrainingJob>, ClusterError> {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let there = self.0.ask(self.0.request("get", JOBS), self.0.jobs().get_metadata_opt(name)).await;
        match Self::seen(there)? {
            Seen::Absent => return self.create(job, JOBS).await,
            Seen::Unseen(why) => return Ok(DryRun::Unseen(why)),
            Seen::Found(_) => {}
        }
        if let Seen::Unseen(why) = self.may("patch", "pawl.dev", "trainingjobs", JOBS).await? {
            return Ok(DryRun::Unseen(why));
        }
        let parameters = PatchParams::apply(MANAGER).force().dry_run();
        let (jobs, manifest) = (self.0.jobs(), Patch::Apply(job));
        let tried = refusable(jobs.patch(name, &parameters, &manifest));
        Ok(answered(self.0.ask(self.0.request("patch", JOBS), tried).await?))
    }

    /// The operators that the chart has installed: of all namespaces, or else in the one that is named.
    pub async fn operators(&self, home: &str) -> Result<Operators, ClusterError> {
        let list = async |api: Api<Deployment>| {
            let parameters = ListParams::default().labels(SELECTOR);
            let answer = self.0.ask(self.0.request("list", "deployments.apps"), api.list(&parameters)).await;
            Self::seen(answer.map(|list| Some(list.items.iter().filter_map(Operator::of).collect())))
        };
        let unseen = match list(Api::all(self.0.client.clone())).await? {
            Seen::Found(found) => return Ok(Operators { found, unseen: None }),
            Seen::Absent => None,
            Seen::Unseen(why) => Some(format!("{why} of all namespaces")),
        };
        let here = list(Api::namespaced(self.0.client.clone(), home)).await?;
        let found = if let Seen::Found(found) = here { found } else { Vec::new() };
        Ok(Operators { found, unseen })
    }

    /// What operators have written into the jobs of the namespace.
    pub async fn traces(&self) -> Result<Seen<Vec<Trace>>, ClusterError> {
        let jobs = self.0.ask(self.0.request("list", JOBS), self.0.jobs().list_metadata(&ListParams::default())).await;
        Self::seen(jobs.map(|jobs| Some(jobs.items.iter().map(|job| Trace::of(&job.metadata)).collect())))
    }

    /// Whether the operator has its rights in the namespace.
    pub async fn rights(&self, operator: &Operator) -> Result<Seen<Vec<(&'static str, bool)>>, ClusterError> {
        let mut all = Vec::new();
        for (verb, group, resource, full) in NEEDED {
            let review = LocalSubjectAccessReview {
                metadata: ObjectMeta { namespace: Some(self.0.namespace.clone()), ..ObjectMeta::default() },
                spec: SubjectAccessReviewSpec {
                    user: Some(operator.user.clone()),
                    groups: Some(operator.groups.clone()),
                    resource_attributes: Some(attributes(&self.0.namespace, verb, group, resource)),
                    ..SubjectAccessReviewSpec::default()
                },
                status: None,
            };
            let request = self.0.request("create", "localsubjectaccessreviews.authorization.k8s.io");
            let api: Api<LocalSubjectAccessReview> = self.api();
            let answer = self.0.ask(request, api.create(&PostParams::default(), &review)).await;
            match Self::seen(answer.map(Some))? {
                Seen::Found(review) => all.push((full, review.status.is_some_and(|status| status.allowed))),
                Seen::Absent => {}
                Seen::Unseen(why) => return Ok(Seen::Unseen(why)),
            }
        }
        Ok(Seen::Found(all))
    }

    /// The queue of this name.
    pub async fn queue(&self, name: &str) -> Result<Queue, ClusterError> {
        let request = self.0.request("get", "localqueues.kueue.x-k8s.io");
        let group = async {
            match discovery::group(&self.0.client, KUEUE).await {
                Ok(group) => Ok(group.recommended_kind("LocalQueue")),
                Err(kube::Error::Discovery(DiscoveryError::MissingApiGroup(_))) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let kind = match Self::seen(self.0.ask(request, group).await)? {
            Seen::Found((kind, _)) => kind,
            Seen::Absent => return Ok(Queue::NotInstalled),
            Seen::Unseen(why) => return Ok(Queue::Looked(Seen::Unseen(why))),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.0.client.clone(), &self.0.namespace, &kind);
        let read = async {
            let found = api.get_opt(name).await?;
            let read = found.map(|found| serde_json::from_value::<LocalQueue>(found.data)).transpose();
            read.map_err(kube::Error::SerdeError)
        };
        Ok(Queue::Looked(Self::seen(self.0.ask(request, read).await)?))
    }

    /// The claim of this name.
    pub async fn claim(&self, name: &str) -> Result<Seen<PersistentVolumeClaim>, ClusterError> {
        let api: Api<PersistentVolumeClaim> = self.api();
        let request = self.0.request("get", Referent::PersistentVolumeClaim.resource());
        Self::seen(self.0.ask(request, api.get_opt(name)).await)
    }

    /// Whether this object exists. Of Secrets too, only the metadata is read.
    pub async fn existence(&self, Reference { kind, name }: &Reference) -> Result<Seen<()>, ClusterError> {
        let all = || self.0.client.clone();
        match kind {
            Referent::ServiceAccount => self.metadata(self.api::<ServiceAccount>(), *kind, name).await,
            Referent::PriorityClass => self.metadata(Api::<PriorityClass>::all(all()), *kind, name).await,
            Referent::RuntimeClass => self.metadata(Api::<RuntimeClass>::all(all()), *kind, name).await,
            Referent::ConfigMap => self.metadata(self.api::<ConfigMap>(), *kind, name).await,
            Referent::Secret => self.metadata(self.api::<Secret>(), *kind, name).await,
            Referent::PersistentVolumeClaim => self.metadata(self.api::<PersistentVolumeClaim>(), *kind, name).await,
            Referent::ResourceClaim => self.metadata(self.api::<ResourceClaim>(), *kind, name).await,
            Referent::ResourceClaimTemplate => self.metadata(self.api::<ResourceClaimTemplate>(), *kind, name).await,
        }
    }

    async fn metadata<K>(&self, api: Api<K>, kind: Referent, name: &str) -> Result<Seen<()>, ClusterError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let answer = self.0.ask(self.0.request("get", kind.resource()), api.get_metadata_opt(name)).await;
        Self::seen(answer.map(|found| found.map(|_| ())))
    }
}

fn may_not(verb: &str, resource: &str) -> String {
    format!("you may not {verb} {resource}")
}

fn attributes(namespace: &str, verb: &str, group: &str, resource: &str) -> ResourceAttributes {
    ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        ..ResourceAttributes::default()
    }
}

/// The answer to a dry run, of which a refusal is a result.
async fn refusable<K>(answer: impl Future<Output = kube::Result<K>>) -> kube::Result<Result<K, Box<Status>>> {
    match answer.await {
        Ok(object) => Ok(Ok(object)),
        Err(kube::Error::Api(status)) if is_refusal(&status) => Ok(Err(status)),
        Err(error) => Err(error),
    }
}

/// Whether the object would not be created, of an answer to somebody who has the right to.
fn is_refusal(status: &Status) -> bool {
    REFUSALS.contains(&status.code) || is_without_namespace(status)
}

fn is_without_namespace(status: &Status) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

fn answered<K>(answer: Result<K, Box<Status>>) -> DryRun<K> {
    let status = match answer {
        Ok(object) => return DryRun::Accepted(object),
        Err(status) => status,
    };
    let message = if status.message.is_empty() { status.reason.clone() } else { status.message.clone() };
    match status.reason.as_str() {
        // Admission comes first: it would have refused the object before.
        "AlreadyExists" => DryRun::Exists,
        _ if is_without_namespace(&status) => DryRun::NoNamespace,
        // As of a webhook that does not support dry runs, which says nothing about the object.
        "BadRequest" => DryRun::Unseen(format!("the API server answered: {message}")),
        _ => DryRun::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_refusal_is_told_from_what_says_nothing_about_the_object() {
        let answer = |code: u16, reason: &str, kind: &str| {
            let status = json!({"code": code, "reason": reason, "message": "m", "details": {"kind": kind}});
            let status: Box<Status> = serde_json::from_value(status).unwrap();
            is_refusal(&status).then(|| answered::<()>(Err(status)))
        };
        let refused = Some(DryRun::Refused("m".to_owned()));
        assert_eq!(answer(403, "Forbidden", "pods"), refused, "a quota or a policy");
        assert_eq!(answer(422, "Invalid", "pods"), refused);
        assert_eq!(answer(400, "", "pods"), refused, "a webhook that gives no code");
        assert_eq!(answer(500, "InternalError", "pods"), refused, "a webhook that cannot be reached");
        assert_eq!(answer(409, "AlreadyExists", "services"), Some(DryRun::Exists));
        assert_eq!(answer(404, "NotFound", "namespaces"), Some(DryRun::NoNamespace));
        assert!(matches!(answer(400, "BadRequest", "pods"), Some(DryRun::Unseen(_))), "a webhook without dry runs");
        assert_eq!(answer(404, "NotFound", ""), None, "no such resource");
        assert_eq!(answer(429, "TooManyRequests", ""), None);
    }
}
