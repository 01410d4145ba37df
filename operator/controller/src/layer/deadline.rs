//! A deadline for each request.

use super::{Answer, Around};
use http::Request;
use std::time::Duration;

/// A request that was not answered in time. It may have been carried out all the same.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", .0.as_secs_f64())]
pub struct TimedOut(Duration);

/// What is done around each request: one that is not answered in time is given up. Watches have no deadline.
#[derive(Clone)]
pub(crate) struct Deadline(pub(crate) Duration);

impl Around for Deadline {
    fn around<A, B: 'static>(&self, request: Request<A>, send: impl FnOnce(Request<A>) -> Answer<B>) -> Answer<B> {
        let watch = request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        let (deadline, answer) = (self.0, send(request));
        if watch {
            return answer;
        }
        Box::pin(async move {
            tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| Err(TimedOut(deadline).into()))
        })
    }
}
