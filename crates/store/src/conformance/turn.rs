//! Turns, activities, histories, values and sessions of orchestrations.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::Harness;
use crate::{
    Acked, Activity, HistoryEvent, Kind, NewTurnMessage, NewWork, Store, Turn, TurnAck, TurnClaim, ValueChange, Work,
    WorkClaim, WorkFilter,
};

const LEASE: Duration = Duration::from_secs(10);

async fn send(store: &Store, instance: &str, item: &str) {
    static NONCE: AtomicI64 = AtomicI64::new(1);
    let nonce = NONCE.fetch_add(1, Ordering::Relaxed);
    // Said twice, as after an unknown outcome: the second one changes nothing.
    for _ in 0..2 {
        store.turn_enqueue(instance, item.to_owned(), Duration::ZERO, nonce).await.unwrap();
    }
}

async fn fetch(store: &Store) -> Option<Turn> {
    store.turn_fetch(&TurnClaim { lease: LEASE, ..TurnClaim::default() }, Vec::new).await.unwrap()
}

fn claim(owner: Option<&str>) -> WorkClaim {
    let filter = WorkFilter { untagged: true, ..WorkFilter::default() };
    let session = owner.map(|owner| (owner.to_owned(), LEASE));
    WorkClaim { lease: LEASE, wait: Duration::ZERO, session, filter }
}

async fn fetch_work(store: &Store, owner: Option<&str>) -> Option<Work> {
    store.work_fetch(&claim(owner)).await.unwrap()
}

fn event(id: i64, data: &str) -> HistoryEvent {
    HistoryEvent { id, data: data.to_owned() }
}

fn work(id: i64, session: Option<&str>) -> NewWork {
    let activity = Activity { instance: "i".to_owned(), execution: 1, id };
    NewWork {
        activity: Some(activity),
        session: session.map(str::to_owned),
        tag: None,
        item: format!("work {id}"),
    }
}

fn named() -> TurnAck {
    TurnAck { execution: 1, named: Some(("orders".to_owned(), "1.0".to_owned())), ..TurnAck::default() }
}

fn items(turn: &Turn) -> Vec<(&str, i64)> {
    turn.messages.iter().map(|message| (message.item.as_str(), message.attempts)).collect()
}

pub async fn a_turn_has_one_holder_and_is_committed_whole(h: &Harness) {
    send(&h.store, "i", "start").await;
    let turn = fetch(&h.store).await.unwrap();
    assert_eq!((items(&turn), turn.execution, turn.name.as_deref()), (vec![("start", 1)], 1, None));
    assert!(fetch(&h.store).await.is_none(), "the instance has its holder");
    assert_eq!(h.store.instance_list(None).await.unwrap(), Vec::<String>::new(), "a message makes no instance");
    let ack = TurnAck {
        events: vec![event(1, "started"), event(2, "scheduled")],
        work: vec![work(2, None)],
        messages: vec![NewTurnMessage { instance: "child".to_owned(), visible_at: None, item: "start".to_owned() }],
        custom_status: Some(Some("busy".to_owned())),
        ..named()
    };
    assert!(matches!(h.store.turn_ack(&turn.token, ack).await.unwrap(), Acked::Done { turns: 1, .. }));
    let history = h.store.history_read("i", None, None).await.unwrap().unwrap();
    assert_eq!(history.events, [event(1, "started"), event(2, "scheduled")]);
    let info = h.store.instance_get("i").await.unwrap().unwrap();
    assert_eq!((info.name.as_str(), info.status.as_str()), ("orders", "Running"));
    assert_eq!(h.store.instance_status("i", 0).await.unwrap(), Some((Some("busy".to_owned()), 1)));
    assert_eq!(h.store.instance_status("i", 1).await.unwrap(), None);
    assert_eq!(fetch(&h.store).await.unwrap().token.instance, "child");
    assert_eq!(fetch_work(&h.store, None).await.unwrap().item, "work 2");
}

