//! The OpenAPI document: made of the proto files and the table of RPCs, so that it cannot say what the server does not.
//!
//! Invariants: every RPC of the table is there with every status it can answer, in both encodings; a schema has the
//! name of its message, the JSON names of its fields and the comments of the proto file; `openapi.json` of this crate
//! is what this makes, so that a change of the wire shows in a review.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use serde_json::{Map, Value, json};

use crate::fault::Fault;
use crate::rpc::{Rpc, TABLE};
use crate::wire::DESCRIPTORS;

/// The page at `/docs`, which reads the document and shows it.
pub(crate) const PAGE: &str = include_str!("openapi/page.html");

/// Says in the document what no table and no proto file says.
const ABOUT: &str = "Durable queues over HTTP. Every call is a POST with a message in JSON or in protobuf; \
    `Content-Type` says which, and `Accept` which one the answer shall be in.\n\n\
    In JSON, fields that are zero, empty or unset are left out; bytes are base64; times are RFC 3339; durations are \
    texts such as `90s`, `15m` or `1h30m`. Unknown fields are refused. A call without data to return answers \
    `{\"code\":200}`; every refusal is a `Reply` whose code is the status. Code 454 means that the same request may \
    work when it is repeated, 453 that it will not work here.";

/// Fields without which a request is always refused. The rest may be left out, as everything may be in proto3.
const REQUIRED: &[(&str, &[&str])] = &[
    ("QueueProduceRequest", &["queue_name", "request_timeout", "items"]),
    ("QueueLeaseRequest", &["queue_name", "batch_size", "client_id", "request_timeout"]),
    ("QueueCompleteRequest", &["queue_name", "request_timeout", "ids"]),
    ("QueueRetryRequest", &["queue_name", "items"]),
    ("QueueRetryItem", &["id"]),
    ("QueueStatsRequest", &["queue_name"]),
    ("QueueClearRequest", &["queue_name"]),
    ("QueueReloadRequest", &["queue_name"]),
    ("QueueInfo", &["queue_name"]),
    ("QueuesInfoRequest", &["queue_name"]),
    ("QueuesDeleteRequest", &["queue_name"]),
    ("StorageItemsListRequest", &["queue_name"]),
    ("StorageItemsImportRequest", &["queue_name", "items"]),
    ("StorageItemsDeleteRequest", &["queue_name", "ids"]),
    ("NamespaceInfo", &["name"]),
    ("NamespacesDeleteRequest", &["name"]),
    ("UserCreateRequest", &["username"]),
    ("UsersDeleteRequest", &["id"]),
    ("ApiKeyCreateRequest", &["user_id"]),
    ("ApiKeysDeleteRequest", &["id"]),
    ("RoleCreateRequest", &["namespace", "name"]),
    ("RoleUpdateRequest", &["namespace", "name"]),
    ("RolesDeleteRequest", &["name"]),
    ("RoleBindingCreateRequest", &["namespace", "role_name", "user_id"]),
    ("RoleBindingDeleteRequest", &["role_name", "user_id"]),
];

const TAGS: &[(&str, &str)] = &[
    ("Items", "Produce, lease, and finish what was leased."),
    ("Queues", "Create, change, look at and delete queues."),
    ("Storage", "The items of a partition, one by one."),
    ("Namespaces", "Groups of queues with roles of their own."),
    ("Users", "Who may call."),
    ("API keys", "What a user proves itself with."),
    ("Roles", "What a user may do, and where."),
    ("Service", "For operators and tools. Nobody is asked for a key."),
];

/// The document as text, with a line feed at its end: what `cargo xtask openapi` writes and what is served.
pub fn document_text() -> String {
    format!("{:#}\n", document())
}

/// The document.
pub(crate) fn document() -> Value {
    let mut paths = service_paths();
    for rpc in TABLE {
        paths.insert(rpc.path.to_owned(), json!({ "post": operation(rpc) }));
    }
    let responses: Map<String, Value> = faults().iter().map(|(fault, when)| fault_response(fault, when)).collect();
    let license = env!("CARGO_PKG_LICENSE");
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": license, "identifier": license },
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "bearer": [] }],
        "tags": TAGS.iter().map(|(name, about)| json!({ "name": name, "description": about })).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": responses,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key. Without one the caller is `anonymous`.",
                },
            },
        },
    })
}

