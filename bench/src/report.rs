//! Collects figures, takes medians, prints them as a table of ratios beside their floors.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde_json::{Value, json};

use crate::load::Measured;

pub(crate) struct Report {
    pub(crate) repeat: usize,
    rows: Vec<Row>,
    /// The server beside the kernel, which stands where bare SQL does elsewhere.
    http: Vec<Row>,
}

struct Row {
    name: String,
    bare: Option<Measured>,
    ours: Measured,
    /// What is compared, what it must reach, and whether larger is better.
    check: Option<(String, f64, f64, bool)>,
}

/// The repetition in the middle, by rate.
pub(crate) fn median(mut runs: Vec<Measured>) -> Measured {
    runs.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    runs.get(runs.len() / 2).copied().unwrap_or_default()
}

impl Report {
    pub(crate) fn new(repeat: usize) -> Self {
        Report { repeat, rows: Vec::new(), http: Vec::new() }
    }

    /// Our rate as a ratio to bare SQL's, with its floor.
    pub(crate) fn ratio(&mut self, name: &str, bare: Measured, ours: Measured, floor: f64) {
        let check = Some(("of bare".to_owned(), ours.rate / bare.rate, floor, true));
        self.push(Row { name: name.to_owned(), bare: Some(bare), ours, check });
    }

    /// Any figure that must be at least, or at most, a bound.
    pub(crate) fn bound(&mut self, name: &str, ours: Measured, what: &str, figure: f64, bound: f64, at_least: bool) {
        let check = Some((what.to_owned(), figure, bound, at_least));
        self.push(Row { name: name.to_owned(), bare: None, ours, check });
    }

    /// The rate over HTTP as a ratio to the kernel's own, with its floor (none: 0), and what HTTP costs.
    pub(crate) fn over_http(&mut self, name: &str, kernel: Measured, http: Measured, floor: f64) {
        let check = Some(("of kernel".to_owned(), http.rate / kernel.rate, floor, true));
        let row = Row { name: name.to_owned(), bare: Some(kernel), ours: http, check };
        let (cpu, share) = (http.cpu, percent(http_share(&row)));
        eprintln!("{:<52} {}  server {cpu:.1} µs, HTTP {share}", row.name, verdict(&row));
        self.http.push(row);
    }

    fn push(&mut self, row: Row) {
        eprintln!("{:<52} {}", row.name, verdict(&row));
        self.rows.push(row);
    }

    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().chain(&self.http).filter(|row| !holds(row)).count()
    }

    pub(crate) fn print(&self) {
        if !self.rows.is_empty() {
            self.print_rows();
        }
        if !self.http.is_empty() {
            self.print_http();
        }
    }

    fn print_rows(&self) {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["scenario", "bare/s", "ours/s", "p50 ms", "p99 ms", "WAL B/msg", "figure", "floor", ""]);
        for row in &self.rows {
            let (what, figure, bound, at_least) = row.check.clone().unwrap_or_default();
            let sign = if at_least { "≥" } else { "≤" };
            table.add_row([
                row.name.clone(),
                row.bare.map_or(String::new(), |bare| thousands(bare.rate)),
                thousands(row.ours.rate),
                blank(row.ours.p50, 2),
                blank(row.ours.p99, 2),
                blank(row.ours.wal, 0),
                format!("{figure:.2} {what}"),
                format!("{sign} {bound:.2}"),
                if holds(row) { "ok".to_owned() } else { "BELOW".to_owned() },
            ]);
        }
        self.finish(&mut table, 1..6);
    }

    /// CPU is in microseconds per message: of the kernel alone, of the server, and of the client, which is neither's.
    fn print_http(&self) {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "HTTP beside the kernel",
            "kernel/s",
            "HTTP/s",
            "p50 ms",
            "p99 ms",
            "kernel CPU µs",
            "server CPU µs",
            "share of HTTP",
            "client CPU µs",
            "of kernel",
            "floor",
            "",
        ]);
        for row in &self.http {
            let kernel = row.bare.unwrap_or_default();
            let (_, ratio, floor, _) = row.check.clone().unwrap_or_default();
            let verdict = if holds(row) { "ok" } else { "BELOW" };
            table.add_row([
                row.name.clone(),
                thousands(kernel.rate),
                thousands(row.ours.rate),
                blank(row.ours.p50, 2),
                blank(row.ours.p99, 2),
                blank(kernel.cpu, 1),
                blank(row.ours.cpu, 1),
                percent(http_share(row)),
                blank(row.ours.load_cpu, 1),
                format!("{ratio:.2}"),
                if floor > 0.0 { format!("≥ {floor:.2}") } else { String::new() },
                if floor > 0.0 { verdict.to_owned() } else { String::new() },
            ]);
        }
        self.finish(&mut table, 1..10);
    }

    fn finish(&self, table: &mut Table, figures: std::ops::Range<usize>) {
        for column in figures {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.add_row([Cell::new(format!("median of {}", self.repeat))]);
        println!("{table}");
    }

    pub(crate) fn json(&self) -> Value {
        let figures = |m: &Measured| {
            json!({
                "rate": m.rate, "p50_ms": m.p50, "p99_ms": m.p99, "wal_bytes": m.wal, "cpu_us": m.cpu,
                "load_cpu_us": m.load_cpu,
            })
        };
        let row = |row: &Row| {
            let check = row.check.as_ref().map(|(what, figure, bound, at_least)| {
                json!({"what": what, "figure": figure, "bound": bound, "at_least": at_least, "holds": holds(row)})
            });
            json!({"name": row.name, "bare": row.bare.as_ref().map(figures), "ours": figures(&row.ours), "check": check})
        };
        let http = |over_http: &Row| {
            let mut shown = row(over_http);
            shown["kernel"] = shown["bare"].take();
            shown["http_share"] = json!(http_share(over_http));
            shown
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        json!({"repeat": self.repeat, "rows": rows, "http": self.http.iter().map(http).collect::<Vec<_>>()})
    }
}

fn holds(row: &Row) -> bool {
    row.check
        .as_ref()
        .is_none_or(|(_, figure, bound, at_least)| if *at_least { figure >= bound } else { figure <= bound })
}

/// How much of the server's CPU is not the kernel's: what HTTP costs, of all that is spent.
fn http_share(row: &Row) -> f64 {
    match row.bare {
        Some(kernel) if row.ours.cpu > 0.0 => 1.0 - kernel.cpu / row.ours.cpu,
        _ => 0.0,
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn verdict(row: &Row) -> String {
    let bare = row.bare.map_or(String::new(), |bare| format!("bare {:>9}  ", thousands(bare.rate)));
    let (what, figure, bound, _) = row.check.clone().unwrap_or_default();
    let verdict = if holds(row) { "ok" } else { "BELOW" };
    format!(
        "{bare}ours {:>9}  p99 {:>8.2} ms  {figure:.2} {what} (floor {bound:.2}) {verdict}",
        thousands(row.ours.rate),
        row.ours.p99
    )
}

fn thousands(rate: f64) -> String {
    match rate {
        rate if rate >= 10_000.0 => format!("{:.1}k", rate / 1000.0),
        rate => format!("{rate:.0}"),
    }
}

fn blank(figure: f64, digits: usize) -> String {
    if figure > 0.0 { format!("{figure:.digits$}") } else { String::new() }
}
