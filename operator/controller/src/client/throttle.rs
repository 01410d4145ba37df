//! Holds requests back for as long as the API server asks.
//!
//! An API server that rejects a request for its load (429 of priority and fairness, 503 with `Retry-After`) rejects the
//! next one as well. A reconcile that fails waits for itself alone; a thousand of them would still be a thousand
//! requests a second.

use crate::layer::Answer;
use http::{HeaderMap, Request, Response, StatusCode, header};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{BoxError, Layer, Service};

/// Pause after the first rejection, unless the API server asks for a longer one; it doubles with each further one in a
/// row.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause, whatever the API server asks for.
const LONGEST: Duration = Duration::from_secs(30);

/// A layer of the Kubernetes client: after a rejection for load, nothing is sent for a while. Clones share the pause.
#[derive(Clone, Debug, Default)]
pub struct Throttle(Arc<Mutex<Pause>>);

/// The service of [`Throttle`].
pub struct Throttled<S> {
    inner: S,
    pause: Arc<Mutex<Pause>>,
    sleep: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, Default)]
struct Pause {
    /// Nothing is sent before.
    until: Option<Instant>,
    /// Pauses in a row, between which nothing was accepted.
    in_a_row: u32,
}

impl Pause {
    /// When requests may be sent again, if not now.
    fn left(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// Takes in the answer to a request that was sent at `sent`; `rejected`: for how long the API server asks to wait,
    /// if it rejected it for its load.
    fn answered(&mut self, sent: Instant, rejected: Option<Duration>, now: Instant) {
        // Of many that were sent before a pause, all are rejected.
        let is_new = self.until.is_none_or(|until| sent >= until);
        match rejected {
            None if is_new => self.in_a_row = 0,
            None => {}
            Some(asked) => {
                if is_new {
                    self.in_a_row = self.in_a_row.saturating_add(1);
                }
                let doublings = self.in_a_row.saturating_sub(1).min(16);
                let wait = FIRST.saturating_mul(1 << doublings).max(asked).min(LONGEST);
                // Those that were rejected with it have the same pause, or the longer one that one of them asks for.
                let wait = if is_new { wait } else { asked.min(LONGEST) };
                self.until = self.until.max(Some(now + wait));
            }
        }
    }
}

/// How long the API server asks to wait before the next request, if it rejected one for its load.
fn rejected(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let asked = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    match (status, asked.map(Duration::from_secs)) {
        (StatusCode::TOO_MANY_REQUESTS, asked) => Some(asked.unwrap_or_default()),
        (StatusCode::SERVICE_UNAVAILABLE, asked) => asked,
        _ => None,
    }
}

impl<S> Layer<S> for Throttle {
    type Service = Throttled<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Throttled { inner, pause: self.0.clone(), sleep: None }
    }
}

impl<S, A, B> Service<Request<A>> for Throttled<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Answer<B>;

    // The client calls this before each request, one after the other: while it is pending, all wait.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        loop {
            let Some(until) = self.pause.lock().left(Instant::now()) else {
                self.sleep = None;
                return self.inner.poll_ready(context).map_err(Into::into);
            };
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if sleep.deadline() != until {
                sleep.as_mut().reset(until);
            }
            ready!(sleep.as_mut().poll(context));
        }
    }

    fn call(&mut self, request: Request<A>) -> Answer<B> {
        let (pause, sent) = (self.pause.clone(), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            if let Ok(response) = &answer {
                let rejected = rejected(response.status(), response.headers());
                pause.lock().answered(sent, rejected, Instant::now());
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[rstest]
    #[case::priority_and_fairness(429, Some("1"), Some(1))]
    #[case::without_a_time(429, None, Some(0))]
    #[case::not_a_number(429, Some("Fri, 07 Nov 2026 23:59:59 GMT"), Some(0))]
    #[case::shutting_down(503, Some("5"), Some(5))]
    #[case::no_endpoint(503, None, None)]
    #[case::broken(500, Some("5"), None)]
    #[case::fine(200, None, None)]
    fn what_is_a_rejection_for_load(#[case] code: u16, #[case] value: Option<&str>, #[case] wait: Option<u64>) {
        let mut headers = HeaderMap::new();
        value.map(|value| headers.insert(header::RETRY_AFTER, value.parse().unwrap()));
        assert_eq!(rejected(StatusCode::from_u16(code).unwrap(), &headers), wait.map(seconds));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_something_is_accepted() {
        let mut pause = Pause::default();
        let mut now = Instant::now();
        for expected in [1, 2, 4, 8, 16, 30, 30] {
            // All that were sent together are rejected.
            for _ in 0..50 {
                pause.answered(now, Some(seconds(1)), now);
            }
            let until = pause.left(now).unwrap();
            assert_eq!(until - now, seconds(expected));
            now = until;
        }
        pause.answered(now, None, now);
        pause.answered(now, Some(Duration::ZERO), now);
        assert_eq!(pause.left(now), Some(now + FIRST));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_api_server_asks_for_is_honoured_within_reason() {
        let now = Instant::now();
        for (asked, expected) in [(0, 1), (7, 7), (86_400, 30)] {
            let mut pause = Pause::default();
            pause.answered(now, Some(seconds(asked)), now);
            assert_eq!(pause.left(now), Some(now + seconds(expected)));
        }
    }
}
