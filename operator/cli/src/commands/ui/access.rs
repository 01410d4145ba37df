//! Who asks, and what they may see and do.

use super::error::PageError;
#[cfg(feature = "cluster")]
use super::sessions::{Sessions, is_proxied};
use super::source::Sources;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use pawl_display::ui::actions::Actions;
use std::sync::Arc;

/// What requests are answered from.
#[derive(Clone)]
pub struct App {
    /// Whose jobs are shown.
    pub access: Access,
    /// Whether jobs may be changed.
    pub allow_actions: bool,
}

/// Whose jobs are shown.
#[derive(Clone)]
pub enum Access {
    /// Everyone who reaches the server sees and does the same.
    Everyone(Arc<Sources>),
    /// Each user sees and does what the API server lets them.
    #[cfg(feature = "cluster")]
    LogIn(Arc<Sessions>),
}

/// The one who asks.
pub struct Viewer {
    /// What they see.
    pub sources: Arc<Sources>,
    /// What forms need with which they change jobs; `None`: they change none.
    pub actions: Option<Actions>,
    /// Whether they have a session that they can end: no proxy logs them in.
    pub can_log_out: bool,
}

impl FromRequestParts<App> for Viewer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, PageError> {
        let (sources, can_log_out) = match (&app.access, &parts.headers) {
            (Access::Everyone(sources), _) => (Arc::clone(sources), false),
            #[cfg(feature = "cluster")]
            (Access::LogIn(sessions), headers) => (sessions.of(headers).await?, !is_proxied(headers)),
        };
        let actions = app.allow_actions.then(|| Actions { token: sources.token().to_owned() });
        Ok(Self { sources, actions, can_log_out })
    }
}
