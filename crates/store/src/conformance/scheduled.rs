use super::*;
use crate::Due;

fn later(millis: u64, payload: &str) -> NewMessage {
    NewMessage { due: Some(Due::In(Duration::from_millis(millis))), ..NewMessage::new(payload.to_owned()) }
}

pub async fn a_delayed_message_is_not_ready_before_its_time(h: &Harness) {
    let queue = h.queue().await;
    let enqueued = h.put_message(&queue, later(250, "x")).await;
    assert_eq!(enqueued.due_at, Some(START + 250_000));
    h.advance(249);
    assert!(h.take(&queue, 1).await.is_empty());
    h.advance(1);
    assert_eq!(h.take_one(&queue).await.attempts, 1);
}

pub async fn due_messages_come_in_the_order_of_their_times(h: &Harness) {
    let queue = h.queue().await;
    let batch = vec![later(300, "third"), later(100, "first"), later(200, "second")];
    h.store.enqueue(&queue, None, batch).await.unwrap();
    h.put(&queue, "ready").await;
    h.advance(1_000);
    assert_eq!(payloads(&h.take(&queue, 9).await), ["ready", "first", "second", "third"]);
}

pub async fn messages_due_at_one_time_come_in_the_order_they_were_sent(h: &Harness) {
    let queue = h.queue().await;
    let due = Some(Due::At(START + 1_000_000));
    let batch = numbered(50).into_iter().map(|message| NewMessage { due, ..message }).collect();
    h.store.enqueue(&queue, None, batch).await.unwrap();
    h.advance(1_000);
    let taken = payloads(&h.take(&queue, 50).await);
    assert_eq!(taken, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
}

pub async fn a_due_time_in_the_past_is_ready_at_once(h: &Harness) {
    let queue = h.queue().await;
    h.put_message(&queue, NewMessage { due: Some(Due::At(5)), ..NewMessage::new("past") }).await;
    h.put_message(&queue, later(0, "now")).await;
    assert_eq!(payloads(&h.take(&queue, 9).await), ["past", "now"]);
}

pub async fn a_promoted_message_keeps_its_identity(h: &Harness) {
    let expire = Settings { expire: Some(Duration::from_secs(9)), ..Settings::default() };
    let queue = h.queue_with(expire).await;
    let message = NewMessage { kind: Some("k".into()), reference: Some("r".into()), ..later(10_000, "x") };
    let enqueued = h.put_message(&queue, message).await;
    // Expiry counts from when it is ready: it has not expired while it waited.
    assert_eq!(enqueued.expire_at, Some(START + 19_000_000));
    h.put(&queue, "sent later, ready sooner").await;
    h.advance(10_000);
    let taken = h.take(&queue, 9).await;
    let promoted = taken.iter().find(|message| message.payload == "x").unwrap();
    assert_eq!((promoted.identity(), promoted.attempts), (enqueued.id, 1));
    assert_eq!((promoted.kind.as_deref(), promoted.reference.as_deref()), (Some("k"), Some("r")));
}

pub async fn a_message_scheduled_before_a_restart_is_promoted_after_it(h: &Harness) {
    let queue = h.queue().await;
    h.put_message(&queue, later(5_000, "x")).await;
    let Some(restarted) = h.another().await else { return };
    assert!(restarted.claim(Claim::from_queue(&queue, 1)).await.unwrap().is_empty());
    h.advance(5_000);
    assert_eq!(restarted.claim(Claim::from_queue(&queue, 1)).await.unwrap().len(), 1);
    assert!(h.take(&queue, 1).await.is_empty());
}
