//! Sessions of users. Each user has a token for the API server, with which alone their requests are made: this program
//! needs no permission of its own, and a user sees and changes what the API server lets that user see and change.

use super::cluster::{Cluster, is_unauthenticated};
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
use tokio::sync::Semaphore;

/// Name of the cookie of a session. With this prefix, browsers take it from this host only, and only over TLS or from
/// this machine.
pub const COOKIE: &str = "__Host-pawl-session";
/// Most sessions at the same time: each has its own copy of the jobs.
const MOST: usize = 100;
/// Most sessions with the same token: further ones end its own, and nobody else's.
const MOST_OF_TOKEN: usize = 5;
/// Most tokens about which the API server is asked at the same time: anybody can send any text as a token, and a
/// valid one often.
const MOST_OPENING: usize = 4;
/// Most namespaces that a user can name: each is asked for before the token is known to be valid.
const MOST_NAMESPACES: usize = 50;
/// Time after which a session ends in which nothing was asked for.
const IDLE: Duration = Duration::from_secs(8 * 3600);
/// Time between two looks for sessions that have ended.
const LOOK: Duration = Duration::from_secs(60);

/// What identifies a session to this server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// The random text in the cookie.
    Cookie(String),
    /// The hash of the token that a proxy sends with each request of the user.
    Token(TokenHash),
}

/// SHA-256 of a token.
type TokenHash = [u8; 32];

/// What a user sees, until it ends.
struct Session {
    sources: Arc<Sources>,
    cluster: Arc<Cluster>,
    token: TokenHash,
    /// When something was last asked for.
    used: Instant,
}

impl Session {
    fn has_ended(&self, now: Instant) -> bool {
        self.cluster.is_unauthenticated() || now.saturating_duration_since(self.used) > IDLE
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sources.end();
    }
}

/// The sessions of all users.
pub struct Sessions {
    config: Config,
    /// Namespaces that are shown unless a user names others; none: all.
    namespaces: Vec<String>,
    all: Mutex<HashMap<Key, Session>>,
    /// Permits to open one.
    opening: Semaphore,
}

/// Why somebody cannot log in.
#[derive(Debug, thiserror::Error)]
pub enum LogInError {
    #[error("namespaces: {0}")]
    Namespace(String),
    #[error("the API server does not accept this token: it is wrong, or has expired")]
    NotAccepted,
    #[error("{}", .0.cause())]
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

impl Sessions {
    /// Sessions of users of the cluster of `config`, of whose credentials none are used. Must be called inside a tokio
    /// runtime.
    pub fn start(mut config: Config, namespaces: Vec<String>) -> Arc<Self> {
        config.auth_info = AuthInfo::default();
        let opening = Semaphore::new(MOST_OPENING);
        let sessions = Arc::new(Self { config, namespaces, all: Mutex::default(), opening });
        let watched = Arc::downgrade(&sessions);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(sessions) = watched.upgrade() else { return };
                end_old(&mut sessions.all(), Instant::now());
            }
        });
        sessions
    }

    /// What the user who asks sees: the one whose token a proxy has sent, or else the one of the cookie.
    ///
    /// # Errors
    /// [`PageError::LogIn`] without either, [`PageError::NotAccepted`] when the API server does not accept the token.
    pub async fn of(&self, headers: &HeaderMap) -> Result<Arc<Sources>, PageError> {
        let Some(token) = bearer(headers) else {
            let ended = cookie(headers).is_some();
            return self.of_cookie(headers).ok_or(PageError::LogIn { ended });
        };
        let key = Key::Token(Sha256::digest(token).into());
        match self.known(&key) {
            Some(sources) => Ok(sources),
            None => Ok(self.open(key, token, &self.namespaces).await?),
        }
    }

    /// What the user of the cookie sees, if they are logged in.
    pub fn of_cookie(&self, headers: &HeaderMap) -> Option<Arc<Sources>> {
        self.known(&Key::Cookie(cookie(headers)?.to_owned()))
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
        self.open(Key::Cookie(session.clone()), token.trim(), namespaces).await?;
        Ok(session)
    }

    /// Ends the session of the cookie.
    pub fn log_out(&self, headers: &HeaderMap) {
        if let Some(session) = cookie(headers) {
            self.all().remove(&Key::Cookie(session.to_owned()));
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Session>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the user of a session sees, unless it has ended.
    fn known(&self, key: &Key) -> Option<Arc<Sources>> {
        let (mut all, now) = (self.all(), Instant::now());
        let session = all.get_mut(key)?;
        if session.has_ended(now) {
            all.remove(key);
            return None;
        }
        session.used = now;
        Some(Arc::clone(&session.sources))
    }

    /// Asks the API server for the jobs of the user with this token.
    async fn open(&self, key: Key, token: &str, namespaces: &[String]) -> Result<Arc<Sources>, LogInError> {
        // What cannot be in a header is no token.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(LogInError::NotAccepted);
        }
        let mut config = self.config.clone();
        config.auth_info.token = Some(token.to_owned().into());
        // It is never closed.
        let _permit = self.opening.acquire().await.ok();
        Cluster::verify(config.clone(), namespaces).await.map_err(|error| match is_unauthenticated(&error) {
            true => LogInError::NotAccepted,
            false => LogInError::Cluster(error),
        })?;
        let cluster = Arc::new(Cluster::open(config, namespaces, Arc::from([]))?);
        cluster.ready().await;
        if cluster.is_unauthenticated() {
            return Err(LogInError::NotAccepted);
        }
        let sources = Arc::new(Sources::new(vec![Arc::clone(&cluster) as _], secret()?));
        let (mut all, used) = (self.all(), Instant::now());
        end_old(&mut all, used);
        // A proxy may send several first requests of a user at once.
        if let Some(known) = all.get(&key) {
            return Ok(Arc::clone(&known.sources));
        }
        let token: TokenHash = Sha256::digest(token).into();
        make_room(&mut all, &token);
        all.insert(key, Session { sources: Arc::clone(&sources), cluster, token, used });
        Ok(sources)
    }
}

