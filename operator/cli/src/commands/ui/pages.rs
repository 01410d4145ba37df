//! The pages: each reads the jobs that it shows. Only forms, which are sent on purpose, change a job.

use super::access::{App, Viewer};
use super::action::Action;
use super::assets;
use super::error::{MOST_COMPARED, PageError};
use super::guard::{Hosts, guard};
use super::live::{View, updates};
#[cfg(feature = "cluster")]
use super::login;
use super::secret::same;
use super::source::{Catalog, Gathered, Origin};
use axum::Router;
use axum::extract::{Path, RawQuery};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use jiff::Timestamp;
use pawl_display::report::evidence::Evidence;
use pawl_display::ui::actions::Actions;
use pawl_display::ui::job::Besides;
use pawl_display::ui::list::Shown;
use pawl_display::ui::query::Query;
use pawl_display::ui::search::Order;
use pawl_display::ui::{compare, curves, fleet, job, list, search};
use pawl_display::url;
use std::sync::Arc;
use tokio::task::spawn_blocking;

type Page = Result<Html<String>, PageError>;
type Answer = Result<Response, PageError>;

/// All pages, under the names of `hosts` only.
pub fn routes(app: App, hosts: Hosts) -> Router {
    let pages = Router::new()
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
        .route("/jobs/{key}/actions/{action}", post(act))
        .merge(assets::routes());
    #[cfg(feature = "cluster")]
    let pages = pages.merge(login::routes());
    pages
        .fallback(|uri: Uri| async move { PageError::NoPage(uri.path().to_owned()) })
        .with_state(app)
        .layer(from_fn_with_state(Arc::new(hosts), guard))
}

/// Reads files, and asks the API server, where that holds up no other request.
async fn read<T: Send + 'static>(read: impl FnOnce() -> Result<T, PageError> + Send + 'static) -> Result<T, PageError> {
    spawn_blocking(read).await?
}

async fn all(viewer: Viewer, query: RawQuery) -> Page {
    let can_log_out = viewer.can_log_out;
    selected(viewer, query, move |shown, query, revision| list::page(shown, query, revision, can_log_out)).await
}

async fn sums(viewer: Viewer, query: RawQuery) -> Page {
    selected(viewer, query, fleet::page).await
}

