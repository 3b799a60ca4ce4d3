//! The scenarios and their floors.

use std::time::Duration;

use tenure_store::{Claim, Due, Settings, Store};

use crate::load::{Measured, Meter, Paced};
use crate::report::{Report, median};
use crate::{Result, bare, bare_sqlite, combined, http, library, ours, pickup};

const BACKLOG: u64 = 100_000;

pub(crate) async fn run(
    dsn: &str,
    only: &[String],
    seconds: f64,
    idle_seconds: f64,
    report: &mut Report,
) -> Result<()> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|prefix| name.starts_with(prefix.as_str()));
    if wanted("s1") {
        s1(dsn, seconds, report).await?;
    }
    if wanted("s2") {
        s2(dsn, seconds, report).await?;
    }
    if wanted("s3") {
        s3(dsn, seconds, report).await?;
    }
    if wanted("s4") {
        s4(dsn, seconds, report).await?;
    }
    if wanted("s5") {
        s5(dsn, report).await?;
    }
    if wanted("s6a") {
        s6a(dsn, report).await?;
    }
    if wanted("s6b") {
        s6b(dsn, report).await?;
    }
    if wanted("s6c") {
        s6c(dsn, idle_seconds, report).await?;
    }
    if wanted("library") {
        library(dsn, seconds, report).await?;
    }
    if wanted("sqlite") {
        sqlite(seconds, report).await?;
    }
    if wanted("leases") {
        leases(dsn, report).await?;
    }
    if wanted("memory") {
        memory(dsn, report).await?;
    }
    http::run(dsn, &wanted, seconds, report).await
}

async fn s1(dsn: &str, seconds: f64, report: &mut Report) -> Result<()> {
    let (mut bare_lone, mut lone) = (Vec::new(), Vec::new());
    let (mut bare_merged, mut bare_single, mut merged) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..report.repeat {
        bare_lone.push(bare::insert_single(dsn, 1, seconds).await?);
        let (store, queue) = ours::fresh(dsn).await?;
        lone.push(ours::enqueue_single(&store, &queue, 1, seconds).await?);
        bare_merged.push(combined::insert_single(dsn, 64, seconds).await?);
        let (store, queue) = ours::fresh(dsn).await?;
        merged.push(ours::enqueue_single(&store, &queue, 64, seconds).await?);
        bare_single.push(bare::insert_single(dsn, 16, seconds).await?);
    }
    report.ratio("S1 lone caller vs bare INSERT", median(bare_lone), median(lone), 0.85);
    let merged = median(merged);
    report.ratio("S1 64 callers vs bare UNNEST combiner", median(bare_merged), merged, 0.8);
    report.ratio("S1 64 callers vs one INSERT each, 16 connections", median(bare_single), merged, 3.0);
    Ok(())
}

async fn s2(dsn: &str, seconds: f64, report: &mut Report) -> Result<()> {
    let (mut theirs, mut mine) = (Vec::new(), Vec::new());
    for _ in 0..report.repeat {
        theirs.push(bare::insert_bulk(dsn, seconds).await?);
        let (store, queue) = ours::fresh(dsn).await?;
        mine.push(ours::enqueue_bulk(&store, &queue, seconds).await?);
    }
    report.ratio("S2 batches of 1000 vs bare UNNEST", median(theirs), median(mine), 0.75);
    Ok(())
}

/// A full queue, settled.
async fn full(dsn: &str, messages: u64) -> Result<(Store, tenure_store::Queue)> {
    let (store, queue) = ours::fresh(dsn).await?;
    ours::fill(&store, &queue, messages, None).await?;
    ours::settle(dsn).await?;
    Ok((store, queue))
}

async fn our_drain(dsn: &str, consumers: usize, batch: usize, seconds: f64, messages: u64) -> Result<Measured> {
    let (store, queue) = full(dsn, messages).await?;
    let before = bare::wal(dsn).await?;
    let mut measured = ours::drain(&store, &queue, consumers, batch, seconds, messages).await?;
    let left = store.lane_stats(queue.lanes[0]).await?;
    measured.wal = (bare::wal(dsn).await? - before) / (messages - left.ready - left.leased).max(1) as f64;
    Ok(measured)
}