fn operation(rpc: &Rpc) -> Value {
    let (request, response) = example(rpc.path).unwrap_or_default();
    let response = if rpc.response == "Reply" { json!({ "code": 200 }) } else { response };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({ "description": "Done.", "content": content(rpc.response, &response) }));
    for (fault, _) in faults() {
        let name = format!("#/components/responses/{}", response_name(&fault));
        responses.insert(fault.code.to_string(), json!({ "$ref": name }));
    }
    let permission = rpc.permission.name();
    json!({
        "operationId": operation_id(rpc.path),
        "tags": [tag(rpc.path)],
        "summary": rpc.summary,
        "description": format!(
            "Needs the permission `{permission}` where authentication is on. The body may have {} bytes.",
            rpc.body_limit
        ),
        "x-permission": permission,
        "x-body-limit": rpc.body_limit,
        "requestBody": { "required": true, "content": content(rpc.request, &request) },
        "responses": responses,
    })
}

/// A message in both encodings, with an example unless that is null.
fn content(message: &str, example: &Value) -> Value {
    let mut json = json!({ "schema": reference(message) });
    if !example.is_null() {
        json["example"] = example.clone();
    }
    json!({
        "application/json": json,
        "application/protobuf": { "schema": { "type": "string", "format": "binary" } },
    })
}

fn reference(message: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{message}") })
}

/// One refusal of each kind, and when it happens.
fn faults() -> [(Fault, &'static str); 9] {
    let empty = "request timeout; no items are in the queue, try again";
    [
        (
            Fault::bad("queue does not exist; no such queue named 'mail'"),
            "A value is not allowed, a queue or an item is unknown, a name is taken, or the body is too large.",
        ),
        (Fault::unauthorized("api key is invalid"), "The API key is malformed, unknown or expired."),
        (Fault::forbidden(), "The caller may not do this in this namespace."),
        (
            Fault::shutting_down(),
            "The server is shutting down, or a namespace, user, role or binding does not exist: do not repeat it here.",
        ),
        (Fault::retry(empty), "Not now: nothing to lease in time, or too much to do. Repeat the same request."),
        (
            Fault::content("Content-Type header 'text/csv' is invalid format or unrecognized content type"),
            "The body cannot be decoded, or one of the encodings is unknown.",
        ),
        (Fault::internal("only the log has the reason"), "A defect. The log of the server has the reason."),
        (Fault::unknown_path("/v1/queue.peek"), "There is no such path."),
        (Fault::transport("the body ended too early"), "The request did not arrive whole."),
    ]
}

fn fault_response(fault: &Fault, when: &str) -> (String, Value) {
    let reply = fault.reply();
    let example = json!({ "code": reply.code, "code_text": reply.code_text, "message": reply.message });
    (response_name(fault), json!({ "description": when, "content": content("Reply", &example) }))
}

/// `BadRequest`, `RetryRequest`, ...
fn response_name(fault: &Fault) -> String {
    fault.reply().code_text.replace(' ', "")
}

/// `/v1/storage/items.list` is `storageItemsList`.
fn operation_id(path: &str) -> String {
    let mut id = String::new();
    for word in path.trim_start_matches("/v1").split(['/', '.']) {
        let capital = word.chars().next().filter(|_| !id.is_empty()).map(|first| first.to_ascii_uppercase());
        id.extend(capital);
        id.push_str(if capital.is_some() { &word[1..] } else { word });
    }
    id
}

fn tag(path: &str) -> &'static str {
    let name = path.trim_start_matches("/v1/");
    match name.split(['/', '.']).next().unwrap_or_default() {
        "queue" if ["queue.produce", "queue.lease", "queue.complete", "queue.retry"].contains(&name) => "Items",
        "queue" | "queues" => "Queues",
        "storage" => "Storage",
        "namespaces" => "Namespaces",
        "users" => "Users",
        "apikeys" => "API keys",
        "roles" | "rolebindings" => "Roles",
        _ => "Service",
    }
}