pub async fn a_turn_whose_lease_ran_out_is_lost_and_comes_again(h: &Harness) {
    send(&h.store, "i", "start").await;
    let first = fetch(&h.store).await.unwrap();
    h.advance(10_000);
    assert_eq!(h.store.turn_ack(&first.token, named()).await.unwrap(), Acked::Lost);
    assert!(!h.store.turn_renew(&first.token, LEASE).await.unwrap());
    let again = fetch(&h.store).await.unwrap();
    assert_eq!(items(&again), [("start", 2)]);
    h.advance(9_000);
    assert!(h.store.turn_renew(&again.token, LEASE).await.unwrap());
    h.advance(9_000);
    assert!(matches!(h.store.turn_ack(&again.token, named()).await.unwrap(), Acked::Done { .. }));
    assert!(fetch(&h.store).await.is_none());
}

pub async fn a_repeated_acknowledgement_finds_its_own_commit(h: &Harness) {
    send(&h.store, "i", "start").await;
    let turn = fetch(&h.store).await.unwrap();
    let ack = TurnAck { events: vec![event(1, "started")], ..named() };
    assert!(matches!(h.store.turn_ack(&turn.token, ack.clone()).await.unwrap(), Acked::Done { .. }));
    assert_eq!(h.store.turn_ack(&turn.token, ack).await.unwrap(), Acked::Already);
    assert_eq!(h.store.history_read("i", None, None).await.unwrap().unwrap().events.len(), 1);
}

pub async fn an_event_that_is_there_undoes_the_whole_turn(h: &Harness) {
    send(&h.store, "i", "start").await;
    let turn = fetch(&h.store).await.unwrap();
    h.store.history_append("i", 1, vec![event(2, "there")]).await.unwrap();
    let ack = TurnAck { events: vec![event(1, "a"), event(2, "b")], work: vec![work(1, None)], ..named() };
    assert_eq!(h.store.turn_ack(&turn.token, ack).await.unwrap_err().kind(), Kind::AlreadyExists);
    assert_eq!(h.store.history_read("i", None, None).await.unwrap().unwrap().events, [event(2, "there")]);
    assert!(fetch_work(&h.store, None).await.is_none());
    assert!(h.store.turn_abandon(&turn.token, None, true).await.unwrap(), "the lease is still held");
    let zero = TurnAck { events: vec![event(0, "no number")], ..named() };
    assert_eq!(h.store.turn_ack(&turn.token, zero).await.unwrap_err().kind(), Kind::InvalidInput);
}

pub async fn what_comes_during_a_turn_waits_for_the_next(h: &Harness) {
    send(&h.store, "i", "one").await;
    let turn = fetch(&h.store).await.unwrap();
    send(&h.store, "i", "two").await;
    assert!(h.store.turn_abandon(&turn.token, Some(Duration::from_secs(5)), true).await.unwrap());
    let next = fetch(&h.store).await.unwrap();
    assert_eq!(items(&next), [("two", 1)], "what was given back for later is not there yet");
    assert!(matches!(h.store.turn_ack(&next.token, named()).await.unwrap(), Acked::Done { .. }));
    h.advance(5_000);
    assert_eq!(items(&fetch(&h.store).await.unwrap()), [("one", 1)], "an uncounted fetch does not count");
}

pub async fn a_timer_is_seen_when_it_is_due(h: &Harness) {
    send(&h.store, "i", "start").await;
    let turn = fetch(&h.store).await.unwrap();
    let at = h.clock.fixed_now().unwrap() + 3_000_000;
    let timer = NewTurnMessage { instance: "i".to_owned(), visible_at: Some(at), item: "fired".to_owned() };
    h.store.turn_ack(&turn.token, TurnAck { messages: vec![timer], ..named() }).await.unwrap();
    h.advance(2_999);
    assert!(fetch(&h.store).await.is_none());
    h.advance(1);
    assert_eq!(items(&fetch(&h.store).await.unwrap()), [("fired", 1)]);
}

