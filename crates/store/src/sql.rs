//! The statement table: every `.sql` file of the crate, by name, per dialect. Nothing else names a file.
//!
//! Files are written for people and for psql: tables as `tenure.message`, parameters as `$1`, the time as `{now}`, the
//! condition of a fence as `{held}` (on SQLite `{held $2}`, the first of its parameters), the end of a message's lease as
//! `{until}`, the record of a call as `{call $1}`, a row that may be repeated as `{rows from $3} (…)`, a step that runs for every row
//! of a list as `{each $3} …`, a part that hangs on a parameter between `{with $3}` and `{end}`. [`render`] turns that into what a backend runs: the schema's own name (a prefix on SQLite, which has no schemas),
//! `?1` for SQLite (where `$2` would be a *named* parameter, numbered by first appearance), and the one expression
//! that asks for the time. A file without a dialect suffix serves both.
//!
//! A PostgreSQL file is always one statement. SQLite has no writable CTEs, so there an act may be several statements,
//! separated by `;`, that share their parameters and run in one transaction; the rows of all of them are the answer.

/// The two SQL dialects; Turso runs SQLite's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    #[cfg_attr(not(any(feature = "sqlite", feature = "turso")), allow(dead_code))]
    Sqlite,
}

/// One act in SQL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statement {
    /// Its file, without the suffix.
    pub(crate) name: &'static str,
    /// Its place in the table of rendered texts.
    pub(crate) index: usize,
}

macro_rules! statements {
    (@text both $name:literal) => {
        (include_str!(concat!("../sql/", $name, ".sql")), include_str!(concat!("../sql/", $name, ".sql")))
    };
    (@text pair $name:literal) => {
        (include_str!(concat!("../sql/", $name, ".pg.sql")), include_str!(concat!("../sql/", $name, ".sqlite.sql")))
    };
    (@text postgres $name:literal) => {
        (include_str!(concat!("../sql/", $name, ".pg.sql")), "")
    };
    (@text sqlite $name:literal) => {
        ("", include_str!(concat!("../sql/", $name, ".sqlite.sql")))
    };
    ($($ident:ident = $form:ident $name:literal;)+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($ident),+ }
        $(
            #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "copying from a SQLite file needs SQLite"))]
            pub(crate) const $ident: Statement = Statement { name: $name, index: Index::$ident as usize };
        )+
        /// Name, PostgreSQL text, SQLite text.
        pub(crate) const ALL: &[(&str, (&str, &str))] = &[$(($name, statements!(@text $form $name))),+];
    };
}

