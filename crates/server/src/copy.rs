//! `tenure copy`: everything out of a SQLite file of duroxide, with progress bars, and the comparison afterwards.

use std::path::Path;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tenure_store::{Backend, CopyProgress, CopyReport, Error, Kind, Result, Store, dsn_backend};

#[derive(Args)]
pub(crate) struct Copy {
    /// The file that duroxide's own SQLite provider made. It is only read; stop the programs that use it first.
    #[arg(long, value_name = "FILE")]
    from: String,
    /// Where to: postgres://…, 'host=… dbname=…', sqlite:path or turso:///path. The tables are created when they are missing.
    #[arg(long, value_name = "DSN", env = "TENURE_DSN", hide_env_values = true)]
    to: String,
    /// Does not compare the copy with the file.
    #[arg(long)]
    no_verify: bool,
}

pub(crate) async fn run(copy: &Copy) -> Result<()> {
    let file = Path::new(path(&copy.from)?);
    let store = Store::connect(&copy.to).await?;
    store.install().await?;
    println!("{} to {}", file.display(), store.backend().name());
    let bars = Bars::new("copied");
    let report = store.copy_duroxide(file, |progress| bars.show(progress)).await.map_err(again)?;
    bars.finish();
    println!("{}", table(&report));
    if report.skipped > 0 {
        println!("{} instances were there from an earlier run", report.skipped);
    }
    if copy.no_verify {
        println!("not verified");
        return close(&store).await;
    }
    let bars = Bars::new("verified");
    let events = store.verify_duroxide_copy(file, |progress| bars.show(progress)).await.map_err(again)?;
    bars.finish();
    println!("verified: all tables have the same number of rows, and {events} events are the same byte for byte");
    close(&store).await
}

/// A copy that is complete stays a success while another process reads the store: its `-wal` file stays beside it.
async fn close(store: &Store) -> Result<()> {
    match store.close().await {
        Err(error) if error.kind() == Kind::Contended => println!("{error}"),
        closed => closed?,
    }
    Ok(())
}

/// The path alone, of what may be written as duroxide's programs write it: sqlite:orders.db?mode=rwc.
fn path(from: &str) -> Result<&str> {
    let plain = from.split('?').next().unwrap_or(from);
    // A connection string of a server, most likely that of --to, has a password in it that must not be shown as a file's name.
    if !matches!(dsn_backend(plain), Ok(Backend::Sqlite)) {
        let message = "--from is the SQLite file that duroxide made: write its path, or sqlite:path; --to is where it is copied to";
        return Err(Error::new(Kind::InvalidInput, message));
    }
    Ok(match plain.strip_prefix("sqlite://").or_else(|| plain.strip_prefix("sqlite:")) {
        Some(path) => path,
        None => from,
    })
}

/// What can be done about an error that a repeat may mend.
fn again(error: Error) -> Error {
    if !error.is_retryable() {
        return error;
    }
    Error::new(error.kind(), format!("{error}; run it again: it goes on where it stopped")).with_source(error)
}

/// One bar for the instances and one for their events.
struct Bars {
    instances: ProgressBar,
    events: ProgressBar,
}

impl Bars {
    fn new(done: &str) -> Self {
        let all = MultiProgress::new();
        let bar = |what: &str| {
            let style = ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos:>9}/{human_len} {per_sec:>12}");
            let bar = all.add(ProgressBar::new(0).with_message(format!("{what} {done}")));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        };
        Bars { instances: bar("instances"), events: bar("events") }
    }

    fn show(&self, progress: CopyProgress) {
        self.instances.set_length(progress.instances_total);
        self.instances.set_position(progress.instances_done);
        self.events.set_length(progress.events_total);
        self.events.set_position(progress.events_done);
    }

    fn finish(&self) {
        self.instances.finish();
        self.events.finish();
    }
}

fn table(report: &CopyReport) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["what", "copied"]);
    for (what, count) in [
        ("instances", report.instances),
        ("executions", report.executions),
        ("events", report.events),
        ("messages", report.messages),
        ("activities", report.activities),
        ("values", report.values),
        ("sessions", report.sessions),
    ] {
        table.add_row([what.to_owned(), count.to_string()]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_named_as_duroxide_names_it() {
        for from in ["orders.db", "sqlite:orders.db", "sqlite://orders.db?mode=rwc"] {
            assert_eq!(path(from).unwrap(), "orders.db");
        }
        for (from, file) in [("sqlite:///data/orders.db", "/data/orders.db"), ("/data/what?.db", "/data/what?.db")] {
            assert_eq!(path(from).unwrap(), file);
        }
    }

    #[test]
    fn a_database_on_a_server_is_no_file_to_copy_from_and_its_password_is_not_shown() {
        for from in ["postgres://me:s3cret@db/app", "host=db password=s3cret", "me:s3cret@db/app", "turso:orders.db"] {
            let error = path(from).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidInput, "{from}");
            let said = format!("{error} {error:?}");
            assert!(said.contains("--from is the SQLite file") && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn only_what_a_repeat_may_mend_is_to_be_repeated() {
        let said = |kind| again(Error::new(kind, "no")).to_string();
        assert_eq!(said(Kind::Unavailable), "no; run it again: it goes on where it stopped");
        assert_eq!(said(Kind::AlreadyExists), "no");
    }
}
