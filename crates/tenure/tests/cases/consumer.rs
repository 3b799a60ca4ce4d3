use std::time::Duration;

use chrono::TimeDelta;
use tenure::{
    Admin, Config, Consumer, Disposition, EnqueueOptions, Error, Producer, QueueMessage, Settings, Store, WorkerStatus,
};

use super::Harness;

pub(crate) async fn dequeue_honours_batch_size_and_lock_time(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&(0..150).collect::<Vec<_>>()).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    assert_eq!(taken.len(), 100, "the configuration's default");
    assert!(taken.windows(2).all(|pair| pair[0].id < pair[1].id));
    let first = &taken[0];
    assert_eq!(first.vt - first.dequeued_at.unwrap(), TimeDelta::seconds(30));
    assert_eq!(first.consumer_worker_id, Some(consumer.worker_id()));
    assert_eq!(consumer.count_by_worker().await.unwrap(), 100);
    let few = consumer.dequeue_with_options(7, Duration::from_millis(1500)).await.unwrap();
    assert_eq!(few.len(), 7);
    assert_eq!(few[0].vt - few[0].dequeued_at.unwrap(), TimeDelta::milliseconds(1500));
    let config = Config { default_max_batch_size: 3, ..Config::from_dsn(h.dsn()) };
    if let Ok(other) = Store::connect_with_config(&config.with_lock_time(Duration::from_secs(9))).await {
        let own = Consumer::on(&other, "jobs", "host", 9).await.unwrap();
        let taken = own.dequeue().await.unwrap();
        assert_eq!(taken.len(), 3);
        assert_eq!(taken[0].vt - taken[0].dequeued_at.unwrap(), TimeDelta::seconds(30), "the queue's lease");
        let created = Admin::on(&other).create_queue("own").await.unwrap();
        assert_eq!(created.settings.lease, Duration::from_secs(9), "the configuration's");
    }
}

pub(crate) async fn a_lease_that_runs_out_is_delivered_again(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.enqueue("x").await.unwrap();
    let first = consumer.dequeue().await.unwrap().remove(0);
    assert!(consumer.dequeue().await.unwrap().is_empty());
    h.advance(Duration::from_secs(30));
    let other = h.consumer(2).await;
    let second = other.dequeue().await.unwrap().remove(0);
    assert_eq!((second.id, second.read_ct), (sent.id, 2));
    // The first holder is fenced, by message and by id.
    assert!(consumer.archive(&first).await.unwrap().is_none());
    assert!(!consumer.release(first.id).await.unwrap());
    assert!(!consumer.extend_visibility(&first, 30).await.unwrap());
    assert!(other.archive(&second).await.unwrap().is_some());
}

pub(crate) async fn a_message_is_archived_once_by_itself_or_by_its_id(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&[1, 2, 3]).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    h.advance(Duration::from_secs(2));
    let archived = consumer.archive(&taken[0]).await.unwrap().unwrap();
    assert_eq!((archived.original_msg_id, archived.disposition), (taken[0].id, Disposition::Completed));
    assert_eq!(archived.payload, taken[0].payload);
    assert_eq!(archived.dequeued_at, taken[0].dequeued_at);
    assert_eq!(archived.archived_at - archived.enqueued_at, TimeDelta::seconds(2));
    assert!(consumer.archive(&taken[0]).await.unwrap().is_none());
    assert!(consumer.archive(taken[1].id).await.unwrap().is_some());
    assert!(consumer.archive(4711).await.unwrap().is_none());
    assert_eq!(consumer.archive_batch([taken[0].id, taken[2].id, 4711]).await.unwrap(), [taken[2].id]);
    assert_eq!(h.store.archive().get(taken[2].id).await.unwrap().read_ct, 1);
    assert_eq!(h.store.archive().archive_message(taken[2].id, consumer.worker_id()).await.unwrap(), None);
}

pub(crate) async fn foreign_messages_are_not_touched(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let other = h.consumer(2).await;
    producer.enqueue("x").await.unwrap();
    let taken = consumer.dequeue().await.unwrap().remove(0);
    for id in [taken.id, 4711] {
        assert!(other.archive(id).await.unwrap().is_none());
        assert!(!other.delete(id).await.unwrap());
        assert!(!other.release(id).await.unwrap());
        assert!(!other.extend_visibility(id, 10).await.unwrap());
    }
    assert!(other.archive(&taken).await.unwrap().is_none());
    assert!(!other.delete(&taken).await.unwrap());
    assert!(!other.release(&taken).await.unwrap());
    assert!(!other.bury(&taken, "no").await.unwrap());
    // A message that was never leased has no lease to prove.
    assert!(!consumer.delete(&producer.enqueue("y").await.unwrap()).await.unwrap());
    assert_eq!(consumer.count_by_worker().await.unwrap(), 1);
    assert!(consumer.archive(&taken).await.unwrap().is_some());
}

