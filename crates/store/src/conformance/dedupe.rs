use super::*;
use crate::Due;

fn once(key: &str, payload: &str) -> NewMessage {
    NewMessage { dedupe: Some(key.into()), ..NewMessage::new(payload.to_owned()) }
}

pub async fn a_second_enqueue_with_the_same_key_stores_nothing(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 4, ..Settings::default() }).await;
    let first = h.put_message(&queue, once("a", "1")).await;
    for _ in 0..5 {
        let again = h.put_message(&queue, once("a", "2")).await;
        assert_eq!((again.id, again.duplicate), (first.id, true));
    }
    let other = h.put_message(&queue, once("b", "3")).await;
    assert!(!other.duplicate && other.id != first.id);
    let mut taken = payloads(&h.take(&queue, 9).await);
    taken.sort();
    assert_eq!(taken, ["1", "3"]);
}

pub async fn a_key_is_remembered_after_its_message_has_finished(h: &Harness) {
    let queue = h.queue().await;
    let first = h.put_message(&queue, once("a", "1")).await;
    h.complete(h.take_one(&queue).await.fence()).await;
    // The reply to the first enqueue was lost, the message was already done: the repeat must not run it again.
    let again = h.put_message(&queue, once("a", "1")).await;
    assert_eq!((again.id, again.duplicate), (first.id, true));
    assert!(h.take(&queue, 9).await.is_empty());
}

pub async fn a_key_can_be_used_again_when_window_and_message_are_gone(h: &Harness) {
    let queue = h.queue_with(Settings { dedupe_window: Duration::from_secs(10), ..Settings::default() }).await;
    let first = h.put_message(&queue, once("a", "1")).await;
    h.complete(h.take_one(&queue).await.fence()).await;
    h.advance(9_999);
    assert!(h.put_message(&queue, once("a", "2")).await.duplicate);
    h.advance(1);
    let second = h.put_message(&queue, once("a", "3")).await;
    assert!(!second.duplicate && second.id != first.id);
    assert_eq!(h.put_message(&queue, once("a", "4")).await.id, second.id);
    h.complete(h.take_one(&queue).await.fence()).await;
    h.advance(10_000);
    assert_eq!(h.store.forget().await.unwrap(), 1);
}

pub async fn a_living_message_keeps_its_key_beyond_the_window(h: &Harness) {
    let queue = h.queue_with(Settings { dedupe_window: Duration::from_secs(1), ..Settings::default() }).await;
    let later = NewMessage { due: Some(Due::In(Duration::from_secs(100))), ..once("later", "1") };
    let scheduled = h.put_message(&queue, later).await;
    let ready = h.put_message(&queue, once("ready", "2")).await;
    let taken = h.take_one(&queue).await;
    h.store.retry(&[taken.fence()], None, crate::Place::Tail).await.unwrap();
    h.advance(50_000);
    assert_eq!(h.store.forget().await.unwrap(), 0);
    assert_eq!(h.put_message(&queue, once("later", "3")).await.id, scheduled.id);
    assert_eq!(h.put_message(&queue, once("ready", "4")).await.id, ready.id);
}

pub async fn twins_in_one_batch_share_one_message(h: &Harness) {
    let queue = h.queue().await;
    let later = NewMessage { due: Some(Due::In(Duration::from_secs(1))), ..once("later", "5") };
    let batch = vec![once("a", "1"), NewMessage::new("2"), once("a", "3"), once("b", "4"), later.clone(), later];
    let answers = h.store.enqueue(&queue, None, batch).await.unwrap();
    assert_eq!(answers.iter().map(|answer| answer.duplicate).collect::<Vec<_>>(), [
        false, false, true, false, false, true
    ]);
    assert_eq!((answers[0].id, answers[4].id), (answers[2].id, answers[5].id));
    assert_eq!(payloads(&h.take(&queue, 9).await), ["1", "2", "4"]);
    // The same across callers that share a transaction.
    let calls = (0..20).map(|_| h.store.enqueue(&queue, None, vec![once("c", "6")]));
    let answers = futures_util::future::join_all(calls).await;
    let fresh = answers.iter().filter(|answer| !answer.as_ref().unwrap()[0].duplicate).count();
    assert_eq!(fresh, 1);
    assert_eq!(payloads(&h.take(&queue, 9).await), ["6"]);
}

