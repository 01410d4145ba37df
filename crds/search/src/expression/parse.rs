//! Text to syntax tree, by recursive descent.

use super::{Node, Operator};

/// Longest expression, in characters.
const LONGEST: usize = 512;
/// Deepest nesting of parentheses and prefix operators: bounds the stack.
const DEEPEST: usize = 32;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    Name(String),
    Symbol(&'static str),
}

/// Longer symbols first: `<=` is not `<` and `=`.
const SYMBOLS: [&str; 16] = ["<=", ">=", "==", "!=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!", "(", ")"];

/// Binary operators by increasing precedence. The comparisons, at level 2, are not associative.
const LEVELS: [&[(&str, Operator)]; 5] = [
    &[("||", Operator::Or)],
    &[("&&", Operator::And)],
    &[
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ],
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)],
];
const COMPARISON: usize = 2;

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
}

pub(super) fn parse(text: &str) -> Result<Node, String> {
    if text.chars().count() > LONGEST {
        return Err(format!("is longer than {LONGEST} characters"));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0 };
    let root = parser.binary(0, 0)?;
    match parser.tokens.get(parser.next) {
        None => Ok(root),
        Some((at, token)) => Err(format!("has an unexpected {} at character {at}", token.written())),
    }
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let at = text[..text.len() - rest.len()].chars().count() + 1;
        let (token, length) = if first.is_ascii_digit() || first == '.' {
            number(rest).ok_or_else(|| format!("has an invalid number at character {at}"))?
        } else if first == '\'' || first == '"' {
            let inner = rest[1..].split(first).next().unwrap_or_default();
            if inner.len() + 2 > rest.len() {
                return Err(format!("has a text without closing quote at character {at}"));
            }
            (Token::Text(inner.to_owned()), inner.len() + 2)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
            (Token::Name(rest[..end].to_owned()), end)
        } else if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            (Token::Symbol(symbol), symbol.len())
        } else {
            return Err(format!("has an unexpected {first:?} at character {at}"));
        };
        tokens.push((at, token));
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// The number at the start of `text`, and its length.
fn number(text: &str) -> Option<(Token, usize)> {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let exponent_sign = matches!(bytes[end], b'+' | b'-') && end > 0 && matches!(bytes[end - 1], b'e' | b'E');
        if !(bytes[end].is_ascii_alphanumeric() || bytes[end] == b'.' || exponent_sign) {
            break;
        }
        end += 1;
    }
    let value: f64 = text[..end].parse().ok()?;
    value.is_finite().then_some((Token::Number(value), end))
}

impl Parser {
    fn binary(&mut self, level: usize, depth: usize) -> Result<Node, String> {
        let Some(operators) = LEVELS.get(level) else { return self.prefix(depth) };
        let mut left = self.binary(level + 1, depth)?;
        let mut compared = false;
        while let Some((at, Token::Symbol(symbol))) = self.tokens.get(self.next).cloned() {
            let Some(&(_, operator)) = operators.iter().find(|(written, _)| *written == symbol) else { break };
            if compared {
                return Err(format!("has a second comparison at character {at}: join comparisons by &&"));
            }
            compared = level == COMPARISON;
            self.next += 1;
            let right = self.binary(level + 1, depth)?;
            left = Node::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn prefix(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEEPEST {
            return Err(format!("is nested more than {DEEPEST} levels deep"));
        }
        let Some((at, token)) = self.tokens.get(self.next).cloned() else {
            return Err("ends where a value is required".to_owned());
        };
        self.next += 1;
        match token {
            Token::Number(number) => Ok(Node::Number(number)),
            Token::Text(text) => Ok(Node::Text(text)),
            Token::Name(name) => Ok(Node::Name(name)),
            Token::Symbol("-") => Ok(Node::Negate(Box::new(self.prefix(depth + 1)?))),
            Token::Symbol("!") => Ok(Node::Not(Box::new(self.prefix(depth + 1)?))),
            Token::Symbol("(") => {
                let inner = self.binary(0, depth + 1)?;
                match self.tokens.get(self.next) {
                    Some((_, Token::Symbol(")"))) => self.next += 1,
                    _ => return Err(format!("has a parenthesis without closing one at character {at}")),
                }
                Ok(inner)
            }
            Token::Symbol(symbol) => Err(format!("has an unexpected {symbol:?} at character {at}")),
        }
    }
}

impl Token {
    fn written(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("text {text:?}"),
            Self::Name(name) => format!("name {name:?}"),
            Self::Symbol(symbol) => format!("{symbol:?}"),
        }
    }
}