pub(crate) async fn release_and_delete_answer_each_in_order(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.batch_enqueue(&[1, 2, 3, 4]).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    assert_eq!(consumer.release_batch([4711, sent[0].id, sent[1].id]).await.unwrap(), [false, true, true]);
    assert_eq!(consumer.delete_batch(&taken).await.unwrap(), [false, false, true, true]);
    let again = consumer.dequeue().await.unwrap();
    let seen: Vec<_> = again.iter().map(|message| (message.id, message.read_ct)).collect();
    assert_eq!(seen, [(sent[0].id, 2), (sent[1].id, 2)]);
    assert_eq!(h.store.archive().count().await.unwrap(), 0, "what is deleted is not kept");
    let table = h.store.messages();
    let worker = consumer.worker_id();
    assert!(table.extend_visibility(sent[0].id, worker, 10).await.unwrap());
    assert_eq!(table.count_by_worker(worker).await.unwrap(), 2);
    assert!(table.release(sent[0].id, worker).await.unwrap());
    assert_eq!(table.delete_batch(&[sent[0].id, sent[1].id], worker).await.unwrap(), [false, true]);
    let queue = h.admin().get_queue("jobs").await.unwrap().id;
    assert_eq!(table.dequeue_atomic(queue, worker, 9, 20, 3).await.unwrap()[0].read_ct, 3);
    assert_eq!(table.count_by_worker(worker).await.unwrap(), 1);
    h.advance(Duration::from_secs(20));
    assert!(table.dequeue_atomic(queue, worker, 9, 20, 3).await.unwrap().is_empty(), "three deliveries are enough");
}

pub(crate) async fn an_extension_counts_from_the_end_of_the_lease(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("x").await.unwrap();
    let taken = consumer.dequeue_with_options(1, 10).await.unwrap().remove(0);
    assert!(consumer.extend_visibility(&taken, 10).await.unwrap());
    h.advance(Duration::from_secs(19));
    assert!(consumer.dequeue().await.unwrap().is_empty());
    h.advance(Duration::from_secs(11));
    // Run out, but not taken: it starts again from now.
    assert!(consumer.extend_visibility(taken.id, 10).await.unwrap());
    h.advance(Duration::from_secs(9));
    assert!(consumer.dequeue().await.unwrap().is_empty());
    h.advance(Duration::from_secs(1));
    assert_eq!(consumer.dequeue().await.unwrap()[0].read_ct, 2);
    assert!(!consumer.extend_visibility(&taken, 10).await.unwrap());
}

pub(crate) async fn a_message_completed_on_its_last_attempt_is_not_dead(h: &Harness) {
    let settings = Settings { max_attempts: Some(1), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    let sent = producer.enqueue("x").await.unwrap();
    let taken = consumer.dequeue().await.unwrap().remove(0);
    assert_eq!(taken.read_ct, 1);
    consumer.archive(&taken).await.unwrap().unwrap();
    assert_eq!(h.admin().count_dead("jobs").await.unwrap(), 0);
    assert!(h.store.archive().list_dlq(1, 10, 0).await.unwrap().is_empty());
    assert_eq!(h.admin().replay_from_dlq(sent.id).await.unwrap(), None);
}

pub(crate) async fn scheduled_messages_keep_their_id_through_promotion(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.enqueue_delayed("x", 5).await.unwrap();
    h.advance(Duration::from_secs(5));
    let taken = consumer.dequeue().await.unwrap().remove(0);
    assert_eq!(taken.id, sent.id);
    assert_eq!(h.store.messages().get(sent.id).await.unwrap().read_ct, 1);
    assert!(consumer.retry_after(taken.id, 5).await.unwrap());
    h.advance(Duration::from_secs(5));
    let again = consumer.dequeue().await.unwrap().remove(0);
    assert_eq!((again.id, again.read_ct), (sent.id, 2));
    assert_eq!(consumer.archive(sent.id).await.unwrap().unwrap().id, sent.id);
}

pub(crate) async fn a_stopped_consumer_is_told_and_a_suspended_one_gets_nothing(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&[1, 2]).await.unwrap();
    consumer.suspend().await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_empty());
    consumer.resume().await.unwrap();
    consumer.dequeue_with_options(1, 3600).await.unwrap();
    consumer.shutdown().await.unwrap();
    assert_eq!(consumer.status().await.unwrap(), WorkerStatus::Stopped);
    assert!(matches!(consumer.dequeue().await.unwrap_err(), Error::WorkerStopped { .. }));
    assert!(matches!(consumer.shutdown().await.unwrap_err(), Error::InvalidStateTransition { .. }));
    assert_eq!(h.consumer(2).await.dequeue().await.unwrap().len(), 2, "what it held is free at once");
}

