use super::*;
use crate::{Kind, State};

pub async fn a_queue_comes_back_as_it_was_created(h: &Harness) {
    h.store.queue_create("graves", Settings::default()).await.unwrap();
    let settings = Settings {
        namespace: "billing".into(),
        partitions: 3,
        lease: Duration::from_millis(1500),
        expire: Some(Duration::from_secs(86_400)),
        max_attempts: Some(7),
        dead_queue: Some("graves".into()),
        retain_completed: Some(Duration::from_secs(60)),
        retain_dead: Some(Duration::from_secs(3600)),
        tail_on_expiry: true,
        dedupe_window: Duration::from_secs(5),
        reference: "owner: finance".into(),
        placement: String::new(),
    };
    let created = h.queue_with(settings.clone()).await;
    assert_eq!(created.settings, settings);
    assert_eq!((created.created_at, created.lanes.len()), (START, 3));
    assert_eq!(h.store.queue_get("jobs").await.unwrap(), created);
}

pub async fn a_name_that_is_taken_is_refused_and_nothing_changes(h: &Harness) {
    let queue = h.queue().await;
    let again = Settings { max_attempts: Some(1), ..Settings::default() };
    let error = h.store.queue_create("jobs", again).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("'jobs' already exists"), "{error}");
    assert_eq!(h.store.queue_get("jobs").await.unwrap(), queue);
}

pub async fn unicode_and_hostile_names_work(h: &Harness) {
    let names = ["naïve-队列-🐦", "it's \"quoted\"", "100%; drop table x; --", "two\nlines\tand\\slashes", "a"];
    for name in names {
        let queue = h.store.queue_create(name, Settings::default()).await.unwrap();
        h.put(&queue, name).await;
        let found = h.store.queue_get(name).await.unwrap();
        assert_eq!(payloads(&h.take(&found, 9).await), [name]);
    }
    assert_eq!(h.store.queue_list("", None, 100).await.unwrap().len(), names.len());
}

pub async fn bad_names_and_settings_are_refused_with_advice(h: &Harness) {
    let settings = Settings::default;
    let long = "x".repeat(513);
    for (name, settings, part) in [
        ("", settings(), "name is empty"),
        (long.as_str(), settings(), "513 bytes: at most 512"),
        ("nul\0", settings(), "NUL"),
        ("q", Settings { partitions: 0, ..settings() }, "partitions must be 1"),
        ("q", Settings { lease: Duration::ZERO, ..settings() }, "lease must be longer than zero"),
        ("q", Settings { lease: Duration::MAX, ..settings() }, "at most 100 years"),
        ("q", Settings { retain_dead: Some(Duration::MAX), ..settings() }, "of dead messages must be at most 100 years"),
        ("q", Settings { retain_dead: Some(Duration::ZERO), ..settings() }, "of dead messages must be longer than zero"),
        ("q", Settings { dedupe_window: Duration::MAX, ..settings() }, "dedupe window must be at most 100 years"),
        ("q", Settings { max_attempts: Some(0), ..settings() }, "max_attempts is 0"),
        ("q", Settings { dead_queue: Some("q".into()), ..settings() }, "its own dead queue"),
    ] {
        let error = h.store.queue_create(name, settings).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(h.store.queue_list("", None, 10).await.unwrap().is_empty());
}

pub async fn the_longest_retentions_and_dedupe_windows_work(h: &Harness) {
    let longest = Duration::from_secs(36_500 * 86_400);
    let kept = Settings { retain_dead: Some(longest), retain_completed: Some(longest), ..Settings::default() };
    // With a window of zero a dedupe key is remembered for as long as its message lives.
    for (name, window) in [("long", longest), ("none", Duration::ZERO)] {
        let settings = Settings { dedupe_window: window, ..kept.clone() };
        let queue = h.store.queue_create(name, settings.clone()).await.unwrap();
        for duplicate in [false, true] {
            let message = NewMessage { dedupe: Some("d".into()), ..NewMessage::new("x") };
            assert_eq!(h.put_message(&queue, message).await.duplicate, duplicate, "{name}");
        }
        assert_eq!(h.complete(h.take_one(&queue).await.fence()).await, Answer::Done);
        h.store.maintain().await.unwrap();
        assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (0, 1));
        let update = h.store.queue_update(name, Settings { dedupe_window: Duration::MAX, ..settings });
        assert_eq!(update.await.unwrap_err().kind(), Kind::InvalidInput);
    }
}