statements! {
    API_KEY_BY_HASH = both "api_key/by_hash";
    API_KEY_CREATE = both "api_key/create";
    API_KEY_DELETE = both "api_key/delete";
    API_KEY_LIST = both "api_key/list";
    API_KEY_USED = both "api_key/used";
    ARCHIVE_COUNT = both "archive/count";
    ARCHIVE_DEAD = both "archive/dead";
    ARCHIVE_DELETE = both "archive/delete";
    ARCHIVE_GET = both "archive/get";
    ARCHIVE_LIST = both "archive/list";
    ARCHIVE_ORPHANS = pair "archive/orphans";
    ARCHIVE_PAGE = both "archive/page";
    ARCHIVE_PRUNE = both "archive/prune";
    ARCHIVE_REPLAY = pair "archive/replay";
    ARCHIVE_TALLY = both "archive/tally";
    CALL_CLOSE = postgres "call/close";
    CALL_FIND = postgres "call/find";
    CALL_FORGET = postgres "call/forget";
    CALL_PRUNE = postgres "call/prune";
    CALL_RECORD = postgres "call/record";
    CALL_WINDOW = postgres "call/window";
    CLOCK_NOW = both "clock/now";
    DEDUPE_CLEAR = both "dedupe/clear";
    DEDUPE_FIND = pair "dedupe/find";
    DEDUPE_HOLD = pair "dedupe/hold";
    DEDUPE_PRUNE = both "dedupe/prune";
    DEDUPE_SET = pair "dedupe/set";
    DEDUPE_WINDOW = both "dedupe/window";
    EVENT_APPEND = pair "event/append";
    EVENT_LATEST = both "event/latest";
    EVENT_READ = both "event/read";
    EXECUTION_GET = both "execution/get";
    EXECUTION_IMPORT = pair "execution/import";
    EXECUTION_LIST = both "execution/list";
    EXECUTION_PRUNABLE = both "execution/prunable";
    EXECUTION_PRUNE = pair "execution/prune";
    HISTORY_APPEND = pair "history/append";
    HISTORY_IMPORT = pair "history/import";
    HISTORY_READ = pair "history/read";
    HISTORY_WHOLE = pair "history/whole";
    HOUSEKEEPING_RENEW = both "housekeeping/renew";
    HOUSEKEEPING_TAKE = both "housekeeping/take";
    IDENTITY_RAISE = both "identity/raise";
    IDENTITY_VERSION = both "identity/version";
    INSTANCE_BORN = pair "instance/born";
    INSTANCE_CENSUS = both "instance/census";
    INSTANCE_CHILDREN = both "instance/children";
    INSTANCE_DELETE = pair "instance/delete";
    INSTANCE_DEPTHS = both "instance/depths";
    INSTANCE_GET = both "instance/get";
    INSTANCE_IMPORT = pair "instance/import";
    INSTANCE_LIST = both "instance/list";
    INSTANCE_LOCK = pair "instance/lock";
    INSTANCE_ROOTS = both "instance/roots";
    INSTANCE_STATS = pair "instance/stats";
    INSTANCE_STRAY = pair "instance/stray";
    INSTANCE_TALLY = both "instance/tally";
    INSTANCE_TREE = both "instance/tree";
    KEY_DEFER = pair "key/defer";
    KEY_DROP = pair "key/drop";
    KEY_EXTEND = pair "key/extend";
    KEY_FIRST = both "key/first";
    KEY_FREE = both "key/free";
    KEY_HELD = both "key/held";
    KEY_HOLD = pair "key/hold";
    KEY_LEASE = both "key/lease";
    KEY_ORPHANS = pair "key/orphans";
    KEY_PEEK = both "key/peek";
    KEY_PICK = both "key/pick";
    KEY_PRUNE = both "key/prune";
    KV_GET = both "kv/get";
    KV_IMPORT = pair "kv/import";
    KV_LIST = both "kv/list";
    LANE_CARE = pair "lane/care";
    LANE_CHECK = both "lane/check";
    LANE_CONFIGURE = both "lane/configure";
    LANE_CREATE = pair "lane/create";
    LANE_DELETE_KEYS = both "lane/delete_keys";
    LANE_DELETE_MESSAGES = both "lane/delete_messages";
    LANE_DELETE_SCHEDULED = both "lane/delete_scheduled";
    LANE_DUE = both "lane/due";
    LANE_FLOOR = pair "lane/floor";
    LANE_GET = sqlite "lane/get";
    LANE_LIST = both "lane/list";
    LANE_LOCK = postgres "lane/lock";
    LANE_ORPHAN = both "lane/orphan";
    LANE_QUEUE = both "lane/queue";
    LANE_READY = both "lane/ready";
    LANE_STATS = both "lane/stats";
    LANE_WRITERS = pair "lane/writers";
    MESSAGE_ARCHIVE = pair "message/archive";
    MESSAGE_ASSIGN = sqlite "message/assign";
    MESSAGE_BURY = pair "message/bury";
    MESSAGE_CLAIM = pair "message/claim";
    MESSAGE_CLEAR = both "message/clear";
    MESSAGE_COMPLETE = pair "message/complete";
    MESSAGE_COMPLETE_KEPT = pair "message/complete_kept";
    MESSAGE_DELETE = pair "message/delete";
    MESSAGE_DOOM = pair "message/doom";
    MESSAGE_DRAW = postgres "message/draw";
    MESSAGE_ENQUEUE = pair "message/enqueue";
    MESSAGE_ENQUEUE_LANES = postgres "message/enqueue_lanes";
    MESSAGE_ENQUEUE_LEASED = pair "message/enqueue_leased";
    MESSAGE_ENQUEUE_ONE = postgres "message/enqueue_one";
    MESSAGE_EXPIRED = pair "message/expired";
    MESSAGE_EXPLAIN = pair "message/explain";
    MESSAGE_EXTEND = pair "message/extend";
    MESSAGE_FIND = pair "message/find";
    MESSAGE_GET = both "message/get";
    MESSAGE_HELD = pair "message/held";
    MESSAGE_IMPORT = pair "message/import";
    MESSAGE_LIST = both "message/list";
    MESSAGE_ORPHANS = pair "message/orphans";
    MESSAGE_POSITION = pair "message/position";
    MESSAGE_POSTPONE = pair "message/postpone";
    MESSAGE_RELEASE = pair "message/release";
    MESSAGE_REQUEUE = pair "message/requeue";
    MESSAGE_RESERVE = sqlite "message/reserve";
    MESSAGE_SCHEDULE = pair "message/schedule";
    MESSAGE_SPENT = pair "message/spent";
    NAMESPACE_CREATE = both "namespace/create";
    NAMESPACE_DELETE = both "namespace/delete";
    NAMESPACE_ENSURE = both "namespace/ensure";
    NAMESPACE_GET = both "namespace/get";
    NAMESPACE_LIST = both "namespace/list";
    NAMESPACE_UPDATE = both "namespace/update";
    NAMESPACE_USES = both "namespace/uses";
    QUEUE_BUSY = both "queue/busy";
    QUEUE_CENSUS = both "queue/census";
    QUEUE_CREATE = both "queue/create";
    QUEUE_DELETE = both "queue/delete";
    QUEUE_DELETE_ARCHIVE = both "queue/delete_archive";
    QUEUE_DELETE_DEDUPE = both "queue/delete_dedupe";
    QUEUE_DELETE_LANES = both "queue/delete_lanes";
    QUEUE_GET = both "queue/get";
    QUEUE_LIST = both "queue/list";
    QUEUE_NAME = both "queue/name";
    QUEUE_ORPHAN = both "queue/orphan";
    QUEUE_PAUSE = both "queue/pause";
    QUEUE_REQUEST = both "queue/request";
    QUEUE_UPDATE = both "queue/update";
    ROLE_BOUND = both "role/bound";
    ROLE_CREATE = both "role/create";
    ROLE_DELETE = both "role/delete";
    ROLE_GET = both "role/get";
    ROLE_LIST = both "role/list";
    ROLE_UPDATE = both "role/update";
    ROLE_BINDING_CREATE = both "role_binding/create";
    ROLE_BINDING_DELETE = both "role_binding/delete";
    ROLE_BINDING_ENSURE = both "role_binding/ensure";
    ROLE_BINDING_LIST = both "role_binding/list";
    ROLE_BINDING_PARTIES = both "role_binding/parties";
    ROLE_BINDING_PERMISSIONS = both "role_binding/permissions";
    SCHEDULED_CLEAR = both "scheduled/clear";
    SCHEDULED_DUE = pair "scheduled/due";
    SCHEDULED_GET = both "scheduled/get";
    SCHEDULED_LIST = both "scheduled/list";
    SCHEDULED_ORPHANS = pair "scheduled/orphans";
    SCHEDULED_PROMOTE = pair "scheduled/promote";
    SESSION_IMPORT = pair "session/import";
    SESSION_PRUNE = both "session/prune";
    SESSION_RENEW = pair "session/renew";
    TURN_ABANDON = pair "turn/abandon";
    TURN_ACK = pair "turn/ack";
    TURN_DROP = pair "turn/drop";
    TURN_ENQUEUE = pair "turn/enqueue";
    TURN_FETCH = pair "turn/fetch";
    TURN_IMPORT = pair "turn/import";
    TURN_NEXT = pair "turn/next";
    TURN_PARK = pair "turn/park";
    TURN_RENEW = both "turn/renew";
    USERS_CREATE = both "users/create";
    USERS_DELETE = both "users/delete";
    USERS_DELETE_BINDINGS = both "users/delete_bindings";
    USERS_DELETE_KEYS = both "users/delete_keys";
    USERS_GET = both "users/get";
    USERS_LIST = both "users/list";
    WORK_ABANDON = pair "work/abandon";
    WORK_ACK = pair "work/ack";
    WORK_ENQUEUE = pair "work/enqueue";
    WORK_FETCH = pair "work/fetch";
    WORK_IMPORT = pair "work/import";
    WORK_NEXT = both "work/next";
    WORK_RENEW = pair "work/renew";
    WORKER_ALIVE = pair "worker/alive";
    WORKER_CHANGE = both "worker/change";
    WORKER_FENCE = both "worker/fence";
    WORKER_FORGET = both "worker/forget";
    WORKER_GET = both "worker/get";
    WORKER_HEARTBEAT = pair "worker/heartbeat";
    WORKER_HELD = both "worker/held";
    WORKER_KNOWN = both "worker/known";
    WORKER_LIST = both "worker/list";
    WORKER_PURGE = both "worker/purge";
    WORKER_READY = sqlite "worker/ready";
    WORKER_REGISTER = both "worker/register";
    WORKER_RELEASE = both "worker/release";
    WORKER_RELEASE_KEYS = both "worker/release_keys";
    WORKER_STALE = pair "worker/stale";
}

