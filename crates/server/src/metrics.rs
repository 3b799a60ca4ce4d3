//! What `GET /metrics` shows: counters of this process, and what the queues and stores are like at that moment.
//!
//! Invariants: nothing is global, so every service of a process counts for itself; every label has a bound (the paths
//! of the table of RPCs, the codes of the protocol, the first 200 queues), whatever callers send; counting a request
//! takes no lock, counting messages takes a shared one and allocates only for a queue that was never seen.
//!
//! Written by hand, because the text format has three kinds of line and half of the series are read from the stores at
//! the time they are shown: `metrics` wants a global recorder, and `prometheus-client` locks each histogram for every
//! request, shows its series in random order and writes OpenMetrics, which fewer tools read.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure_store::{SIZES, Sizes, Vitals};

use crate::rpc::TABLE;

/// The `Content-Type` of what [`Metrics::render`] returns.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Queues with a label of their own; later ones share [`OTHER_QUEUES`].
const QUEUES: usize = 200;
const OTHER_QUEUES: &str = "(other)";
const OTHER_PATHS: &str = "other";
/// The codes the server sends; any other one counts as `other`.
const CODES: [u16; 11] = [200, 400, 401, 403, 453, 454, 455, 500, 501, 503, 512];
/// Upper bounds of the durations, in milliseconds: from a lone produce to the longest wait of a lease.
const DURATIONS: [u32; 17] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000];
/// What happened to messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Produced,
    Leased,
    Completed,
    Retried,
}

impl Act {
    const ALL: [(Act, &'static str, &'static str); 4] = [
        (Act::Produced, "tenure_produced_total", "Messages produced, also those scheduled for later."),
        (Act::Leased, "tenure_leases_total", "Messages leased, every delivery counted."),
        (Act::Completed, "tenure_completed_total", "Messages completed."),
        (Act::Retried, "tenure_retried_total", "Messages given back by their holders."),
    ];
}

/// What is in a queue, over all its partitions.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueDepth {
    pub(crate) queue: String,
    pub(crate) ready: u64,
    pub(crate) leased: u64,
    pub(crate) scheduled: u64,
    pub(crate) dead: u64,
    /// How long the oldest ready message has been there.
    pub(crate) oldest_ready: Option<Duration>,
    /// Leases that wait for a message.
    pub(crate) waiting: usize,
}

impl QueueDepth {
    /// Both queues under one label.
    fn add(&mut self, other: &QueueDepth) {
        self.ready += other.ready;
        self.leased += other.leased;
        self.scheduled += other.scheduled;
        self.dead += other.dead;
        self.oldest_ready = self.oldest_ready.max(other.oldest_ready);
        self.waiting += other.waiting;
    }
}

/// How a store is.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreState {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) vitals: Vitals,
}

fn add(sum: &mut Sizes, more: &Sizes) {
    for (sum, more) in sum.batches.iter_mut().zip(more.batches) {
        *sum += more;
    }
    sum.messages += more.messages;
}

/// The counters of one service.
pub(crate) struct Metrics {
    /// One entry for each RPC and one for everything else, made once.
    paths: HashMap<&'static str, Requests>,
    in_flight: AtomicU64,
    queues: RwLock<BTreeMap<String, Arc<Messages>>>,
}

#[derive(Default)]
struct Requests {
    /// In the order of [`CODES`], then all others.
    codes: [AtomicU64; CODES.len() + 1],
    /// In the order of [`DURATIONS`], then all longer ones.
    durations: [AtomicU64; DURATIONS.len() + 1],
    nanoseconds: AtomicU64,
}

/// One count for each act.
type Messages = [AtomicU64; Act::ALL.len()];

