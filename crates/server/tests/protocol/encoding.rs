//! What bodies are written in: JSON and protobuf, chosen by headers, and what cannot be read.

use serde_json::{Value, json};

use crate::support::api::{Api, JSON, Response, refusal};
use crate::support::proto::{self, Message};
use crate::support::queue::{lease_request, texts};
use crate::support::text::{SECOND, now, text, time};
use crate::support::{Backend, shared, unique};

fn api(backend: Backend) -> Api {
    shared(backend, "encoding", &[])
}

const PROTOBUF: (&str, &str) = ("content-type", "application/protobuf");

async fn list(api: &Api, headers: &[(&str, &str)], body: &[u8]) -> Response {
    api.send("POST", "/v1/queues.list", headers, body).await
}

/// The body is refused, in whatever words.
fn assert_unreadable(response: &Response, body: &[u8]) {
    let shown = String::from_utf8_lossy(body);
    assert_eq!(response.status, 455, "{shown}: {response:?}");
    let reply = response.json();
    assert_eq!((&reply["code"], &reply["code_text"]), (&json!(455), &json!("Client Content Error")), "{shown}");
    assert!(!text(&reply, "message").is_empty(), "{shown}");
}

pub(crate) async fn the_content_type_tells_how_a_body_is_read(backend: Backend) {
    let api = api(backend);
    for mime in [
        "",
        "*/*",
        "application/*",
        "application/json",
        "APPLICATION/JSON",
        " application/json ; charset=utf-8",
        "application/json, text/plain",
    ] {
        let response = list(&api, &[("content-type", mime)], b"{\"limit\":1}").await;
        assert_eq!(response.status, 200, "'{mime}': {response:?}");
    }
    assert_eq!(list(&api, &[], b"{\"limit\":1}").await.status, 200, "JSON when nothing is said");
    let protobuf = Message::default().number(3, 1).encoded();
    for mime in ["application/protobuf", "Application/Protobuf; v=1"] {
        assert_eq!(list(&api, &[("content-type", mime)], &protobuf).await.status, 200, "{mime}");
    }
    for mime in ["text/plain", "application/x-protobuf", "application/xml; charset=utf-8", "nonsense"] {
        let response = list(&api, &[("content-type", mime)], b"{}").await;
        let message = format!("Content-Type header '{mime}' is invalid format or unrecognized content type");
        assert_eq!((response.status, response.json()), (455, refusal(455, &message)));
    }
}

pub(crate) async fn the_accept_header_tells_how_the_answer_is_written(backend: Backend) {
    let api = api(backend);
    for accept in
        ["", "*/*", "application/*", "application/json", "Application/JSON;q=0.9", "application/json, text/html"]
    {
        let response = list(&api, &[JSON, ("accept", accept)], b"{\"limit\":1}").await;
        let found = (response.status, response.header("content-type"));
        assert_eq!(found, (200, Some("application/json")), "'{accept}'");
        response.json();
    }
    let response = list(&api, &[JSON, ("accept", "application/protobuf")], b"{\"limit\":1}").await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/protobuf")));
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    proto::fields(&response.body);
    // Refusals too.
    let response = list(&api, &[JSON, ("accept", "application/protobuf")], b"{\"limit\":-1}").await;
    assert_eq!((response.status, response.header("content-type")), (400, Some("application/protobuf")));
    assert_eq!((proto::number(&response.body, 1), proto::text(&response.body, 2)), (400, "Bad Request".to_owned()));
    assert_eq!(proto::text(&response.body, 3), "limit is invalid; limit cannot be negative");
}

pub(crate) async fn an_answer_that_nobody_could_read_is_refused(backend: Backend) {
    let api = api(backend);
    for (accept, mime) in [("Text/HTML; q=1", "text/html"), ("image/png, application/json", "image/png"), ("x", "x")] {
        let response = list(&api, &[JSON, ("accept", accept)], b"{}").await;
        let message = format!(
            "Accept header '{mime}' is invalid format or unrecognized content type, \
             only [application/json,application/protobuf] are supported by this method"
        );
        assert_eq!((response.status, response.json()), (455, refusal(455, &message)));
        assert_eq!(response.header("content-type"), Some("application/json"));
    }
}

