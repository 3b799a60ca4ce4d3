use super::statements::{count, script};
use super::*;
use crate::{Due, Heartbeat, Kind, Maintenance};

fn once(key: &str) -> NewMessage {
    NewMessage { dedupe: Some(key.into()), ..NewMessage::new("x") }
}

pub async fn one_round_removes_every_dedupe_key_that_has_expired(h: &Harness) {
    let queue = h.queue_with(Settings { dedupe_window: Duration::from_secs(1), ..Settings::default() }).await;
    // Seven different windows, none of them a whole number of batches.
    let keys: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    for part in keys.chunks(777) {
        h.store.enqueue(&queue, None, part.iter().map(|key| once(key)).collect()).await.unwrap();
        let fences: Vec<Fence> = h.take(&queue, 777).await.iter().map(Message::fence).collect();
        assert_eq!(fences.len(), part.len());
        h.store.complete(&fences).await.unwrap();
        h.advance(1);
    }
    h.put_message(&queue, once("living")).await;
    h.advance(1_000);
    h.put_message(&queue, once("young")).await;
    assert_eq!(count(&h.store, "dedupe").await, 5_002);
    let done = h.store.maintain_in_turn().await.unwrap().unwrap();
    assert_eq!(done, Maintenance { dedupe_keys: 5_000, ..done });
    assert_eq!(count(&h.store, "dedupe").await, 2);
    assert!(h.put_message(&queue, once("living")).await.duplicate);
}

pub async fn one_process_at_a_time_does_the_housekeeping(h: &Harness) {
    let other = h.another().await.unwrap_or_else(|| h.store.clone());
    assert!(other.maintain_in_turn().await.unwrap().is_some());
    for store in [&h.store, &other] {
        assert_eq!(store.maintain_in_turn().await.unwrap(), None);
    }
    // An operator asks for a round whenever it is wanted, and it counts for no turn.
    h.store.maintain().await.unwrap();
    h.advance(44_999);
    assert_eq!(h.store.maintain_in_turn().await.unwrap(), None);
    h.advance(1);
    let rounds = futures_util::future::join_all([h.store.maintain_in_turn(), other.maintain_in_turn()]).await;
    assert_eq!(rounds.into_iter().filter(|round| round.as_ref().unwrap().is_some()).count(), 1);
}

pub async fn a_process_that_ends_in_its_round_is_replaced(h: &Harness) {
    // What such a process leaves behind.
    let until = START + 45_000_000;
    script(&h.store, &format!("insert into tenure.housekeeping (id, holder, until) values (1, 4711, {until})")).await;
    assert_eq!(h.store.maintain_in_turn().await.unwrap(), None);
    h.advance(45_000);
    assert!(h.store.maintain_in_turn().await.unwrap().is_some());
    assert_eq!(h.store.maintain_in_turn().await.unwrap(), None);
}

pub async fn a_round_comes_to_every_queue(h: &Harness) {
    let settings = || Settings {
        retain_completed: Some(Duration::from_secs(60)),
        expire: Some(Duration::from_secs(10)),
        ..Settings::default()
    };
    for n in 0..100 {
        h.store.queue_create(&format!("queue {n:03}"), settings()).await.unwrap();
    }
    let last = h.store.queue_create("the last one", settings()).await.unwrap();
    h.put(&last, "completed").await;
    h.complete(h.take_one(&last).await.fence()).await;
    h.put(&last, "expired").await;
    h.advance(60_000);
    let done = h.store.maintain_in_turn().await.unwrap().unwrap();
    assert_eq!(done, Maintenance { archived: 1, ..Maintenance::default() });
    assert_eq!(h.store.archive_count(last.id).await.unwrap(), (1, 1));
}

pub async fn rows_of_keys_are_removed_when_no_message_needs_them(h: &Harness) {
    let queue = h.queue().await;
    for key in ["finished", "crashed"] {
        h.put_message(&queue, NewMessage { key: Some(key.into()), ..NewMessage::new(key.to_owned()) }).await;
    }
    let claim = || h.store.claim_key(&queue.lanes, None, None, Duration::ZERO);
    let finished = claim().await.unwrap().unwrap();
    assert_eq!(h.complete(finished.messages[0].fence()).await, Answer::Done);
    assert_eq!(claim().await.unwrap().unwrap().key, "crashed");
    h.advance(30_000 + 299_999);
    assert_eq!(h.store.maintain().await.unwrap().keys, 0);
    h.advance(1);
    assert_eq!(h.store.maintain().await.unwrap().keys, 1);
    h.advance(10 * 3_600_000);
    assert_eq!(h.store.maintain().await.unwrap().keys, 0);
    // Its row says that its message was handed out: without it the message was never delivered again.
    let again = claim().await.unwrap().expect("the key is free, and has a message");
    assert_eq!((again.key.as_str(), again.messages[0].attempts), ("crashed", 2));
}