pub async fn only_what_follows_the_known_part_of_a_history_is_read(h: &Harness) {
    h.store.history_append("i", 1, vec![event(1, "a"), event(2, "b"), event(3, "c")]).await.unwrap();
    let all = h.store.history_read("i", None, None).await.unwrap().unwrap();
    let known = |last| crate::Known { instance: "i".to_owned(), born: all.born, execution: 1, last };
    let rest = h.store.history_read("i", None, Some(&known(2))).await.unwrap().unwrap();
    assert_eq!(rest.events, [event(3, "c")]);
    let other = crate::Known { born: all.born ^ 1, ..known(2) };
    assert_eq!(h.store.history_read("i", None, Some(&other)).await.unwrap().unwrap().events.len(), 3);
    assert_eq!(h.store.history_read("nobody", None, None).await.unwrap(), None);
}

pub async fn a_value_is_a_draft_until_its_execution_ends(h: &Harness) {
    let set = |key: &str, value: &str| ValueChange::Set { key: key.to_owned(), value: value.to_owned(), at: 7 };
    let turn = async |changes: Vec<ValueChange>, status: Option<&str>, execution: i64| {
        send(&h.store, "i", "go").await;
        let turn = fetch(&h.store).await.unwrap();
        let mut kept: Vec<String> =
            turn.values.iter().map(|kept| format!("{}={}", kept.key, kept.value)).collect();
        kept.sort_unstable();
        let ack = TurnAck { execution, values: changes, status: status.map(str::to_owned), ..named() };
        assert!(matches!(h.store.turn_ack(&turn.token, ack).await.unwrap(), Acked::Done { .. }));
        kept
    };
    assert_eq!(turn(vec![set("a", "1"), set("b", "1"), set("a", "2")], None, 1).await, Vec::<String>::new());
    assert_eq!(h.store.kv_get("i", "a").await.unwrap().as_deref(), Some("2"));
    let remove = vec![ValueChange::Remove { key: "b".to_owned() }];
    assert_eq!(turn(remove, Some("ContinuedAsNew"), 1).await, Vec::<String>::new(), "drafts are not handed out");
    assert_eq!(turn(vec![set("c", "3")], None, 2).await, ["a=2"]);
    assert_eq!(turn(vec![ValueChange::Clear, set("d", "4")], None, 2).await, ["a=2"]);
    assert_eq!(h.store.kv_list("i").await.unwrap(), [("d".to_owned(), "4".to_owned())]);
    assert_eq!(turn(Vec::new(), Some("Completed"), 2).await, ["a=2"]);
    assert_eq!(turn(Vec::new(), None, 2).await, ["d=4"]);
}

pub async fn an_activity_ends_once_and_tells_its_instance(h: &Harness) {
    h.store.work_enqueue(work(1, None), 1).await.unwrap();
    h.store.work_enqueue(work(1, None), 1).await.unwrap();
    let leased = fetch_work(&h.store, None).await.unwrap();
    assert_eq!(leased.attempts, 1);
    assert!(fetch_work(&h.store, None).await.is_none(), "a repeat with the same nonce adds nothing");
    let done = Some(("i".to_owned(), "done".to_owned()));
    assert!(h.store.work_ack(leased.token, done.clone(), None).await.unwrap());
    assert!(!h.store.work_ack(leased.token, done, None).await.unwrap());
    assert_eq!(items(&fetch(&h.store).await.unwrap()), [("done", 1)]);
}

pub async fn an_activity_whose_lease_ran_out_comes_again(h: &Harness) {
    h.store.work_enqueue(work(1, None), 1).await.unwrap();
    let first = fetch_work(&h.store, None).await.unwrap();
    h.advance(10_000);
    assert!(!h.store.work_renew(first.token, LEASE).await.unwrap());
    assert!(!h.store.work_ack(first.token, None, None).await.unwrap());
    let again = fetch_work(&h.store, None).await.unwrap();
    assert_eq!(again.attempts, 2);
    assert!(h.store.work_abandon(again.token, Some(Duration::from_secs(3)), true).await.unwrap());
    assert!(fetch_work(&h.store, None).await.is_none());
    h.advance(3_000);
    assert_eq!(fetch_work(&h.store, None).await.unwrap().attempts, 2);
}

