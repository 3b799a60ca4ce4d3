use super::*;
use crate::{Event, Kind};

fn events(ids: &[i64]) -> Vec<Event> {
    ids.iter().map(|id| Event { id: *id, data: Bytes::from(format!("event \0 {id}")) }).collect()
}

pub async fn events_are_read_in_order(h: &Harness) {
    h.store.event_append("order-1", 1, &events(&[3, 1])).await.unwrap();
    h.store.event_append("order-1", 1, &events(&[2])).await.unwrap();
    h.store.event_append("order-1", 2, &events(&[1])).await.unwrap();
    h.store.event_append("order-2", 1, &events(&[9])).await.unwrap();
    assert_eq!(h.store.event_read("order-1", 1, 0, 100).await.unwrap(), events(&[1, 2, 3]));
    assert_eq!(h.store.event_read("order-1", 1, 2, 1).await.unwrap(), events(&[2]));
    assert_eq!(h.store.event_read("order-3", 1, 0, 100).await.unwrap(), []);
}

pub async fn a_duplicate_event_is_refused_and_nothing_is_appended(h: &Harness) {
    h.store.event_append("s", 1, &events(&[1, 2])).await.unwrap();
    for batch in [&[3, 2][..], &[4, 4][..]] {
        let error = h.store.event_append("s", 1, &events(batch)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
        assert!(error.to_string().contains("stream 's', execution 1"), "{error}");
    }
    assert_eq!(h.store.event_read("s", 1, 0, 100).await.unwrap(), events(&[1, 2]));
    h.store.event_append("s", 1, &[]).await.unwrap();
    assert_eq!(h.store.event_append("", 1, &events(&[1])).await.unwrap_err().kind(), Kind::InvalidInput);
}

pub async fn the_latest_execution_is_the_highest(h: &Harness) {
    assert_eq!(h.store.event_latest("s").await.unwrap(), None);
    for execution in [1, 3, 2] {
        h.store.event_append("s", execution, &events(&[1])).await.unwrap();
    }
    assert_eq!(h.store.event_latest("s").await.unwrap(), Some(3));
}