pub(crate) async fn a_paused_queue_hands_out_nothing(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("x").await.unwrap();
    h.admin().pause_queue("jobs").await.unwrap();
    assert!(h.admin().get_queue("jobs").await.unwrap().paused_at.is_some());
    assert!(consumer.dequeue().await.unwrap().is_empty());
    h.admin().resume_queue("jobs").await.unwrap();
    assert_eq!(consumer.dequeue().await.unwrap().len(), 1);
}

pub(crate) async fn a_crashed_consumer_restarts_under_its_own_name_at_once(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("x").await.unwrap();
    let held = consumer.dequeue_with_options(1, 3600).await.unwrap().remove(0);
    // The same host and port: the old incarnation is fenced, and its message is free.
    let reborn = h.consumer(1).await;
    assert_ne!(reborn.worker_id(), consumer.worker_id());
    let again = reborn.dequeue().await.unwrap().remove(0);
    assert_eq!((again.id, again.read_ct), (held.id, 2));
    assert!(consumer.archive(&held).await.unwrap().is_none());
    assert!(matches!(consumer.dequeue().await, Err(Error::WorkerStopped { .. })));
    assert!(matches!(consumer.heartbeat().await.unwrap_err(), Error::WorkerStopped { .. }));
    // A producer in the same place is somebody else.
    Producer::on(&h.store, "jobs", "host", 1).await.unwrap();
    reborn.heartbeat().await.unwrap();
}

pub(crate) async fn bad_durations_are_refused_and_zero_messages_are_none(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("x").await.unwrap();
    assert!(consumer.dequeue_with_options(0, 30).await.unwrap().is_empty());
    for error in [
        consumer.dequeue_with_options(1, 0).await.unwrap_err(),
        consumer.dequeue_with_options(1, TimeDelta::seconds(-1)).await.unwrap_err(),
        consumer.extend_visibility(1, 0).await.unwrap_err(),
        consumer.retry_after(1, 0).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::ValidationFailed { reason } if reason.contains("positive")), "{error:?}");
    }
    assert_eq!(consumer.dequeue_within(Duration::from_secs(5), 1, 30).await.unwrap()[0].read_ct, 1);
    assert!(consumer.dequeue_within(Duration::from_millis(20), 1, 30).await.unwrap().is_empty());
}

pub(crate) async fn a_message_is_buried_or_retried_by_hand(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&[1, 2]).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    assert!(consumer.bury(&taken[0], "not a number we like").await.unwrap());
    assert!(!consumer.bury(&taken[0], "again").await.unwrap());
    assert!(consumer.retry_after(&taken[1], Duration::from_secs(60)).await.unwrap());
    let dead = h.admin().list_dead("jobs", 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].reason.as_deref()), (1, Some("not a number we like")));
    assert!(consumer.dequeue().await.unwrap().is_empty());
    h.advance(Duration::from_secs(60));
    assert_eq!(consumer.dequeue().await.unwrap()[0].id, taken[1].id);
}

pub(crate) async fn a_consumer_stopped_by_an_operator_is_told_by_its_next_dequeue(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let table = h.store.workers();
    let id = consumer.worker_id();
    producer.enqueue("x").await.unwrap();
    table.shutdown(id).await.unwrap();
    assert!(matches!(consumer.dequeue().await, Err(Error::WorkerStopped { id: told }) if told == id));
    // Purged before it noticed, and with messages that it could have.
    let other = h.consumer(2).await;
    table.shutdown(other.worker_id()).await.unwrap();
    h.silence();
    h.admin().purge_stale_workers(1).await.unwrap();
    let waited = other.dequeue_within(Duration::from_secs(20), 1, 30).await;
    assert!(matches!(waited, Err(Error::WorkerStopped { id }) if id == other.worker_id()));
    assert_eq!(h.consumer(3).await.dequeue().await.unwrap()[0].read_ct, 1);
}

pub(crate) async fn dequeue_leases_for_as_long_as_the_queue_says(h: &Harness) {
    h.admin()
        .create_queue_with("jobs", Settings { lease: Duration::from_secs(7), ..Settings::default() })
        .await
        .unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.batch_enqueue(&[1, 2]).await.unwrap();
    let lease = |message: &QueueMessage| (message.vt - message.dequeued_at.unwrap()).num_seconds();
    let own = consumer.dequeue_with_options(1, 90).await.unwrap();
    let by_default = consumer.dequeue().await.unwrap();
    assert_eq!((lease(&own[0]), lease(&by_default[0])), (90, 7));
}