pub async fn workers_are_removed_an_hour_after_they_stopped_or_after_a_silent_day(h: &Harness) {
    let register = |name: &'static str| async move { h.store.worker_register(name, None).await.unwrap().id };
    let (silent, stopped, living) = (register("silent").await, register("stopped").await, register("living").await);
    h.store.worker_shutdown(stopped).await.unwrap();
    h.advance(3_599_999);
    assert_eq!(h.store.maintain().await.unwrap().workers, 0);
    h.advance(1);
    assert_eq!(h.store.maintain().await.unwrap().workers, 1);
    h.advance(23 * 3_600_000 - 1);
    h.store.worker_heartbeat(&[living]).await.unwrap();
    assert_eq!(h.store.maintain().await.unwrap().workers, 0);
    h.advance(1);
    assert_eq!(h.store.maintain().await.unwrap().workers, 1);
    assert_eq!(h.store.worker_heartbeat(&[silent, stopped, living]).await.unwrap(), [
        Heartbeat::Fenced,
        Heartbeat::Fenced,
        Heartbeat::Alive
    ]);
    assert_eq!(h.store.worker_list(None, None).await.unwrap().len(), 1);
}

pub async fn clearing_dedupe_keys_leaves_those_of_living_messages(h: &Harness) {
    let queue = h.queue().await;
    let mail = h.store.queue_create("mail", Settings::default()).await.unwrap();
    h.put_message(&mail, once("0")).await;
    h.complete(h.take_one(&mail).await.fence()).await;
    let keys: Vec<String> = (0..2_500).map(|n| n.to_string()).collect();
    h.store.enqueue(&queue, None, keys.iter().map(|key| once(key)).collect()).await.unwrap();
    let fences: Vec<Fence> = h.take(&queue, 2_400).await.iter().map(Message::fence).collect();
    h.store.complete(&fences).await.unwrap();
    assert_eq!(h.store.dedupe_clear(queue.id).await.unwrap(), fences.len() as u64);
    assert!(!h.put_message(&queue, once("0")).await.duplicate);
    assert!(h.put_message(&queue, once("2499")).await.duplicate);
    assert!(h.put_message(&mail, once("0")).await.duplicate, "another queue");
}

pub async fn rows_of_queues_that_are_gone_are_removed_and_no_others(h: &Harness) {
    let kept = Settings { partitions: 2, retain_completed: Some(Duration::from_secs(3600)), ..Settings::default() };
    let mut queues = Vec::new();
    for name in ["gone first", "living", "gone", "gone too", "living too", "gone last"] {
        let queue = h.store.queue_create(name, kept.clone()).await.unwrap();
        for text in ["completed", "ready"] {
            h.put(&queue, text).await;
        }
        h.complete(h.take_one(&queue).await.fence()).await;
        h.put_message(&queue, NewMessage { key: Some("k".into()), ..NewMessage::new("keyed") }).await;
        h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap();
        let later = Some(Due::In(Duration::from_secs(60)));
        h.put_message(&queue, NewMessage { due: later, ..NewMessage::new("later") }).await;
        queues.push(queue);
    }
    // More than two batches.
    h.store.enqueue(&queues[2], Some(1), numbered(2_300)).await.unwrap();
    // What is left when a transaction commits after its queue was deleted.
    for queue in queues.iter().filter(|queue| queue.name.starts_with("gone")) {
        for (table, column) in [("lane", "queue"), ("queue", "id")] {
            script(&h.store, &format!("delete from tenure.{table} where {column} = {}", queue.id)).await;
        }
    }
    assert_eq!(h.store.verify().await.unwrap_err().kind(), Kind::Orphans);
    let done = h.store.maintain().await.unwrap();
    assert_eq!(done, Maintenance { orphans: 4 * 5 + 2_300, ..Maintenance::default() });
    h.store.verify().await.unwrap();
    for (table, rows) in [("message", 4), ("scheduled", 2), ("key_lease", 2), ("archive", 2)] {
        assert_eq!(count(&h.store, table).await, rows, "{table}");
    }
    assert_eq!(h.store.maintain().await.unwrap(), Maintenance::default());
}