/// Every migration in order: number, name, PostgreSQL text, SQLite text.
pub(crate) const MIGRATIONS: &[(i64, &str, &str, &str)] = &[
    (
        1,
        "init",
        include_str!("../sql/migrations/0001_init.pg.sql"),
        include_str!("../sql/migrations/0001_init.sqlite.sql"),
    ),
    (
        2,
        "functions",
        include_str!("../sql/migrations/0002_functions.pg.sql"),
        include_str!("../sql/migrations/0002_functions.sqlite.sql"),
    ),
    (
        3,
        "orchestration",
        include_str!("../sql/migrations/0003_orchestration.pg.sql"),
        include_str!("../sql/migrations/0003_orchestration.sqlite.sql"),
    ),
    (
        4,
        "identity",
        include_str!("../sql/migrations/0004_identity.pg.sql"),
        include_str!("../sql/migrations/0004_identity.sqlite.sql"),
    ),
    (
        5,
        "placement",
        include_str!("../sql/migrations/0005_placement.pg.sql"),
        include_str!("../sql/migrations/0005_placement.sqlite.sql"),
    ),
    (
        6,
        "orchestration_strays",
        include_str!("../sql/migrations/0006_orchestration_strays.pg.sql"),
        include_str!("../sql/migrations/0006_orchestration_strays.sqlite.sql"),
    ),
    (
        7,
        "enqueue_lock",
        include_str!("../sql/migrations/0007_enqueue_lock.pg.sql"),
        include_str!("../sql/migrations/0007_enqueue_lock.sqlite.sql"),
    ),
    (
        8,
        "leases",
        include_str!("../sql/migrations/0008_leases.pg.sql"),
        include_str!("../sql/migrations/0008_leases.sqlite.sql"),
    ),
    (
        9,
        "partitions",
        include_str!("../sql/migrations/0009_partitions.pg.sql"),
        include_str!("../sql/migrations/0009_partitions.sqlite.sql"),
    ),
    (
        10,
        "sql_functions",
        include_str!("../sql/migrations/0010_sql_functions.pg.sql"),
        include_str!("../sql/migrations/0010_sql_functions.sqlite.sql"),
    ),
    (
        11,
        "housekeeping",
        include_str!("../sql/migrations/0011_housekeeping.pg.sql"),
        include_str!("../sql/migrations/0011_housekeeping.sqlite.sql"),
    ),
];