/// Ends the sessions whose token is no longer accepted, or in which nothing was asked for until `now` for long.
fn end_old(all: &mut HashMap<Key, Session>, now: Instant) {
    all.retain(|_, session| !session.has_ended(now));
}

/// Ends sessions, those that were not used for the longest time, until there is room for one more with `token`.
fn make_room(all: &mut HashMap<Key, Session>, token: &TokenHash) {
    while all.values().filter(|session| session.token == *token).count() >= MOST_OF_TOKEN {
        end_oldest(all, |session| session.token == *token);
    }
    while all.len() >= MOST {
        end_oldest(all, |_| true);
    }
}

fn end_oldest(all: &mut HashMap<Key, Session>, among: impl Fn(&Session) -> bool) {
    let some = all.iter().filter(|(_, session)| among(session));
    let oldest = some.min_by_key(|(_, session)| session.used).map(|(key, _)| key.clone());
    if let Some(oldest) = oldest {
        all.remove(&oldest);
    }
}

/// Whether a proxy sends the token of the user with each request.
pub fn is_proxied(headers: &HeaderMap) -> bool {
    bearer(headers).is_some()
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

    fn session(token: u8, used: Instant) -> Session {
        let sources = Arc::new(Sources::new(Vec::new(), String::new()));
        Session { sources, cluster: Arc::new(Cluster::empty()), token: [token; 32], used }
    }

    fn key(number: usize) -> Key {
        Key::Cookie(number.to_string())
    }

    #[test]
    fn a_token_and_a_session_are_found_in_their_headers() {
        assert_eq!(bearer(&headers(header::AUTHORIZATION, "Bearer abc")), Some("abc"));
        assert_eq!(bearer(&headers(header::AUTHORIZATION, "Basic abc")), None);
        assert_eq!(cookie(&headers(header::COOKIE, "a=b; __Host-pawl-session=s-1; c=d")), Some("s-1"));
        assert_eq!(cookie(&headers(header::COOKIE, "pawl-session=s-1")), None);
    }

    #[test]
    fn of_too_many_sessions_the_one_that_was_not_used_for_longest_ends() {
        let now = Instant::now();
        let of = |number: usize| session(number as u8, now + Duration::from_secs(number as u64));
        let mut all: HashMap<Key, Session> = (0..MOST).map(|number| (key(number), of(number))).collect();
        make_room(&mut all, &[200; 32]);
        assert!(all.len() == MOST - 1 && !all.contains_key(&key(0)) && all.contains_key(&key(1)));
        make_room(&mut all, &[200; 32]);
        assert_eq!(all.len(), MOST - 1, "there is room already");
    }

    #[test]
    fn many_sessions_with_one_token_end_each_other_and_nobody_else_s() {
        let now = Instant::now();
        let mut all = HashMap::from([(key(1000), session(1, now))]);
        for number in 0..3 * MOST {
            make_room(&mut all, &[2; 32]);
            all.insert(key(number), session(2, now + Duration::from_secs(number as u64)));
        }
        assert!(all.len() == 1 + MOST_OF_TOKEN && all.contains_key(&key(1000)), "{}", all.len());
        assert!(all.contains_key(&key(3 * MOST - 1)) && !all.contains_key(&key(0)));
    }

    #[test]
    fn a_session_ends_when_nothing_was_asked_for_in_eight_hours_and_its_pages_with_it() {
        let now = Instant::now();
        let mut all = HashMap::from([(key(0), session(0, now)), (key(1), session(1, now + IDLE))]);
        let sources = Arc::clone(&all[&key(0)].sources);
        end_old(&mut all, now + IDLE);
        assert!(all.len() == 2 && !sources.has_ended());
        end_old(&mut all, now + IDLE + Duration::from_secs(1));
        assert!(all.len() == 1 && all.contains_key(&key(1)) && sources.has_ended());
    }
}