async fn s3(dsn: &str, seconds: f64, report: &mut Report) -> Result<()> {
    for batch in [10, 100] {
        let (mut theirs, mut mine) = (Vec::new(), Vec::new());
        for _ in 0..report.repeat {
            bare::reset(dsn, BACKLOG).await?;
            theirs.push(bare::drain(dsn, 8, batch, seconds, BACKLOG, false).await?);
            mine.push(our_drain(dsn, 8, batch as usize, seconds, BACKLOG).await?);
        }
        let name = format!("S3 drain 100k, 8 consumers, batches of {batch}");
        report.ratio(&name, median(theirs), median(mine), 0.8);
    }
    let (mut merged, mut single, mut mine) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..report.repeat {
        bare::reset(dsn, BACKLOG).await?;
        merged.push(combined::drain(dsn, 64, seconds, BACKLOG).await?);
        mine.push(our_drain(dsn, 64, 1, seconds, BACKLOG).await?);
        bare::reset(dsn, BACKLOG).await?;
        single.push(bare::drain(dsn, 8, 1, seconds, BACKLOG, false).await?);
    }
    let mine = median(mine);
    report.ratio("S3 drain 100k, 64 single consumers vs bare combiner", median(merged), mine, 0.8);
    report.ratio("S3 64 single consumers vs 8 bare single ones", median(single), mine, 6.0);
    Ok(())
}

/// The same load at half the pace that the slower side can keep up with.
async fn at_half_capacity(dsn: &str, load: Paced) -> Result<Paced> {
    let flood = Paced { rate: f64::INFINITY, ..load };
    let bare = combined::paced(dsn, flood).await?;
    let (store, queue) = ours::fresh(dsn).await?;
    let ours = ours::paced(&store, &queue, flood).await?;
    Ok(Paced { rate: bare.rate.min(ours.rate) / 2.0, ..load })
}

/// Both sides at one pace: the rate that was kept up, and the latency as a ratio.
fn report_pace(report: &mut Report, name: &str, pace: f64, bare: Measured, ours: Measured) {
    report.bound(&format!("{name}, paced {pace:.0}/s: keeps up"), ours, "of pace", ours.rate / pace, 0.98, true);
    let latency = format!("{name}, paced {pace:.0}/s: latency (bare p99 {:.2} ms)", bare.p99);
    report.bound(&latency, ours, "x bare p99", ours.p99 / bare.p99, 1.5, false);
}

fn middle_p99(mut figures: Vec<Measured>) -> Measured {
    figures.sort_by(|a, b| a.p99.total_cmp(&b.p99));
    figures[figures.len() / 2]
}

async fn s4(dsn: &str, seconds: f64, report: &mut Report) -> Result<()> {
    let load = Paced { producers: 64, consumers: 64, rate: 0.0, seconds: seconds.max(4.0) };
    let paced = at_half_capacity(dsn, load).await?;
    let (mut theirs, mut mine) = (Vec::new(), Vec::new());
    for _ in 0..report.repeat {
        theirs.push(combined::paced(dsn, paced).await?);
        let (store, queue) = ours::fresh(dsn).await?;
        mine.push(ours::paced(&store, &queue, paced).await?);
    }
    report_pace(report, "S4 64 + 64 single calls", paced.rate, middle_p99(theirs), middle_p99(mine));
    Ok(())
}

