//! A sound history passes, and each kind of planted damage is reported as exactly that.

use super::{Kind, Volume, check, volume};
use crate::history::{Answer, Event, Finish, Item, Leased, Micros, Op, Record, Rules, State, Verb, parse};

const MS: Micros = 1000;

/// Builds a history step by step, on a clock of its own.
struct Story {
    records: Vec<Record>,
    at: Micros,
    calls: u64,
}

fn item(uid: &str, number: u64) -> Item {
    Item { uid: uid.to_owned(), queue: "plain".to_owned(), stream: Some("p/s".to_owned()), number, key: None }
}

fn keyed(uid: &str, number: u64) -> Item {
    Item { stream: None, key: Some("k".to_owned()), queue: "kept".to_owned(), ..item(uid, number) }
}

impl Story {
    fn new() -> Self {
        let mut story = Story { records: Vec::new(), at: 1_000_000, calls: 0 };
        let rules = Rules { slack: 5 * MS, late: 1000 * MS, settle: Some(10_000 * MS) };
        story.note("nemesis", Event::Rules(rules));
        story.note("nemesis", Event::Queue { name: "plain".to_owned(), keeps: false });
        story.note("nemesis", Event::Queue { name: "kept".to_owned(), keeps: true });
        story
    }

    fn note(&mut self, process: &str, event: Event) {
        self.at += MS;
        self.records.push(Record { at: self.at, process: process.to_owned(), event });
    }

    fn wait(&mut self, ms: Micros) -> &mut Self {
        self.at += ms * MS;
        self
    }

    fn call(&mut self, process: &str, op: Op) -> u64 {
        self.calls += 1;
        let call = self.calls;
        self.note(process, Event::Call { call, within: 2000 * MS, server: None, op });
        call
    }

    fn answer(&mut self, process: &str, call: u64, result: Answer) {
        self.note(process, Event::Answer { call, result });
    }

    fn put(&mut self, item: Item, id: i64) {
        let call = self.call("p", Op::Enqueue { items: vec![item] });
        self.answer("p", call, Answer::Enqueued(vec![id]));
    }

    /// A lease of one second that begins now.
    fn lease(&mut self, process: &str, lease: u64, uid: &str, id: i64, attempt: i64) {
        let call = self.call(process, Op::Lease { queue: "plain".to_owned() });
        let leased = self.leased(lease, uid, id, attempt);
        self.answer(process, call, Answer::Leased(vec![leased]));
    }

    fn leased(&self, lease: u64, uid: &str, id: i64, attempt: i64) -> Leased {
        let until = Some(self.at + 1000 * MS);
        Leased { lease, uid: uid.to_owned(), id: Some(id), attempt, from: self.at, until }
    }

    fn finish(&mut self, process: &str, lease: u64, verb: Verb, answer: Option<Finish>) {
        let call = self.call(process, Op::Finish { verb, leases: vec![lease] });
        if let Some(answer) = answer {
            self.answer(process, call, Answer::Finished(vec![answer]));
        }
    }

    fn complete(&mut self, process: &str, lease: u64) {
        self.finish(process, lease, Verb::Complete, Some(Finish::Done));
    }

    fn extend(&mut self, process: &str, lease: u64, held: bool) {
        let call = self.call(process, Op::Extend { leases: vec![lease], extra: 1000 * MS });
        self.answer(process, call, Answer::Extended(held));
    }

    fn begin(&mut self, process: &str, lease: u64, uid: &str, id: i64, attempt: i64) {
        let leased = Leased { until: None, ..self.leased(lease, uid, id, attempt) };
        self.note(process, Event::Begin { lease: leased });
    }

    fn end(&mut self, process: &str, lease: u64) {
        self.note(process, Event::End { lease, verb: Verb::Complete });
    }

    fn found(&mut self, uid: &str, id: i64, state: State) {
        self.note("nemesis", Event::Final { uid: uid.to_owned(), id, state });
    }

    fn kinds(&self) -> Vec<Kind> {
        let mut records = self.records.clone();
        records.sort_by_key(|record| record.at);
        check(&records, &[]).into_iter().map(|violation| violation.kind).collect()
    }
}

