//! The checker is checked: histories written by hand, of which some are right and some show a defect that it must see.
//!
//! An item is written as `a/2`: the payload, and which attempt to lease it this is. That is also the id of the lease.

use crate::check::check;
use crate::history::{Answer, Call, Item, Operation, Time};
use crate::model::Writers;

/// A call and its answer, not yet at any time.
type Asked = (Call, Answer);

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn produce(items: &str) -> Asked {
    (Call::Produce(words(items)), Answer::Done)
}

fn lease(batch: usize, items: &str) -> Asked {
    lease_from(0, batch, items)
}

fn lease_from(partition: usize, batch: usize, items: &str) -> Asked {
    let item = |id: String| {
        let (payload, attempts) = id.split_once('/').unwrap();
        Item { payload: payload.to_owned(), attempts: attempts.parse().unwrap(), id }
    };
    let items = words(items).into_iter().map(item).collect();
    (Call::Lease { batch }, Answer::Leased { partition, items })
}

fn in_vain() -> Asked {
    (Call::Lease { batch: 1 }, Answer::Empty)
}

fn complete(ids: &str) -> Asked {
    (Call::Complete { partition: 0, ids: words(ids) }, Answer::Done)
}

fn retry(ids: &str) -> Asked {
    (Call::Retry { partition: 0, ids: words(ids) }, Answer::Done)
}

fn expire() -> Asked {
    (Call::Expire { set: Time::MAX }, Answer::Done)
}

/// The same call, refused because of that id.
fn refused((call, _): Asked, id: &str) -> Asked {
    (call, Answer::Refused { id: id.to_owned() })
}

/// The same call, whose answer was lost.
fn unanswered((call, _): Asked) -> Asked {
    (call, Answer::Unknown("cut off".to_owned()))
}

/// A call that lasted from one time to another.
fn at(began: Time, ended: Time, (call, answer): Asked) -> Operation {
    let call = match call {
        Call::Expire { .. } => Call::Expire { set: ended },
        call => call,
    };
    Operation { client: "one".to_owned(), began, ended, call, answer }
}

/// Calls one after the other.
fn in_turn<const N: usize>(calls: [Asked; N]) -> Vec<Operation> {
    calls.into_iter().zip(0..).map(|(asked, n)| at(10 * n, 10 * n + 5, asked)).collect()
}

#[track_caller]
fn is_right(history: &[Operation]) {
    for writers in [Writers::One, Writers::Many] {
        assert_eq!(check(history, 2, writers), Ok(()), "{writers:?}");
    }
}

/// What is wrong, in words.
#[track_caller]
fn is_wrong(history: &[Operation]) -> String {
    let whys = [Writers::One, Writers::Many].map(|writers| check(history, 2, writers));
    assert!(whys.iter().all(Result::is_err), "nothing was found: {whys:?}");
    whys.into_iter().filter_map(Result::err).collect()
}

#[test]
fn items_that_are_produced_leased_and_completed_in_turn_are_right() {
    is_right(&in_turn([
        produce("a b"),
        produce("c"),
        lease(1, "a/1"),
        lease(5, "b/1 c/1"),
        complete("c/1 a/1"),
        complete("b/1"),
        expire(),
        in_vain(),
    ]));
}

#[test]
fn leases_at_the_same_time_may_be_dealt_one_item_at_a_time() {
    is_right(&[at(0, 5, produce("a b c")), at(10, 20, lease(2, "a/1 c/1")), at(10, 20, lease(2, "b/1"))]);
    is_right(&[at(0, 5, produce("a b c")), at(10, 20, lease(3, "a/1 b/1")), at(10, 20, lease(1, "c/1"))]);
}

#[test]
fn a_retry_goes_to_the_tail_and_keeps_its_attempts() {
    let to_the_tail = [produce("a b"), lease(1, "a/1"), retry("a/1"), lease(2, "b/1 a/2"), complete("a/2 b/1")];
    is_right(&in_turn(to_the_tail));
    let before_others = [produce("a b"), lease(1, "a/1"), retry("a/1"), lease(1, "a/2")];
    assert!(is_wrong(&in_turn(before_others)).contains("b is before a"));
    let counted_twice = [produce("a"), lease(1, "a/1"), retry("a/1"), lease(1, "a/3")];
    assert!(is_wrong(&in_turn(counted_twice)).contains("this is attempt 2 of a, not 3"));
}

