use std::time::Duration;

use tenure::{Config, Consumer, Disposition, Error, Settings, Store, WorkerStatus};

use super::Harness;

pub(crate) async fn a_queue_is_created_once_and_found(h: &Harness) {
    let admin = h.admin();
    let created = admin.create_queue("b").await.unwrap();
    assert!(matches!(admin.create_queue("b").await.unwrap_err(), Error::QueueAlreadyExists { name } if name == "b"));
    assert_eq!(admin.get_or_create_queue("b").await.unwrap(), created);
    admin.get_or_create_queue("a").await.unwrap();
    let names: Vec<_> = admin.list_queues().await.unwrap().into_iter().map(|queue| queue.queue_name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(h.store.queues().get_by_id(created.id).await.unwrap(), created);
    assert!(h.store.queues().exists("a").await.unwrap());
    assert!(!h.store.queues().exists("c").await.unwrap());
    assert_eq!(created.settings.max_attempts, Some(5), "the configuration's max_read_ct");
    assert_eq!(created.settings.lease, Duration::from_secs(30));
    let settings = Settings { max_attempts: Some(2), ..created.settings };
    assert_eq!(admin.update_queue("b", settings).await.unwrap().settings.max_attempts, Some(2));
}

pub(crate) async fn a_missing_queue_is_an_error_by_name_and_by_number(h: &Harness) {
    let admin = h.admin();
    let missing = |error: Error| matches!(error, Error::QueueNotFound { name } if name == "nope");
    assert!(missing(admin.get_queue("nope").await.unwrap_err()));
    assert!(missing(admin.get_queue_metrics("nope").await.unwrap_err()));
    assert!(missing(admin.purge_queue("nope").await.unwrap_err()));
    assert!(missing(admin.pause_queue("nope").await.unwrap_err()));
    assert!(missing(Consumer::on(&h.store, "nope", "host", 1).await.unwrap_err()));
    let error = h.store.queues().get_by_id(4711).await.unwrap_err();
    assert!(matches!(error, Error::QueueNotFound { name } if name == "4711"));
    assert!(h.store.queues().get_metrics(4711).await.is_err());
}

pub(crate) async fn bad_names_are_refused(h: &Harness) {
    for name in ["", "\0", &"x".repeat(10_000)] {
        let error = h.admin().create_queue(name).await.unwrap_err();
        assert!(matches!(error, Error::ValidationFailed { .. }), "{error:?}");
    }
    assert!(h.admin().list_queues().await.unwrap().is_empty());
    h.admin().create_queue("jobs").await.unwrap();
    assert!(matches!(Consumer::on(&h.store, "jobs", " ", 1).await.unwrap_err(), Error::ValidationFailed { .. }));
}

pub(crate) async fn a_queue_in_use_is_not_deleted_and_a_missing_one_answers_zero(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.enqueue("x").await.unwrap();
    let error = h.admin().delete_queue("jobs").await.unwrap_err();
    assert!(matches!(&error, Error::QueueInUse { name, .. } if name == "jobs"), "{error:?}");
    assert!(error.to_string().contains("1 message and 2 live workers"), "{error}");
    assert_eq!(h.admin().purge_queue("jobs").await.unwrap(), 1);
    producer.shutdown().await.unwrap();
    drop(consumer);
    // Nobody has heard of the consumer for three heartbeats: its row does not block.
    h.silence();
    assert_eq!(h.admin().delete_queue("jobs").await.unwrap(), 1);
    assert_eq!(h.admin().delete_queue("jobs").await.unwrap(), 0);
}

pub(crate) async fn a_purge_removes_what_lives_and_keeps_the_archive(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&[1, 2, 3]).await.unwrap();
    producer.enqueue_delayed(&4, 60).await.unwrap();
    let taken = consumer.dequeue_with_options(2, 30).await.unwrap();
    consumer.archive(&taken[0]).await.unwrap().unwrap();
    assert_eq!(h.admin().purge_queue("jobs").await.unwrap(), 3);
    assert!(!consumer.release(&taken[1]).await.unwrap());
    let metrics = h.admin().get_queue_metrics("jobs").await.unwrap();
    assert_eq!((metrics.total_messages, metrics.archived_messages), (0, 1));
    assert_eq!(h.store.workers().list(None).await.unwrap().len(), 2);
}