/// Two messages by hand, one of which is returned once, and a key of two in the run loop.
fn sound() -> Story {
    let mut story = Story::new();
    story.put(item("a", 1), 1);
    story.put(item("b", 2), 2);
    story.lease("c", 1, "a", 1, 1);
    story.complete("c", 1);
    story.lease("c", 2, "b", 2, 1);
    story.finish("c", 2, Verb::Return, Some(Finish::Done));
    story.lease("d", 1, "b", 2, 2);
    story.extend("d", 1, true);
    story.complete("d", 1);
    story.put(keyed("x", 1), 3);
    story.put(keyed("y", 2), 4);
    for (lease, uid, id) in [(10, "x", 3), (11, "y", 4)] {
        story.begin("r", lease, uid, id, 1);
        story.end("r", lease);
        story.found(uid, id, State::Completed);
    }
    story
}

#[test]
fn sound_history_passes() {
    assert_eq!(sound().kinds(), []);
    assert_eq!(volume(&sound().records), Volume { calls: 11, acknowledged: 4, leases: 5, finished: 4 });
}

#[test]
fn lost_message_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    assert_eq!(story.kinds(), [Kind::Lost]);
    story.found("c", 5, State::Dead);
    assert_eq!(story.kinds(), [Kind::DeadWithoutCause]);
}

#[test]
fn message_without_acknowledgement_may_be_missing() {
    let mut story = sound();
    let call = story.call("p", Op::Enqueue { items: vec![item("c", 3)] });
    story.answer("p", call, Answer::Failed("the connection was lost".to_owned()));
    assert_eq!(story.kinds(), []);
}

#[test]
fn completed_message_missing_from_an_archive_that_keeps_it_is_lost() {
    let mut story = sound();
    story.put(keyed("z", 3), 5);
    story.begin("r", 12, "z", 5, 1);
    story.end("r", 12);
    assert_eq!(story.kinds(), [Kind::Lost]);
}

#[test]
fn refused_completion_does_not_account_for_a_message() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.wait(2000).finish("c", 3, Verb::Complete, Some(Finish::Lost));
    assert_eq!(story.kinds(), [Kind::Lost]);
}

#[test]
fn second_accepted_completion_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.wait(1100).lease("d", 3, "c", 5, 2);
    story.complete("d", 3);
    story.complete("c", 3);
    assert_eq!(story.kinds(), [Kind::AcceptedTwice]);
}

#[test]
fn delivery_after_an_accepted_completion_is_reported() {
    let mut story = sound();
    story.wait(2000).lease("d", 3, "a", 1, 2);
    assert_eq!(story.kinds(), [Kind::Revived]);
    let mut story = sound();
    story.found("a", 1, State::Live);
    assert_eq!(story.kinds(), [Kind::Revived, Kind::Undelivered]);
}

#[test]
fn message_left_after_the_drain_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.found("c", 5, State::Live);
    assert_eq!(story.kinds(), [Kind::Undelivered]);
}

#[test]
fn overlapping_leases_are_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.wait(900).lease("d", 3, "c", 5, 2);
    story.complete("d", 3);
    assert_eq!(story.kinds(), [Kind::TwoLeases]);
}

#[test]
fn lease_begins_after_the_deadline_or_the_return_of_the_other() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.wait(1000).lease("d", 3, "c", 5, 2);
    // The answer to this return was lost.
    story.finish("d", 3, Verb::Return, None);
    story.lease("c", 4, "c", 5, 3);
    story.complete("c", 4);
    assert_eq!(story.kinds(), []);
}

#[test]
fn confirmed_extension_makes_a_lease_longer() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.extend("c", 3, true);
    story.wait(1500).lease("d", 3, "c", 5, 2);
    story.complete("d", 3);
    assert_eq!(story.kinds(), [Kind::TwoLeases]);
}

#[test]
fn handler_that_was_not_told_holds_its_message() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.begin("r", 12, "c", 5, 1);
    story.wait(5000).begin("s", 1, "c", 5, 2);
    story.end("s", 1);
    story.wait(100).end("r", 12);
    assert_eq!(story.kinds(), [Kind::TwoLeases]);
}

#[test]
fn handler_that_was_told_or_stopped_or_killed_does_not_hold_its_message() {
    let hits = [
        ("r", Event::LeaseLost { lease: 12 }),
        ("nemesis", Event::Stopped { target: "r".to_owned() }),
        ("nemesis", Event::Killed { target: "r".to_owned() }),
    ];
    for (process, hit) in hits {
        let mut story = sound();
        story.put(item("c", 3), 5);
        story.begin("r", 12, "c", 5, 1);
        story.note(process, hit);
        story.wait(5000).begin("s", 1, "c", 5, 2);
        story.end("s", 1);
        assert_eq!(story.kinds(), []);
    }
}

