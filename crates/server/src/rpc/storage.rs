//! What is stored, as it is stored: list, import and delete items of one partition.

use std::collections::HashMap;

use tenure_store::{Import, Message, Micros, State};

use super::queue::item_id;
use crate::fault::{Answer, Fault};
use crate::rpc::Call;
use crate::wire::*;

/// Bytes of payloads from which on a list ends.
const MOST_BYTES: usize = 64 << 20;
/// Items that are read first, when nobody knows how large they are.
const FIRST_PAGE: usize = 32;
/// Items that are read at once.
const PAGE: usize = 1000;

pub(super) async fn items(call: &Call<'_>, request: StorageItemsListRequest) -> Answer<StorageItemsListResponse> {
    list(call, request, State::Live).await
}

pub(super) async fn scheduled(call: &Call<'_>, request: StorageItemsListRequest) -> Answer<StorageItemsListResponse> {
    list(call, request, State::Scheduled).await
}

async fn list(call: &Call<'_>, request: StorageItemsListRequest, state: State) -> Answer<StorageItemsListResponse> {
    let desk = call.queue(&request.queue_name).await?;
    let part = desk.part(request.partition)?;
    let limit = super::namespaces::check_limit(request.limit)?;
    let mut pivot = match request.pivot.trim() {
        "" => 0,
        pivot => item_id(pivot)?.pivot(),
    };
    let (store, lane) = part.lane(&desk.name).await?;
    let mut items = Vec::new();
    let (mut bytes, mut page) = (0, FIRST_PAGE);
    // Whoever wants more begins his next list with the last item of this one.
    while items.len() < limit && bytes < MOST_BYTES {
        page = page.min(limit - items.len());
        let messages =
            store.message_list(lane, state, pivot, page).await.map_err(|error| part.fault(&desk.name, error))?;
        bytes += messages.iter().map(|message| message.payload.len()).sum::<usize>();
        let (found, last) = (messages.len(), messages.last().map(|message| message.id));
        items.extend(messages.into_iter().map(storage_item));
        match last {
            Some(last) if found == page => pivot = last.saturating_add(1),
            _ => break,
        }
        // As many as will probably fit.
        page = (MOST_BYTES.saturating_sub(bytes) / (bytes / items.len()).max(1)).clamp(1, PAGE);
    }
    Ok(StorageItemsListResponse { items })
}

fn storage_item(message: Message) -> StorageItem {
    let leased = message.leased_until > 0;
    let deadline = if leased { Timestamp::from_micros(message.leased_until) } else { Timestamp::YEAR_ONE };
    StorageItem {
        id: ksuid::of_message(message.id),
        // A dead letter's source is the item that it was.
        source_id: message.source_id.unwrap_or_else(|| message.buried_id.map_or_else(String::new, ksuid::of_message)),
        is_leased: leased,
        lease_deadline: Some(deadline),
        expire_deadline: Some(message.expire_at.map_or(Timestamp::YEAR_ONE, Timestamp::from_micros)),
        created_at: Some(Timestamp::from_micros(message.created_at)),
        attempts: i32::try_from(message.attempts).unwrap_or(i32::MAX),
        max_attempts: message.max_attempts.map_or(0, |limit| i32::try_from(limit).unwrap_or(i32::MAX)),
        reference: message.reference.unwrap_or_default(),
        encoding: message.encoding.unwrap_or_default(),
        kind: message.kind.unwrap_or_default(),
        payload: message.payload,
        ..StorageItem::default()
    }
}

