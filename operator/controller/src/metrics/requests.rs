//! Counts the requests of the Kubernetes client.

use super::counters::Counters;
use crate::layer::deadline::TimedOut;
use crate::layer::{Answer, Around};
use crate::leader::Fenced;
use http::{Method, Request, header};
use std::sync::Arc;
use std::time::Instant;

/// Middleware that counts each request by verb, resource and code.
#[derive(Clone)]
pub struct Counted(pub(super) Arc<Counters>);

impl Around for Counted {
    fn around<A, B: 'static>(&self, request: Request<A>, send: impl FnOnce(Request<A>) -> Answer<B>) -> Answer<B> {
        let (verb, resource) = (verb(&request), resource(request.uri().path()));
        let counters = self.0.clone();
        let began = Instant::now();
        let answer = send(request);
        Box::pin(async move {
            let answer = answer.await;
            let took = (verb != "watch").then(|| began.elapsed());
            match &answer {
                Ok(response) => counters.request(verb, &resource, response.status().as_str(), took),
                Err(error) if error.is::<Fenced>() => counters.request(verb, &resource, "fenced", None),
                Err(error) if error.is::<TimedOut>() => counters.request(verb, &resource, "timeout", took),
                Err(_) => counters.request(verb, &resource, "error", took),
            }
            answer
        })
    }
}

/// RBAC verb of a request; server-side apply is `apply`.
fn verb<B>(request: &Request<B>) -> &'static str {
    let named = Place::of(request.uri().path()).name.is_some();
    let watches = || {
        let pairs = request.uri().query().unwrap_or_default();
        pairs.split('&').any(|pair| matches!(pair, "watch" | "watch=true" | "watch=1"))
    };
    let applies = || {
        request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().ends_with(b"apply-patch+yaml"))
    };
    match *request.method() {
        Method::GET if watches() => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH if applies() => "apply",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    }
}

/// `jobs`, `trainingjobs/status`, or `other` for a path that is not a resource, such as `/version`.
fn resource(path: &str) -> String {
    let place = Place::of(path);
    match (place.resource, place.subresource) {
        (Some(resource), Some(subresource)) => format!("{resource}/{subresource}"),
        (Some(resource), None) => resource.to_owned(),
        (None, _) => "other".to_owned(),
    }
}

/// The segments of an API path.
#[derive(Default)]
struct Place<'a> {
    resource: Option<&'a str>,
    name: Option<&'a str>,
    subresource: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn of(path: &'a str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let rest = match parts.as_slice() {
            ["api", _version, rest @ ..] | ["apis", _, _version, rest @ ..] => rest,
            _ => return Self::default(),
        };
        let rest = match rest {
            ["namespaces", _namespace, rest @ ..] if !rest.is_empty() => rest,
            rest => rest,
        };
        let part = |index: usize| rest.get(index).copied().filter(|part| !part.is_empty());
        Self { resource: part(0), name: part(1), subresource: part(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("GET", "/api/v1/pods?&watch=true&resourceVersion=0", "", "watch", "pods")]
    #[case("GET", "/api/v1/namespaces/team/pods?labelSelector=a%3Db", "", "list", "pods")]
    #[case("GET", "/api/v1/namespaces/team", "", "get", "namespaces")]
    #[case("POST", "/apis/batch/v1/namespaces/team/jobs?fieldManager=pawl", "application/json", "create", "jobs")]
    #[case("DELETE", "/apis/batch/v1/namespaces/team/jobs/ups-1", "", "delete", "jobs")]
    #[case("PUT", "/apis/coordination.k8s.io/v1/namespaces/pawl/leases/pawl-operator", "", "update", "leases")]
    #[case(
        "PATCH",
        "/apis/pawl.dev/v1alpha1/namespaces/team/trainingjobs/ups/status?fieldManager=pawl&force=true",
        "application/apply-patch+yaml",
        "apply",
        "trainingjobs/status"
    )]
    #[case("PATCH", "/api/v1/namespaces/team/events/x", "application/merge-patch+json", "patch", "events")]
    #[case("GET", "/version", "", "list", "other")]
    fn requests_are_named_as_rbac_names_them(
        #[case] method: &str,
        #[case] uri: &str,
        #[case] content_type: &str,
        #[case] expected_verb: &str,
        #[case] expected_resource: &str,
    ) {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::CONTENT_TYPE, content_type)
            .body(())
            .expect("a request");
        assert_eq!((verb(&request), resource(request.uri().path()).as_str()), (expected_verb, expected_resource));
    }
}
