//! Migrations: applied in order, once, under a lock; and `verify`, which only looks.
//!
//! Invariants: migrations make tables, indexes and functions and nothing else; a released one is never edited; both dialects have
//! the same numbers; an old program refuses a database whose newer migrations say that they break it.

use std::collections::BTreeSet;

use crate::db::Db;
use crate::error::{Error, Kind, Result};
use crate::sql::{Dialect, MIGRATIONS, quoted, render};
use crate::store::Store;

/// Migrations of ours that older programs cannot live with.
const BREAKING: &[i64] = &[8];
/// How long ten processes that install at once may wait for each other.
const LOCK_TIMEOUT: &str = "30s";

impl Store {
    /// Brings the tables up to date. Safe to call at every start, by any number of processes at once.
    ///
    /// Where they are up to date nothing is written, so a role that may create nothing can start.
    pub async fn install(&self) -> Result<()> {
        let applied = self.versions().await.unwrap_or_default();
        if MIGRATIONS.iter().all(|(version, ..)| applied.iter().any(|(applied, _)| applied == version)) {
            return self.refuse_newer().await;
        }
        match self.db() {
            Db::Postgres(db) => {
                let schema = quoted(&db.schema);
                // Sent as one query, so one transaction, which nobody can leave open; under one lock, so whoever comes
                // second finds everything done.
                let name = db.schema.replace('\'', "''");
                let mut script = format!(
                    "select set_config('lock_timeout', '{LOCK_TIMEOUT}', true);\n\
                     select pg_advisory_xact_lock(736452719, hashtext('{name}'));\n"
                );
                // `if not exists` asks for the right to create schemas even where there is nothing to create.
                script.push_str(&format!(
                    "do $step$ begin\n\
                     if not exists (select 1 from pg_namespace where nspname = '{name}') then\n\
                     create schema {schema};\nend if;\nend $step$;\n"
                ));
                script.push_str(&format!("create table if not exists {schema}.migration ({COLUMNS});\n"));
                for (version, name, text, _) in MIGRATIONS {
                    script.push_str(&postgres_step(&db.schema, *version, name, text));
                }
                self.db().script(script).await?;
            }
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => self.install_embedded().await?,
        }
        self.refuse_newer().await
    }

