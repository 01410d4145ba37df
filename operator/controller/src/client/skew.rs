//! How far the clock of this machine is from that of the API server.
//!
//! A job's times come from several machines: the API server says when a batch Job was made and when a pod was to be
//! gone, and the operator, on whatever node it runs, says what the time is. With a clock that is ahead, a gang would be
//! given up before it could start, and a job that has just ended would be deleted. Every answer of the API server has
//! its date: the operator decides by that clock.

use crate::clock::Offset;
use crate::layer::{Answer, Around};
use crate::metrics::Metrics;
use http::{Request, header};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};

/// The date of an answer has no fractions.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// The offset that is certain from the date of an answer, and from the times of this machine's clock between which it
/// was made.
fn offset(date: Timestamp, sent: Timestamp, received: Timestamp) -> SignedDuration {
    let (least, most) = (date.duration_since(received), date.duration_since(sent) + SECOND);
    match () {
        () if least.is_positive() => least,
        () if most.is_negative() => most,
        () => SignedDuration::ZERO,
    }
}

/// What is done around each request: the date of its answer is compared with this machine's clock.
#[derive(Clone)]
pub(crate) struct Skew {
    pub(crate) offset: Offset,
    pub(crate) metrics: Metrics,
}

impl Around for Skew {
    fn around<A, B: 'static>(&self, request: Request<A>, send: impl FnOnce(Request<A>) -> Answer<B>) -> Answer<B> {
        let (Self { offset: known, metrics }, sent) = (self.clone(), Timestamp::now());
        let answer = send(request);
        Box::pin(async move {
            let answer = answer.await;
            // Every answer of an API server has an audit id; one of a proxy before it has its own date.
            let own = answer.as_ref().ok().filter(|response| response.headers().contains_key("audit-id"));
            let date = own.and_then(|response| response.headers().get(header::DATE));
            let date = date.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date.as_bytes()).ok());
            if let Some(date) = date {
                let found = offset(date, sent, Timestamp::now());
                known.set(found);
                metrics.clock_offset(found);
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Jobs;
    use crate::layer::AroundLayer;
    use http::Response;
    use kube::client::Body;
    use std::convert::Infallible;
    use tower::{Layer, Service};

    #[test]
    fn only_what_is_certain_counts() {
        let at = |second: i64, millis: i64| Timestamp::from_millisecond(1_000_000 + second * 1000 + millis).unwrap();
        let millis = SignedDuration::from_millis;
        // Both clocks show the same: the date was rounded down, and the answer took its time.
        assert_eq!(offset(at(0, 0), at(0, 950), at(0, 990)), millis(0));
        assert_eq!(offset(at(7, 0), at(0, 0), at(20, 0)), millis(0), "nobody knows when in these 20 s it was made");
        assert_eq!(offset(at(3600, 0), at(0, 0), at(0, 100)), millis(3_599_900));
        assert_eq!(offset(at(-3600, 0), at(0, 0), at(0, 100)), millis(-3_599_000));
    }

    #[tokio::test]
    async fn it_is_learnt_from_every_answer() {
        let (offset, metrics) = (Offset::default(), Metrics::new(Jobs::default()));
        // The last one is of a proxy that has another clock.
        for (hours, audited, expected) in [(2, true, 2), (-2, true, -2), (0, true, 0), (5, false, 0)] {
            let date = Timestamp::now() + SignedDuration::from_hours(hours);
            let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            let answers = tower::service_fn(move |_: Request<Body>| {
                let answer = Response::builder().header(header::DATE, &date);
                let answer = if audited { answer.header("audit-id", "a") } else { answer };
                let answer = answer.body(Body::empty()).unwrap();
                async { Ok::<_, Infallible>(answer) }
            });
            let layer = AroundLayer(Skew { offset: offset.clone(), metrics: metrics.clone() });
            layer.layer(answers).call(Request::new(Body::empty())).await.unwrap();
            let wrong = (offset.get() - SignedDuration::from_hours(expected)).abs();
            assert!(wrong <= SignedDuration::from_secs(2), "{hours} h: {:?}", offset.get());
            let shown = format!("\npawl_clock_offset_seconds {}", if expected == 0 { "0\n" } else { "" });
            assert!(metrics.render().contains(&shown), "{hours} h");
        }
    }
}
