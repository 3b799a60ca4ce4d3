//! Every statement prepares on every backend, and pairs agree in parameters and columns. This stands in for the
//! compile-time checks that one text per dialect cannot have.

use crate::Store;
use crate::db::Db;
use crate::sql::{ALL, MIGRATIONS, steps};

/// Prepares every statement on this store's backend; returns name, number of parameters (where the engine tells) and
/// column names.
pub async fn describe(store: &Store) -> Vec<(&'static str, Option<usize>, Vec<String>)> {
    let mut described = Vec::new();
    for (index, (name, (postgres, sqlite))) in ALL.iter().enumerate() {
        let (params, columns) = match store.db() {
            Db::Postgres(_) if postgres.is_empty() => continue,
            Db::Postgres(db) => {
                let (params, columns) = db.describe(index).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
                (Some(params), columns)
            }
            #[cfg(feature = "sqlite")]
            Db::Sqlite(_) if sqlite.is_empty() => continue,
            #[cfg(feature = "sqlite")]
            Db::Sqlite(db) => {
                let (params, columns) = db.describe(index).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
                (Some(params), columns)
            }
            #[cfg(feature = "turso")]
            Db::Turso(_) if sqlite.is_empty() => continue,
            #[cfg(feature = "turso")]
            Db::Turso(db) => (None, db.describe(index).await.unwrap_or_else(|error| panic!("{name}: {error:?}"))),
        };
        described.push((*name, params, columns));
    }
    described
}

/// The names of all statements, for the test that finds unused files.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// A dump of the schema that the migrations make, for the golden files.
pub async fn schema(store: &Store) -> String {
    let text = match store.db() {
        Db::Postgres(db) => {
            let schema = db.schema.replace('\'', "''");
            format!(
                "select '1' || table_name || lpad(ordinal_position::text, 3, '0'),
                        table_name || '.' || column_name || ' ' || data_type
                        || case is_nullable when 'NO' then ' not null' else '' end
                 from information_schema.columns where table_schema = '{schema}'
                 union all
                 select '2' || indexname, replace(indexdef, quote_ident('{schema}') || '.', 'tenure.')
                 from pg_indexes where schemaname = '{schema}'
                 union all
                 select '3' || relname, relname || ' with ' || array_to_string(reloptions, ', ')
                 from pg_class c join pg_namespace n on n.oid = c.relnamespace
                 where n.nspname = '{schema}' and reloptions is not null
                 order by 1"
            )
        }
        #[cfg(any(feature = "sqlite", feature = "turso"))]
        _ => "select name, sql from sqlite_master where sql is not null and name like 'tenure_%' order by type desc, name"
            .to_owned(),
    };
    let rows = store.db().inspect(text).await.expect("a schema can be read");
    let lines = rows.iter().map(|row| {
        let mut row = row.fields("schema");
        row.text().and_then(|_| row.text()).expect("a schema is text")
    });
    lines.map(|line| line + "\n").collect()
}

/// Every SQL text of the crate by file name, for the tidy test.
pub fn texts() -> Vec<(String, &'static str)> {
    let mut texts = Vec::new();
    for (name, (postgres, sqlite)) in ALL {
        texts.push((format!("{name}.pg"), *postgres));
        texts.push((format!("{name}.sqlite"), *sqlite));
    }
    for (version, name, postgres, sqlite) in MIGRATIONS {
        texts.push((format!("migrations/{version:04}_{name}.pg"), *postgres));
        texts.push((format!("migrations/{version:04}_{name}.sqlite"), *sqlite));
    }
    texts
}

/// How many statements a SQLite text has.
pub fn step_count(text: &str) -> usize {
    steps(text).count()
}

/// Runs SQL as it is: for cases that damage a store, or prepare a server.
pub async fn script(store: &Store, text: &str) {
    let schema = match store.db() {
        Db::Postgres(db) => db.schema.clone(),
        #[cfg(any(feature = "sqlite", feature = "turso"))]
        _ => String::new(),
    };
    let text = crate::sql::render(store.db().dialect(), &schema, text);
    store.db().script(text).await.expect("the script runs");
}

/// How many rows a table has.
pub async fn count(store: &Store, table: &str) -> i64 {
    let schema = match store.db() {
        Db::Postgres(db) => db.schema.clone(),
        #[cfg(any(feature = "sqlite", feature = "turso"))]
        _ => String::new(),
    };
    let text = crate::sql::render(store.db().dialect(), &schema, &format!("select count(*) from tenure.{table}"));
    store.db().inspect(text).await.expect("a table can be counted")[0].fields("count").int().expect("a number")
}

/// The plan that a PostgreSQL store makes for a statement, with `values` in the place of its parameters.
pub async fn plan(store: &Store, name: &str, values: &[&str]) -> String {
    let Db::Postgres(db) = store.db() else { return String::new() };
    let (_, (text, _)) = ALL.iter().find(|(known, _)| *known == name).expect("a statement of that name");
    let mut text = crate::sql::render(crate::sql::Dialect::Postgres, &db.schema, text);
    for (at, value) in values.iter().enumerate().rev() {
        text = text.replace(&format!("${}", at + 1), value);
    }
    let rows = store.db().inspect(format!("explain {text}")).await.expect("a plan");
    rows.iter().map(|row| row.fields("plan").text().expect("a plan is text") + "\n").collect()
}

/// Below which position nothing can be live in a lane, as this store believes: for cases about late commits.
pub fn floor(store: &Store, lane: i64) -> i64 {
    store.shared().hub.lane(lane).state().cursor.floor()
}