/// A request, and the answer to it where that is not `{"code":200}`.
fn example(path: &str) -> Option<(Value, Value)> {
    let id = "2gJcDMNt4xTC4JbDMXlIkOXUzQE";
    let examples = match path {
        "/v1/queues.create" => (
            json!({
                "queue_name": "mail", "lease_timeout": "1m", "expire_timeout": "24h", "max_attempts": 5,
                "requested_partitions": 1,
            }),
            Value::Null,
        ),
        "/v1/queue.produce" => (
            json!({
                "queue_name": "mail", "request_timeout": "1m",
                "items": [{ "kind": "welcome", "encoding": "text", "reference": "user-7", "utf8": "Hello, Ann" }],
            }),
            Value::Null,
        ),
        "/v1/queue.lease" => (
            json!({ "queue_name": "mail", "batch_size": 10, "client_id": "worker-1", "request_timeout": "30s" }),
            json!({
                "queue_name": "mail",
                "items": [{
                    "id": id, "attempts": 1, "kind": "welcome", "encoding": "text", "reference": "user-7",
                    "bytes": "SGVsbG8sIEFubg==", "lease_deadline": "2026-05-18T10:20:30.123456Z",
                }],
            }),
        ),
        "/v1/queue.complete" => {
            (json!({ "queue_name": "mail", "partition": 0, "request_timeout": "1m", "ids": [id] }), Value::Null)
        }
        "/v1/queue.retry" => {
            let item = json!({ "id": id, "retry_at": "2026-05-18T10:25:00Z" });
            (json!({ "queue_name": "mail", "partition": 0, "items": [item] }), Value::Null)
        }
        _ => return None,
    };
    Some(examples)
}

/// What is not an RPC.
fn service_paths() -> Map<String, Value> {
    let state = json!({ "type": "string", "enum": ["pass", "warn", "fail"] });
    let check = json!({
        "type": "object",
        "required": ["componentType", "status", "time"],
        "properties": {
            "componentType": { "type": "string" },
            "status": state,
            "time": { "type": "string", "format": "date-time" },
            "output": { "type": "string" },
        },
    });
    let health = json!({
        "type": "object",
        "required": ["status", "version", "checks"],
        "properties": {
            "status": state,
            "version": { "type": "string" },
            "output": { "type": "string" },
            "checks": { "type": "object", "additionalProperties": { "type": "array", "items": check } },
        },
    });
    let mime = "application/health+json";
    let failing = json!({ "description": "The store does not answer.", "content": { mime: { "schema": health } } });
    let mut paths = Map::new();
    for (path, summary, mime, schema) in [
        ("/health", "Whether the stores answer", mime, health),
        ("/metrics", "Counters and gauges for Prometheus", "text/plain", json!({ "type": "string" })),
        ("/openapi.json", "This document", "application/json", json!({ "type": "object" })),
        ("/docs", "This document as a page", "text/html", json!({ "type": "string" })),
    ] {
        let mut responses =
            json!({ "200": { "description": "Here it is.", "content": { mime: { "schema": schema } } } });
        if path == "/health" {
            responses["503"] = failing.clone();
        }
        let operation = json!({
            "operationId": operation_id(path),
            "tags": [tag(path)],
            "summary": summary,
            "security": [],
            "responses": responses,
        });
        paths.insert(path.to_owned(), json!({ "get": operation }));
    }
    paths
}

/// A message of the proto files, with what is written above it and above each of its fields.
struct Described {
    message: DescriptorProto,
    comment: Option<String>,
    fields: Vec<Option<String>>,
}

/// The schemas of all messages that the RPCs use, and of those in them.
fn schemas() -> Map<String, Value> {
    // `build.rs` made it, and a test reads it: what could not be read here would be an empty document there.
    let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default().file;
    let ours = files.iter().filter(|file| !file.package().starts_with("google."));
    let messages: BTreeMap<String, Described> = ours.flat_map(described).collect();
    let mut schemas = Map::new();
    for rpc in TABLE {
        add(&messages, rpc.request, &mut schemas);
        add(&messages, rpc.response, &mut schemas);
    }
    add(&messages, "Reply", &mut schemas);
    schemas
}

fn described(file: &FileDescriptorProto) -> Vec<(String, Described)> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    let comments: BTreeMap<&[i32], String> = locations
        .filter(|location| location.leading_comments.is_some())
        .map(|location| {
            let lines: Vec<&str> = location.leading_comments().lines().map(str::trim).collect();
            (location.path.as_slice(), lines.join(" ").trim().to_owned())
        })
        .collect();
    // The numbers are those of descriptor.proto: 4 is a message of a file, 2 a field of a message.
    let describe = |(at, message): (i32, &DescriptorProto)| {
        let comment = |path: &[i32]| comments.get(path).cloned();
        let fields = (0..).zip(&message.field).map(|(field, _)| comment(&[4, at, 2, field])).collect();
        (rust_name(message.name()), Described { message: message.clone(), comment: comment(&[4, at]), fields })
    };
    (0..).zip(&file.message_type).map(describe).collect()
}