#[test]
fn key_with_two_holders_is_reported_also_in_one_process() {
    for (second, lease) in [("s", 1), ("r", 14)] {
        let mut story = sound();
        story.put(keyed("v", 3), 5);
        story.put(keyed("w", 4), 6);
        story.begin("r", 12, "v", 5, 1);
        story.end("r", 12);
        story.begin("r", 13, "w", 6, 1);
        story.put(keyed("z", 5), 7);
        story.wait(100);
        // The end of the earlier message comes first, so that nothing but the overlap is wrong.
        story.end("r", 13);
        let overlap = story.at - 50 * MS;
        story.begin(second, lease, "z", 7, 1);
        let began = story.records.last_mut().unwrap();
        began.at = overlap;
        story.end(second, lease);
        for (uid, id) in [("v", 5), ("w", 6), ("z", 7)] {
            story.found(uid, id, State::Completed);
        }
        let kinds = story.kinds();
        assert!(kinds.contains(&Kind::TwoLeases), "{second}: {kinds:?}");
    }
}

#[test]
fn refused_holder_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.wait(100).finish("c", 3, Verb::Complete, Some(Finish::Lost));
    story.found("c", 5, State::Live);
    assert_eq!(story.kinds(), [Kind::Undelivered, Kind::HolderRefused]);
}

#[test]
fn refused_extension_of_a_valid_lease_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.extend("c", 3, false);
    story.complete("c", 3);
    assert_eq!(story.kinds(), [Kind::HolderRefused]);
}

#[test]
fn verb_after_the_deadline_or_after_another_end_may_be_refused() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.put(item("d", 4), 6);
    story.lease("c", 3, "c", 5, 1);
    story.finish("c", 3, Verb::Complete, None);
    story.finish("c", 3, Verb::Complete, Some(Finish::Lost));
    story.extend("c", 3, false);
    story.lease("c", 4, "d", 6, 1);
    story.wait(1000).finish("c", 4, Verb::Complete, Some(Finish::Lost));
    story.lease("c", 5, "d", 6, 2);
    story.complete("c", 5);
    assert_eq!(story.kinds(), []);
}

#[test]
fn message_that_runs_again_after_its_handler_finished_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.begin("r", 12, "c", 5, 1);
    story.end("r", 12);
    let mut lost = Story { records: story.records.clone(), at: story.at, calls: story.calls };
    story.wait(2000).begin("s", 1, "c", 5, 2);
    story.end("s", 1);
    assert_eq!(story.kinds(), [Kind::HolderRefused]);
    lost.note("r", Event::LeaseLost { lease: 12 });
    lost.wait(2000).begin("s", 1, "c", 5, 2);
    lost.end("s", 1);
    assert_eq!(lost.kinds(), []);
}

#[test]
fn reordered_key_is_reported() {
    let mut story = sound();
    story.put(keyed("v", 3), 5);
    story.put(keyed("w", 4), 6);
    for (lease, uid, id) in [(12, "w", 6), (13, "v", 5)] {
        story.begin("r", lease, uid, id, 1);
        story.wait(100).end("r", lease);
        story.found(uid, id, State::Completed);
    }
    assert_eq!(story.kinds(), [Kind::KeyOrder]);
}

#[test]
fn key_that_goes_on_past_a_returned_message_is_reported() {
    let mut story = sound();
    story.put(keyed("v", 3), 5);
    story.put(keyed("w", 4), 6);
    story.begin("r", 12, "v", 5, 1);
    story.note("r", Event::End { lease: 12, verb: Verb::Return });
    story.begin("r", 13, "w", 6, 1);
    story.wait(100).end("r", 13);
    story.begin("r", 14, "v", 5, 2);
    story.end("r", 14);
    story.found("v", 5, State::Completed);
    story.found("w", 6, State::Completed);
    assert_eq!(story.kinds(), [Kind::KeyOrder]);
}

#[test]
fn reordered_lane_is_reported() {
    let mut story = sound();
    story.wait(60_000);
    story.put(item("c", 3), 5);
    story.put(item("d", 4), 6);
    story.lease("c", 3, "d", 6, 1);
    story.complete("c", 3);
    let mut disturbed = Story { records: story.records.clone(), at: story.at, calls: story.calls };
    story.wait(100).lease("c", 4, "c", 5, 1);
    story.complete("c", 4);
    assert_eq!(story.kinds(), [Kind::LaneOrder]);
    disturbed.note("nemesis", Event::Fault { what: "backends terminated".to_owned() });
    disturbed.wait(100).lease("c", 4, "c", 5, 1);
    disturbed.complete("c", 4);
    assert_eq!(disturbed.kinds(), []);
}

