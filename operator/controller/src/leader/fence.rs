//! A layer of the Kubernetes client that lets nothing be written by a replica that does not lead.

use super::Leadership;
use crate::layer::{Answer, Around, AroundLayer};
use http::{Method, Request};

/// A write was refused, because this replica does not lead, or can no longer be sure that it does.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this replica does not lead: nothing was sent")]
pub struct Fenced;

/// What is done around each request: writes of a replica that does not lead are refused.
#[derive(Clone)]
pub struct Fence(Leadership);

impl Leadership {
    /// A layer of the Kubernetes client: it refuses writes while this replica may not act.
    pub fn fence(&self) -> AroundLayer<Fence> {
        AroundLayer(Fence(self.clone()))
    }
}

impl Around for Fence {
    fn around<A, B: 'static>(&self, request: Request<A>, send: impl FnOnce(Request<A>) -> Answer<B>) -> Answer<B> {
        if *request.method() != Method::GET && !self.0.may_act() {
            return Box::pin(async { Err(Fenced.into()) });
        }
        send(request)
    }
}