pub(super) async fn import(call: &Call<'_>, request: StorageItemsImportRequest) -> Answer<StorageItemsImportResponse> {
    let desk = call.queue(&request.queue_name).await?;
    let part = desk.part(request.partition)?;
    if request.items.is_empty() {
        return Err(Fault::bad("items is invalid; cannot be empty"));
    }
    let (store, lane) = part.lane(&desk.name).await?;
    let imports: Vec<Import> = request.items.iter().map(to_import).collect();
    let imported =
        part.member.watched(store.message_import(lane, imports).await).map_err(|error| match error.kind() {
            tenure_store::Kind::InvalidInput => Fault::bad(format!("items is invalid; {error}")),
            _ => part.fault(&desk.name, error),
        })?;
    desk.recount().await;
    // As they are now stored, so that they read the same in a list.
    let mut stored = HashMap::with_capacity(imported.len());
    let newest = imported.iter().flatten().max().copied();
    let mut next = imported.iter().flatten().min().copied();
    while let Some(pivot) = next {
        let page =
            store.message_list(lane, State::Live, pivot, PAGE).await.map_err(|error| part.fault(&desk.name, error))?;
        next = page.last().filter(|last| page.len() == PAGE && Some(last.id) < newest).map(|last| last.id + 1);
        stored.extend(page.into_iter().map(|message| (message.id, message)));
    }
    let now = part.member.watched(store.now().await).map_err(|error| part.fault(&desk.name, error))?;
    let echoed = request.items.into_iter().zip(imported).map(|(item, id)| match id {
        None => skipped(item, now),
        // It may be gone already: somebody has leased and completed it.
        Some(id) => stored
            .remove(&id)
            .map_or_else(|| StorageItem { id: ksuid::of_message(id), ..skipped(item, now) }, storage_item),
    });
    Ok(StorageItemsImportResponse { items: echoed.collect() })
}

/// An item that is not there, because its source was there before or because somebody was quick: as it would be stored.
fn skipped(item: StorageItem, now: Micros) -> StorageItem {
    let Import { leased_until, expire_at, .. } = to_import(&item);
    let leased = if leased_until > 0 { Timestamp::from_micros(leased_until) } else { Timestamp::YEAR_ONE };
    StorageItem {
        id: ksuid::random(),
        lease_deadline: Some(leased),
        expire_deadline: expire_at.map(Timestamp::from_micros),
        created_at: Some(Timestamp::from_micros(now)),
        dead_deadline: None,
        updated_at: None,
        enqueue_at: None,
        ..item
    }
}

fn to_import(item: &StorageItem) -> Import {
    let label = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    // What is absent was meant as 1970, and is stored as such.
    let micros = |time: &Option<Timestamp>| time.as_ref().map_or(0, Timestamp::to_micros);
    let number = |number: i32| i64::from(number.max(0));
    Import {
        source_id: label(&item.source_id),
        // A lease that ended long ago is still one until somebody recovers it; 0 would say that there is none.
        leased_until: if item.is_leased { micros(&item.lease_deadline).max(1) } else { 0 },
        expire_at: Some(micros(&item.expire_deadline).max(LEAST)),
        attempts: number(item.attempts).min(MOST_ATTEMPTS),
        max_attempts: Some(number(item.max_attempts)).filter(|limit| *limit > 0),
        kind: label(&item.kind),
        encoding: label(&item.encoding),
        reference: label(&item.reference),
        payload: item.payload.clone(),
        ..Import::default()
    }
}

/// Attempts beyond this are nobody's count, and would leave no room for the next ones.
const MOST_ATTEMPTS: i64 = 1_000_000_000;
/// The year 1, before which nothing is stored.
const LEAST: Micros = -62_135_596_800_000_000;

pub(super) async fn delete(call: &Call<'_>, request: StorageItemsDeleteRequest) -> Answer {
    let desk = call.queue(&request.queue_name).await?;
    let part = desk.part(request.partition)?;
    if request.ids.is_empty() {
        return Err(Fault::bad("ids is invalid; cannot be empty"));
    }
    let mut ids = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        // An id that is not one of ours is nobody's: ignored like every unknown one.
        ids.extend(item_id(id)?.message());
    }
    let (store, lane) = part.lane(&desk.name).await?;
    part.member.watched(store.message_delete(Some(lane), &ids).await).map_err(|error| part.fault(&desk.name, error))?;
    desk.recount().await;
    Ok(Reply::ok())
}