#[test]
fn message_on_its_second_attempt_may_be_overtaken() {
    let mut story = sound();
    story.wait(60_000);
    story.put(item("c", 3), 5);
    story.put(item("d", 4), 6);
    story.lease("c", 3, "d", 6, 1);
    story.complete("c", 3);
    story.wait(100).lease("c", 4, "c", 5, 2);
    story.complete("c", 4);
    assert_eq!(story.kinds(), []);
}

#[test]
fn order_of_a_lane_is_not_compared_after_loops_have_given_messages_back() {
    let mut story = sound();
    story.wait(60_000);
    story.put(item("c", 3), 5);
    story.put(item("d", 4), 6);
    story.lease("c", 3, "d", 6, 1);
    story.complete("c", 3);
    story.note("nemesis", Event::Ending);
    story.wait(100).lease("c", 4, "c", 5, 1);
    story.complete("c", 4);
    assert_eq!(story.kinds(), []);
}

#[test]
fn late_answer_is_reported() {
    let mut story = sound();
    let call = story.call("c", Op::Lease { queue: "plain".to_owned() });
    story.wait(4000).answer("c", call, Answer::Leased(Vec::new()));
    assert_eq!(story.kinds(), [Kind::Late]);
}

#[test]
fn missing_answer_is_reported() {
    let mut story = sound();
    story.call("c", Op::Lease { queue: "plain".to_owned() });
    let mut killed = Story { records: story.records.clone(), at: story.at, calls: story.calls };
    story.wait(4000).note("c", Event::Exit);
    assert_eq!(story.kinds(), [Kind::Late]);
    killed.note("nemesis", Event::Killed { target: "c".to_owned() });
    killed.wait(4000).note("nemesis", Event::Exit);
    assert_eq!(killed.kinds(), []);
}

#[test]
fn stopped_process_or_server_answers_later() {
    for target in ["c", "server"] {
        let mut story = sound();
        story.calls += 1;
        let (call, op) = (story.calls, Op::Lease { queue: "plain".to_owned() });
        story.note("c", Event::Call { call, within: 2000 * MS, server: Some("server".to_owned()), op });
        story.note("nemesis", Event::Stopped { target: target.to_owned() });
        story.wait(4000).note("nemesis", Event::Continued { target: target.to_owned() });
        story.answer("c", call, Answer::Leased(Vec::new()));
        assert_eq!(story.kinds(), []);
    }
}

#[test]
fn duplicated_message_is_reported() {
    let mut story = sound();
    story.put(item("c", 3), 5);
    story.lease("c", 3, "c", 5, 1);
    story.wait(1000).lease("c", 4, "c", 6, 1);
    story.complete("c", 4);
    assert_eq!(story.kinds(), [Kind::Duplicated]);
    let mut story = sound();
    story.found("x", 3, State::Completed);
    assert_eq!(story.kinds(), [Kind::Duplicated]);
}

#[test]
fn repeated_enqueue_with_another_id_is_reported() {
    let mut story = sound();
    story.put(keyed("x", 1), 9);
    assert_eq!(story.kinds(), [Kind::Duplicated]);
}

#[test]
fn message_out_of_nothing_is_reported() {
    let mut story = sound();
    story.lease("c", 3, "never", 9, 1);
    assert_eq!(story.kinds(), [Kind::Unknown]);
}

#[test]
fn message_completed_by_no_consumer_is_reported() {
    let mut story = sound();
    story.put(keyed("z", 3), 5);
    story.found("z", 5, State::Completed);
    assert_eq!(story.kinds(), [Kind::CompletedWithoutCause]);
}

#[test]
fn torn_last_line_is_left_out_and_a_torn_line_before_it_is_reported() {
    let story = sound();
    let lines: Vec<String> = story.records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
    let mut text = lines.concat();
    text.push_str(&lines[3][..20]);
    let (records, torn) = parse("c", &text);
    assert_eq!((records.as_slice(), torn.as_slice()), (story.records.as_slice(), &[][..]));

    let damaged = text.replacen(&lines[4], &format!("{}\n", &lines[4][..20]), 1);
    let (mut records, torn) = parse("c", &damaged);
    assert_eq!(torn.len(), 1);
    records.sort_by_key(|record| record.at);
    let kinds: Vec<Kind> = check(&records, &torn).into_iter().map(|violation| violation.kind).collect();
    assert_eq!(kinds[0], Kind::Torn);
}