pub async fn a_duplicate_is_answered_with_the_stored_message(h: &Harness) {
    let queue = h.queue_with(Settings { retain_dead: Some(Duration::from_secs(3600)), ..Settings::default() }).await;
    let message = NewMessage { kind: Some("first".into()), reference: Some("r".into()), ..once("a", "1") };
    let first = h.put_message(&queue, message).await;
    h.advance(1000);
    let again = async || h.put_message(&queue, once("a", "2")).await;
    let ready = again().await;
    assert_eq!((ready.id, ready.created_at, ready.duplicate), (first.id, first.created_at, true));
    let stored = ready.stored.unwrap();
    assert_eq!((&stored.payload[..], stored.kind.as_deref(), stored.attempts), (&b"1"[..], Some("first"), 0));
    // Leased, and moved to the tail, which gives it another position.
    let taken = h.take_one(&queue).await;
    let leased = again().await.stored.unwrap();
    assert_eq!((leased.attempts, leased.leased_until, leased.leased_at), (1, taken.leased_until, taken.leased_at));
    h.store.retry(&[taken.fence()], None, crate::Place::Tail).await.unwrap();
    let moved = again().await.stored.unwrap();
    assert_eq!((moved.identity(), moved.leased_until, moved.reference.as_deref()), (first.id, 0, Some("r")));
    // Scheduled.
    let soon = Due::In(Duration::from_secs(100));
    h.store.retry(&[h.take_one(&queue).await.fence()], Some(soon), crate::Place::Tail).await.unwrap();
    let scheduled = again().await;
    assert_eq!(scheduled.due_at, scheduled.stored.unwrap().due_at);
    assert!(scheduled.due_at.unwrap() > first.created_at + 100_000_000);
    // Dead, in the archive.
    h.advance(200_000);
    h.store.bury(&[h.take_one(&queue).await.fence()], "why").await.unwrap();
    let dead = again().await.stored.unwrap();
    assert_eq!((dead.identity(), dead.reason.as_deref(), &dead.payload[..]), (first.id, Some("why"), &b"1"[..]));
    assert_eq!(dead.leased_until, h.store.now().await.unwrap(), "the time of its end");
}

pub async fn a_duplicate_of_a_forgotten_message_has_its_id_and_time(h: &Harness) {
    let queue = h.queue().await;
    let first = h.put_message(&queue, once("a", "1")).await;
    h.complete(h.take_one(&queue).await.fence()).await;
    h.advance(5000);
    let batch = vec![once("a", "2"), once("b", "3"), once("b", "4"), once("a", "5")];
    let answers = h.store.enqueue(&queue, None, batch).await.unwrap();
    for answer in [&answers[0], &answers[3]] {
        assert_eq!((answer.id, answer.created_at, answer.stored.is_none()), (first.id, first.created_at, true));
    }
    assert_eq!(answers.iter().map(|answer| answer.duplicate).collect::<Vec<_>>(), [true, false, true, true]);
    assert_eq!(&answers[2].stored.as_ref().unwrap().payload[..], b"3");
    assert!(answers[1].stored.is_none());
}

pub async fn keys_of_different_queues_do_not_meet(h: &Harness) {
    let jobs = h.queue().await;
    let mail = h.store.queue_create("mail", Settings::default()).await.unwrap();
    let one = h.put_message(&jobs, once("a", "1")).await;
    let two = h.put_message(&mail, once("a", "2")).await;
    assert!(!one.duplicate && !two.duplicate && one.id != two.id);
}

pub async fn a_message_keeps_its_key_beyond_the_window_wherever_it_lives(h: &Harness) {
    let queue = h.queue_with(Settings { dedupe_window: Duration::from_secs(1), ..Settings::default() }).await;
    let soon = Due::In(Duration::from_secs(100));
    let scheduled = NewMessage { due: Some(soon), ..once("scheduled", "x") };
    let messages = vec![once("requeued", "x"), once("postponed", "x"), once("leased", "x"), once("ready", "x"), scheduled];
    let ids: Vec<i64> = h.store.enqueue(&queue, None, messages).await.unwrap().iter().map(|answer| answer.id).collect();
    let taken = h.take(&queue, 3).await;
    let fences: Vec<Fence> = taken.iter().map(Message::fence).collect();
    // Both go to the tail under a new position; the second is then scheduled under that.
    h.store.retry(&fences[..2], None, crate::Place::Tail).await.unwrap();
    let again = h.take(&queue, 9).await;
    let postponed = again.iter().find(|message| message.identity() == ids[1]).unwrap();
    let rest: Vec<Fence> =
        again.iter().filter(|message| message.id != postponed.id).map(Message::fence).collect();
    h.store.release(&rest).await.unwrap();
    h.store.retry(&[postponed.fence()], Some(soon), crate::Place::Tail).await.unwrap();
    h.advance(10_000);
    for (key, id) in ["requeued", "postponed", "leased", "ready", "scheduled"].into_iter().zip(ids) {
        let repeat = h.put_message(&queue, once(key, "y")).await;
        assert_eq!((repeat.id, repeat.duplicate), (id, true), "{key}");
    }
}
