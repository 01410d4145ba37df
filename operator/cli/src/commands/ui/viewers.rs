//! Users who log in. Each has a token for the API server, with which alone their requests are made: this program needs
//! no permission of its own, and a user sees and changes what the API server lets that user see and change.

use super::cluster::Cluster;
use super::error::PageError;
use super::secret::secret;
use super::source::{JobError, Sources};
use crate::args::ui::namespace;
use crate::commands::kubectl::error::ClusterError;
use axum::http::{HeaderMap, header};
use kube::Config;
use kube::config::AuthInfo;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name of the cookie of a session.
pub const COOKIE: &str = "pawl-session";
/// Most users whose jobs are watched at the same time: each has their own copy of them.
const MOST: usize = 100;
/// Most namespaces that a user can name: each is asked for before the token is known to be valid.
const MOST_NAMESPACES: usize = 50;
/// Time after which a user who has asked for nothing is forgotten.
const IDLE: Duration = Duration::from_secs(8 * 3600);

/// What identifies a user to this server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// The random text in their cookie.
    Session(String),
    /// The hash of the token that a proxy sends with each request of theirs.
    Token([u8; 32]),
}

/// A user.
struct Seat {
    sources: Arc<Sources>,
    cluster: Arc<Cluster>,
    used: Instant,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.sources.end();
    }
}

/// The users who are logged in.
pub struct Viewers {
    config: Config,
    /// Namespaces that are shown unless a user names others; none: all.
    namespaces: Vec<String>,
    seats: Mutex<HashMap<Key, Seat>>,
}

/// Why somebody cannot log in.
#[derive(Debug, thiserror::Error)]
pub enum LogInError {
    #[error("namespaces: {0}")]
    Namespace(String),
    #[error("the API server does not accept this token: it is wrong, or has expired")]
    NotAccepted,
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("no random numbers: {0}")]
    Random(#[from] std::io::Error),
}

impl From<LogInError> for PageError {
    fn from(error: LogInError) -> Self {
        match error {
            LogInError::Cluster(error) => Self::Job(JobError::Cluster(error)),
            LogInError::Random(error) => Self::Random(error),
            LogInError::Namespace(_) | LogInError::NotAccepted => Self::NotAccepted,
        }
    }
}

impl Viewers {
    /// Users of the cluster of `config`, of whose credentials none are used.
    pub fn new(mut config: Config, namespaces: Vec<String>) -> Self {
        config.auth_info = AuthInfo::default();
        Self { config, namespaces, seats: Mutex::default() }
    }

    /// What the user who asks sees: the one whose token a proxy has sent, or else the one of the cookie.
    ///
    /// # Errors
    /// [`PageError::LogIn`] without either, [`PageError::NotAccepted`] when the API server does not accept the token.
    pub async fn of(&self, headers: &HeaderMap) -> Result<Arc<Sources>, PageError> {
        let Some(token) = bearer(headers) else { return self.session(headers).ok_or(PageError::LogIn) };
        let key = Key::Token(Sha256::digest(token).into());
        match self.seat(&key) {
            Some(sources) => Ok(sources),
            None => Ok(self.open(key, token, &self.namespaces).await?),
        }
    }

    /// What the user of the cookie sees, if they are logged in.
    pub fn session(&self, headers: &HeaderMap) -> Option<Arc<Sources>> {
        self.seat(&Key::Session(cookie(headers)?.to_owned()))
    }

    /// Begins a session. Returns the text for its cookie.
    ///
    /// # Errors
    /// [`LogInError`].
    pub async fn log_in(&self, token: &str, namespaces: &str) -> Result<String, LogInError> {
        let split = namespaces.split([',', ' ']).filter(|name| !name.is_empty());
        let named = split.map(namespace).collect::<Result<Vec<String>, String>>().map_err(LogInError::Namespace)?;
        if named.len() > MOST_NAMESPACES {
            return Err(LogInError::Namespace(format!("{} named: name {MOST_NAMESPACES} at most", named.len())));
        }
        let session = secret()?;
        let namespaces = if named.is_empty() { &self.namespaces } else { &named };
        self.open(Key::Session(session.clone()), token.trim(), namespaces).await?;
        Ok(session)
    }

    /// Ends the session of the cookie.
    pub fn log_out(&self, headers: &HeaderMap) {
        if let Some(session) = cookie(headers) {
            self.seats().remove(&Key::Session(session.to_owned()));
        }
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<Key, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a known user sees. One whose token is no longer accepted is forgotten.
    fn seat(&self, key: &Key) -> Option<Arc<Sources>> {
        let mut seats = self.seats();
        let seat = seats.get_mut(key)?;
        if seat.cluster.is_unauthenticated() || seat.used.elapsed() > IDLE {
            seats.remove(key);
            return None;
        }
        seat.used = Instant::now();
        Some(Arc::clone(&seat.sources))
    }

    /// Asks the API server for the jobs of the user with this token.
    async fn open(&self, key: Key, token: &str, namespaces: &[String]) -> Result<Arc<Sources>, LogInError> {
        // What cannot be in a header is no token.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(LogInError::NotAccepted);
        }
        let mut config = self.config.clone();
        config.auth_info.token = Some(token.to_owned().into());
        let cluster = Arc::new(Cluster::open(config, namespaces, Arc::from([]))?);
        cluster.ready().await;
        if cluster.is_unauthenticated() {
            return Err(LogInError::NotAccepted);
        }
        let sources = Arc::new(Sources::new(vec![Arc::clone(&cluster) as _], secret()?));
        let mut seats = self.seats();
        make_room(&mut seats);
        seats.insert(key, Seat { sources: Arc::clone(&sources), cluster, used: Instant::now() });
        Ok(sources)
    }
}

/// Forgets users who have asked for nothing for long, and of too many those who have not for the longest time.
fn make_room(seats: &mut HashMap<Key, Seat>) {
    seats.retain(|_, seat| seat.used.elapsed() <= IDLE);
    while seats.len() >= MOST {
        let Some(oldest) = seats.iter().min_by_key(|(_, seat)| seat.used).map(|(key, _)| key.clone()) else { return };
        seats.remove(&oldest);
    }
}

/// The token in the header `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The session in the cookies.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, session)| session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_token_and_a_session_are_found_in_their_headers() {
        assert_eq!(bearer(&headers(header::AUTHORIZATION, "Bearer abc")), Some("abc"));
        assert_eq!(bearer(&headers(header::AUTHORIZATION, "Basic abc")), None);
        assert_eq!(cookie(&headers(header::COOKIE, "a=b; pawl-session=s-1; c=d")), Some("s-1"));
        assert_eq!(cookie(&headers(header::COOKIE, "not-pawl-session=s-1")), None);
    }

    #[test]
    fn of_too_many_users_the_one_who_was_away_for_longest_is_forgotten() {
        let now = Instant::now();
        let seat = |order: u64| Seat {
            sources: Arc::new(Sources::new(Vec::new(), String::new())),
            cluster: Arc::new(Cluster::empty()),
            used: now + Duration::from_secs(order),
        };
        let key = |number: usize| Key::Session(number.to_string());
        let mut seats: HashMap<Key, Seat> = (0..MOST).map(|number| (key(number), seat(number as u64))).collect();
        make_room(&mut seats);
        assert!(seats.len() == MOST - 1 && !seats.contains_key(&key(0)) && seats.contains_key(&key(1)));
        make_room(&mut seats);
        assert_eq!(seats.len(), MOST - 1, "there is room already");
    }
}