pub(crate) async fn metrics_tell_states_apart(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&[1, 2, 3, 4]).await.unwrap();
    h.advance(Duration::from_secs(1));
    let newest = producer.enqueue(&5).await.unwrap();
    producer.enqueue_delayed(&6, 60).await.unwrap();
    let taken = consumer.dequeue_with_options(3, 30).await.unwrap();
    consumer.archive(&taken[0]).await.unwrap();
    consumer.bury(&taken[1], "no").await.unwrap();
    let metrics = h.admin().get_queue_metrics("jobs").await.unwrap();
    assert_eq!(
        (metrics.pending_messages, metrics.delayed_messages, metrics.locked_messages, metrics.total_messages),
        (2, 1, 1, 4)
    );
    assert_eq!((metrics.archived_messages, metrics.dead_messages), (2, 1));
    assert_eq!(metrics.oldest_pending_message.unwrap().timestamp_micros(), super::START);
    assert_eq!(metrics.newest_message, Some(newest.enqueued_at));
    let stats = h.admin().get_system_stats().await.unwrap();
    assert_eq!((stats.total_queues, stats.total_workers, stats.active_workers), (1, 2, 2));
    assert_eq!((stats.pending_messages, stats.locked_messages, stats.total_messages), (2, 1, 4));
    assert_eq!((stats.archived_messages, stats.dead_messages), (2, 1));
    assert_eq!(stats.schema_version, "11");
}

pub(crate) async fn a_message_without_attempts_left_is_dead_and_can_be_replayed_once(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let other = h.admin().create_queue("other").await.unwrap();
    let sent = producer.enqueue("x").await.unwrap();
    for attempt in 1..=5 {
        assert_eq!(consumer.dequeue().await.unwrap()[0].read_ct, attempt);
        h.advance(Duration::from_secs(30));
    }
    assert!(consumer.dequeue().await.unwrap().is_empty());
    let dead = h.admin().list_dead("jobs", 10).await.unwrap().remove(0);
    assert_eq!((dead.id, dead.disposition, dead.read_ct), (sent.id, Disposition::Dead, 5));
    assert_eq!(dead.producer_worker_id, Some(producer.worker_id()));
    assert_eq!(dead.consumer_worker_id, Some(consumer.worker_id()));
    assert_eq!(h.admin().count_dead("jobs").await.unwrap(), 1);
    assert_eq!(h.store.archive().count_dlq(5).await.unwrap(), 1);
    assert_eq!(h.store.archive().count_dlq(6).await.unwrap(), 0);
    // Only its own queue's producer can replay it.
    let stranger = tenure::Producer::on(&h.store, &other.queue_name, "host", 1).await.unwrap();
    assert_eq!(stranger.replay_from_dlq(sent.id).await.unwrap(), None);
    let replayed = producer.replay_from_dlq(sent.id).await.unwrap().unwrap();
    assert_eq!((replayed.id, replayed.read_ct, replayed.payload), (sent.id, 0, sent.payload));
    assert_eq!(replayed.producer_worker_id, Some(producer.worker_id()));
    assert_eq!(replayed.enqueued_at, sent.enqueued_at);
    assert_eq!(h.admin().replay_from_dlq(sent.id).await.unwrap(), None);
    assert_eq!(consumer.dequeue().await.unwrap()[0].read_ct, 1);
}

pub(crate) async fn dead_messages_are_replayed_by_kind(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    for kind in ["a", "b", "a"] {
        let options = tenure::EnqueueOptions { kind: Some(kind.into()), ..Default::default() };
        producer.enqueue_with_options("x", &options).await.unwrap();
    }
    for message in consumer.dequeue().await.unwrap() {
        consumer.bury(&message, "broken").await.unwrap();
    }
    assert_eq!(h.admin().replay_dead("jobs", Some("a"), 100).await.unwrap(), 2);
    assert_eq!(h.admin().replay_dead("jobs", None, 100).await.unwrap(), 1);
    assert_eq!(h.admin().replay_dead("jobs", None, 100).await.unwrap(), 0);
    assert_eq!(consumer.dequeue().await.unwrap().len(), 3);
}