pub(crate) async fn protobuf_is_answered_in_protobuf_unless_something_else_is_asked_for(backend: Backend) {
    let api = api(backend);
    let body = Message::default().number(3, 1).encoded();
    let response = list(&api, &[PROTOBUF], &body).await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/protobuf")));
    for accept in ["application/json", "*/*"] {
        let response = list(&api, &[PROTOBUF, ("accept", accept)], &body).await;
        assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")), "{accept}");
    }
    // A refusal is mirrored too; what was not understood is not.
    let response = api.proto("queue.stats", b"").await;
    assert_eq!((response.status, proto::number(&response.body, 1)), (400, 400));
    let message = proto::text(&response.body, 3);
    assert_eq!(message, "queue name is invalid; queue name cannot be empty");

    let strict = shared(backend, "strict", &["--strict-accept"]);
    let response = list(&strict, &[PROTOBUF], &body).await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
}

pub(crate) async fn json_that_does_not_fit_is_refused(backend: Backend) {
    let api = api(backend);
    let bodies: [&[u8]; 14] = [
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b"\"text\"",
        b"{\"limit\":1}{}",
        b"{\"unknown\":1}",
        b"{\"limit\":\"many\"}",
        b"{\"limit\":1.5}",
        b"{\"limit\":2147483648}",
        b"{\"pivot\":5}",
        b"{\"pivot\":\"\xff\"}",
        b"{\"pivot\":\"\\ud800\"}",
    ];
    for body in bodies {
        assert_unreadable(&list(&api, &[JSON], body).await, body);
    }
    let queue = api.plain_queue().await;
    for item in
        [json!({ "bytes": "no base64!" }), json!({ "enqueue_at": "tomorrow" }), json!({ "dead": true }), json!(7)]
    {
        let body = json!({ "queue_name": queue, "request_timeout": "1m", "items": [item] }).to_string();
        let response = api.send("POST", "/v1/queue.produce", &[JSON], body.as_bytes()).await;
        assert_unreadable(&response, body.as_bytes());
    }
    assert!(api.items(&queue, 0).await.is_empty());
}

pub(crate) async fn json_may_be_written_in_every_allowed_form(backend: Backend) {
    let api = api(backend);
    let queue = unique("queue");
    // The names of the proto file, numbers as texts, nulls for what is absent, white space.
    let body = format!(
        "\n {{ \"queueName\" : \"{queue}\", \"leaseTimeout\": \"1m\", \"expire_timeout\": \"1h\",\t\
         \"requestedPartitions\": \"2\", \"maxAttempts\": 1e1, \"deadQueue\": null, \"partitions\": [] }} \r\n"
    );
    let response = api.send("POST", "/v1/queues.create", &[JSON], body.as_bytes()).await;
    assert_eq!((response.status, response.json()), (200, json!({ "code": 200 })));
    let info = api.info(&queue).await;
    assert_eq!((&info["requested_partitions"], &info["max_attempts"]), (&json!(2), &json!(10)));
    // Base64 of either alphabet, times with any offset.
    let later = "2099-06-01T12:00:00.5+05:30";
    let body = json!({
        "queueName": queue, "requestTimeout": "1m",
        "items": [{ "bytes": "_-8" }, { "bytes": "/+8=" }, { "utf8": "later", "enqueueAt": later }],
    });
    api.done("queue.produce", &body).await;
    let answer = api.ok("queue.lease", &lease_request(&queue, "me", 5)).await;
    assert_eq!((&answer["items"][0]["bytes"], &answer["items"][1]["bytes"]), (&json!("/+8="), &json!("/+8=")));
    assert_eq!(texts(&api.scheduled(&queue, 0).await), ["later"]);
}

pub(crate) async fn protobuf_that_does_not_fit_is_refused(backend: Backend) {
    let api = api(backend);
    let unfinished = [0x08];
    let too_short = [0x0a, 5, b'a'];
    let endless = [0xff; 11];
    let wrong_type = Message::default().number(1, 7).encoded();
    let no_text = Message::default().bytes(1, b"\xff\xfe").encoded();
    let field_zero = [0x00, 0x01];
    for body in [&unfinished[..], &too_short, &endless, &wrong_type, &no_text, &field_zero] {
        let headers = [PROTOBUF, ("accept", "application/json")];
        let response = api.send("POST", "/v1/queue.stats", &headers, body).await;
        assert_unreadable(&response, body);
    }
}

