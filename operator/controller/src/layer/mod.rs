//! Layers of the Kubernetes client, each written as one function around the sending of a request.

pub(crate) mod deadline;

use futures::future::BoxFuture;
use http::{Request, Response};
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// What comes of a request.
pub type Answer<B> = BoxFuture<'static, Result<Response<B>, BoxError>>;

/// What is done around the sending of each request.
pub trait Around: Clone {
    /// Calls `send` with `request`, or answers without it.
    fn around<A, B: 'static>(&self, request: Request<A>, send: impl FnOnce(Request<A>) -> Answer<B>) -> Answer<B>;
}

/// The layer that does `T`.
#[derive(Clone)]
pub struct AroundLayer<T>(pub T);

/// The service of [`AroundLayer`].
#[derive(Clone)]
pub struct AroundService<S, T> {
    inner: S,
    around: T,
}

impl<S, T: Around> Layer<S> for AroundLayer<T> {
    type Service = AroundService<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        AroundService { inner, around: self.0.clone() }
    }
}

impl<S, T, A, B> Service<Request<A>> for AroundService<S, T>
where
    T: Around,
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Answer<B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Answer<B> {
        let Self { inner, around } = self;
        around.around(request, |request| {
            let answer = inner.call(request);
            Box::pin(async move { answer.await.map_err(Into::into) })
        })
    }
}