async fn s5(dsn: &str, report: &mut Report) -> Result<()> {
    let (mut insert, mut same, mut theirs, mut mine) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..report.repeat {
        insert.push(pickup::bare_insert(dsn).await?);
        same.push(pickup::same_process(dsn).await?);
        theirs.push(pickup::other_process(dsn, "bare").await?);
        mine.push(pickup::other_process(dsn, "ours").await?);
    }
    let middle = |mut figures: Vec<Measured>| {
        figures.sort_by(|a, b| a.p50.total_cmp(&b.p50));
        figures[figures.len() / 2]
    };
    let (insert, same, theirs, mine) = (middle(insert), middle(same), middle(theirs), middle(mine));
    let name = format!("S5 idle pickup, same process (a bare INSERT alone {:.2} ms)", insert.p50);
    report.bound(&name, same, "x bare INSERT", same.p50 / insert.p50, 1.5, false);
    let name = format!("S5 idle pickup, other process (bare p50 {:.2} ms)", theirs.p50);
    report.bound(&name, mine, "x bare p50", mine.p50 / theirs.p50, 1.5, false);
    Ok(())
}

async fn s6a(dsn: &str, report: &mut Report) -> Result<()> {
    let (mut clean, mut million, mut crowded) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..report.repeat {
        clean.push(our_drain(dsn, 8, 10, 60.0, BACKLOG).await?);
        million.push(our_drain(dsn, 8, 10, 60.0, 1_000_000).await?);
        let (store, queue) = ours::fresh(dsn).await?;
        ours::fill(&store, &queue, BACKLOG, None).await?;
        let mut leased = 0;
        while leased < BACKLOG as usize {
            leased += store.claim(Claim::from_queue(&queue, 1000)).await?.len();
        }
        ours::fill(&store, &queue, BACKLOG, Some(Due::In(Duration::from_secs(3600)))).await?;
        ours::fill(&store, &queue, BACKLOG, None).await?;
        ours::settle(dsn).await?;
        crowded.push(ours::drain(&store, &queue, 8, 10, 60.0, BACKLOG).await?);
    }
    let clean = median(clean);
    report.ratio("S6a drain of 1M vs clean 100k", clean, median(million), 0.85);
    report.ratio("S6a 100k leased and 100k scheduled vs clean", clean, median(crowded), 0.85);
    Ok(())
}

/// An old snapshot is held open for 60 s under load, and stays open during a drain.
async fn s6b(dsn: &str, report: &mut Report) -> Result<()> {
    let drained = 20_000;
    let load = Paced { producers: 8, consumers: 8, rate: 0.0, seconds: 5.0 };
    let paced = Paced { seconds: 60.0, ..at_half_capacity(dsn, load).await? };
    let clean = our_drain(dsn, 8, 10, 60.0, drained).await?;
    let hold = async || {
        let snapshot = bare::connect(dsn).await?;
        // A snapshot begins with the first query.
        snapshot.batch_execute("begin isolation level repeatable read; select 1").await?;
        Result::Ok(snapshot)
    };
    let snapshot = hold().await?;
    let bare = combined::paced(dsn, paced).await?;
    snapshot.batch_execute("rollback").await?;
    let (store, queue) = ours::fresh(dsn).await?;
    let snapshot = hold().await?;
    let pressed = ours::paced(&store, &queue, paced).await?;
    ours::fill(&store, &queue, drained, None).await?;
    let held = ours::drain(&store, &queue, 8, 10, 60.0, drained).await?;
    snapshot.batch_execute("rollback").await?;
    report_pace(report, "S6b 60 s under an old snapshot", paced.rate, bare, pressed);
    report.ratio("S6b drain 20k under it vs clean", clean, held, 0.5);
    Ok(())
}

