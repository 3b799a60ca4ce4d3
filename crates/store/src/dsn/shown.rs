//! What may be shown of an error about a configuration file.

/// Behind these the reader says what kind of value it found, and the value itself.
const VALUES: [&str; 2] = ["invalid type: ", "invalid value: "];
/// Behind these it repeats a name.
const NAMES: [&str; 2] = ["unknown field `", "unknown variant `"];

/// What serde says about a configuration file, without the values that it repeats: a DSN in the wrong place may hold a password,
/// in any of its forms. The kind of the value stays, with what was expected and where; so do names of keys, unless a name has
/// characters that no key has.
///
/// ```
/// use tenure_store::config_error_shown;
/// let said = "storage: invalid type: string \"host=db password=secret\", expected a sequence at line 1 column 10";
/// assert_eq!(config_error_shown(said), "storage: invalid type: string, expected a sequence at line 1 column 10");
/// ```
pub fn config_error_shown(said: &str) -> String {
    // The first mark is serde's own: it stands before everything that is repeated. Likewise the last end is.
    let begin = |marks: [&str; 2]| marks.iter().filter_map(|mark| Some(said.find(mark)? + mark.len())).min();
    let end = |start: usize, marks: [&str; 2]| {
        marks.iter().filter_map(|mark| said[start..].rfind(mark)).max().map_or(said.len(), |at| start + at)
    };
    let (start, end, shown) = match (begin(VALUES), begin(NAMES)) {
        (Some(start), name) if name.is_none_or(|name| start < name) => {
            let end = end(start, [", expected "; 2]);
            (start, end, kind(&said[start..end]))
        }
        (_, Some(start)) => {
            let end = end(start, ["`, expected ", "`, there are no "]);
            (start, end, if is_name(&said[start..end]) { &said[start..end] } else { "***" })
        }
        // Other errors repeat nothing today.
        _ => match (said.find('"'), said.rfind('"')) {
            (Some(start), Some(end)) => (start, end + 1, "***"),
            _ => return said.to_owned(),
        },
    };
    format!("{}{shown}{}", &said[..start], &said[end..])
}

/// The kind of a value that serde shows as "string \"…\"" or "integer `…`".
fn kind(value: &str) -> &str {
    value.split(['"', '`', '\'']).next().unwrap_or_default().trim_end()
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::config_error_shown;

    #[test]
    fn values_and_odd_names_are_masked_whatever_they_hold() {
        for (said, shown) in [
            (
                r#"invalid type: string "s3cret", expected struct Config"#,
                "invalid type: string, expected struct Config",
            ),
            (
                r#"a: invalid type: string "x\", expected unknown field `s3cret`, expected y", expected a map at line 2 column 4"#,
                "a: invalid type: string, expected a map at line 2 column 4",
            ),
            ("invalid value: integer `4711`, expected u32", "invalid value: integer, expected u32"),
            ("invalid type: map, expected a string", "invalid type: map, expected a string"),
            (
                "unknown field `lisen`, expected one of `listen`, `auth`",
                "unknown field `lisen`, expected one of `listen`, `auth`",
            ),
            ("unknown field `pg://s3cret`, expected `dsn`", "unknown field `***`, expected `dsn`"),
            ("unknown field `host=s3cret`, there are no fields", "unknown field `***`, there are no fields"),
            (
                r#"unknown variant `a`, expected invalid type: string "s3cret"`, expected `text` at line 1"#,
                "unknown variant `***`, expected `text` at line 1",
            ),
            (r#"something new about "s3cret" here"#, "something new about *** here"),
            ("missing field `dsn`", "missing field `dsn`"),
        ] {
            assert_eq!(config_error_shown(said), shown);
        }
    }
}
