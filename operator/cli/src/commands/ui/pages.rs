//! The pages: each reads the jobs that it shows, and changes nothing.

use super::assets;
use super::guard::{Hosts, guard};
use super::library::{Catalog, Library, revision};
use super::live::{View, updates};
use crate::commands::document;
use crate::commands::status::JobResult;
use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use pawl_display::report::evidence::Evidence;
use pawl_display::ui::list::Shown;
use pawl_display::ui::query::{Query, QueryError};
use pawl_display::ui::search::{Order, OrderError};
use pawl_display::ui::{compare, curves, fleet, job, list, problem, search};
use pawl_display::url;
use pawl_local::evidence::gather;
use pawl_local::state::{StateDir, StateError, records};
use std::sync::Arc;
use tokio::task::{JoinError, spawn_blocking};

/// Most jobs beside each other.
const MOST_COMPARED: usize = compare::MOST;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("job: {0} named: name 2 to {MOST_COMPARED}, as in /compare?job=A&job=B")]
    Number(usize),
    #[error("job: \"{0}\": not in the list of jobs, or there are several of this name: choose it in the list")]
    Unknown(String),
    #[error("{0}: not a page: choose a job in the list")]
    NoPage(String),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the page could not be made: {0}")]
    Failed(#[from] JoinError),
}

impl PageError {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) | Self::Order(_) | Self::Number(_) => StatusCode::BAD_REQUEST,
            Self::Unknown(_) | Self::NoPage(_) | Self::State(StateError::Absent { .. }) => StatusCode::NOT_FOUND,
            Self::State(_) | Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let title = match self.status() {
            StatusCode::BAD_REQUEST => "Not a valid address",
            StatusCode::NOT_FOUND => "Not found",
            _ => "Error",
        };
        (self.status(), Html(problem(title, &self.to_string()))).into_response()
    }
}

type Page = Result<Html<String>, PageError>;
type Answer = Result<Response, PageError>;

/// All pages, under the names of `hosts` only.
pub fn routes(library: Arc<Library>, hosts: Hosts) -> Router {
    Router::new()
        .route("/", get(all))
        .route("/events", get(events_of_all))
        .route("/fleet", get(sums))
        .route("/fleet/events", get(events_of_sums))
        .route("/compare", get(compared))
        .route("/compare/curves.json", get(compared_curves))
        .route("/jobs/{key}", get(one))
        .route("/jobs/{key}/events", get(events_of_one))
        .route("/jobs/{key}/status.json", get(status))
        .route("/jobs/{key}/curves.json", get(curves_of_one))
        .route("/jobs/{key}/search", get(searched))
        .route("/jobs/{key}/search/events", get(events_of_search))
        .merge(assets::routes())
        .fallback(|uri: Uri| async move { PageError::NoPage(uri.path().to_owned()) })
        .with_state(library)
        .layer(from_fn_with_state(Arc::new(hosts), guard))
}

/// Reads files where that holds up no other request.
async fn read<T: Send + 'static>(read: impl FnOnce() -> Result<T, PageError> + Send + 'static) -> Result<T, PageError> {
    spawn_blocking(read).await?
}

async fn all(library: State<Arc<Library>>, query: RawQuery) -> Page {
    selected(library, query, list::page).await
}

async fn sums(library: State<Arc<Library>>, query: RawQuery) -> Page {
    selected(library, query, fleet::page).await
}