/// `date_part` and not `extract`, which since PostgreSQL 14 computes with numerics and costs a lone enqueue 15 µs.
const NOW_POSTGRES: &str = "coalesce($1::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint)";
/// The row `m` that a fence `i (id, attempt, worker, lane, token)` holds. `= any (array[…])` and not `=`: an equality could
/// be turned around by the planner, which then begins with the whole table once statistics call it empty (docs/adr/0005).
const HELD_POSTGRES: &str = "m.id = any (array[i.id]) and m.leased_until > 0 \
     and (i.attempt is null or m.attempts = i.attempt) and (i.worker is null or m.worker = i.worker) \
     and (i.lane is null or m.lane = i.lane) and (i.token is null or m.token = i.token)";
/// When the lease of a message `m` ends: a message that was leased with its key is held as long as the key is.
const UNTIL: &str = "case when m.token is null then m.leased_until else coalesce(\
     (select u.leased_until from tenure.key_lease u where u.token = m.token), m.leased_until) end";
/// Milliseconds are what SQLite's own clock gives.
const NOW_SQLITE: &str = "coalesce($1, cast(unixepoch('subsec') * 1000 as integer) * 1000)";

/// What a backend runs for a text of ours.
pub(crate) fn render(dialect: Dialect, schema: &str, text: &str) -> String {
    let text = text.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
    match dialect {
        Dialect::Postgres => {
            let schema = quoted(schema);
            with_parameter(&text.replace("{held}", HELD_POSTGRES).replace("{until}", UNTIL), "{call $", call)
                .replace("{now}", NOW_POSTGRES)
                .replace("'tenure.", &format!("'{}.", schema.replace('\'', "''")))
                .replace("tenure.", &format!("{schema}."))
        }
        Dialect::Sqlite => with_parameter(&text.replace("{until}", UNTIL), "{held $", held)
            .replace("{now}", NOW_SQLITE)
            .replace("tenure.", "tenure_")
            .replace('$', "?"),
    }
}

