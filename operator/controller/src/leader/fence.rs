//! A layer of the Kubernetes client that lets nothing be written by a replica that does not lead.

use super::Leadership;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// A write was refused, because this replica does not lead, or can no longer be sure that it does.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this replica does not lead: nothing was sent")]
pub struct Fenced;

/// The layer.
#[derive(Clone)]
pub struct Fence {
    leadership: Leadership,
}

impl Fence {
    pub(super) fn new(leadership: Leadership) -> Self {
        Self { leadership }
    }
}

impl<S> Layer<S> for Fence {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, leadership: self.leadership.clone() }
    }
}

/// The service of [`Fence`].
#[derive(Clone)]
pub struct FenceService<S> {
    inner: S,
    leadership: Leadership,
}

impl<S, A, B> Service<Request<A>> for FenceService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        if *request.method() != Method::GET && !self.leadership.may_act() {
            return Box::pin(async { Err(Fenced.into()) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move { answer.await.map_err(Into::into) })
    }
}