/// Counts a request as in flight until it is dropped.
pub(crate) struct InFlight<'a>(&'a AtomicU64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let paths = TABLE.iter().map(|rpc| rpc.path).chain([OTHER_PATHS]);
        Metrics {
            paths: paths.map(|path| (path, Requests::default())).collect(),
            in_flight: AtomicU64::new(0),
            queues: RwLock::default(),
        }
    }

    /// Called when a request comes in; what it returns is held until the answer is ready.
    pub(crate) fn enter(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(&self.in_flight)
    }

    /// Counts an answered request.
    pub(crate) fn request(&self, path: &str, code: u16, took: Duration) {
        let Some(requests) = self.paths.get(path).or_else(|| self.paths.get(OTHER_PATHS)) else { return };
        let code = CODES.iter().position(|known| *known == code).unwrap_or(CODES.len());
        let slot = DURATIONS.partition_point(|bound| Duration::from_millis((*bound).into()) < took);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        requests.codes[code].fetch_add(1, Ordering::Relaxed);
        requests.durations[slot].fetch_add(1, Ordering::Relaxed);
        requests.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Counts messages of a queue that exists.
    pub(crate) fn count(&self, act: Act, queue: &str, n: u64) {
        self.messages(queue).1[act as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// The label of a queue and its counts; a queue that was never seen gets a label while there are some left.
    fn messages<'a>(&self, queue: &'a str) -> (&'a str, Arc<Messages>) {
        let label = |known: &BTreeMap<String, Arc<Messages>>| {
            if known.len() < QUEUES || known.contains_key(queue) { queue } else { OTHER_QUEUES }
        };
        {
            let known = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            let label = label(&known);
            if let Some(messages) = known.get(label) {
                return (label, messages.clone());
            }
        }
        let mut known = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let label = label(&known);
        (label, known.entry(label.to_owned()).or_default().clone())
    }

    /// Everything, in the text format of Prometheus. Counts of a moment, each exact, not of one and the same moment.
    pub(crate) fn render(&self, depths: &[QueueDepth], stores: &[StoreState]) -> String {
        let mut text = Text(String::new());
        // First the queues that are there now, so that those among them that are new get a label.
        let mut labelled: BTreeMap<&str, QueueDepth> = BTreeMap::new();
        for depth in depths {
            labelled.entry(self.messages(&depth.queue).0).or_default().add(depth);
        }
        self.show_requests(&mut text);
        self.show_messages(&mut text);
        show_depths(&mut text, &labelled);
        show_stores(&mut text, stores);
        text.0
    }

    fn show_requests(&self, text: &mut Text) {
        let paths: BTreeMap<&str, &Requests> = self.paths.iter().map(|(path, requests)| (*path, requests)).collect();
        text.family("tenure_http_requests_total", "counter", "Requests answered, by path and status.");
        for (path, requests) in &paths {
            let codes = CODES.iter().map(u16::to_string).chain(["other".to_owned()]);
            for (code, count) in codes.zip(&requests.codes) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    text.sample("tenure_http_requests_total", &[("path", path), ("code", &code)], count);
                }
            }
        }
        let name = "tenure_http_request_duration_seconds";
        text.family(name, "histogram", "How long requests took, the waiting of leases included.");
        for (path, requests) in &paths {
            let counts = requests.durations.each_ref().map(|count| count.load(Ordering::Relaxed));
            if counts.iter().any(|count| *count > 0) {
                let sum = Duration::from_nanos(requests.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
                text.histogram(name, ("path", path), DURATIONS.map(|bound| f64::from(bound) / 1000.0), &counts, sum);
            }
        }
        text.family("tenure_http_in_flight", "gauge", "Requests that are not answered yet.");
        text.sample("tenure_http_in_flight", &[], self.in_flight.load(Ordering::Relaxed));
    }

    fn show_messages(&self, text: &mut Text) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        for (act, name, help) in Act::ALL {
            text.family(name, "counter", help);
            for (queue, messages) in queues.iter() {
                text.sample(name, &[("queue", queue)], messages[act as usize].load(Ordering::Relaxed));
            }
        }
    }
}

