//! Where a user gives the token with which the API server of the cluster knows them.

use super::{Scripts, page as whole};
use maud::html;

/// Why there is no session any more, or never was one: a browser keeps the cookie only where it is safe.
pub const ENDED: &str =
    "The session has ended, or this page was opened without TLS: use https://, or the name localhost.";

/// The page. `problem`: why the last token was not accepted; `known`: what identifies a session to the form that ends
/// it, if there is one.
pub fn page(problem: Option<&str>, known: Option<&str>) -> String {
    let content = html! {
        h1 { "Log in" }
        @if let Some(problem) = problem { p.notice role="alert" { (problem) } }
        p {
            "You see the jobs that the API server shows you, and change those that it lets you change. To make a token: "
            code { "kubectl create token ACCOUNT --duration 8h" }
        }
        form.login method="post" action="/login" {
            label {
                "Token"
                input type="password" name="token" required autocomplete="off" spellcheck="false";
            }
            label {
                "Namespaces, separated by commas; empty: all that this server is set up for"
                input type="text" name="namespaces" autocomplete="off" spellcheck="false";
            }
            p { button { "Log in" } }
        }
        p.muted { "The token is kept in the memory of this server only, until you log out or it expires." }
        @if let Some(known) = known {
            form method="post" action="/logout" {
                input type="hidden" name="token" value=(known);
                p { button { "Log out" } }
            }
        }
    };
    whole("Log in", Scripts::Live, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_logged_in_can_log_out_and_a_problem_is_text() {
        let text = page(Some("<b>wrong</b>"), None);
        assert!(text.contains("&lt;b&gt;wrong&lt;/b&gt;") && !text.contains("/logout"), "{text}");
        let text = page(None, Some("t-1"));
        assert!(text.contains(r#"action="/logout""#) && text.contains(r#"value="t-1""#), "{text}");
        assert!(!text.contains("role=\"alert\""), "{text}");
    }
}
