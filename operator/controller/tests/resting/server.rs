//! An API server that makes up its jobs when it is asked for them, and keeps nothing: a status that is written goes to
//! the watch.

use crate::jobs::Job;
use bytes::Bytes;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

type Answer = BoxBody<Bytes, Infallible>;

/// The jobs of a fleet.
pub struct Server {
    job: Arc<Job>,
    count: usize,
    version: AtomicU64,
    /// What the watch reports.
    changes: UnboundedSender<Change>,
    watch: Mutex<Option<UnboundedReceiver<Change>>>,
    /// The status that was written last: those of many jobs differ by a time alone.
    status: Mutex<Arc<str>>,
}

/// A status that was written.
struct Change {
    number: usize,
    version: u64,
    status: Arc<str>,
}

impl Server {
    /// A client of an API server that has `count` jobs like this one.
    pub fn client(job: &Arc<Job>, count: usize) -> (kube::Client, Arc<Self>) {
        let (changes, watch) = mpsc::unbounded();
        let server = Arc::new(Self {
            job: job.clone(),
            count,
            version: AtomicU64::new(1000),
            changes,
            watch: Mutex::new(Some(watch)),
            status: Mutex::new("".into()),
        });
        let asked = server.clone();
        let answer = move |request| {
            let server = asked.clone();
            async move { server.answer(request).await }
        };
        (kube::Client::new(tower::service_fn(answer), "default"), server)
    }

    /// The status that was written last; empty: none was.
    pub fn written(&self) -> String {
        self.status.lock().unwrap().to_string()
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Answer>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let path = parts.uri.path();
        let jobs = path.ends_with("/trainingjobs");
        let answer = match parts.method {
            Method::GET if query.contains("watch=") => self.watched(jobs),
            Method::GET if jobs => text(self.page(&query)),
            Method::GET if path.contains("/trainingjobs/") => text(self.job.text(number(path), 1, None)),
            Method::GET => text(r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#),
            Method::PATCH if path.ends_with("/status") => {
                let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
                text(self.patched(number(path), &body))
            }
            Method::POST if path.ends_with("/events") => {
                let body = body.collect_bytes().await.map_err(std::io::Error::other)?;
                Full::new(body).boxed()
            }
            other => panic!("{other} {path}: a job at rest needs nothing"),
        };
        Ok(Response::builder().status(StatusCode::OK).body(answer).unwrap())
    }

    /// A page of the list.
    fn page(&self, query: &str) -> String {
        let part = |name: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse::<usize>().ok())
        };
        let first = part("continue").unwrap_or(0);
        let end = self.count.min(first + part("limit").expect("fleets are listed page by page"));
        let next = if end < self.count { format!(r#","continue":"{end}""#) } else { String::new() };
        let mut page = format!(
            r#"{{"kind":"TrainingJobList","apiVersion":"pawl.dev/v1alpha1",
            "metadata":{{"resourceVersion":"1"{next}}},"items":["#
        );
        for number in first..end {
            page.push_str(if number == first { "" } else { "," });
            page.push_str(&self.job.text(number, 1, None));
        }
        page.push_str("]}");
        page
    }

    fn watched(&self, jobs: bool) -> Answer {
        if !jobs {
            return BodyExt::boxed(StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>()));
        }
        let changes = self.watch.lock().unwrap().take().expect("jobs are watched once");
        let job = self.job.clone();
        let event = move |Change { number, version, status }| {
            let object = job.text(number, version, Some(&status)).replace('\n', "");
            Ok(Frame::data(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into()))
        };
        BodyExt::boxed(StreamBody::new(changes.map(event)))
    }

    fn patched(&self, number: usize, body: &[u8]) -> String {
        let patch: Value = serde_json::from_slice(body).unwrap();
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        let text = patch["status"].to_string();
        let status = {
            let mut last = self.status.lock().unwrap();
            if **last != text {
                *last = text.into();
            }
            last.clone()
        };
        let object = self.job.text(number, version, Some(&status));
        self.changes.unbounded_send(Change { number, version, status }).expect("jobs are watched");
        object
    }
}

/// The number of the job that a path names.
fn number(path: &str) -> usize {
    let name = path.split('/').find_map(|part| part.strip_prefix("a-training-job-"));
    name.unwrap().parse().unwrap()
}

fn text(text: impl Into<String>) -> Answer {
    Full::new(Bytes::from(text.into())).boxed()
}