pub(crate) async fn protobuf_ignores_what_it_does_not_know_and_may_be_empty(backend: Backend) {
    let api = api(backend);
    assert_eq!(api.proto("queues.list", b"").await.status, 200, "an empty message is a message");
    let queue = api.plain_queue().await;
    let body = Message::default().number(99, 1).text(1, &queue).text(77, "from the future").encoded();
    assert_eq!(api.proto("queue.stats", &body).await.status, 200);
}

pub(crate) async fn a_client_can_live_on_protobuf_alone(backend: Backend) {
    let api = api(backend);
    let queue = unique("queue");
    let info = Message::default().text(1, &queue).text(6, "1m").text(7, "24h").number(8, 3).number(9, 1);
    let created = api.proto("queues.create", &info.encoded()).await;
    assert_eq!((created.status, proto::number(&created.body, 1)), (200, 200));
    assert_eq!(proto::fields(&created.body).len(), 1, "nothing but the code");

    let payload = [0, 255, 128, 7];
    let due = Message::default().number(1, u64::try_from(now() / SECOND + 3600).unwrap()).number(2, 500_000_000);
    let first = Message::default().text(1, "e").text(2, "k").text(3, "r").bytes(5, &payload);
    let items = [first, Message::default().text(6, "utf8"), Message::default().text(6, "later").message(4, &due)];
    let request = Message::default().text(1, &queue).text(2, "1m");
    let request = items.iter().fold(request, |request, item| request.message(3, item));
    assert_eq!(api.proto("queue.produce", &request.encoded()).await.status, 200);
    assert_eq!(texts(&api.scheduled(&queue, 0).await), ["later"]);

    let request = Message::default().text(1, &queue).number(2, 10).text(3, "me").text(4, "1m");
    let leased = api.proto("queue.lease", &request.encoded()).await;
    assert_eq!((leased.status, proto::text(&leased.body, 1)), (200, queue.clone()));
    let items = proto::all(&leased.body, 3);
    assert_eq!(items.len(), 2);
    assert_eq!([1, 2, 3].map(|field| proto::text(&items[0], field)), ["e", "k", "r"]);
    assert_eq!((proto::all(&items[0], 7), proto::number(&items[0], 5)), (vec![payload.to_vec()], 1));
    let deadline = proto::all(&items[0], 6).remove(0);
    let left = i64::try_from(proto::number(&deadline, 1)).unwrap() - now() / SECOND;
    assert!((0..=120).contains(&left), "{left}");

    let complete = Message::default().text(1, &queue).text(3, "1m");
    let complete = items.iter().fold(complete, |request, item| request.text(4, &proto::text(item, 4)));
    let completed = api.proto("queue.complete", &complete.encoded()).await;
    assert_eq!((completed.status, proto::number(&completed.body, 1)), (200, 200));
    assert!(api.items(&queue, 0).await.is_empty());
}

pub(crate) async fn no_time_is_the_year_one_in_protobuf_too(backend: Backend) {
    let api = api(backend);
    let queue = api.plain_queue().await;
    api.produce(&queue, &["x"]).await;
    let listed = api.proto("storage/items.list", &Message::default().text(1, &queue).encoded()).await;
    let item = proto::all(&listed.body, 1).remove(0);
    let deadline = proto::all(&item, 4).remove(0);
    assert_eq!(proto::number(&deadline, 1) as i64, -62_135_596_800);
    assert_eq!(proto::text(&item, 1).len(), 27);
    assert!(proto::all(&item, 9).is_empty() && !proto::all(&item, 5).is_empty() && !proto::all(&item, 7).is_empty());
}

pub(crate) async fn times_are_written_with_as_many_digits_as_they_need(backend: Backend) {
    let api = api(backend);
    let queue = api.plain_queue().await;
    let base = (now() / SECOND + 86_400) * SECOND;
    for (nanos, digits) in [(0, 0), (500_000_000, 3), (1_000, 6)] {
        let expires = time(base + nanos);
        let imported = api.import(&queue, 0, &json!([{ "expire_deadline": expires }])).await;
        assert_eq!(imported[0]["expire_deadline"], Value::from(expires.clone()));
        let fraction = expires.split_once('.').map_or(0, |(_, fraction)| fraction.len() - 1);
        assert_eq!(fraction, digits, "{expires}");
    }
}