/// A transaction stays idle, after a write to a table of its own or with an old snapshot, under 1,500/s and during a drain.
/// Leases are short enough to be looked after while it lasts.
async fn s6c(dsn: &str, seconds: f64, report: &mut Report) -> Result<()> {
    const PACE: f64 = 1500.0;
    let drained = 20_000;
    let short = async || {
        let (store, queue) = ours::fresh(dsn).await?;
        let settings = Settings { lease: Duration::from_secs(30), ..queue.settings.clone() };
        let queue = store.queue_update(&queue.name, settings).await?;
        Result::Ok((store, queue))
    };
    let (store, queue) = short().await?;
    let load = Paced { producers: 8, consumers: 8, rate: PACE, seconds };
    let calm = ours::paced(&store, &queue, Paced { seconds: seconds.min(60.0), ..load }).await?;
    ours::fill(&store, &queue, drained, None).await?;
    let clean = ours::drain(&store, &queue, 8, 10, 60.0, drained).await?;
    for (what, begin) in [
        // With a transaction number, and without one.
        ("idle after a write", "create table bench.idle (n int); begin; insert into bench.idle values (1)"),
        ("with an old snapshot", "begin isolation level repeatable read; select count(*) from bench.message"),
    ] {
        let (store, queue) = short().await?;
        let idle = bare::connect(dsn).await?;
        idle.batch_execute(begin).await?;
        let pressed = ours::paced(&store, &queue, load).await?;
        ours::fill(&store, &queue, drained, None).await?;
        let held = ours::drain(&store, &queue, 8, 10, 60.0, drained).await?;
        idle.batch_execute("rollback").await?;
        let name = format!("S6c {seconds:.0} s beside a transaction {what}");
        report.bound(&format!("{name}: keeps up"), pressed, "of pace", pressed.rate / PACE, 0.95, true);
        let calm_name = format!("{name}: latency (p99 without it {:.1} ms)", calm.p99);
        report.bound(&calm_name, pressed, "x p99", pressed.p99 / calm.p99, 2.0, false);
        report.ratio(&format!("S6c drain 20k beside it, {what}, vs clean"), clean, held, 0.8);
    }
    Ok(())
}

async fn sqlite(seconds: f64, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir_in(".")?;
    let bare_path = folder.path().join("bare.db");
    let fresh = |n: usize| folder.path().join(format!("ours-{n}.db")).display().to_string();
    let mut figures: [Vec<Measured>; 7] = Default::default();
    for n in 0..report.repeat {
        figures[0].push(bare_sqlite::insert_single(&bare_path, seconds)?);
        let (store, queue) = ours::create(&fresh(n * 10)).await?;
        figures[1].push(ours::enqueue_single(&store, &queue, 64, seconds).await?);
        figures[2].push(bare_sqlite::insert_bulk(&bare_path, seconds)?);
        let (store, queue) = ours::create(&fresh(n * 10 + 1)).await?;
        figures[3].push(ours::enqueue_bulk(&store, &queue, seconds).await?);
        figures[4].push(bare_sqlite::drain(&bare_path, 100, seconds, BACKLOG)?);
        let (store, queue) = ours::create(&fresh(n * 10 + 2)).await?;
        ours::fill(&store, &queue, BACKLOG, None).await?;
        figures[5].push(ours::drain(&store, &queue, 1, 100, seconds, BACKLOG).await?);
        let (store, queue) = ours::create(&fresh(n * 10 + 3)).await?;
        figures[6].push(ours::enqueue_single(&store, &queue, 1, seconds).await?);
    }
    let [single, merged, bulk, our_bulk, drain, our_drain, lone] = figures.map(median);
    report.ratio("SQLite S1 64 callers vs one INSERT per transaction", single, merged, 10.0);
    report.ratio("SQLite S2 batches of 1000 vs bare prepared inserts", bulk, our_bulk, 0.7);
    report.ratio("SQLite S1 lone caller (no floor)", single, lone, 0.0);
    report.ratio("SQLite S3 drain 100k, batches of 100 (no floor)", drain, our_drain, 0.0);
    Ok(())
}

