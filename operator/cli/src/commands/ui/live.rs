//! Updates of a page, as server-sent events: its live part, whenever that has changed.

use super::source::{Gathered, Origin, Sources};
use axum::response::sse::Event;
use futures::{Stream, stream};
use jiff::Timestamp;
use pawl_display::ui::list::Shown;
use pawl_display::ui::notice;
use pawl_display::ui::query::Query;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

/// Time between two looks at the files, and at what watches of a cluster have brought.
const INTERVAL: Duration = Duration::from_millis(500);

/// A page that is kept up to date.
pub enum View {
    /// Of the jobs that a query selects.
    Jobs { sources: Arc<Sources>, query: Query, fragment: fn(&Shown<'_>, &Query) -> String },
    /// Of one job.
    Job { sources: Arc<Sources>, origin: Arc<dyn Origin>, fragment: Box<dyn Fn(&Gathered) -> String + Send + Sync> },
}

/// A newer live part of a page.
struct Update {
    revision: String,
    html: String,
}

/// What a look at the jobs has found.
enum Look {
    Changed(Update),
    Unchanged,
    /// There is no job any more, or the session of the viewer has ended.
    Gone,
}

impl View {
    /// Looks at the jobs; `seen`: the revision that the browser has.
    fn look(&self, seen: &str) -> Look {
        match self {
            Self::Jobs { sources, .. } | Self::Job { sources, .. } if sources.has_ended() => Look::Gone,
            Self::Jobs { sources, .. } if sources.revision() == seen => Look::Unchanged,
            Self::Jobs { sources, query, fragment } => {
                let catalog = sources.read();
                let jobs = query.select(catalog.jobs.iter().map(|found| &found.listed));
                let looked = sources.looked(&catalog);
                let (total, problems) = (catalog.jobs.len(), &catalog.problems);
                let shown = Shown { jobs, total, problems, looked: &looked, now: Timestamp::now() };
                let html = fragment(&shown, query);
                Look::Changed(Update { revision: catalog.revision, html })
            }
            // The revision is taken before the files are read: what changes in between is another update.
            Self::Job { origin, fragment, .. } => match origin.revision() {
                Ok(revision) if revision == seen => Look::Unchanged,
                Ok(revision) => {
                    let html = origin.gather().map_or_else(|error| notice(&error.to_string()), |it| fragment(&it));
                    Look::Changed(Update { revision, html })
                }
                Err(_) => Look::Gone,
            },
        }
    }
}

/// The updates of a page since the revision `seen`; they end when its job is gone, or its viewer.
pub fn updates(view: View, seen: String) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
    stream::unfold((Arc::new(view), seen), |(view, seen)| async move {
        loop {
            let (looking, known) = (Arc::clone(&view), seen.clone());
            // A panic in a page ends its updates.
            match spawn_blocking(move || looking.look(&known)).await.unwrap_or(Look::Gone) {
                Look::Changed(Update { revision, html }) => {
                    let event = Event::default().event("update").id(&revision).data(html);
                    return Some((Ok(event), (view, revision)));
                }
                Look::Unchanged => tokio::time::sleep(INTERVAL).await,
                Look::Gone => return None,
            }
        }
    })
}