#[test]
fn expired_leases_go_to_the_tail_under_new_ids() {
    let leased = || [produce("a b c"), lease(2, "a/1 b/1"), expire()];
    let [first, second, third] = leased();
    let again = [first, second, third, lease(3, "c/1 a/2 b/2"), refused(complete("a/1"), "a/1"), complete("a/2")];
    is_right(&in_turn(again));
    let [first, second, third] = leased();
    assert!(is_wrong(&in_turn([first, second, third, lease(1, "a/2")])).contains("c is before a"));
    let [first, second, third] = leased();
    is_wrong(&in_turn([first, second, third, complete("a/1")]));
    let [first, second, third] = leased();
    is_wrong(&in_turn([first, second, third, lease(1, "c/1"), in_vain()]));
}

#[test]
fn a_lease_that_began_after_the_expiry_has_not_expired() {
    let error = is_wrong(&in_turn([produce("a"), expire(), lease(1, "a/1"), lease(1, "a/2")]));
    assert!(error.contains("a is not ready"), "{error}");
    is_wrong(&in_turn([produce("a"), expire(), lease(1, "a/1"), refused(complete("a/1"), "a/1")]));
    // One that was granted meanwhile may have, or not.
    let meanwhile = [at(0, 5, produce("a")), at(10, 40, expire()), at(20, 30, lease(1, "a/1"))];
    for then in [complete("a/1"), lease(1, "a/2")] {
        is_right(&[&meanwhile[..], &[at(50, 60, then)]].concat());
    }
}

#[test]
fn a_call_during_an_expiry_comes_before_it_or_after_it() {
    let start = [at(0, 5, produce("a")), at(10, 15, lease(1, "a/1")), at(20, 60, expire())];
    is_right(&[&start[..], &[at(30, 40, complete("a/1")), at(70, 80, in_vain())]].concat());
    is_right(&[&start[..], &[at(30, 40, refused(retry("a/1"), "a/1")), at(70, 80, lease(1, "a/2"))]].concat());
    is_wrong(&[&start[..], &[at(30, 40, complete("a/1")), at(70, 80, lease(1, "a/2"))]].concat());
    is_wrong(&[&start[..], &[at(30, 40, refused(retry("a/1"), "a/1")), at(70, 80, in_vain())]].concat());
}

#[test]
fn an_item_that_two_have_leased_is_seen() {
    let error = is_wrong(&[at(0, 5, produce("a")), at(10, 20, lease(1, "a/1")), at(10, 20, lease(1, "a/2"))]);
    assert!(error.contains("a is not ready"), "{error}");
    let error = is_wrong(&[at(0, 5, produce("a")), at(10, 20, lease(1, "a/1")), at(10, 20, lease(1, "a/1"))]);
    assert!(error.contains("handed out before"), "{error}");
}

#[test]
fn a_lost_item_is_seen() {
    assert!(is_wrong(&in_turn([produce("a"), in_vain()])).contains("a is ready"));
    is_wrong(&in_turn([produce("a b"), lease(1, "a/1"), complete("a/1"), in_vain()]));
    is_wrong(&in_turn([produce("a"), lease(1, "a/1"), retry("a/1"), in_vain()]));
    // A lease that is not full has seen the end of the line.
    is_wrong(&in_turn([produce("a b"), lease(2, "a/1")]));
    // Nothing was ready when the lease began to wait.
    is_right(&[at(0, 20, in_vain()), at(5, 10, produce("a")), at(30, 40, lease(1, "a/1"))]);
}

#[test]
fn items_that_come_out_of_order_are_seen() {
    is_wrong(&in_turn([produce("a"), produce("b"), lease(1, "b/1")]));
    is_wrong(&in_turn([produce("a b"), lease(1, "b/1")]));
    is_wrong(&in_turn([produce("a b"), lease(2, "b/1 a/1")]));
    is_wrong(&in_turn([produce("a"), lease(1, "b/1")]));
    // Whoever produces at the same time has no order.
    let both = [at(0, 9, produce("a")), at(0, 9, produce("b"))];
    for order in ["a/1 b/1", "b/1 a/1"] {
        is_right(&[&both[..], &[at(10, 20, lease(2, order))]].concat());
    }
}