pub async fn lists_are_sorted_start_at_the_pivot_and_keep_to_the_namespace(h: &Harness) {
    for (name, namespace) in [("b", "one"), ("a", "two"), ("C", "one"), ("d", "two")] {
        let settings = Settings { namespace: namespace.into(), ..Settings::default() };
        h.store.queue_create(name, settings).await.unwrap();
    }
    let names = |queues: Vec<Queue>| queues.into_iter().map(|queue| queue.name).collect::<Vec<_>>();
    assert_eq!(names(h.store.queue_list("", None, 10).await.unwrap()), ["C", "a", "b", "d"]);
    assert_eq!(names(h.store.queue_list("aa", None, 10).await.unwrap()), ["b", "d"]);
    assert_eq!(names(h.store.queue_list("b", Some("one"), 10).await.unwrap()), ["b"]);
    assert_eq!(names(h.store.queue_list("", Some("two"), 1).await.unwrap()), ["a"]);
    assert!(h.store.queue_list("z", None, 10).await.unwrap().is_empty());
}

pub async fn an_update_replaces_settings_and_keeps_partitions(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 2, ..Settings::default() }).await;
    h.advance(10);
    let change = Settings { partitions: 9, lease: Duration::from_secs(1), max_attempts: Some(2), ..Settings::default() };
    let updated = h.store.queue_update("jobs", change).await.unwrap();
    assert_eq!((updated.settings.partitions, &updated.lanes), (2, &queue.lanes));
    assert_eq!((updated.settings.lease, updated.settings.max_attempts), (Duration::from_secs(1), Some(2)));
    assert_eq!((updated.created_at, updated.updated_at), (START, START + 10_000));
    // It holds for what is leased from now on.
    h.put(&queue, "x").await;
    assert_eq!(h.take_one(&queue).await.leased_until, START + 10_000 + 1_000_000);
}

pub async fn a_deleted_queue_takes_everything_with_it(h: &Harness) {
    let keep = Settings { retain_completed: Some(Duration::from_secs(60)), ..Settings::default() };
    let queue = h.queue_with(keep.clone()).await;
    let later = NewMessage { due: Some(crate::Due::In(Duration::from_secs(9))), ..NewMessage::new("later") };
    let deduped = NewMessage { dedupe: Some("d".into()), ..NewMessage::new("deduped") };
    let keyed = NewMessage { key: Some("k".into()), ..NewMessage::new("keyed") };
    h.store.enqueue(&queue, None, vec![NewMessage::new("done"), NewMessage::new("held"), later, deduped, keyed]).await.unwrap();
    h.complete(h.take_one(&queue).await.fence()).await;
    h.take_one(&queue).await;
    h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(h.store.queue_delete("jobs").await.unwrap(), 4);
    assert_eq!(h.store.queue_get("jobs").await.unwrap_err().kind(), Kind::NotFound);
    h.store.verify().await.unwrap();
    // A new queue of that name starts empty.
    let queue = h.queue_with(keep).await;
    assert!(h.take(&queue, 10).await.is_empty());
    assert!(h.store.message_list(queue.lanes[0], State::Scheduled, 0, 10).await.unwrap().is_empty());
    assert_eq!(h.store.archive_count(queue.id).await.unwrap(), (0, 0));
    let again = NewMessage { dedupe: Some("d".into()), ..NewMessage::new("deduped") };
    assert!(!h.put_message(&queue, again).await.duplicate);
}

pub async fn queues_are_created_and_deleted_side_by_side(h: &Harness) {
    // Each with a dead queue of its own: deletes that touched other queues' rows used to end in deadlocks.
    let queues = (0..12).map(|n| {
        let store = h.store.clone();
        tokio::spawn(async move {
            let (name, dead) = (format!("jobs-{n}"), format!("dead-{n}"));
            for _ in 0..5 {
                store.queue_create(&dead, Settings::default()).await.unwrap();
                let settings = Settings { partitions: 8, dead_queue: Some(dead.clone()), ..Settings::default() };
                store.queue_create(&name, settings).await.unwrap();
                store.queue_delete(&dead).await.unwrap();
                store.queue_delete(&name).await.unwrap();
            }
        })
    });
    for queue in queues.collect::<Vec<_>>() {
        queue.await.unwrap();
    }
    assert!(h.store.queue_list("", None, 100).await.unwrap().is_empty());
    h.store.verify().await.unwrap();
}