fn show_depths(text: &mut Text, depths: &BTreeMap<&str, QueueDepth>) {
    text.family("tenure_queue_messages", "gauge", "Messages in a queue, by state.");
    for (queue, depth) in depths {
        for (state, count) in [("ready", depth.ready), ("leased", depth.leased), ("scheduled", depth.scheduled)] {
            text.sample("tenure_queue_messages", &[("queue", queue), ("state", state)], count);
        }
    }
    text.family("tenure_queue_oldest_ready_seconds", "gauge", "Age of the oldest ready message; 0 when there is none.");
    for (queue, depth) in depths {
        let age = depth.oldest_ready.unwrap_or_default().as_secs_f64();
        text.sample("tenure_queue_oldest_ready_seconds", &[("queue", queue)], age);
    }
    text.family("tenure_queue_waiting_leases", "gauge", "Leases of this process that wait for a message.");
    for (queue, depth) in depths {
        text.sample("tenure_queue_waiting_leases", &[("queue", queue)], depth.waiting);
    }
    text.family("tenure_dead_letters", "gauge", "Dead letters of a queue.");
    for (queue, depth) in depths {
        text.sample("tenure_dead_letters", &[("queue", queue)], depth.dead);
    }
}

fn show_stores(text: &mut Text, stores: &[StoreState]) {
    let mut all = Vitals::default();
    for store in stores {
        add(&mut all.enqueued, &store.vitals.enqueued);
        add(&mut all.claimed, &store.vitals.claimed);
        add(&mut all.finished, &store.vitals.finished);
    }
    let name = "tenure_combiner_batch_size";
    text.family(name, "histogram", "Messages of concurrent calls that one statement carried.");
    for (act, sizes) in [("produce", all.enqueued), ("lease", all.claimed), ("finish", all.finished)] {
        let bounds: [f64; SIZES - 1] = std::array::from_fn(|slot| f64::from(1_u32 << slot));
        text.histogram(name, ("act", act), bounds, &sizes.batches, sizes.messages as f64);
    }
    text.family("tenure_pool_connections", "gauge", "Connections to a store.");
    for store in stores {
        let busy = store.vitals.connections.saturating_sub(store.vitals.idle);
        for (state, count) in [("idle", store.vitals.idle), ("in_use", busy)] {
            text.sample("tenure_pool_connections", &[("store", &store.name), ("state", state)], count);
        }
    }
    text.family("tenure_store_up", "gauge", "1 when a store answers, else 0.");
    for store in stores {
        text.sample("tenure_store_up", &[("store", &store.name)], u8::from(store.up));
    }
}