/// The library's own cost, beside the kernel's rates in the same run.
async fn library(dsn: &str, seconds: f64, report: &mut Report) -> Result<()> {
    let mut figures: [Vec<Measured>; 9] = Default::default();
    for _ in 0..report.repeat {
        for (n, callers) in [(0, 1), (2, 64)] {
            let (store, queue) = ours::fresh(dsn).await?;
            figures[n].push(ours::enqueue_single(&store, &queue, callers, seconds).await?);
            figures[n + 1].push(library::enqueue_single(dsn, callers, seconds).await?);
        }
        figures[4].push(our_drain(dsn, 64, 1, 60.0, BACKLOG).await?);
        figures[5].push(library::drain(dsn, 64, BACKLOG).await?);
        figures[6].push(library::dequeue_at(dsn, 100).await?);
        figures[7].push(library::dequeue_at(dsn, BACKLOG).await?);
        figures[8].push(library::dequeue_single(dsn, 64, 60.0, BACKLOG).await?);
    }
    let [kernel_lone, lone, kernel_merged, merged, kernel_drain, drain, few, many, single] = figures.map(median);
    report.ratio("Library: enqueue, lone caller vs kernel", kernel_lone, lone, 0.85);
    report.ratio("Library: enqueue, 64 callers vs kernel", kernel_merged, merged, 0.85);
    report.ratio("Library: Consumer::run, 64 handlers vs kernel's 64 single consumers", kernel_drain, drain, 0.85);
    report.ratio(
        "Library: 64 Consumers taking one message each vs 64 claims without a worker",
        kernel_drain,
        single,
        0.8,
    );
    let name = format!("Library: dequeue at 100k backlog (at 100: p50 {:.2} ms)", few.p50);
    report.bound(&name, many, "x p50 at 100", many.p50 / few.p50, 1.5, false);
    Ok(())
}

/// A run loop whose leases are extended, and a key of 100,000 messages.
async fn leases(dsn: &str, report: &mut Report) -> Result<()> {
    const WORK: Duration = Duration::from_millis(400);
    const HANDLED: u64 = 1000;
    let mut figures: [Vec<Measured>; 6] = Default::default();
    let mut grown: f64 = 0.0;
    for _ in 0..report.repeat {
        figures[0].push(library::run_for(dsn, WORK, Duration::from_secs(60), 10_000).await?);
        figures[1].push(library::run_for(dsn, WORK, Duration::from_millis(800), 10_000).await?);
        figures[2].push(library::one_by_one(dsn, None, BACKLOG, HANDLED).await?);
        let before = peak_memory(true)?;
        figures[3].push(library::one_by_one(dsn, Some("k"), BACKLOG, HANDLED).await?);
        grown = grown.max(peak_memory(false)? - before);
        figures[4].push(our_drain(dsn, 1, 256, 60.0, BACKLOG).await?);
        let (store, queue) = ours::fresh(dsn).await?;
        ours::fill_keyed(&store, &queue, BACKLOG, Some("k")).await?;
        ours::settle(dsn).await?;
        figures[5].push(ours::drain_keys(&store, &queue, BACKLOG).await?);
    }
    let [kept, extended, plain, keyed, batches, key_batches] = figures.map(median);
    report.ratio("Leases: Consumer::run, leases extended while 512 handlers work vs not", kept, extended, 0.8);
    report.ratio("Leases: one key of 100k, Consumer::run vs messages without a key", plain, keyed, 0.8);
    report.bound("Leases: one key of 100k, memory", keyed, "MB more at most", grown, 32.0, false);
    let whole = library::whole_key(dsn, BACKLOG).await?;
    report.ratio("Leases: one key of 100k to its last message vs its first 1000", keyed, whole, 0.8);
    report.ratio("Leases: one key of 100k in whole batches vs batches without a key", batches, key_batches, 0.4);
    Ok(())
}

/// The most memory that this process has had, in MB; or what it has now, from where the most is counted anew.
fn peak_memory(reset: bool) -> Result<f64> {
    if reset {
        std::fs::write("/proc/self/clear_refs", "5")?;
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc/self/status")?;
    Ok(peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

/// Five million messages in and out: what our own process needs.
async fn memory(dsn: &str, report: &mut Report) -> Result<()> {
    let (store, queue) = ours::fresh(dsn).await?;
    let meter = Meter::new(Duration::MAX, u64::MAX);
    for _ in 0..5 {
        ours::fill(&store, &queue, 1_000_000, None).await?;
        ours::drain(&store, &queue, 8, 100, 600.0, 1_000_000).await?;
        meter.done(1_000_000);
    }
    let megabytes = peak_memory(false)?;
    report.bound("Memory: 5M messages in and out", meter.measured(), "MB resident at most", megabytes, 150.0, false);
    Ok(())
}