/// The page about the jobs that the query selects.
async fn selected(
    State(library): State<Arc<Library>>,
    RawQuery(query): RawQuery,
    page: fn(&Shown<'_>, &Query, &str) -> String,
) -> Page {
    let query = Query::parse(&query.unwrap_or_default())?;
    read(move || {
        let catalog = library.read();
        let jobs = query.select(catalog.jobs.iter().map(|found| &found.listed));
        let shown = Shown { jobs, total: catalog.jobs.len(), problems: &catalog.problems };
        Ok(Html(page(&shown, &query, &catalog.revision)))
    })
    .await
}

async fn events_of_all(library: State<Arc<Library>>, query: RawQuery, headers: HeaderMap) -> Answer {
    events_of_selected(library, query, &headers, list::fragment)
}

async fn events_of_sums(library: State<Arc<Library>>, query: RawQuery, headers: HeaderMap) -> Answer {
    events_of_selected(library, query, &headers, fleet::fragment)
}

fn events_of_selected(
    State(library): State<Arc<Library>>,
    RawQuery(query): RawQuery,
    headers: &HeaderMap,
    fragment: fn(&Shown<'_>, &Query) -> String,
) -> Answer {
    let text = query.unwrap_or_default();
    let query = Query::parse(&text)?;
    Ok(stream(View::Jobs { library, query, fragment }, seen(&text, headers)))
}

async fn one(State(library): State<Arc<Library>>, Path(key): Path<String>) -> Page {
    read(move || {
        let state = state(&library.read(), &key)?;
        // Before the files are read: what changes in between is an update.
        let revision = revision(&state)?;
        Ok(Html(job::page(&key, &gather(&state)?, &revision)))
    })
    .await
}

async fn events_of_one(
    State(library): State<Arc<Library>>,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let wanted = key.clone();
    let state = read(move || state(&library.read(), &wanted)).await?;
    let view = View::Job { state, fragment: Box::new(move |evidence: &Evidence| job::fragment(&key, evidence)) };
    Ok(stream(view, seen(&query.unwrap_or_default(), &headers)))
}

async fn searched(State(library): State<Arc<Library>>, Path(key): Path<String>, RawQuery(query): RawQuery) -> Page {
    read(move || {
        let state = state(&library.read(), &key)?;
        // As for the page of a job.
        let revision = revision(&state)?;
        let evidence = gather(&state)?;
        let order = Order::parse(&sort(&query.unwrap_or_default()), &evidence)?;
        Ok(Html(search::page(&key, &evidence, &order, &revision)))
    })
    .await
}

async fn events_of_search(
    State(library): State<Arc<Library>>,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let text = query.unwrap_or_default();
    let by = sort(&text);
    let view = read(move || {
        let state = state(&library.read(), &key)?;
        let order = Order::parse(&by, &gather(&state)?)?;
        Ok(View::Job { state, fragment: Box::new(move |evidence: &Evidence| search::fragment(evidence, &order)) })
    });
    Ok(stream(view.await?, seen(&text, &headers)))
}

/// As `pawl status --output json` prints it: without the manifest, which may hold secrets.
async fn status(State(library): State<Arc<Library>>, Path(key): Path<String>) -> Answer {
    read(move || {
        let state = state(&library.read(), &key)?;
        let recorded = records::document(&state)?;
        Ok(json(document(&JobResult::new(&state, &recorded), false)))
    })
    .await
}

async fn curves_of_one(State(library): State<Arc<Library>>, Path(key): Path<String>) -> Answer {
    read(move || Ok(json(curves::of_job(&gather(&state(&library.read(), &key)?)?)))).await
}

async fn compared(library: State<Arc<Library>>, query: RawQuery) -> Page {
    several(library, query, |jobs| Html(compare::page(jobs))).await
}

async fn compared_curves(library: State<Arc<Library>>, query: RawQuery) -> Answer {
    several(library, query, |jobs| json(curves::compared(jobs))).await
}

/// What `show` makes of the jobs that the query names, each with its key.
async fn several<T: Send + 'static>(
    State(library): State<Arc<Library>>,
    RawQuery(query): RawQuery,
    show: fn(&[(&str, &Evidence)]) -> T,
) -> Result<T, PageError> {
    let pairs = url::pairs(&query.unwrap_or_default());
    let keys: Vec<String> = pairs.into_iter().filter(|(name, _)| name == "job").map(|(_, key)| key).collect();
    if !(2..=MOST_COMPARED).contains(&keys.len()) {
        return Err(PageError::Number(keys.len()));
    }
    read(move || {
        let catalog = library.read();
        let load = |key: &String| -> Result<Evidence, PageError> { Ok(gather(&state(&catalog, key)?)?) };
        let found = keys.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let jobs: Vec<(&str, &Evidence)> = keys.iter().map(String::as_str).zip(&found).collect();
        Ok(show(&jobs))
    })
    .await
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// The state directory of the job with this key, which only selects from the list and is part of no path.
fn state(catalog: &Catalog, key: &str) -> Result<StateDir, PageError> {
    let found = catalog.find(key).ok_or_else(|| PageError::Unknown(key.to_owned()))?;
    Ok(found.state.clone())
}

/// The revision that a browser has: that of the newest event when it connects again, else that of the page.
fn seen(query: &str, headers: &HeaderMap) -> String {
    let newest = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    newest.or_else(|| parameter(query, "from")).unwrap_or_default()
}

/// The order of trials that a query names.
fn sort(query: &str) -> String {
    parameter(query, "sort").unwrap_or_default()
}

/// The first value of this name in a query.
fn parameter(query: &str, name: &str) -> Option<String> {
    url::pairs(query).into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

fn stream(view: View, seen: String) -> Response {
    Sse::new(updates(view, seen)).keep_alive(KeepAlive::default()).into_response()
}