pub(crate) async fn dlq_batch_leaves_a_message_whose_last_lease_still_runs(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.batch_enqueue(&[1, 2]).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    consumer.release(&taken[0]).await.unwrap();
    assert_eq!(h.admin().dlq_batch(1).await.unwrap(), [sent[0].id]);
    assert!(h.admin().dlq_batch(1).await.unwrap().is_empty());
    assert_eq!(consumer.archive(&taken[1]).await.unwrap().unwrap().disposition, Disposition::Completed);
    assert!(h.admin().dlq_batch_of("jobs", 1).await.unwrap().is_empty());
    assert!(matches!(h.admin().dlq_batch(0).await.unwrap_err(), Error::ValidationFailed { .. }));
    assert!(matches!(h.admin().dlq_batch(-1).await.unwrap_err(), Error::ValidationFailed { .. }));
    // A completed message is never replayed.
    assert_eq!(h.admin().replay_from_dlq(sent[1].id).await.unwrap(), None);
    assert!(h.admin().replay_from_dlq(sent[0].id).await.unwrap().is_some());
}

pub(crate) async fn a_dead_workers_messages_are_released_and_it_is_purged(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    producer.batch_enqueue(&[1, 2]).await.unwrap();
    consumer.dequeue_with_options(2, 3600).await.unwrap();
    let crashed = consumer.worker_id();
    drop(consumer);
    h.advance(Duration::from_secs(60));
    producer_lives(h, &producer).await;
    assert_eq!(h.admin().worker_health_stats(30).await.unwrap().stale_workers, 1);
    assert_eq!(h.admin().release_zombie_messages(30).await.unwrap(), 2);
    let second = h.consumer(2).await;
    assert_eq!(second.dequeue().await.unwrap().len(), 2);
    let purged = h.admin().purge_stale_workers(30).await.unwrap();
    assert_eq!((purged.workers_purged, purged.messages_released, purged.worker_ids), (1, 0, vec![crashed]));
    assert_eq!(h.store.workers().get_status(crashed).await.unwrap(), WorkerStatus::Stopped);
    assert!(matches!(h.store.workers().heartbeat(crashed).await.unwrap_err(), Error::WorkerStopped { .. }));
    h.advance(Duration::from_secs(60));
    producer_lives(h, &producer).await;
    second.heartbeat().await.unwrap();
    assert_eq!(h.admin().purge_stale_workers(30).await.unwrap().workers_purged, 1);
    assert!(matches!(h.store.workers().get(crashed).await.unwrap_err(), Error::WorkerNotFound { .. }));
    assert!(h.admin().release_zombie_messages(0).await.is_err());
    assert!(h.admin().purge_stale_workers(chrono::TimeDelta::seconds(-1)).await.is_err());
}

async fn producer_lives(h: &Harness, producer: &tenure::Producer) {
    h.store.workers().heartbeat(producer.worker_id()).await.unwrap();
}

pub(crate) async fn worker_states_change_only_along_allowed_ways(h: &Harness) {
    let workers = h.store.workers();
    let worker = workers.register(None, "host.example", 8080).await.unwrap();
    assert_eq!((worker.hostname.as_str(), worker.port, worker.status), ("host.example", 8080, WorkerStatus::Ready));
    let error = workers.resume(worker.id).await.unwrap_err();
    assert!(matches!(&error, Error::InvalidStateTransition { from, to, .. } if from == "ready" && to == "ready"));
    workers.suspend(worker.id).await.unwrap();
    assert!(workers.suspend(worker.id).await.is_err());
    workers.resume(worker.id).await.unwrap();
    assert!(workers.is_healthy(worker.id, 10).await.unwrap());
    assert!(!workers.is_healthy(worker.id, 0).await.unwrap());
    h.advance(Duration::from_secs(10));
    assert!(!workers.is_healthy(worker.id, 10).await.unwrap());
    workers.shutdown(worker.id).await.unwrap();
    assert!(workers.shutdown(worker.id).await.is_err());
    let stats = workers.health_stats(10).await.unwrap();
    assert_eq!((stats.total_workers, stats.stopped_workers, stats.stale_workers), (1, 1, 0));
    assert!(matches!(workers.heartbeat(4711).await.unwrap_err(), Error::WorkerNotFound { id: 4711 }));
    assert!(matches!(workers.suspend(4711).await.unwrap_err(), Error::WorkerNotFound { id: 4711 }));
}