    #[cfg(any(feature = "sqlite", feature = "turso"))]
    async fn install_embedded(&self) -> Result<()> {
        self.db().script(format!("create table if not exists tenure_migration ({COLUMNS})")).await?;
        for (version, name, _, text) in MIGRATIONS {
            if self.versions().await?.iter().any(|(applied, _)| applied == version) {
                continue;
            }
            // The row goes first: of two processes that come here at once, one fails on it and has nothing to undo.
            let breaking = i64::from(BREAKING.contains(version));
            let script = format!(
                "insert into tenure_migration (version, name, breaking, applied_at) \
                 values ({version}, '{name}', {breaking}, cast(unixepoch('subsec') * 1000 as integer) * 1000);\n{}",
                render(Dialect::Sqlite, "", text)
            );
            match self.db().script(script).await {
                Err(error) if error.kind() == Kind::AlreadyExists => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Applied migrations, and whether they break older programs.
    async fn versions(&self) -> Result<Vec<(i64, bool)>> {
        versions(self.db()).await
    }

    async fn refuse_newer(&self) -> Result<()> {
        newer(self.db()).await?.map_or(Ok(()), |version| Err(too_new(version)))
    }

    /// Checks, without writing, that every table and column is there and that nothing refers to what is gone. The error
    /// names the first thing that is wrong.
    pub async fn verify(&self) -> Result<()> {
        if self.columns("migration").await?.is_empty() {
            return Err(self.first_missing().await?);
        }
        self.refuse_newer().await?;
        let applied: BTreeSet<i64> = self.versions().await?.into_iter().map(|(version, _)| version).collect();
        if let Some((version, name, ..)) = MIGRATIONS.iter().find(|(version, ..)| !applied.contains(version)) {
            let message = format!("migration {version} ({name}) has not been applied: call `install`");
            return Err(Error::new(Kind::Schema, message));
        }
        for (table, columns) in tables(self.db().dialect()) {
            let found = self.columns(&table).await?;
            if found.is_empty() {
                return Err(damaged(format!("table {table} is missing: restore it from a backup")));
            }
            if let Some(column) = columns.iter().find(|column| !found.contains(*column)) {
                return Err(damaged(format!("table {table} has no column {column}: restore it from a backup")));
            }
        }
        for (what, from, condition) in ORPHANS {
            let count = self.count(from, condition).await?;
            if count > 0 {
                return Err(Error::new(Kind::Orphans, format!("{count} rows of {what}")));
            }
        }
        Ok(())
    }

    /// The error for a database without the table of migrations: it names the first table that is missing.
    async fn first_missing(&self) -> Result<Error> {
        let mut missing = "migration".to_owned();
        for (table, _) in tables(self.db().dialect()) {
            if self.columns(&table).await?.is_empty() {
                missing = table;
                break;
            }
        }
        Ok(damaged(format!("table {missing} is missing: call `install` first")))
    }

    async fn columns(&self, table: &str) -> Result<BTreeSet<String>> {
        let text = match self.db() {
            Db::Postgres(db) => format!(
                "select column_name::text from information_schema.columns where table_schema = '{}' and table_name = '{table}'",
                db.schema.replace('\'', "''")
            ),
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => format!("select name from pragma_table_info('tenure_{table}')"),
        };
        self.db().inspect(text).await?.iter().map(|row| row.fields("columns").text()).collect()
    }

    async fn count(&self, from: &str, condition: &str) -> Result<i64> {
        let text = format!("select count(*) from tenure.{from} x where {condition}");
        let schema = match self.db() {
            Db::Postgres(db) => db.schema.as_str(),
            #[cfg(any(feature = "sqlite", feature = "turso"))]
            _ => "",
        };
        let rows = self.db().inspect(render(self.db().dialect(), schema, &text)).await?;
        rows[0].fields("orphans").int()
    }
}

async fn versions(db: &Db) -> Result<Vec<(i64, bool)>> {
    let text = match db {
        Db::Postgres(db) => {
            format!("select version, breaking from {}.migration order by version", quoted(&db.schema))
        }
        #[cfg(any(feature = "sqlite", feature = "turso"))]
        _ => "select version, breaking from tenure_migration order by version".to_owned(),
    };
    let rows = db.inspect(text).await?;
    rows.iter()
        .map(|row| {
            let mut row = row.fields("migration");
            Ok((row.int()?, row.int()? != 0))
        })
        .collect()
}

/// The newest migration that this program knows.
fn known() -> i64 {
    MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0)
}

/// The first applied migration that this program does not know and cannot work with.
pub(crate) async fn newer(db: &Db) -> Result<Option<i64>> {
    let applied = versions(db).await?;
    Ok(applied.into_iter().find(|(version, breaking)| *version > known() && *breaking).map(|(version, _)| version))
}

pub(crate) fn too_new(version: i64) -> Error {
    let message = format!(
        "this database has migration {version}, which this version of Tenure (it knows {}) cannot work with: upgrade the \
         program",
        known()
    );
    Error::new(Kind::SchemaNewer, message)
}

const COLUMNS: &str =
    "version bigint primary key, name text not null, breaking bigint not null, applied_at bigint not null";

/// What must not be: a sentence, the table, the condition that finds it.
const ORPHANS: &[(&str, &str, &str)] = &[
    ("lane belong to no queue: delete them", "lane", "not exists (select 1 from tenure.queue q where q.id = x.queue)"),
    (
        "message belong to no lane: their queue was deleted while they were enqueued; housekeeping removes them (`maintain`)",
        "message",
        "not exists (select 1 from tenure.lane l where l.id = x.lane)",
    ),
    (
        "scheduled belong to no lane: their queue was deleted while they were enqueued; housekeeping removes them (`maintain`)",
        "scheduled",
        "not exists (select 1 from tenure.lane l where l.id = x.lane)",
    ),
    (
        "archive belong to no queue: housekeeping removes them (`maintain`)",
        "archive",
        "not exists (select 1 from tenure.queue q where q.id = x.queue)",
    ),
    (
        "inbox belong to no instance: it was deleted while they were sent; delete them",
        "inbox",
        "not exists (select 1 from tenure.instance i where i.id = x.instance)",
    ),
    (
        "api_key belong to no user: delete them",
        "api_key",
        "not exists (select 1 from tenure.users u where u.id = x.user_id)",
    ),
    (
        "role_binding belong to no user: delete them",
        "role_binding",
        "not exists (select 1 from tenure.users u where u.id = x.user_id)",
    ),
    (
        "role_binding belong to no role: delete them",
        "role_binding",
        "not exists (select 1 from tenure.role r where r.id = x.role_id)",
    ),
    (
        "queue have another number of lanes than `partitions` says: restore them from a backup",
        "queue",
        "x.partitions <> (select count(*) from tenure.lane l where l.queue = x.id)",
    ),
];

fn damaged(message: String) -> Error {
    Error::new(Kind::Damaged, message)
}

/// One migration as a step that does nothing when it was applied before.
fn postgres_step(schema: &str, version: i64, name: &str, text: &str) -> String {
    let text = render(Dialect::Postgres, schema, text);
    let schema = quoted(schema);
    let breaking = i64::from(BREAKING.contains(&version));
    // The tag must not occur in the text; dollar quotes carry the migration through `execute` unchanged.
    format!(
        "do $step$ begin\n\
         if not exists (select 1 from {schema}.migration where version = {version}) then\n\
         execute $text${text}$text$;\n\
         insert into {schema}.migration (version, name, breaking, applied_at)\n\
         values ({version}, '{name}', {breaking}, (extract(epoch from clock_timestamp()) * 1000000)::bigint);\n\
         end if;\nend $step$;\n"
    )
}

/// Every table of a dialect and its columns, read from the migrations themselves: `create table tenure.name (` and one column
/// a line, or `alter table tenure.name add column`.
fn tables(dialect: Dialect) -> Vec<(String, Vec<String>)> {
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    for (_, _, postgres, sqlite) in MIGRATIONS {
        let text = if dialect == Dialect::Postgres { postgres } else { sqlite };
        let mut open = false;
        for line in text.lines() {
            let added = line.strip_prefix("alter table tenure.").and_then(|rest| rest.split_once(" add column "));
            if let Some((name, column)) = added
                && let Some((_, columns)) = tables.iter_mut().find(|(table, _)| table == name)
            {
                columns.extend(column.split_whitespace().next().map(str::to_owned));
            } else if let Some(rest) = line.strip_prefix("create table tenure.") {
                tables.push((rest.trim_end_matches(" (").to_owned(), Vec::new()));
                open = true;
            } else if line.starts_with(')') {
                open = false;
            } else if open && let Some((_, columns)) = tables.last_mut() {
                let word = line.split_whitespace().next().unwrap_or_default();
                if !matches!(word, "" | "--" | "unique" | "primary") {
                    columns.push(word.to_owned());
                }
            }
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_from_the_migrations() {
        let tables = tables(Dialect::Postgres);
        let message = tables.iter().find(|(name, _)| name == "message").expect("there is a message table");
        for name in ["leased_until", "token"] {
            assert!(message.1.iter().any(|column| column == name), "{name}");
        }
        assert!(tables.iter().all(|(_, columns)| columns.len() > 1), "{tables:?}");
        assert!(tables.iter().flat_map(|(_, columns)| columns).all(|column| column != "(queue,"));
    }

    #[test]
    fn both_dialects_have_the_same_numbers_and_no_dollar_quotes() {
        for (at, (version, _, postgres, _)) in MIGRATIONS.iter().enumerate() {
            assert_eq!(*version, at as i64 + 1);
            assert!(!postgres.contains("$text$"));
        }
    }
}
