//! What protects the pages from other websites that a browser shows: names under which they may be opened, and headers.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pawl_contract::report::printable;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// No scripts but those of `/assets`. Figures of the report have their widths in style attributes, which run nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; \
    img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of every answer.
const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    // Forms say from which page they are sent, to this server alone.
    ("referrer-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The names under which the pages may be opened. A website whose name is made to resolve to this machine (DNS
/// rebinding) is not among them, so that its scripts cannot read the jobs.
#[derive(Clone, Debug)]
pub struct Hosts {
    address: SocketAddr,
    names: Vec<String>,
}

impl Hosts {
    /// Those of a server at `address`, and `names`.
    pub fn new(address: SocketAddr, names: &[String]) -> Self {
        Self {
            address,
            names: names.iter().map(|name| host(name).to_owned()).filter(|name| !name.is_empty()).collect(),
        }
    }

    /// Whether a request with this `Host` header is answered, on any port: a tunnel may have another one.
    fn allows(&self, header: &str) -> bool {
        let name = host(header);
        let listens_on = |ip: IpAddr| ip == self.address.ip() || self.address.ip().is_unspecified();
        name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
            // An IP address is resolved by nobody.
            || name.parse::<IpAddr>().is_ok_and(listens_on)
    }

    fn refusal(&self, header: &str) -> String {
        let name = printable(host(header));
        let address = self.address;
        format!("Host: {name}: not a name of this server: open http://{address}, or start pawl ui with --host NAME\n")
    }
}

/// A host without its port, and an IPv6 address without its brackets.
fn host(header: &str) -> &str {
    match header.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => header.split_once(':').map_or(header, |(name, _)| name),
    }
}

/// Refuses requests under foreign names and from pages of other websites, and adds the headers to every answer.
pub async fn guard(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let asked = named(request.headers()).to_owned();
    let mut response = if !hosts.allows(&asked) {
        (StatusCode::FORBIDDEN, hosts.refusal(&asked)).into_response()
    } else if !is_own(request.method(), request.headers()) {
        (StatusCode::FORBIDDEN, "Origin: not a page of this server: open the page of the job, and try again\n")
            .into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// The `Host` header; empty when it is missing or no text.
fn named(headers: &HeaderMap) -> &str {
    headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

/// Whether a request only reads, or comes from a page of this server. The scheme may differ: a proxy ends TLS.
fn is_own(method: &Method, headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).unwrap_or_default();
    let page = origin.split_once("://").map(|(_, host)| host);
    [Method::GET, Method::HEAD].contains(method) || page.is_some_and(|page| page.eq_ignore_ascii_case(named(headers)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::the_address("127.0.0.1:8080", "127.0.0.1:8080", true)]
    #[case::through_a_tunnel("127.0.0.1:8080", "localhost:9999", true)]
    #[case::without_a_port("127.0.0.1:8080", "LOCALHOST", true)]
    #[case::a_given_name("127.0.0.1:8080", "gpu.example:8080", true)]
    #[case::another_name("127.0.0.1:8080", "evil.example:8080", false)]
    #[case::the_beginning_of_a_name("127.0.0.1:8080", "localhost.evil.example", false)]
    #[case::another_address("127.0.0.1:8080", "10.0.0.1:8080", false)]
    #[case::no_name("127.0.0.1:8080", "", false)]
    #[case::all_addresses("0.0.0.0:8080", "10.0.0.1:8080", true)]
    #[case::all_addresses_but_no_name("0.0.0.0:8080", "evil.example", false)]
    #[case::the_sixth_version("[::1]:8080", "[::1]:8080", true)]
    fn only_known_names_are_answered(#[case] listen: &str, #[case] header: &str, #[case] expected: bool) {
        let hosts = Hosts::new(listen.parse().unwrap(), &["gpu.example:443".to_owned(), String::new()]);
        assert_eq!(hosts.allows(header), expected);
    }

    #[rstest]
    #[case::of_this_server("http://localhost:8080", true)]
    #[case::behind_tls("https://localhost:8080", true)]
    #[case::another_port("http://localhost:9090", false)]
    #[case::another_website("https://evil.example", false)]
    #[case::hidden("null", false)]
    #[case::missing("", false)]
    fn only_own_pages_send_forms(#[case] origin: &'static str, #[case] expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:8080"));
        if !origin.is_empty() {
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
        }
        assert_eq!(is_own(&Method::POST, &headers), expected);
        assert!(is_own(&Method::GET, &headers), "whoever reads needs no origin");
    }
}