pub(crate) async fn the_archive_lists_newest_first_and_refuses_negative_numbers(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.batch_enqueue(&[1, 2, 3]).await.unwrap();
    for message in consumer.dequeue().await.unwrap() {
        h.advance(Duration::from_secs(1));
        consumer.archive(&message).await.unwrap().unwrap();
    }
    let archive = h.store.archive();
    let ids = |page: Vec<tenure::ArchivedMessage>| page.into_iter().map(|message| message.id).collect::<Vec<_>>();
    assert_eq!(ids(archive.list(10, 0).await.unwrap()), [sent[2].id, sent[1].id, sent[0].id]);
    assert_eq!(ids(archive.list(1, 1).await.unwrap()), [sent[1].id]);
    assert_eq!(ids(archive.list_by_worker(consumer.worker_id(), 10, 0).await.unwrap()).len(), 3);
    assert!(archive.list_by_worker(4711, 10, 0).await.unwrap().is_empty());
    assert_eq!((archive.count().await.unwrap(), archive.count_dlq(0).await.unwrap()), (3, 0));
    assert!(archive.list_dlq(0, 10, 0).await.unwrap().is_empty());
    let kept = archive.get(sent[0].id).await.unwrap();
    assert_eq!(kept.get_processing_duration(), Some(Duration::from_secs(1)));
    assert!(matches!(archive.get(4711).await.unwrap_err(), Error::MessageNotFound { id: 4711 }));
    for (limit, offset) in [(-1, 0), (1, -1)] {
        assert!(matches!(archive.list(limit, offset).await.unwrap_err(), Error::ValidationFailed { .. }));
    }
}

pub(crate) async fn retention_forgets_what_is_old(h: &Harness) {
    let settings = Settings { retain_completed: Some(Duration::from_secs(60)), ..Settings::default() };
    h.admin().create_queue_with("jobs", settings).await.unwrap();
    let (producer, consumer) = (h.producer().await, h.consumer(1).await);
    producer.enqueue("x").await.unwrap();
    assert!(consumer.complete(&consumer.dequeue().await.unwrap()[0]).await.unwrap());
    h.admin().maintain_queue("jobs").await.unwrap();
    assert_eq!(h.store.archive().count().await.unwrap(), 1);
    h.advance(Duration::from_secs(61));
    h.store.maintain().await.unwrap();
    assert_eq!(h.store.archive().count().await.unwrap(), 0);
    assert_eq!(h.admin().prune_archive("jobs", 0).await.unwrap(), 0);
}

pub(crate) async fn tables_have_their_names_and_the_store_its_own(h: &Harness) {
    let names = [
        h.store.queues().table_name(),
        h.store.messages().table_name(),
        h.store.workers().table_name(),
        h.store.archive().table_name(),
    ];
    assert_eq!(names, ["queue", "message", "worker", "archive"]);
    assert!(["postgres", "sqlite", "turso"].contains(&h.admin().backend_name()));
    assert_eq!(h.admin().concurrency_model(), h.store.concurrency_model());
    assert!(!format!("{:?}", h.store).contains(h.dsn()), "a DSN may hold a password");
    h.admin().verify().await.unwrap();
}