pub(crate) async fn a_message_snoozed_by_hand_uses_no_attempt(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("early").await.unwrap();
    for _ in 0..7 {
        let message = consumer.dequeue().await.unwrap().remove(0);
        assert_eq!(message.read_ct, 1);
        assert!(consumer.snooze(&message, 60).await.unwrap());
        assert!(consumer.dequeue().await.unwrap().is_empty());
        h.advance(Duration::from_secs(61));
    }
    let message = consumer.dequeue().await.unwrap().remove(0);
    assert!(consumer.snooze(&message, 0).await.unwrap_err().to_string().contains("the delay is zero"));
    assert!(consumer.complete(&message).await.unwrap());
    assert!(!consumer.snooze(&message, 60).await.unwrap());
}

pub(crate) async fn an_archived_message_has_what_it_was_enqueued_with(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let options = EnqueueOptions::default().encoding("e").kind("k").reference("r").max_attempts(3);
    for options in [options, EnqueueOptions::default()] {
        let sent = producer.enqueue_with_options("x", &options).await.unwrap();
        let kept = consumer.archive(&consumer.dequeue().await.unwrap()[0]).await.unwrap().unwrap();
        assert_eq!((kept.encoding.as_deref(), kept.max_read_ct), (sent.encoding.as_deref(), sent.max_read_ct));
        assert_eq!((kept.kind, kept.reference, kept.key), (sent.kind, sent.reference, sent.key));
        assert_eq!((options.encoding, options.max_attempts.map(i64::from)), (kept.encoding, kept.max_read_ct));
    }
}

pub(crate) async fn a_snoozed_lease_is_lost_once_its_message_is_delivered_again(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let id = producer.enqueue("early").await.unwrap().id;
    let old = consumer.dequeue().await.unwrap().remove(0);
    assert!(consumer.snooze(&old, 60).await.unwrap());
    h.advance(Duration::from_secs(61));
    let new = consumer.dequeue().await.unwrap().remove(0);
    assert_eq!((new.id, new.read_ct), (id, 1));
    for done in [
        consumer.complete(&old).await,
        consumer.retry_after(&old, 60).await,
        consumer.release(&old).await,
        consumer.extend_visibility(&old, 60).await,
        consumer.snooze(&old, 60).await,
        consumer.bury(&old, "late").await,
        consumer.delete(&old).await,
    ] {
        assert!(!done.unwrap(), "a lease that was snoozed does nothing to the next one");
    }
    assert!(consumer.archive(&old).await.unwrap().is_none());
    assert_eq!(consumer.count_by_worker().await.unwrap(), 1);
    assert!(consumer.complete(id).await.unwrap(), "a bare id names the lease that runs");
}

pub(crate) async fn a_queue_that_was_created_anew_is_found_by_its_name(h: &Harness) {
    let (_, consumer) = h.queue().await;
    let clone = consumer.clone();
    assert!(consumer.dequeue().await.unwrap().is_empty());
    for round in 0..2 {
        h.kernel.queue_delete("jobs").await.unwrap();
        // What is known about a queue is believed for a second.
        h.advance(Duration::from_secs(1));
        let missing = |error: &Error| matches!(error, Error::QueueNotFound { name } if name == "jobs");
        assert!(missing(&consumer.dequeue().await.unwrap_err()));
        assert!(missing(&clone.dequeue_within(Duration::from_secs(9), 1, 30).await.unwrap_err()));
        let queue = h.admin().create_queue("jobs").await.unwrap();
        h.producer().await.batch_enqueue(&[1, 2]).await.unwrap();
        for consumer in [&consumer, &clone] {
            let taken = consumer.dequeue_with_options(1, 30).await.unwrap();
            assert_eq!((taken.len(), taken[0].queue_id), (1, queue.id), "round {round}");
            assert!(consumer.complete(taken[0].id).await.unwrap());
        }
    }
}

pub(crate) async fn large_batches_of_consumers_that_ask_at_once_are_whole(h: &Harness) {
    let (producer, first) = h.queue().await;
    let second = h.consumer(2).await;
    producer.batch_enqueue(&(0..6000).collect::<Vec<_>>()).await.unwrap();
    // The kernel hands out a thousand at a time, to both together.
    let (one, two) = tokio::join!(first.dequeue_with_options(2500, 60), second.dequeue_with_options(2500, 60));
    assert_eq!((one.unwrap().len(), two.unwrap().len()), (2500, 2500));
}