/// Adds the schema of a message and of those in it.
fn add(messages: &BTreeMap<String, Described>, name: &str, schemas: &mut Map<String, Value>) {
    let Some(Described { message, comment, fields }) = messages.get(name) else { return };
    if schemas.contains_key(name) {
        return;
    }
    let mut properties = Map::new();
    for (field, comment) in message.field.iter().zip(fields) {
        let mut property = property(message, field);
        if let Some(comment) = comment {
            property["description"] = comment.as_str().into();
        }
        properties.insert(field.json_name.as_deref().unwrap_or(field.name()).to_owned(), property);
    }
    let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if let Some(comment) = comment {
        schema["description"] = comment.as_str().into();
    }
    if let Some((_, required)) = REQUIRED.iter().find(|(message, _)| *message == name) {
        schema["required"] = json!(required);
    }
    schemas.insert(name.to_owned(), schema);
    for field in &message.field {
        add(messages, &rust_name(last(field.type_name())), schemas);
    }
}

fn property(message: &DescriptorProto, field: &FieldDescriptorProto) -> Value {
    if field.label() != Label::Repeated {
        return value(field);
    }
    // A map is a repeated message of keys and values that is declared inside.
    let is_entry = |nested: &&DescriptorProto| nested.name() == last(field.type_name());
    match message.nested_type.iter().find(is_entry).and_then(|entry| entry.field.get(1)) {
        Some(values) => json!({ "type": "object", "additionalProperties": value(values) }),
        None => json!({ "type": "array", "items": value(field) }),
    }
}

fn value(field: &FieldDescriptorProto) -> Value {
    match field.r#type() {
        Type::String => json!({ "type": "string" }),
        Type::Bytes => json!({ "type": "string", "format": "byte", "contentEncoding": "base64" }),
        Type::Bool => json!({ "type": "boolean" }),
        Type::Int32 => json!({ "type": "integer", "format": "int32", "minimum": i32::MIN, "maximum": i32::MAX }),
        Type::Message if field.type_name() == ".google.protobuf.Timestamp" => {
            json!({ "type": "string", "format": "date-time" })
        }
        Type::Message => reference(&rust_name(last(field.type_name()))),
        // A type that the protocol does not use; a test fails when that changes.
        _ => json!({}),
    }
}

/// The name of a message as the table of RPCs has it: prost writes `APIKey` as `ApiKey`.
fn rust_name(name: &str) -> String {
    name.replacen("API", "Api", 1)
}

