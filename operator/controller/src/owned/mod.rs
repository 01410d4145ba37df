//! The objects that the operator owns: each has a file that creates and repairs it, and states who deletes it.
//!
//! [`crate::objects`] builds them, purely; here they meet the API server. Creating and repairing are idempotent.

mod batch_job;
mod claim;
mod plan;
mod service;
mod token;

use crate::context::Context;
use crate::key::Key;
use crate::names;
use batch_job::BatchJob;
pub(crate) use batch_job::Found;
use claim::StorageClaim;
use kube::Api;
use kube::api::{PatchParams, PostParams};
use plan::PlanConfigMap;
use service::HeadlessService;
use token::TokenSecret;

/// The objects of an attempt, in the order of their creation. Whoever starts, repairs or ends an attempt destructures
/// this without `..`: the compiler then names every place that must know a new object.
pub(crate) struct Objects<'a> {
    /// Created before the batch Job, because a gang whose pods cannot find each other would hold its GPUs in vain.
    pub(crate) service: HeadlessService<'a>,
    /// Created before the batch Job, whose pods mount it.
    pub(crate) claim: StorageClaim<'a>,
    /// Owns the plan, which the garbage collector deletes with it.
    pub(crate) batch_job: BatchJob<'a>,
    /// Created after the batch Job, which names it: one that is refused leaves no Secret.
    pub(crate) token: TokenSecret<'a>,
    pub(crate) plan: PlanConfigMap<'a>,
}

impl<'a> Objects<'a> {
    /// The objects of the attempt called `name`.
    pub(crate) fn new(context: &'a Context, key: &'a Key, name: &'a str) -> Self {
        let attempt = Attempt { context, key, name };
        Self {
            service: HeadlessService(attempt),
            claim: StorageClaim(attempt),
            batch_job: BatchJob(attempt),
            token: TokenSecret(attempt),
            plan: PlanConfigMap(attempt),
        }
    }
}

/// The attempt that an object belongs to.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    context: &'a Context,
    key: &'a Key,
    /// Also the name of its objects.
    name: &'a str,
}

impl Attempt<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.context.client.clone(), &self.key.namespace)
    }
}

fn creation() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn repairing() -> PatchParams {
    PatchParams::apply(names::FIELD_MANAGER).force()
}