/// The page about the jobs that the query selects.
async fn selected(
    viewer: Viewer,
    RawQuery(query): RawQuery,
    page: impl FnOnce(&Shown<'_>, &Query, &str) -> String + Send + 'static,
) -> Page {
    let query = Query::parse(&query.unwrap_or_default())?;
    read(move || {
        let catalog = viewer.sources.read();
        let jobs = query.select(catalog.jobs.iter().map(|found| &found.listed));
        let looked = viewer.sources.looked(&catalog);
        let (total, problems) = (catalog.jobs.len(), &catalog.problems);
        let shown = Shown { jobs, total, problems, looked: &looked, now: Timestamp::now() };
        Ok(Html(page(&shown, &query, &catalog.revision)))
    })
    .await
}

async fn events_of_all(viewer: Viewer, query: RawQuery, headers: HeaderMap) -> Answer {
    events_of_selected(viewer, query, &headers, list::fragment)
}

async fn events_of_sums(viewer: Viewer, query: RawQuery, headers: HeaderMap) -> Answer {
    events_of_selected(viewer, query, &headers, fleet::fragment)
}

fn events_of_selected(
    viewer: Viewer,
    RawQuery(query): RawQuery,
    headers: &HeaderMap,
    fragment: fn(&Shown<'_>, &Query) -> String,
) -> Answer {
    let text = query.unwrap_or_default();
    let query = Query::parse(&text)?;
    Ok(stream(View::Jobs { sources: viewer.sources, query, fragment }, seen(&text, headers)))
}

async fn one(viewer: Viewer, Path(key): Path<String>) -> Page {
    read(move || {
        let origin = origin(&viewer.sources.read(), &key)?;
        // Before the files are read: what changes in between is an update.
        let revision = origin.revision()?;
        let Gathered { evidence, notes, stopped, awaited } = origin.gather()?;
        let actions = offered(viewer.actions, &*origin);
        let besides = Besides { notes, actions, stopped, awaited, now: Timestamp::now() };
        Ok(Html(job::page(&key, &evidence, &besides, &revision)))
    })
    .await
}

/// The actions on a job, if there are any.
fn offered(actions: Option<Actions>, origin: &dyn Origin) -> Option<Actions> {
    actions.filter(|_| origin.has_operator())
}

async fn events_of_one(
    viewer: Viewer,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let (wanted, sources) = (key.clone(), Arc::clone(&viewer.sources));
    let origin = read(move || origin(&viewer.sources.read(), &wanted)).await?;
    let actions = offered(viewer.actions, &*origin);
    let fragment = move |it: &Gathered| {
        let (notes, actions) = (it.notes.clone(), actions.clone());
        let (stopped, awaited) = (it.stopped, it.awaited);
        let besides = Besides { notes, actions, stopped, awaited, now: Timestamp::now() };
        job::fragment(&key, &it.evidence, &besides)
    };
    let view = View::Job { sources, origin, fragment: Box::new(fragment) };
    Ok(stream(view, seen(&query.unwrap_or_default(), &headers)))
}

async fn searched(viewer: Viewer, Path(key): Path<String>, RawQuery(query): RawQuery) -> Page {
    read(move || {
        let origin = origin(&viewer.sources.read(), &key)?;
        // As for the page of a job.
        let revision = origin.revision()?;
        let evidence = origin.gather()?.evidence;
        let order = Order::parse(&sort(&query.unwrap_or_default()), &evidence)?;
        Ok(Html(search::page(&key, &evidence, &order, &revision)))
    })
    .await
}

async fn events_of_search(
    viewer: Viewer,
    Path(key): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let text = query.unwrap_or_default();
    let by = sort(&text);
    let view = read(move || {
        let origin = origin(&viewer.sources.read(), &key)?;
        let order = Order::parse(&by, &origin.gather()?.evidence)?;
        let fragment = move |it: &Gathered| search::fragment(&it.evidence, &order);
        Ok(View::Job { sources: viewer.sources, origin, fragment: Box::new(fragment) })
    });
    Ok(stream(view.await?, seen(&text, &headers)))
}

/// As `pawl status --output json` prints it: without the manifest, which may hold secrets.
async fn status(viewer: Viewer, Path(key): Path<String>) -> Answer {
    read(move || Ok(json(origin(&viewer.sources.read(), &key)?.status()?))).await
}

async fn curves_of_one(viewer: Viewer, Path(key): Path<String>) -> Answer {
    read(move || Ok(json(curves::of_job(&origin(&viewer.sources.read(), &key)?.gather()?.evidence)))).await
}

/// Does what a form of the job's page asks for, and shows the page again.
async fn act(viewer: Viewer, Path((key, action)): Path<(String, String)>, form: String) -> Answer {
    let Some(Actions { token }) = viewer.actions else { return Err(PageError::ReadOnly) };
    let fields = url::pairs(&form);
    let field = |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    if !same(field("token").unwrap_or_default(), &token) {
        return Err(PageError::Token);
    }
    let (action, uid) = (Action::parse(&action, &fields)?, field("uid").unwrap_or_default().to_owned());
    let page = format!("/jobs/{}", url::encode(&key));
    read(move || Ok(origin(&viewer.sources.read(), &key)?.act(&uid, &action)?)).await?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, page)]).into_response())
}

async fn compared(viewer: Viewer, query: RawQuery) -> Page {
    let all = parameter(query.0.as_deref().unwrap_or_default(), "all").as_deref() == Some("1");
    several(viewer, query, move |jobs| Html(compare::page(jobs, all))).await
}

async fn compared_curves(viewer: Viewer, query: RawQuery) -> Answer {
    several(viewer, query, |jobs| json(curves::compared(jobs))).await
}

/// What `show` makes of the jobs that the query names, each with its key.
async fn several<T: Send + 'static>(
    viewer: Viewer,
    RawQuery(query): RawQuery,
    show: impl FnOnce(&[(&str, &Evidence)]) -> T + Send + 'static,
) -> Result<T, PageError> {
    let pairs = url::pairs(&query.unwrap_or_default());
    let keys: Vec<String> = pairs.into_iter().filter(|(name, _)| name == "job").map(|(_, key)| key).collect();
    if !(2..=MOST_COMPARED).contains(&keys.len()) {
        return Err(PageError::Number(keys.len()));
    }
    read(move || {
        let catalog = viewer.sources.read();
        let load = |key: &String| -> Result<Evidence, PageError> { Ok(origin(&catalog, key)?.gather()?.evidence) };
        let found = keys.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let jobs: Vec<(&str, &Evidence)> = keys.iter().map(String::as_str).zip(&found).collect();
        Ok(show(&jobs))
    })
    .await
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// The job with this key, which only selects from the list and is part of no path.
fn origin(catalog: &Catalog, key: &str) -> Result<Arc<dyn Origin>, PageError> {
    let Some(found) = catalog.find(key) else {
        let of_this_name = catalog.jobs.iter().map(|found| &found.listed).filter(|job| job.name == key);
        let keys: Vec<String> = of_this_name.map(|job| job.key.clone()).collect();
        let name = key.to_owned();
        return Err(if keys.is_empty() { PageError::Unknown(name) } else { PageError::Several { name, keys } });
    };
    Ok(Arc::clone(&found.origin))
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
