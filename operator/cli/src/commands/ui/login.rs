//! The form by which users log in, and their session.

use super::access::{Access, App};
use super::error::PageError;
use super::secret::same;
use super::sessions::{COOKIE, LogInError, Sessions};
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use pawl_display::ui::login;
use pawl_display::url;

/// Their routes.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/login", get(form).post(log_in))
        .route("/login/done", get(done))
        .route("/logout", post(log_out))
}

type Answer = Result<Response, PageError>;

/// The sessions, where users log in.
fn sessions(app: &App) -> Result<&Sessions, PageError> {
    match &app.access {
        Access::LogIn(sessions) => Ok(sessions),
        Access::Everyone(_) => Err(PageError::NoPage("/login".to_owned())),
    }
}

async fn form(State(app): State<App>, RawQuery(query): RawQuery, headers: HeaderMap) -> Answer {
    let known = sessions(&app)?.of_cookie(&headers);
    let problem = (known.is_none() && query.as_deref() == Some("ended")).then_some(login::ENDED);
    Ok(Html(login::page(problem, known.as_ref().map(|sources| sources.token()))).into_response())
}

async fn log_in(State(app): State<App>, headers: HeaderMap, form: String) -> Answer {
    let fields = url::pairs(&form);
    let field = |wanted: &str| field(&fields, wanted);
    let sessions = sessions(&app)?;
    match sessions.log_in(field("token"), field("namespaces")).await {
        Ok(session) => {
            // The browser forgets the cookie of an earlier one.
            sessions.log_out(&headers);
            Ok(moved("/login/done", &cookie(&session, "")))
        }
        Err(error) => Ok((status(&error), Html(login::page(Some(&error.to_string()), None))).into_response()),
    }
}

/// Where a browser comes after the login: one that has not kept the cookie is sent to the form, which says why.
async fn done(State(app): State<App>, headers: HeaderMap) -> Answer {
    sessions(&app)?.of_cookie(&headers).ok_or(PageError::LogIn { ended: true })?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response())
}

async fn log_out(State(app): State<App>, headers: HeaderMap, form: String) -> Answer {
    let sessions = sessions(&app)?;
    let known = sessions.of_cookie(&headers).ok_or(PageError::LogIn { ended: true })?;
    if !same(field(&url::pairs(&form), "token"), known.token()) {
        return Err(PageError::Token);
    }
    sessions.log_out(&headers);
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