pub async fn the_next_activity_comes_with_the_end_of_the_last(h: &Harness) {
    // It is kept for 10 ms, which a machine that stalls may miss once or twice, and not always.
    for round in 0..20 {
        for id in 1..=2 {
            h.store.work_enqueue(work(2 * round + id, None), 2 * round + id).await.unwrap();
        }
        let first = fetch_work(&h.store, None).await.unwrap();
        assert!(h.store.work_ack(first.token, None, Some(Arc::new(claim(None)))).await.unwrap());
        let kept = h.store.instance_depths().await.unwrap().1 == 0;
        let second = fetch_work(&h.store, None).await.unwrap();
        assert_eq!((second.item.as_str(), second.attempts), (format!("work {}", 2 * round + 2).as_str(), 1));
        assert!(h.store.work_ack(second.token, None, None).await.unwrap());
        if kept {
            return;
        }
    }
    panic!("the next activity was never leased together with the end of the last one");
}

pub async fn cancelled_activities_are_gone_and_their_holders_learn_it(h: &Harness) {
    send(&h.store, "i", "start").await;
    let turn = fetch(&h.store).await.unwrap();
    h.store.turn_ack(&turn.token, TurnAck { work: vec![work(1, None), work(2, None)], ..named() }).await.unwrap();
    let held = fetch_work(&h.store, None).await.unwrap();
    send(&h.store, "i", "go on").await;
    let turn = fetch(&h.store).await.unwrap();
    let cancelled = [1, 2, 3].map(|id| Activity { instance: "i".to_owned(), execution: 1, id }).to_vec();
    let ack = TurnAck { work: vec![work(3, None), work(4, None)], cancelled, ..named() };
    h.store.turn_ack(&turn.token, ack).await.unwrap();
    assert!(!h.store.work_renew(held.token, LEASE).await.unwrap());
    assert_eq!(fetch_work(&h.store, None).await.unwrap().item, "work 4");
    assert!(fetch_work(&h.store, None).await.is_none());
}

pub async fn a_session_stays_with_its_owner_while_its_lease_lasts(h: &Harness) {
    for id in 1..=3 {
        h.store.work_enqueue(work(id, Some("s")), id).await.unwrap();
    }
    assert!(fetch_work(&h.store, None).await.is_none(), "who takes no sessions gets none");
    assert_eq!(fetch_work(&h.store, Some("a")).await.unwrap().item, "work 1");
    assert!(fetch_work(&h.store, Some("b")).await.is_none());
    assert_eq!(fetch_work(&h.store, Some("a")).await.unwrap().item, "work 2");
    h.advance(9_000);
    assert_eq!(h.store.session_renew(vec!["a".to_owned()], LEASE, Duration::from_secs(60)).await.unwrap(), 1);
    h.advance(9_000);
    assert!(fetch_work(&h.store, Some("b")).await.is_none());
    h.advance(1_000);
    assert_eq!(fetch_work(&h.store, Some("b")).await.unwrap().item, "work 1");
    assert_eq!(h.store.session_prune().await.unwrap(), 0);
}

/// A wait that a result ends; no case waits so long.
const LONG: Duration = Duration::from_secs(20);
/// How soon something that was announced is found. Without an announcement a wait looks after three seconds at the earliest.
const AT_ONCE: Duration = Duration::from_secs(2);
/// A machine that stalls for seconds makes a wait late in one of these rounds, and not in all.
const ROUNDS: i64 = 4;

