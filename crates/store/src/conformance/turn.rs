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
    for id in 1..=2 {
        h.store.work_enqueue(work(id, None), id).await.unwrap();
    }
    let first = fetch_work(&h.store, None).await.unwrap();
    assert!(h.store.work_ack(first.token, None, Some(Arc::new(claim(None)))).await.unwrap());
    assert_eq!(h.store.instance_depths().await.unwrap().1, 0, "nobody else can take the second one");
    let second = fetch_work(&h.store, None).await.unwrap();
    assert_eq!((second.item.as_str(), second.attempts), ("work 2", 1));
    assert!(h.store.work_ack(second.token, None, None).await.unwrap());
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