pub(crate) async fn an_admin_writes_nothing_by_itself(h: &Harness) {
    let mut admin = h.admin();
    admin.get_system_stats().await.unwrap();
    admin.verify().await.unwrap();
    assert!(h.store.workers().list(None).await.unwrap().is_empty());
    assert!(matches!(admin.heartbeat().await.unwrap_err(), Error::WorkerNotFound { .. }));
    admin.register("host", 1).await.unwrap();
    admin.heartbeat().await.unwrap();
    admin.shutdown().await.unwrap();
    assert!(matches!(admin.heartbeat().await.unwrap_err(), Error::WorkerStopped { .. }));
    // Before install, everything says what to do.
    if h.store.backend_name() == "sqlite" {
        let empty = Store::connect_with_config(&Config::from_dsn(":memory:")).await.unwrap();
        let error = empty.queues().create("jobs").await.unwrap_err();
        assert!(matches!(&error, Error::Migration(text) if text.contains("install")), "{error:?}");
        assert!(empty.verify().await.is_err());
    }
}

pub(crate) async fn a_queue_is_found_or_created_with_settings(h: &Harness) {
    let settings = Settings { max_attempts: Some(9), partitions: 2, ..Settings::default() };
    let created = h.admin().get_or_create_queue_with("jobs", settings).await.unwrap();
    assert_eq!((created.settings.max_attempts, created.settings.partitions), (Some(9), 2));
    let found = h.admin().get_or_create_queue_with("jobs", Settings::default()).await.unwrap();
    assert_eq!(found, created);
    let by_default = h.admin().get_or_create_queue("others").await.unwrap();
    assert_eq!(by_default.settings.max_attempts, Settings::default().max_attempts);
}

pub(crate) async fn one_setting_is_changed_and_the_others_stay(h: &Harness) {
    let settings = Settings { lease: Duration::from_secs(7), reference: "mine".into(), ..Settings::default() };
    let before = h.admin().create_queue_with("jobs", settings.clone()).await.unwrap();
    let changes = (1..=8).map(|n| {
        let admin = h.admin();
        async move {
            admin.change_queue("jobs", |settings| settings.max_attempts = settings.max_attempts.map(|m| m + n)).await
        }
    });
    for changed in futures_util::future::join_all(changes).await {
        changed.unwrap();
    }
    let after = h.admin().get_queue("jobs").await.unwrap();
    let expected = Settings { max_attempts: before.settings.max_attempts.map(|m| m + 36), ..settings };
    assert_eq!(after.settings, expected);
    let missing = h.admin().change_queue("nope", |_| ()).await.unwrap_err();
    assert!(matches!(missing, Error::QueueNotFound { name } if name == "nope"));
}

pub(crate) async fn a_change_of_a_fixed_setting_is_refused_and_changes_nothing(h: &Harness) {
    type Change = fn(&mut Settings);
    let settings = Settings { partitions: 4, ..Settings::default() };
    let before = h.admin().create_queue_with("jobs", settings).await.unwrap();
    let changes: [(&str, Change); 3] = [
        ("the number of partitions of queue 'jobs' is fixed at creation and stays 4, not 8", |s| s.partitions = 8),
        ("the namespace of queue 'jobs' is fixed at creation and stays '_system', not 'mine'", |s| {
            s.namespace = "mine".into();
        }),
        ("the placement of queue 'jobs' is fixed at creation and stays '', not 'other=4'", |s| {
            s.placement = "other=4".into();
        }),
    ];
    for (text, change) in changes {
        let both = |settings: &mut Settings| {
            settings.max_attempts = Some(99);
            change(settings);
        };
        let error = h.admin().change_queue("jobs", both).await.unwrap_err();
        assert!(matches!(error, Error::ValidationFailed { .. }), "{error:?}");
        assert!(error.to_string().contains(text) && error.to_string().contains("create another queue"), "{error}");
    }
    assert_eq!(h.admin().get_queue("jobs").await.unwrap(), before);
    // Replacing all settings leaves the fixed ones alone.
    let replaced = h.admin().update_queue("jobs", Settings::default()).await.unwrap();
    assert_eq!(replaced.settings, Settings { partitions: 4, ..Settings::default() });
}