pub async fn an_uncounted_abandon_releases_a_session_that_its_fetch_claimed(h: &Harness) {
    for id in 1..=2 {
        h.store.work_enqueue(work(id, Some("s")), id).await.unwrap();
    }
    let claimed = fetch_work(&h.store, Some("a")).await.unwrap();
    assert_eq!((claimed.in_session, claimed.token.claimed), (true, h.clock.fixed_now()));
    assert!(h.store.work_abandon(claimed.token, None, true).await.unwrap());
    let other = fetch_work(&h.store, Some("b")).await.expect("the session is free");
    assert_eq!((other.item.as_str(), other.attempts), ("work 1", 1));
    // The owner has done something in the session since it claimed it: another activity is leased, or was.
    let held = fetch_work(&h.store, Some("b")).await.unwrap();
    assert_eq!((held.in_session, held.token.claimed), (true, None));
    assert!(h.store.work_abandon(other.token, None, true).await.unwrap());
    assert!(fetch_work(&h.store, Some("a")).await.is_none());
    assert!(h.store.work_ack(held.token, None, None).await.unwrap());
    let held = fetch_work(&h.store, Some("b")).await.unwrap();
    assert!(h.store.work_abandon(held.token, None, true).await.unwrap());
    assert!(fetch_work(&h.store, Some("a")).await.is_none());
}

pub async fn a_session_that_was_used_since_its_claim_stays_with_its_owner(h: &Harness) {
    for id in 1..=2 {
        h.store.work_enqueue(work(id, Some("s")), id).await.unwrap();
    }
    let claimed = fetch_work(&h.store, Some("a")).await.unwrap();
    h.advance(1);
    let used = fetch_work(&h.store, Some("a")).await.unwrap();
    assert!(h.store.work_ack(used.token, None, None).await.unwrap());
    assert!(h.store.work_abandon(claimed.token, None, true).await.unwrap());
    assert!(fetch_work(&h.store, Some("b")).await.is_none());
}

pub async fn an_abandon_that_counts_keeps_the_session(h: &Harness) {
    h.store.work_enqueue(work(1, Some("s")), 1).await.unwrap();
    let claimed = fetch_work(&h.store, Some("a")).await.unwrap();
    assert!(h.store.work_abandon(claimed.token, None, false).await.unwrap());
    assert!(fetch_work(&h.store, Some("b")).await.is_none());
    assert_eq!(fetch_work(&h.store, Some("a")).await.unwrap().attempts, 2);
}

/// Starts a fetch without sessions that waits, as a runtime does that has no capacity for sessions.
async fn without_sessions(h: &Harness, filter: WorkFilter) -> tokio::task::JoinHandle<(Option<Work>, Duration)> {
    let (store, claim) = (h.store.clone(), WorkClaim { wait: LONG, filter, ..claim(None) });
    // A fetch that begins within 10 ms of an announcement of capacity ends as well.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut task = tokio::spawn(async move {
        let began = std::time::Instant::now();
        (store.work_fetch(&claim).await.unwrap(), began.elapsed())
    });
    let early = tokio::time::timeout(Duration::from_millis(100), &mut task).await;
    assert!(early.is_err(), "there was nothing to find");
    task
}

pub async fn a_fetch_without_sessions_ends_when_there_is_capacity_for_sessions(h: &Harness) {
    h.store.work_enqueue(work(1, Some("s")), 1).await.unwrap();
    h.store.work_enqueue(work(2, Some("s")), 2).await.unwrap();
    let first = fetch_work(&h.store, Some("b")).await.unwrap();
    assert!(h.store.work_ack(first.token, None, None).await.unwrap());
    // The owner of the session sleeps in a fetch without sessions while another one finds nothing that it may take.
    let mut rounds = Vec::new();
    while rounds.last().is_none_or(|took| *took >= LONG / 2) {
        assert!(rounds.len() < ROUNDS as usize, "ended after {rounds:?}");
        let waiting = without_sessions(h, claim(None).filter).await;
        assert!(fetch_work(&h.store, Some("a")).await.is_none());
        let (found, took) = waiting.await.unwrap();
        assert!(found.is_none(), "{found:?}");
        rounds.push(took);
    }
    assert_eq!(fetch_work(&h.store, Some("b")).await.unwrap().item, "work 2");
    // The capacity is free as well when the other one takes an activity that has no session.
    let other = WorkFilter { tags: vec!["other".to_owned()], ..WorkFilter::default() };
    let mut rounds = Vec::new();
    for id in 3..3 + ROUNDS {
        let waiting = without_sessions(h, other.clone()).await;
        h.store.work_enqueue(work(id, None), id).await.unwrap();
        assert_eq!(fetch_work(&h.store, Some("a")).await.unwrap().item, format!("work {id}"));
        let (found, took) = waiting.await.unwrap();
        assert!(found.is_none(), "{found:?}");
        rounds.push(took);
        if took < LONG / 2 {
            return;
        }
    }
    panic!("ended after {rounds:?}");
}