/// The text format: `# HELP`, `# TYPE`, and a line for each sample.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            self.0.push_str(&format!("{before}{label}=\"{}\"", escaped(text)));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        self.0.push_str(&format!("{after} {value}\n"));
    }

    /// `counts` has one more than `bounds`: what is above the last one.
    fn histogram(
        &mut self,
        name: &str,
        label: (&str, &str),
        bounds: impl IntoIterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let bounds = bounds.into_iter().map(|bound| bound.to_string()).chain(["+Inf".to_owned()]);
        let (bucket, mut total) = (format!("{name}_bucket"), 0);
        for (bound, count) in bounds.zip(counts) {
            total += count;
            self.sample(&bucket, &[label, ("le", &bound)], total);
        }
        self.sample(&format!("{name}_sum"), &[label], sum);
        self.sample(&format!("{name}_count"), &[label], total);
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|shown| shown == line)
    }

    #[test]
    fn requests_are_counted_by_path_and_code() {
        let metrics = Metrics::new();
        metrics.request("/v1/queue.produce", 200, Duration::from_millis(3));
        metrics.request("/v1/queue.produce", 200, Duration::from_secs(2));
        metrics.request("/v1/queue.produce", 400, Duration::from_millis(1));
        let text = metrics.render(&[], &[]);
        for line in [
            r#"tenure_http_requests_total{path="/v1/queue.produce",code="200"} 2"#,
            r#"tenure_http_requests_total{path="/v1/queue.produce",code="400"} 1"#,
            r#"tenure_http_request_duration_seconds_bucket{path="/v1/queue.produce",le="0.001"} 1"#,
            r#"tenure_http_request_duration_seconds_bucket{path="/v1/queue.produce",le="0.002"} 1"#,
            r#"tenure_http_request_duration_seconds_bucket{path="/v1/queue.produce",le="0.005"} 2"#,
            r#"tenure_http_request_duration_seconds_bucket{path="/v1/queue.produce",le="2.5"} 3"#,
            r#"tenure_http_request_duration_seconds_bucket{path="/v1/queue.produce",le="+Inf"} 3"#,
            r#"tenure_http_request_duration_seconds_count{path="/v1/queue.produce"} 3"#,
            r#"tenure_http_request_duration_seconds_sum{path="/v1/queue.produce"} 2.004"#,
        ] {
            assert!(has(&text, line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn what_callers_invent_shares_one_label() {
        let metrics = Metrics::new();
        for path in ["/v1/nothing", "/wp-login.php", "/health"] {
            metrics.request(path, 501, Duration::from_millis(1));
        }
        metrics.request("/v1/queue.lease", 777, Duration::from_secs(3600));
        let text = metrics.render(&[], &[]);
        assert!(has(&text, r#"tenure_http_requests_total{path="other",code="501"} 3"#), "{text}");
        assert!(has(&text, r#"tenure_http_requests_total{path="/v1/queue.lease",code="other"} 1"#), "{text}");
        assert!(!text.contains("wp-login"), "{text}");
        let longest = r#"tenure_http_request_duration_seconds_bucket{path="/v1/queue.lease",le="900"} 0"#;
        assert!(has(&text, longest), "{text}");
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_answered() {
        let metrics = Metrics::new();
        let (first, second) = (metrics.enter(), metrics.enter());
        assert!(has(&metrics.render(&[], &[]), "tenure_http_in_flight 2"));
        drop(first);
        assert!(has(&metrics.render(&[], &[]), "tenure_http_in_flight 1"));
        drop(second);
        assert!(has(&metrics.render(&[], &[]), "tenure_http_in_flight 0"));
    }

    #[test]
    fn every_act_has_a_counter_for_each_queue() {
        let metrics = Metrics::new();
        for (at, act) in [Act::Produced, Act::Leased, Act::Completed, Act::Retried].into_iter().enumerate() {
            metrics.count(act, "mail", 10 + at as u64);
        }
        metrics.count(Act::Produced, "mail", 5);
        let text = metrics.render(&[], &[]);
        for line in [
            r#"tenure_produced_total{queue="mail"} 15"#,
            r#"tenure_leases_total{queue="mail"} 11"#,
            r#"tenure_completed_total{queue="mail"} 12"#,
            r#"tenure_retried_total{queue="mail"} 13"#,
        ] {
            assert!(has(&text, line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn queues_beyond_the_first_two_hundred_share_a_label() {
        let metrics = Metrics::new();
        for n in 0..QUEUES + 50 {
            metrics.count(Act::Produced, &format!("queue-{n}"), 1);
        }
        metrics.count(Act::Produced, "queue-0", 1);
        let depth = |queue: &str, oldest| QueueDepth {
            queue: queue.to_owned(),
            ready: 7,
            oldest_ready: Some(Duration::from_secs(oldest)),
            waiting: 2,
            ..QueueDepth::default()
        };
        let text = metrics.render(&[depth("queue-0", 1), depth("queue-220", 9), depth("new", 4)], &[]);
        for line in [
            r#"tenure_produced_total{queue="queue-0"} 2"#,
            r#"tenure_produced_total{queue="queue-199"} 1"#,
            r#"tenure_produced_total{queue="(other)"} 50"#,
            r#"tenure_queue_messages{queue="queue-0",state="ready"} 7"#,
            r#"tenure_queue_messages{queue="(other)",state="ready"} 14"#,
            r#"tenure_queue_oldest_ready_seconds{queue="(other)"} 9"#,
            r#"tenure_queue_waiting_leases{queue="(other)"} 4"#,
        ] {
            assert!(has(&text, line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("queue-200"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("tenure_produced_total")).count(), QUEUES + 1);
    }

    #[test]
    fn a_queue_that_is_named_like_the_shared_label_makes_no_series_twice() {
        let metrics = Metrics::new();
        metrics.count(Act::Produced, OTHER_QUEUES, 1);
        for n in 0..QUEUES {
            metrics.count(Act::Produced, &format!("queue-{n}"), 1);
        }
        let text = metrics.render(&[], &[]);
        assert!(has(&text, r#"tenure_produced_total{queue="(other)"} 2"#), "{text}");
        assert_eq!(text.matches(r#"tenure_produced_total{queue="(other)"}"#).count(), 1);
    }

    #[test]
    fn queues_and_stores_are_shown_as_they_are_given() {
        let (mut produce, name) = (Sizes::default(), "main".to_owned());
        (produce.batches[0], produce.batches[3], produce.batches[SIZES - 1], produce.messages) = (4, 2, 1, 2020);
        let vitals = Vitals { connections: 8, idle: 5, enqueued: produce, ..Vitals::default() };
        let stores = [StoreState { name, up: true, vitals }, StoreState { name: "east".to_owned(), up: false, vitals }];
        let mail = QueueDepth { queue: "mail".to_owned(), leased: 2, scheduled: 3, dead: 4, ..QueueDepth::default() };
        let text = Metrics::new().render(&[mail], &stores);
        for line in [
            r#"tenure_queue_messages{queue="mail",state="ready"} 0"#,
            r#"tenure_queue_messages{queue="mail",state="leased"} 2"#,
            r#"tenure_queue_messages{queue="mail",state="scheduled"} 3"#,
            r#"tenure_queue_oldest_ready_seconds{queue="mail"} 0"#,
            r#"tenure_dead_letters{queue="mail"} 4"#,
            r#"tenure_produced_total{queue="mail"} 0"#,
            r#"tenure_combiner_batch_size_bucket{act="produce",le="1"} 8"#,
            r#"tenure_combiner_batch_size_bucket{act="produce",le="4"} 8"#,
            r#"tenure_combiner_batch_size_bucket{act="produce",le="8"} 12"#,
            r#"tenure_combiner_batch_size_bucket{act="produce",le="1024"} 12"#,
            r#"tenure_combiner_batch_size_bucket{act="produce",le="+Inf"} 14"#,
            r#"tenure_combiner_batch_size_sum{act="produce"} 4040"#,
            r#"tenure_combiner_batch_size_count{act="finish"} 0"#,
            r#"tenure_pool_connections{store="main",state="in_use"} 3"#,
            r#"tenure_pool_connections{store="main",state="idle"} 5"#,
            r#"tenure_store_up{store="main"} 1"#,
            r#"tenure_store_up{store="east"} 0"#,
        ] {
            assert!(has(&text, line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn every_line_is_of_the_text_format_and_no_series_comes_twice() {
        let metrics = Metrics::new();
        metrics.request("/v1/queue.lease", 454, Duration::from_secs(1));
        metrics.count(Act::Leased, "a\\b\"c\nd", 1);
        let text = metrics.render(&[], &[StoreState::default()]);
        assert!(has(&text, r#"tenure_leases_total{queue="a\\b\"c\nd"} 1"#), "{text}");
        let (mut families, mut series) = (Vec::new(), std::collections::HashSet::new());
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                families.push(family.split(' ').next().unwrap_or_default().to_owned());
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').unwrap_or_default();
                assert!(value.parse::<f64>().is_ok(), "no number: {line}");
                let family = families.last().cloned().unwrap_or_default();
                assert!(name.starts_with(&family), "{line} is not of {family}");
                assert!(series.insert(name.to_owned()), "twice: {line}");
            }
        }
        assert!(text.ends_with('\n'));
    }
}
