//! The form by which users log in, and their session.

use super::access::{Access, App};
use super::error::PageError;
use super::secret::same;
use super::viewers::{COOKIE, LogInError, Viewers};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use pawl_display::ui::login;
use pawl_display::url;

/// Their routes.
pub fn routes() -> Router<App> {
    Router::new().route("/login", get(form).post(log_in)).route("/logout", post(log_out))
}

type Answer = Result<Response, PageError>;

/// The users, where they log in.
fn viewers(app: &App) -> Result<&Viewers, PageError> {
    match &app.access {
        Access::LogIn(viewers) => Ok(viewers),
        Access::Everyone(_) => Err(PageError::NoPage("/login".to_owned())),
    }
}

async fn form(State(app): State<App>, headers: HeaderMap) -> Answer {
    let known = viewers(&app)?.session(&headers);
    Ok(Html(login::page(None, known.as_ref().map(|sources| sources.token()))).into_response())
}

async fn log_in(State(app): State<App>, form: String) -> Answer {
    let fields = url::pairs(&form);
    let field = |wanted: &str| field(&fields, wanted);
    match viewers(&app)?.log_in(field("token"), field("namespaces")).await {
        Ok(session) => Ok(moved("/", &cookie(&session, ""))),
        Err(error) => Ok((status(&error), Html(login::page(Some(&error.to_string()), None))).into_response()),
    }
}

async fn log_out(State(app): State<App>, headers: HeaderMap, form: String) -> Answer {
    let viewers = viewers(&app)?;
    let known = viewers.session(&headers).ok_or(PageError::LogIn)?;
    if !same(field(&url::pairs(&form), "token"), known.token()) {
        return Err(PageError::Token);
    }
    viewers.log_out(&headers);
    Ok(moved("/login", &cookie("", "; Max-Age=0")))
}

/// A field of a form; empty when it is missing.
fn field<'a>(fields: &'a [(String, String)], wanted: &str) -> &'a str {
    fields.iter().find(|(name, _)| name == wanted).map_or("", |(_, value)| value)
}

const fn status(error: &LogInError) -> StatusCode {
    match error {
        LogInError::Namespace(_) => StatusCode::BAD_REQUEST,
        LogInError::NotAccepted => StatusCode::UNAUTHORIZED,
        LogInError::Cluster(_) => StatusCode::BAD_GATEWAY,
        LogInError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// No script reads it, no other website sends it, and no connection without encryption but that to this machine.
fn cookie(session: &str, more: &str) -> String {
    format!("{COOKIE}={session}; Path=/; HttpOnly; Secure; SameSite=Strict{more}")
}

fn moved(to: &str, cookie: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, to), (header::SET_COOKIE, cookie)]).into_response()
}