pub(crate) async fn verify_before_install_names_the_missing_table(h: &Harness) {
    let empty = match h.dsn().rsplit_once(".db") {
        Some((path, _)) => format!("{path}-empty.db"),
        None => h.dsn().replace("schema=", "schema=empty_"),
    };
    assert_ne!(empty, h.dsn());
    let store = tenure::Store::connect(&empty).await.unwrap();
    let error = store.verify().await.unwrap_err();
    assert!(matches!(&error, Error::TableNotFound(text) if text.contains("table queue is missing")), "{error:?}");
    store.install().await.unwrap();
    store.verify().await.unwrap();
}

pub(crate) async fn an_archived_message_of_a_queue_without_retention_survives_housekeeping(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.batch_enqueue(&[1, 2]).await.unwrap();
    let taken = consumer.dequeue().await.unwrap();
    consumer.archive(&taken[0]).await.unwrap().expect("the lease is ours");
    assert_eq!(consumer.archive_batch(&taken[1..]).await.unwrap(), [sent[1].id]);
    h.advance(Duration::from_secs(10 * 365 * 86_400));
    h.store.maintain().await.unwrap();
    h.admin().maintain_queue("jobs").await.unwrap();
    assert_eq!(h.store.archive().count().await.unwrap(), 2);
    assert_eq!(h.admin().prune_archive("jobs", 60).await.unwrap(), 2);
}

pub(crate) async fn a_purge_removes_dedupe_keys(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let once = |key: &str| tenure::EnqueueOptions { dedupe_key: Some(key.into()), ..Default::default() };
    let first = producer.enqueue_with_options("x", &once("a")).await.unwrap();
    let taken = consumer.dequeue().await.unwrap().remove(0);
    assert!(consumer.complete(&taken).await.unwrap());
    producer.enqueue_with_options("y", &once("b")).await.unwrap();
    assert_eq!(producer.enqueue_with_options("x", &once("a")).await.unwrap().id, first.id);
    assert_eq!(h.admin().purge_queue("jobs").await.unwrap(), 1);
    for key in ["a", "b"] {
        producer.enqueue_with_options("z", &once(key)).await.unwrap();
    }
    assert_eq!(consumer.dequeue().await.unwrap().len(), 2);
}

pub(crate) async fn dead_messages_are_listed_page_by_page(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let sent = producer.batch_enqueue(&(0..7).collect::<Vec<_>>()).await.unwrap();
    for (n, message) in consumer.dequeue().await.unwrap().iter().enumerate() {
        // Some of them at the same time.
        if n % 3 == 0 {
            h.advance(Duration::from_secs(1));
        }
        consumer.bury(message, "broken").await.unwrap();
    }
    let newest: Vec<i64> = sent.iter().rev().map(|message| message.id).collect();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = h.admin().list_dead_after("jobs", after, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.cursor());
        listed.extend(page.iter().map(|message| message.id));
        // What is replayed between two pages moves nothing.
        if listed.len() == 4 {
            h.admin().replay_from_dlq(listed[3]).await.unwrap().unwrap();
        }
    }
    assert_eq!(listed, newest);
    assert_eq!(h.admin().list_dead("jobs", usize::MAX).await.unwrap().len(), 6);
    assert_eq!(h.admin().list_dead_after("jobs", after, usize::MAX).await.unwrap(), []);
    assert!(matches!(h.admin().list_dead_after("mail", None, 1).await, Err(Error::QueueNotFound { .. })));
    assert_eq!(h.admin().replay_dead("jobs", None, usize::MAX).await.unwrap(), 6);
    assert_eq!(consumer.dequeue_with_options(usize::MAX, 30).await.unwrap().len(), 7);
}

