//! The two spellings of libpq's connection strings, `postgres://…` and `host=… dbname=…`, read into options.
//!
//! libpq's own rules, and two more: a password may hold an unescaped `@` or `?` where that has one reading, and what has
//! two readings is refused. No error repeats any part of the string.

use crate::error::Result;

use super::{decoded, invalid};

/// Options by name, in the order in which they were given; those of a URI's authority and path come first.
pub(super) type Options = Vec<(String, String)>;

/// Every option that a PostgreSQL DSN may have: ours, then libpq's.
pub(super) const KNOWN: &[&str] = &[
    "schema",
    "pool_size",
    "statement_timeout",
    "pgbouncer",
    "direct",
    "sslmode",
    "channel_binding",
    "application_name",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "keepalives_retries",
    "options",
    "user",
    "password",
    "dbname",
    "host",
    "port",
    "target_session_attrs",
];

/// Options of libpq's that a DSN may not have here. Their names are no secrets, wherever they stand.
const REFUSED: &[&str] = &[
    "hostaddr",
    "passfile",
    "require_auth",
    "client_encoding",
    "fallback_application_name",
    "replication",
    "gssencmode",
    "gssdelegation",
    "gsslib",
    "krbsrvname",
    "load_balance_hosts",
    "requirepeer",
    "requiressl",
    "service",
    "sslcert",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
];

/// What follows `postgres://`.
pub(super) fn uri(rest: &str) -> Result<Options> {
    let mut options = Options::new();
    let (userinfo, rest) = split_userinfo(rest)?;
    if let Some(userinfo) = userinfo {
        let (user, password) = match userinfo.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (userinfo, None),
        };
        push(&mut options, "user", decoded(user));
        push(&mut options, "password", password.map(decoded).unwrap_or_default());
    }
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = base.split_once('/').unwrap_or((base, ""));
    if database.contains('@') {
        return Err(escape());
    }
    if !authority.is_empty() {
        let servers = authority.split(',').map(server).collect::<Result<Vec<_>>>()?;
        let list = |part: fn(&(String, String)) -> &str| servers.iter().map(part).collect::<Vec<_>>().join(",");
        options.push(("host".to_owned(), list(|(host, _)| host)));
        options.push(("port".to_owned(), list(|(_, port)| port)));
    }
    push(&mut options, "dbname", decoded(database));
    for (name, value) in super::pairs(query)? {
        known(&name, !query.contains('@'))?;
        options.push((name, value));
    }
    Ok(options)
}

fn push(options: &mut Options, name: &str, value: String) {
    if !value.is_empty() {
        options.push((name.to_owned(), value));
    }
}

/// Splits at the last `@` before the path. A `?` before it belongs to the password, unless an option begins there.
fn split_userinfo(rest: &str) -> Result<(Option<&str>, &str)> {
    let head = rest.split('/').next().unwrap_or_default();
    let at = |text: &str| text.rfind('@');
    let end = match (head.find('?'), at(head)) {
        (Some(question), Some(last)) if question < last => {
            let before = &head[..question];
            let option = head[question + 1..].split('=').next().unwrap_or_default();
            if KNOWN.contains(&option) || !before.contains(':') {
                at(before)
            } else if before.contains('@') {
                return Err(escape());
            } else {
                Some(last)
            }
        }
        (_, last) => last,
    };
    Ok(match end {
        Some(end) => (Some(&rest[..end]), &rest[end + 1..]),
        None => (None, rest),
    })
}

/// Whether options follow in a URI: a `?` that is not part of the password.
pub(super) fn has_options(rest: &str) -> bool {
    split_userinfo(rest).is_ok_and(|(_, rest)| rest.contains('?'))
}

/// A host and its port, which may be empty. An IPv6 address stands in brackets.
fn server(text: &str) -> Result<(String, String)> {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))),
        None => text.split_once(':').map_or((text, Some("")), |(host, port)| (host, Some(port))),
    };
    match port {
        Some(port) if port.is_empty() || port.parse::<u16>().is_ok() => Ok((decoded(host), port.to_owned())),
        _ => Err(unreadable()),
    }
}

/// Whether a DSN is of the form `name=value …`.
pub(super) fn is_key_value(dsn: &str) -> bool {
    let name = dsn.split('=').next().unwrap_or_default().trim();
    dsn.contains('=') && !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// `host=… password='…'`: values with spaces are quoted, and `\` takes the next character as it is.
pub(super) fn key_value(dsn: &str) -> Result<Options> {
    let mut options = Options::new();
    let mut rest = dsn.trim();
    while !rest.is_empty() {
        let Some((name, value)) = rest.split_once('=') else { return Err(unreadable_pairs()) };
        // The name may be part of an unquoted password with a space in it: only a known one is ever repeated.
        known(name.trim(), options.is_empty())?;
        let (value, after) = word(value.trim_start())?;
        options.push((name.trim().to_owned(), value));
        rest = after.trim_start();
    }
    Ok(options)
}

/// The first value of a text, and what follows it.
fn word(text: &str) -> Result<(String, &str)> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut letters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => value.extend(letters.next().map(|(_, letter)| letter)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            letter if letter.is_whitespace() && !quoted => return Ok((value, &text[at..])),
            letter => value.push(letter),
        }
    }
    if quoted { Err(unreadable_pairs()) } else { Ok((value, "")) }
}

/// A value as [`word`] reads it back.
pub(super) fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Whether libpq has an option of this name, whether a DSN may have it here or not.
pub(super) fn is_option(name: &str) -> bool {
    KNOWN.contains(&name) || REFUSED.contains(&name)
}

/// Refuses an option that does not exist; its name is repeated only where it cannot be part of a password.
fn known(name: &str, shown: bool) -> Result<()> {
    if KNOWN.contains(&name) {
        return Ok(());
    }
    if REFUSED.contains(&name) {
        let known = KNOWN.join(", ");
        return Err(invalid(format!("the option '{name}' of libpq is not supported here: supported are {known}")));
    }
    let plain = shown && name.len() <= 40 && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase());
    let what = if plain { format!("unknown option '{name}'") } else { "unknown option".to_owned() };
    Err(invalid(format!("{what}: known are {}", KNOWN.join(", "))))
}

pub(super) fn unreadable() -> crate::error::Error {
    invalid("the DSN is not of the form postgres://user:password@host:port/database?options")
}

fn unreadable_pairs() -> crate::error::Error {
    invalid("the DSN is not of the form host=… user=… password='…' dbname=…: put values with spaces into quotes")
}

fn escape() -> crate::error::Error {
    invalid(
        "the DSN can be read in two ways: in a user, password or database write '@' as %40, '/' as %2F and '?' as %3F",
    )
}