pub async fn a_fetch_without_sessions_goes_on_while_the_capacity_is_used(h: &Harness) {
    let mut waiting = without_sessions(h, claim(None).filter).await;
    h.store.work_enqueue(work(1, Some("s")), 1).await.unwrap();
    assert!(fetch_work(&h.store, Some("a")).await.is_some(), "this one uses the capacity");
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
    h.store.work_enqueue(work(2, None), 2).await.unwrap();
    assert_eq!(waiting.await.unwrap().0.unwrap().item, "work 2");
}

pub async fn messages_from_before_the_start_come_with_it_in_order(h: &Harness) {
    send(&h.store, "i", "cancel").await;
    assert_eq!(h.store.turn_park(&fetch(&h.store).await.unwrap().token).await.unwrap(), 0);
    assert!(fetch(&h.store).await.is_none(), "the message waits for the start, out of the way");
    send(&h.store, "i", "event").await;
    let look = fetch(&h.store).await.unwrap();
    assert_eq!(items(&look), [("cancel", 1), ("event", 1)]);
    // The start arrives while another process looks for it.
    send(&h.store, "i", "start").await;
    assert_eq!(h.store.turn_park(&look.token).await.unwrap(), 0);
    let turn = fetch(&h.store).await.expect("the start is there at once");
    assert_eq!(items(&turn), [("cancel", 1), ("event", 1), ("start", 1)]);
    assert!(h.store.turn_abandon(&turn.token, None, false).await.unwrap());
    let turn = fetch(&h.store).await.unwrap();
    assert_eq!(items(&turn), [("cancel", 2), ("event", 2), ("start", 2)], "all are there again at once");
    assert!(h.store.turn_abandon(&turn.token, Some(Duration::from_secs(5)), false).await.unwrap());
    send(&h.store, "i", "late").await;
    let late = fetch(&h.store).await.unwrap();
    assert_eq!(items(&late), [("late", 1)], "they are parked no longer");
    assert_eq!(h.store.turn_park(&late.token).await.unwrap(), 0);
    h.advance(5_000);
    let turn = fetch(&h.store).await.unwrap();
    assert_eq!(items(&turn), [("cancel", 3), ("event", 3), ("start", 3), ("late", 1)]);
    assert!(matches!(h.store.turn_ack(&turn.token, named()).await.unwrap(), Acked::Done { .. }));
    h.advance(60_000);
    assert!(fetch(&h.store).await.is_none(), "the first turn has consumed all of them");
}

pub async fn a_childs_start_brings_the_messages_that_came_before_it(h: &Harness) {
    send(&h.store, "child", "cancel").await;
    h.store.turn_park(&fetch(&h.store).await.unwrap().token).await.unwrap();
    send(&h.store, "parent", "start").await;
    let parent = fetch(&h.store).await.unwrap();
    let start = NewTurnMessage { instance: "child".to_owned(), visible_at: None, item: "start".to_owned() };
    h.store.turn_ack(&parent.token, TurnAck { messages: vec![start], ..named() }).await.unwrap();
    assert_eq!(items(&fetch(&h.store).await.unwrap()), [("cancel", 1), ("start", 1)]);
}