pub(crate) async fn an_unknown_dead_queue_is_named(h: &Harness) {
    let settings = Settings { dead_queue: Some("morgue".into()), ..Settings::default() };
    let missing = |result: tenure::Result<tenure::QueueInfo>, expected: &str| {
        assert!(matches!(&result, Err(Error::QueueNotFound { name }) if name == expected), "{result:?}");
    };
    missing(h.admin().create_queue_with("jobs", settings.clone()).await, "morgue");
    missing(h.store.queues().create_with("jobs", settings.clone()).await, "morgue");
    assert!(!h.store.queues().exists("jobs").await.unwrap());
    missing(h.admin().update_queue("jobs", settings.clone()).await, "jobs");
    h.admin().create_queue("jobs").await.unwrap();
    missing(h.admin().update_queue("jobs", settings.clone()).await, "morgue");
    let name_it = |settings: &mut Settings| settings.dead_queue = Some("morgue".into());
    missing(h.admin().change_queue("jobs", name_it).await, "morgue");
    missing(h.admin().change_queue("other", name_it).await, "other");
    missing(h.admin().get_or_create_queue_with("other", settings.clone()).await, "morgue");
    h.admin().create_queue("morgue").await.unwrap();
    h.admin().update_queue("jobs", settings).await.unwrap();
}

pub(crate) async fn producers_and_consumers_of_one_place_leave_one_worker_each(h: &Harness) {
    let (first, _) = h.queue().await;
    for n in 0..20 {
        let (producer, consumer) = (h.producer().await, h.consumer(1).await);
        if n % 2 == 0 {
            producer.shutdown().await.unwrap();
            consumer.shutdown().await.unwrap();
        }
    }
    assert_eq!(h.store.workers().list(None).await.unwrap().len(), 2);
    let error = h.store.workers().heartbeat(first.worker_id()).await.unwrap_err();
    assert!(matches!(error, Error::WorkerStopped { .. }), "{error:?}");
    // In other places each time: they are removed when they have been silent for a day.
    for port in 2..10 {
        h.consumer(port).await;
    }
    assert_eq!(h.store.workers().list(None).await.unwrap().len(), 10);
    h.advance(Duration::from_secs(86_400));
    h.store.maintain().await.unwrap();
    assert!(h.store.workers().list(None).await.unwrap().is_empty());
}

pub(crate) async fn a_running_consumer_does_the_housekeeping_of_the_whole_store(h: &Harness) {
    let (producer, consumer) = h.queue().await;
    let day = Duration::from_secs(86_400);
    let settings = Settings { retain_completed: Some(day), ..Settings::default() };
    h.admin().create_queue_with("other", settings).await.unwrap();
    let other = tenure::Producer::on(&h.store, "other", "elsewhere", 1).await.unwrap();
    let archivist = tenure::Consumer::on(&h.store, "other", "elsewhere", 1).await.unwrap();
    other.enqueue("x").await.unwrap();
    assert!(archivist.complete(&archivist.dequeue().await.unwrap()[0]).await.unwrap());
    for n in 0..1_100 {
        let options = tenure::EnqueueOptions { dedupe_key: Some(n.to_string()), ..Default::default() };
        producer.enqueue_with_options(&n, &options).await.unwrap();
    }
    assert_eq!(h.admin().purge_queue("other").await.unwrap(), 0);
    let taken = consumer.dequeue_with_options(1_100, 30).await.unwrap();
    assert_eq!(consumer.archive_batch(&taken).await.unwrap().len(), 1_100);
    h.advance(day);
    consumer.heartbeat().await.unwrap();
    // The workers are the last step of a round.
    let done = async {
        while h.store.workers().list(None).await.unwrap().len() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let run = consumer.run(|_: tenure::Delivery| async { Ok::<_, Error>(()) }).until(done);
    tokio::time::timeout(Duration::from_secs(30), run.into_future()).await.expect("a round is done").unwrap();
    assert_eq!(h.kernel.maintain().await.unwrap(), tenure_store::Maintenance::default(), "nothing is left");
    assert_eq!(h.store.archive().count().await.unwrap(), 1_100);
}

pub(crate) async fn a_queue_that_is_there_keeps_its_settings_whatever_is_asked_for(h: &Harness) {
    let created = h.admin().create_queue("jobs").await.unwrap();
    let settings = Settings { dead_queue: Some("morgue".into()), max_attempts: Some(99), ..Settings::default() };
    assert_eq!(h.admin().get_or_create_queue_with("jobs", settings).await.unwrap(), created);
}