/// Replaces every marker of the form `{name $n}` by what `expand` makes of n.
fn with_parameter(text: &str, marker: &str, expand: fn(usize) -> String) -> String {
    let mut parts = text.split(marker);
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once('}').unwrap_or((part, ""));
        expanded.push_str(&number.parse().map_or_else(|_| String::new(), expand));
        expanded.push_str(rest);
    }
    expanded
}

/// The part of a verb that records the call: which of its items, whose ids are the parameter after the call's token, were
/// done. A call without a token records nothing.
fn call(token: usize) -> String {
    format!(
        "call as (insert into tenure.call (token, done) \
         select ${token}::bigint, case when count(*) < cardinality(${}::bigint[]) then array_agg(n) end \
         from done having ${token}::bigint is not null)",
        token + 1
    )
}

/// SQLite's form of `{held}`: the parameters of the fence stand one after the other.
fn held(first: usize) -> String {
    let [id, attempt, worker, lane, token] = std::array::from_fn(|n| first + n);
    format!(
        "id = ${id} and leased_until > 0 and (${attempt} is null or attempts = ${attempt}) \
         and (${worker} is null or worker = ${worker}) and (${lane} is null or lane = ${lane}) \
         and (${token} is null or token = ${token})"
    )
}

/// All statements as a backend runs them, by [`Statement::index`].
pub(crate) fn rendered(dialect: Dialect, schema: &str) -> Vec<String> {
    ALL.iter()
        .map(|(_, (postgres, sqlite))| match dialect {
            Dialect::Postgres => render(dialect, schema, postgres),
            Dialect::Sqlite => render(dialect, schema, sqlite),
        })
        .collect()
}

/// A SQLite step for one row, from a text that may mark its row with `{rows from $n}`.
#[cfg(any(feature = "sqlite", feature = "turso"))]
pub(crate) fn one_row(step: &str) -> String {
    match step.split_once(ROWS) {
        None => step.to_owned(),
        Some((head, tail)) => format!("{head}{}", tail.split_once('}').map_or("", |(_, row)| row.trim_start())),
    }
}

/// The same for `count` rows at once, where the text marks its row: parameters from `$n` on are those of the row.
#[cfg(feature = "sqlite")]
pub(crate) fn many_rows(step: &str, count: usize) -> Option<String> {
    let (head, tail) = step.split_once(ROWS)?;
    let (first, row) = tail.split_once('}')?;
    let first: usize = first.parse().ok()?;
    let width = highest_parameter(row, '?') + 1 - first;
    let mut parts = row.trim_start().split('?');
    let start = parts.next()?;
    let parts: Vec<(usize, &str)> = parts
        .filter_map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            Some((part[..end].parse().ok()?, &part[end..]))
        })
        .collect();
    let rows = (0..count).map(|row| {
        let shift = |number: usize| if number < first { number } else { number + row * width };
        parts.iter().fold(start.to_owned(), |text, (number, rest)| format!("{text}?{}{rest}", shift(*number)))
    });
    Some(format!("{head}{}", rows.collect::<Vec<_>>().join(", ")))
}