/// The name of a message without its package.
fn last(type_name: &str) -> &str {
    type_name.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests assert")]

    use std::collections::BTreeSet;

    use super::*;

    /// Every object in the document, with where it is.
    fn walk(at: &str, value: &Value, see: &mut impl FnMut(&str, &Map<String, Value>)) {
        if let Value::Object(object) = value {
            see(at, object);
            for (key, value) in object {
                walk(&format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), value, see);
            }
        } else if let Value::Array(values) = value {
            for (index, value) in values.iter().enumerate() {
                walk(&format!("{at}/{index}"), value, see);
            }
        }
    }

    /// The schema itself, of a reference or of what is in place.
    fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
            None => schema,
        }
    }

    fn assert_fits(document: &Value, schema: &Value, example: &Value) {
        let schema = resolved(document, schema);
        let kind = schema["type"].as_str().unwrap();
        match example {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let property = schema["properties"].get(name);
                    assert_fits(document, property.unwrap_or_else(|| panic!("{name} is not in {schema}")), value);
                }
                for name in schema["required"].as_array().into_iter().flatten() {
                    assert!(fields.contains_key(name.as_str().unwrap()), "{name} is missing in {example}");
                }
            }
            Value::Array(items) => items.iter().for_each(|item| assert_fits(document, &schema["items"], item)),
            Value::String(_) => assert_eq!(kind, "string"),
            Value::Number(_) => assert_eq!(kind, "integer"),
            Value::Bool(_) => assert_eq!(kind, "boolean"),
            Value::Null => panic!("a null in an example"),
        }
    }

    #[test]
    fn the_document_is_the_golden_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        if std::env::var("TENURE_WRITE_OPENAPI").is_ok() {
            std::fs::write(path, document_text()).unwrap();
        }
        let golden = std::fs::read_to_string(path).unwrap_or_default();
        let same = serde_json::from_str::<Value>(&golden).is_ok_and(|golden| golden == document());
        assert!(same, "{path} is not what the server does: run `cargo xtask openapi`, and commit it if it is right");
    }

    #[test]
    fn every_rpc_is_a_post_in_both_encodings_with_every_status() {
        let document = document();
        let both = ["application/json", "application/protobuf"];
        let mimes = |content: &Value| content.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for rpc in TABLE {
            let operation = &document["paths"][rpc.path]["post"];
            assert_eq!(mimes(&operation["requestBody"]["content"]), both, "{}", rpc.path);
            let statuses: Vec<&String> = operation["responses"].as_object().unwrap().keys().collect();
            assert_eq!(statuses, ["200", "400", "401", "403", "453", "454", "455", "500", "501", "512"]);
            for response in operation["responses"].as_object().unwrap().values() {
                assert_eq!(mimes(&resolved(&document, response)["content"]), both, "{}", rpc.path);
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        walk("", &document, &mut |at, object| {
            if let Some(Value::String(reference)) = object.get("$ref") {
                let found = document.pointer(reference.trim_start_matches('#'));
                assert!(found.is_some(), "{at} refers to {reference}, which is not there");
            }
        });
    }

    #[test]
    fn every_field_has_a_type_and_every_required_field_is_there() {
        let schemas = schemas();
        for (name, schema) in &schemas {
            assert_eq!(schema["additionalProperties"], false, "{name}");
            for (field, property) in schema["properties"].as_object().unwrap() {
                assert!(property.get("type").or(property.get("$ref")).is_some(), "{name}.{field}: {property}");
            }
        }
        for (name, required) in REQUIRED {
            for field in *required {
                assert!(!schemas[*name]["properties"][field].is_null(), "{name} has no {field}");
            }
        }
    }

    #[test]
    fn fields_are_written_as_json_writes_them() {
        let schemas = schemas();
        let time = json!({ "type": "string", "format": "date-time" });
        let bytes = json!({ "type": "string", "format": "byte", "contentEncoding": "base64" });
        for (pointer, wanted) in [
            ("/QueueLeaseItem/properties/lease_deadline", &time),
            ("/QueueLeaseItem/properties/bytes", &bytes),
            ("/QueueLeaseResponse/properties/items/items", &reference("QueueLeaseItem")),
            ("/QueueStatsResponse/properties/logicalQueues/items", &reference("QueueLogicalStats")),
            ("/QueueCompleteRequest/properties/ids/items", &json!({ "type": "string" })),
            ("/Reply/properties/details/additionalProperties", &json!({ "type": "string" })),
            ("/QueueRetryItem/properties/dead", &json!({ "type": "boolean" })),
        ] {
            let mut found = Value::Object(schemas.clone()).pointer(pointer).unwrap().clone();
            // What the proto files say in words is of no interest here.
            found.as_object_mut().unwrap().remove("description");
            assert_eq!(&found, wanted, "{pointer}");
        }
        assert_eq!(schemas["QueueLeaseRequest"]["properties"]["batch_size"]["maximum"], i32::MAX);
        assert!(!schemas.contains_key("Timestamp"), "a time is a text");
    }

    #[test]
    fn an_operation_has_a_name_of_its_own_and_a_known_tag() {
        let document = document();
        let known: BTreeSet<&str> = TAGS.iter().map(|(name, _)| *name).collect();
        let (mut ids, mut tags) = (BTreeSet::new(), BTreeSet::new());
        walk("", &document["paths"], &mut |at, object| {
            if let Some(Value::String(id)) = object.get("operationId") {
                assert!(ids.insert(id.clone()), "{at}: {id} comes twice");
                tags.insert(object["tags"][0].as_str().unwrap().to_owned());
            }
        });
        assert_eq!(tags.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
        assert_eq!(operation_id("/v1/storage/items.list"), "storageItemsList");
        assert_eq!(operation_id("/openapi.json"), "openapiJson");
        assert_eq!((tag("/v1/queue.lease"), tag("/v1/queue.stats")), ("Items", "Queues"));
    }

    #[test]
    fn an_example_fits_its_schema() {
        let document = document();
        let mut examples = 0;
        walk("", &document, &mut |_, object| {
            if let (Some(example), Some(schema)) = (object.get("example"), object.get("schema")) {
                assert_fits(&document, schema, example);
                examples += 1;
            }
        });
        assert!(examples > TABLE.len() / 2, "only {examples} examples");
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for word in ["http://", "https://", "src=", "@import", "url(", "innerHTML"] {
            assert!(!PAGE.contains(word), "{word} in page.html");
        }
        assert!(PAGE.contains("openapi.json"));
    }
}
