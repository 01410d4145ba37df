//! Pages of `pawl ui`: the list of jobs, a job, its search, jobs beside each other, sums over jobs, and the login. They
//! work without scripts; these replace the live part of a page when the server sends a newer one, and pictures by
//! charts.

pub mod actions;
pub mod awaited;
pub mod compare;
pub mod curves;
mod differences;
pub mod facts;
pub mod fleet;
pub mod job;
pub mod list;
pub mod listed;
pub mod login;
pub mod query;
pub mod search;

use crate::report::{self, displayable};
use maud::{DOCTYPE, Markup, html};

/// The style sheet of all pages, at `/assets/style.css`: that of the report, that of the charts, and what the other
/// pages need.
pub const STYLE: [&str; 3] = [report::STYLE, include_str!("vendor/uPlot.min.css"), include_str!("ui.css")];
/// The script of live pages, at `/assets/ui.js`.
pub const SCRIPT: &str = include_str!("ui.js");
/// The script of charts, at `/assets/charts.js`. It needs [`UPLOT`].
pub const CHARTS: &str = include_str!("charts.js");
/// The script of parallel coordinates, at `/assets/brush.js`.
pub const BRUSH: &str = include_str!("brush.js");
/// uPlot with its license, at `/assets/uplot.js`.
pub const UPLOT: [&str; 4] = ["/*\n", include_str!("vendor/LICENSE"), "*/\n", include_str!("vendor/uPlot.iife.min.js")];
/// The icon, at `/assets/icon.svg`.
pub const ICON: &str = include_str!("icon.svg");

/// The scripts of a page beside `/assets/ui.js`, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scripts {
    /// None.
    Live,
    /// Those that draw charts.
    Charts,
    /// That of parallel coordinates.
    Brush,
}

impl Scripts {
    /// Addresses and types.
    const fn more(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Live => &[],
            Self::Charts => &[("/assets/uplot.js", "text/javascript"), ("/assets/charts.js", "module")],
            Self::Brush => &[("/assets/brush.js", "module")],
        }
    }
}

/// What a browser needs to keep a page up to date.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// Address of the updates, to which the revision is appended.
    pub events: &'a str,
    /// Revision of what the page shows.
    pub revision: &'a str,
}

/// A page that says why there is no other one.
pub fn problem(title: &str, message: &str) -> String {
    page(title, Scripts::Live, &html! { h1 { (title) } p { (message) } })
}

/// The live part of a page whose files cannot be read.
pub fn notice(message: &str) -> String {
    displayable(html! { p.notice role="alert" { (message) } })
}

/// A page with `content`.
fn page(title: &str, scripts: Scripts, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Pawl" }
                link rel="stylesheet" href="/assets/style.css";
                link rel="icon" type="image/svg+xml" href="/assets/icon.svg";
                script src="/assets/ui.js" defer {}
                @for (address, kind) in scripts.more() { script src=(address) type=(kind) defer[*kind != "module"] {} }
            }
            body {
                main.ui {
                    nav aria-label="Pages" { a href="/" { "All jobs" } " · " a href="/fleet" { "Fleet" } }
                    (content)
                }
            }
        }
    };
    displayable(page) + "\n"
}

/// The part of a page that the script replaces, and the line in which it says whether it does.
fn live(live: Live<'_>, content: &Markup) -> Markup {
    html! {
        div id="live" data-events=(live.events) data-revision=(live.revision) { (content) }
        p.muted id="connection" role="status" {}
    }
}
