//! What pages load: style, scripts, icon.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use pawl_display::ui::{BRUSH, CHARTS, ICON, SCRIPT, STYLE, UPLOT};

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Their routes.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let asset =
        |kind: &'static str, content: String| get(move || async move { ([(header::CONTENT_TYPE, kind)], content) });
    Router::new()
        .route("/assets/style.css", asset("text/css; charset=utf-8", STYLE.concat()))
        .route("/assets/ui.js", asset(JAVASCRIPT, SCRIPT.to_owned()))
        .route("/assets/uplot.js", asset(JAVASCRIPT, UPLOT.concat()))
        .route("/assets/charts.js", asset(JAVASCRIPT, CHARTS.to_owned()))
        .route("/assets/brush.js", asset(JAVASCRIPT, BRUSH.to_owned()))
        .route("/assets/icon.svg", asset("image/svg+xml", ICON.to_owned()))
}