#[test]
fn an_id_that_is_ended_twice_is_seen() {
    let leased = || [produce("a b"), lease(2, "a/1 b/1")];
    for (once, twice) in [
        (complete("a/1"), complete("a/1")),
        (complete("a/1"), retry("a/1")),
        (retry("a/1"), retry("a/1")),
        (complete("a/1 b/1"), complete("b/1")),
    ] {
        let [first, second] = leased();
        assert!(is_wrong(&in_turn([first, second, once, twice])).contains("the id is not leased"));
    }
    let [first, second] = leased();
    is_right(&in_turn([first, second, complete("a/1"), refused(complete("a/1"), "a/1"), retry("b/1")]));
}

#[test]
fn ids_before_a_refused_one_are_done_and_those_after_it_are_not() {
    let start = || [produce("a b c"), lease(3, "a/1 b/1 c/1"), complete("b/1")];
    let [first, second, third] = start();
    let stopped = refused(complete("a/1 b/1 c/1"), "b/1");
    is_right(&in_turn([first, second, third, stopped.clone(), refused(retry("a/1"), "a/1"), complete("c/1")]));
    let [first, second, third] = start();
    is_wrong(&in_turn([first, second, third, stopped, complete("a/1")]));
    is_wrong(&in_turn([produce("a"), lease(1, "a/1"), refused(complete("a/1"), "a/1")]));
}

#[test]
fn a_call_without_an_answer_may_have_been_carried_out() {
    is_right(&in_turn([unanswered(produce("a")), lease(1, "a/1")]));
    is_right(&in_turn([unanswered(produce("a")), in_vain()]));
    let start = || [produce("a"), lease(1, "a/1"), unanswered(complete("a/1")), expire()];
    for then in [in_vain(), lease(1, "a/2")] {
        let [first, second, third, fourth] = start();
        is_right(&in_turn([first, second, third, fourth, then]));
    }
    is_wrong(&in_turn([produce("a"), unanswered(produce("b")), lease(1, "b/1")]));
}

#[test]
fn partitions_are_lines_of_their_own() {
    let start = || [produce("a"), produce("b"), lease_from(1, 1, "b/1")];
    let [first, second, third] = start();
    is_right(&in_turn([first, second, third, lease_from(0, 1, "a/1")]));
    let [first, second, third] = start();
    is_wrong(&in_turn([first, second, third, in_vain()]));
    // What is produced together stays together.
    is_wrong(&in_turn([produce("a b"), lease_from(0, 1, "a/1"), lease_from(1, 1, "b/1")]));
}

#[test]
fn only_where_many_write_and_only_while_a_rival_runs_can_what_was_given_back_be_overtaken() {
    let overtaken = |rival_ended: Time| {
        [
            at(0, 5, produce("a")),
            at(6, 10, lease(1, "a/1")),
            at(20, rival_ended, refused(retry("a/1"), "a/1")),
            at(21, 30, retry("a/1")),
            at(40, 50, produce("b")),
            at(60, 70, lease(1, "b/1")),
            at(300, 310, lease(1, "a/2")),
        ]
    };
    assert!(check(&overtaken(200), 1, Writers::One).is_err());
    assert_eq!(check(&overtaken(200), 1, Writers::Many), Ok(()));
    // Its rival has ended before the other one was leased.
    is_wrong(&overtaken(35));
}

#[test]
fn only_where_many_write_can_an_item_appear_late_in_front_of_others() {
    let late = |began: Time| {
        [
            at(began, 100, produce("late")),
            at(10, 20, produce("a b")),
            at(30, 40, lease(1, "a/1")),
            at(110, 120, lease(2, "late/1 b/1")),
        ]
    };
    assert!(check(&late(0), 1, Writers::One).is_err());
    assert_eq!(check(&late(0), 1, Writers::Many), Ok(()));
    // It has drawn its place behind them when it began behind them.
    is_wrong(&late(50));
}

#[test]
fn only_where_many_write_can_expired_leases_change_places() {
    let history = in_turn([produce("a b"), lease(2, "a/1 b/1"), expire(), lease(2, "b/2 a/2")]);
    assert!(check(&history, 1, Writers::One).is_err());
    assert_eq!(check(&history, 1, Writers::Many), Ok(()));
}