pub async fn requested_and_existing_partitions_are_two_values(h: &Harness) {
    let queue = h.queue_with(Settings { partitions: 4, ..Settings::default() }).await;
    for requested in [2, 9] {
        assert!(h.store.queue_request_partitions("jobs", requested).await.unwrap());
        let found = h.store.queue_get("jobs").await.unwrap();
        assert_eq!((found.settings.partitions, &found.lanes), (requested, &queue.lanes));
        assert_eq!(h.store.queue_list("", None, 9).await.unwrap(), [found]);
        h.store.verify().await.unwrap();
    }
    // Of a queue that is spread over several stores, only some of the partitions are here.
    let spread = Settings { partitions: 5, placement: "a=2,b=3".into(), ..Settings::default() };
    let spread = h.store.queue_create_part("spread", spread, 2).await.unwrap();
    assert_eq!((spread.settings.partitions, spread.lanes.len()), (5, 2));
    h.store.verify().await.unwrap();
    assert!(!h.store.queue_request_partitions("nope", 3).await.unwrap());
    for wrong in [0, 10_001] {
        let error = h.store.queue_request_partitions("jobs", wrong).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.to_string().contains(&format!("partitions must be 1 to 10000, not {wrong}")), "{error}");
    }
    let settings = h.store.queue_get("jobs").await.unwrap().settings;
    assert_eq!(h.store.queue_update("jobs", settings).await.unwrap().lanes, queue.lanes);
}

pub async fn a_missing_queue_is_named_in_the_error(h: &Harness) {
    let errors = [
        h.store.queue_get("nope").await.unwrap_err(),
        h.store.queue_update("nope", Settings::default()).await.unwrap_err(),
        h.store.queue_delete("nope").await.unwrap_err(),
        h.store.queue_pause("nope").await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("no queue named 'nope': create it first"), "{error}");
    }
}

pub async fn a_paused_queue_hands_out_nothing_and_resumes(h: &Harness) {
    let queue = h.queue().await;
    h.put(&queue, "1").await;
    let held = h.take_one(&queue).await;
    h.store.queue_pause("jobs").await.unwrap();
    h.store.queue_pause("jobs").await.unwrap();
    assert_eq!(h.store.queue_get("jobs").await.unwrap().paused_at, Some(START));
    h.put(&queue, "2").await;
    let keyed = NewMessage { key: Some("k".into()), ..NewMessage::new("3") };
    h.put_message(&queue, keyed).await;
    assert!(h.take(&queue, 9).await.is_empty());
    assert!(h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().is_none());
    // Holders can still finish what they hold.
    assert_eq!(h.complete(held.fence()).await, Answer::Done);
    h.store.queue_resume("jobs").await.unwrap();
    assert_eq!(payloads(&h.take(&queue, 9).await), ["2"]);
    assert!(h.store.claim_key(&queue.lanes, None, None, Duration::ZERO).await.unwrap().is_some());
}

pub async fn a_dead_queue_must_exist_and_not_have_its_own(h: &Harness) {
    let with_dead = |dead: &str| Settings { dead_queue: Some(dead.into()), ..Settings::default() };
    let error = h.store.queue_create("jobs", with_dead("graves")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("'graves' of 'jobs' does not exist"), "{error}");
    h.store.queue_create("graves", Settings::default()).await.unwrap();
    h.store.queue_create("jobs", with_dead("graves")).await.unwrap();
    let error = h.store.queue_create("more", with_dead("jobs")).await.unwrap_err();
    assert!(error.to_string().contains("dead letters would wander"), "{error}");
    // A dead queue may be deleted; dead letters then go to the archive.
    h.store.queue_delete("graves").await.unwrap();
    assert_eq!(h.store.queue_get("jobs").await.unwrap().settings.dead_queue, None);
}

pub async fn a_queue_in_use_is_not_deleted_as_unused(h: &Harness) {
    let queue = h.queue().await;
    let minute = Duration::from_secs(60);
    let delete = || h.store.queue_delete_unused("jobs", minute);
    h.put(&queue, "x").await;
    let error = delete().await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidState);
    assert!(error.to_string().contains("'jobs' still has 1 message and 0 live workers"), "{error}");
    h.complete(h.take_one(&queue).await.fence()).await;
    h.store.worker_register("w", Some(queue.id)).await.unwrap();
    assert!(delete().await.unwrap_err().to_string().contains("1 live workers"));
    // A worker that nobody has heard of does not hold a queue for ever.
    h.advance(60_000);
    assert_eq!(h.store.queue_get_by_id(queue.id).await.unwrap(), queue);
    assert!(delete().await.unwrap());
    assert!(!delete().await.unwrap());
    assert_eq!(h.store.queue_get_by_id(queue.id).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(h.store.census(minute).await.unwrap().queues, 0);
}