pub async fn a_message_without_a_start_is_dropped_after_its_own_looks(h: &Harness) {
    send(&h.store, "i", "old").await;
    // Looks after 1, 2, 4, ... and at most 60 seconds, none of which counts as an attempt.
    for look in 0..16 {
        let turn = fetch(&h.store).await.unwrap();
        assert_eq!(items(&turn), [("old", 1)]);
        assert_eq!(h.store.turn_park(&turn.token).await.unwrap(), 0);
        let delay = (1u64 << look).min(60) * 1000;
        h.advance(delay - 1);
        assert!(fetch(&h.store).await.is_none());
        if look < 15 {
            h.advance(1);
        }
    }
    // Messages that came later are not dropped with it.
    for _ in 0..3 {
        send(&h.store, "i", "new").await;
        let turn = fetch(&h.store).await.unwrap();
        assert_eq!(items(&turn)[0], ("old", 1));
        assert_eq!(h.store.turn_park(&turn.token).await.unwrap(), 0);
    }
    h.advance(1);
    let turn = fetch(&h.store).await.unwrap();
    assert_eq!(h.store.turn_park(&turn.token).await.unwrap(), 1);
    h.advance(1_000);
    assert_eq!(items(&fetch(&h.store).await.unwrap()), [("new", 1); 3]);
}

pub async fn a_message_that_comes_later_uses_up_no_look_of_an_earlier_one(h: &Harness) {
    for _ in 0..20 {
        send(&h.store, "i", "event").await;
        let turn = fetch(&h.store).await.unwrap();
        assert_eq!(h.store.turn_park(&turn.token).await.unwrap(), 0);
    }
    for seconds in [1, 2, 4] {
        h.advance(seconds * 1000);
        let turn = fetch(&h.store).await.unwrap();
        assert_eq!(items(&turn), [("event", 1); 20]);
        assert_eq!(h.store.turn_park(&turn.token).await.unwrap(), 0);
    }
}

pub async fn a_message_after_a_dropped_turn_wakes_a_waiting_fetch(h: &Harness) {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let instance = format!("i{round}");
        send(&h.store, &instance, "queue message").await;
        let turn = fetch(&h.store).await.unwrap();
        let store = h.store.clone();
        let claim = TurnClaim { lease: LEASE, wait: LONG, ..TurnClaim::default() };
        h.store.turn_drop(&turn.token).await.unwrap();
        let waiting = tokio::spawn(async move { store.turn_fetch(&claim, Vec::new).await.unwrap() });
        // Long enough for the wait to have looked, and to have asked what will come.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let began = std::time::Instant::now();
        send(&h.store, &instance, "start").await;
        assert_eq!(items(&waiting.await.unwrap().unwrap()), [("start", 1)]);
        rounds.push(began.elapsed());
        if began.elapsed() < AT_ONCE {
            return;
        }
    }
    panic!("found after {rounds:?}");
}

pub async fn deleting_an_instance_takes_everything_and_stops_its_turn(h: &Harness) {
    send(&h.store, "i", "start").await;
    let turn = fetch(&h.store).await.unwrap();
    let ack = TurnAck { events: vec![event(1, "a")], work: vec![work(1, None)], ..named() };
    h.store.turn_ack(&turn.token, ack).await.unwrap();
    send(&h.store, "i", "go on").await;
    let turn = fetch(&h.store).await.unwrap();
    let ids = vec!["i".to_owned()];
    assert_eq!(h.store.instance_delete(ids.clone(), false).await.unwrap_err().kind(), Kind::InvalidState);
    let removed = h.store.instance_delete(ids, true).await.unwrap();
    assert_eq!((removed.instances, removed.executions, removed.events, removed.messages), (1, 1, 1, 2));
    let ack = TurnAck { events: vec![event(2, "b")], ..named() };
    assert_eq!(h.store.turn_ack(&turn.token, ack).await.unwrap(), Acked::Lost);
    assert_eq!(h.store.instance_get("i").await.unwrap(), None);
    assert_eq!(h.store.history_read("i", None, None).await.unwrap(), None);
}