#[cfg(any(feature = "sqlite", feature = "turso"))]
const ROWS: &str = "{rows from ?";

#[cfg(any(feature = "sqlite", feature = "turso", feature = "conformance"))]
/// The statements of a SQLite text. No literal in our files contains a semicolon, which a test checks.
pub(crate) fn steps(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|step| !step.is_empty())
}

/// A SQLite step and the list it runs for: `{each ?n} …` runs once for every row of the list that parameter n is of.
#[cfg(any(feature = "sqlite", feature = "turso"))]
pub(crate) fn for_each(step: &str) -> (Option<usize>, &str) {
    let marked = step.strip_prefix("{each ?").and_then(|rest| rest.split_once('}'));
    match marked {
        Some((first, step)) => (first.parse().ok(), step.trim_start()),
        None => (None, step),
    }
}

/// The text of an act without the parts between `{with $n}` and `{end}` for which `wanted` says no, and the numbers of the
/// parameters that are left, which are counted anew.
pub(crate) fn without(text: &str, wanted: impl Fn(usize) -> bool) -> (String, Vec<usize>) {
    let mut kept = String::with_capacity(text.len());
    let mut skipping = false;
    for line in text.lines() {
        if let Some(number) = line.trim().strip_prefix("{with $").and_then(|rest| rest.strip_suffix('}')) {
            skipping = number.parse().is_ok_and(|number: usize| !wanted(number));
        } else if line.trim() == "{end}" {
            skipping = false;
        } else if !skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let mut parts = kept.split('$');
    let mut renumbered = parts.next().unwrap_or_default().to_owned();
    let mut used: Vec<usize> = Vec::new();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        match part[..end].parse::<usize>() {
            Ok(number) => {
                let at = used.iter().position(|known| *known == number).unwrap_or_else(|| {
                    used.push(number);
                    used.len() - 1
                });
                renumbered.push_str(&format!("${}{}", at + 1, &part[end..]));
            }
            Err(_) => renumbered.push_str(&format!("${part}")),
        }
    }
    (renumbered, used)
}

/// The parameters that a text's parts hang on.
pub(crate) fn conditions(text: &str) -> Vec<usize> {
    let marked = text.lines().filter_map(|line| line.trim().strip_prefix("{with $")?.strip_suffix('}'));
    marked.filter_map(|number| number.parse().ok()).collect()
}

/// A PostgreSQL identifier in double quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The highest numbered parameter of a text: a step of an act may use fewer than the act has.
pub(crate) fn highest_parameter(text: &str, sign: char) -> usize {
    let numbers =
        text.split(sign).skip(1).map(|rest| &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())]);
    numbers.filter_map(|number| number.parse().ok()).max().unwrap_or(0)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_repeated_with_parameters_of_its_own() {
        let step = "insert into t values {rows from ?3} (?3, 0, ?1, ?12)";
        assert_eq!(one_row(step), "insert into t values (?3, 0, ?1, ?12)");
        let two = "insert into t values (?3, 0, ?1, ?12), (?13, 0, ?1, ?22)";
        assert_eq!(many_rows(step, 2).as_deref(), Some(two));
        assert_eq!(many_rows("delete from t", 2), None);
    }

    #[test]
    fn a_part_that_nobody_wants_is_left_out_and_parameters_are_counted_anew() {
        let text = "with a as (select $1),\n{with $3}\nb as (select $3, $4),\n{end}\nc as (select $5, $1)\nselect 1";
        assert_eq!(conditions(text), [3]);
        let (all, used) = without(text, |_| true);
        assert_eq!(all, "with a as (select $1),\nb as (select $2, $3),\nc as (select $4, $1)\nselect 1\n");
        assert_eq!(used, [1, 3, 4, 5]);
        let (some, used) = without(text, |_| false);
        assert_eq!(some, "with a as (select $1),\nc as (select $2, $1)\nselect 1\n");
        assert_eq!(used, [1, 5]);
    }

    #[test]
    fn a_step_for_a_list_names_the_first_parameter_of_its_rows() {
        assert_eq!(for_each("{each ?16}\ninsert into t values (?16)"), (Some(16), "insert into t values (?16)"));
        assert_eq!(for_each("delete from t"), (None, "delete from t"));
    }
}
