//! Requests before they are written: one description for both encodings.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::Rng as _;
use rand::rngs::StdRng;

/// What a field holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    /// Wider than the wire's numbers, so that it can be out of their range.
    Number(i64),
    Flag(bool),
    Bytes(Vec<u8>),
    /// Seconds since 1970, and nanoseconds.
    Time(i64, i32),
    List(Vec<Value>),
    Message(Message),
}

/// A field by its number in protobuf and its name in JSON.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    pub(crate) value: Value,
}

pub(crate) type Message = Vec<Field>;

pub(crate) fn field(number: u32, name: &'static str, value: Value) -> Field {
    Field { number, name, value }
}

pub(crate) fn text(number: u32, name: &'static str, text: impl Into<String>) -> Field {
    field(number, name, Value::Text(text.into()))
}

fn number(at: u32, name: &'static str, number: i64) -> Field {
    field(at, name, Value::Number(number))
}

fn flag(number: u32, name: &'static str, flag: bool) -> Field {
    field(number, name, Value::Flag(flag))
}

pub(crate) fn texts(number: u32, name: &'static str, texts: Vec<String>) -> Field {
    field(number, name, Value::List(texts.into_iter().map(Value::Text).collect()))
}

pub(crate) fn messages(number: u32, name: &'static str, messages: Vec<Message>) -> Field {
    field(number, name, Value::List(messages.into_iter().map(Value::Message).collect()))
}

/// A message as JSON. Unlike a map it may have a field twice.
pub(crate) fn json(message: &[Field]) -> String {
    let field = |field: &Field| format!("{}:{}", quoted(field.name), json_value(&field.value));
    format!("{{{}}}", message.iter().map(field).collect::<Vec<_>>().join(","))
}

fn json_value(value: &Value) -> String {
    match value {
        Value::Text(text) => quoted(text),
        Value::Number(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        Value::Bytes(bytes) => quoted(&STANDARD.encode(bytes)),
        Value::Time(seconds, nanos) => {
            let time = chrono::DateTime::from_timestamp(*seconds, nanos.unsigned_abs());
            quoted(&time.map_or_else(|| format!("{seconds}.{nanos}"), |time| time.to_rfc3339()))
        }
        Value::List(values) => format!("[{}]", values.iter().map(json_value).collect::<Vec<_>>().join(",")),
        Value::Message(message) => json(message),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A message as protobuf.
pub(crate) fn protobuf(message: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in message {
        put(field.number, &field.value, &mut out);
    }
    out
}

fn put(number: u32, value: &Value, out: &mut Vec<u8>) {
    let chunk = |bytes: &[u8], out: &mut Vec<u8>| {
        put_varint((u64::from(number) << 3) | 2, out);
        put_varint(bytes.len() as u64, out);
        out.extend_from_slice(bytes);
    };
    match value {
        Value::Text(text) => chunk(text.as_bytes(), out),
        Value::Bytes(bytes) => chunk(bytes, out),
        Value::Message(message) => chunk(&protobuf(message), out),
        Value::Time(seconds, nanos) => {
            let parts = [(1, *seconds), (2, i64::from(*nanos))];
            let parts = parts.map(|(number, part)| field(number, "", Value::Number(part)));
            chunk(&protobuf(&parts), out);
        }
        Value::Number(value) => {
            put_varint(u64::from(number) << 3, out);
            put_varint(*value as u64, out);
        }
        Value::Flag(flag) => {
            put_varint(u64::from(number) << 3, out);
            out.push((*flag).into());
        }
        Value::List(values) => values.iter().for_each(|value| put(number, value, out)),
    }
}

pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn pick<'a, T>(rng: &mut StdRng, of: &'a [T]) -> &'a T {
    &of[rng.random_range(0..of.len())]
}

/// Makes requests that a server may well carry out: they share few names, so that they meet.
pub(crate) struct Maker<'a> {
    pub(crate) rng: &'a mut StdRng,
    /// Ids that the server has told, the newest last.
    pub(crate) ids: &'a [String],
}

impl Maker<'_> {
    fn name(&mut self, prefix: char, count: u32) -> String {
        format!("{prefix}{}", self.rng.random_range(0..count))
    }

    fn queue(&mut self) -> Field {
        text(1, "queue_name", self.name('q', 4))
    }

    fn namespace(&mut self, number: u32) -> Field {
        text(number, "namespace", *pick(self.rng, &["", "_system", "n0", "n1"]))
    }

    /// Mostly one of those that were told last.
    fn id(&mut self) -> String {
        let newest = &self.ids[self.ids.len().saturating_sub(8)..];
        match self.rng.random_range(0..10) {
            0..7 if !newest.is_empty() => pick(self.rng, newest).clone(),
            7..9 if !self.ids.is_empty() => pick(self.rng, self.ids).clone(),
            _ => pick(self.rng, KSUIDS).to_string(),
        }
    }

    fn ids(&mut self) -> Vec<String> {
        (0..self.rng.random_range(1..4)).map(|_| self.id()).collect()
    }

    fn pivot(&mut self, number: u32) -> Field {
        let id = self.id();
        text(number, "pivot", pick(self.rng, &[String::new(), "q1".to_owned(), id]).clone())
    }

    fn limit(&mut self, at: u32) -> Field {
        number(at, "limit", *pick(self.rng, &[0, 1, 10, 1000]))
    }

    fn partition(&mut self) -> Field {
        number(2, "partition", *pick(self.rng, &[0, 0, 0, 1]))
    }

    /// A moment around now, sometimes soon enough for the test to see it come.
    fn time(&mut self) -> Value {
        let from_now = *pick(self.rng, &[-3_600_000_i64, 0, 200, 1000, 3_600_000]);
        let millis = chrono::Utc::now().timestamp_millis() + from_now;
        Value::Time(millis.div_euclid(1000), millis.rem_euclid(1000) as i32 * 1_000_000)
    }

    fn payload(&mut self) -> Vec<u8> {
        let mut payload = vec![0_u8; self.rng.random_range(0..40)];
        self.rng.fill(&mut payload[..]);
        payload
    }

    fn produced(&mut self) -> Message {
        let mut item = vec![text(1, "encoding", "text"), text(2, "kind", "k"), text(3, "reference", "r")];
        match self.rng.random_range(0..3) {
            0 => item.push(field(4, "enqueue_at", self.time())),
            1 => item.push(field(5, "bytes", Value::Bytes(self.payload()))),
            _ => item.push(text(6, "utf8", "grüße")),
        }
        item
    }

    fn retried(&mut self) -> Message {
        let mut item = vec![text(1, "id", self.id())];
        match self.rng.random_range(0..3) {
            0 => item.push(field(2, "retry_at", self.time())),
            1 => item.push(flag(3, "dead", true)),
            _ => {}
        }
        item
    }

    fn stored(&mut self) -> Message {
        vec![
            text(2, "source_id", *pick(self.rng, &["", "s0", "s1", "s2"])),
            flag(3, "is_leased", self.rng.random()),
            field(4, "lease_deadline", self.time()),
            field(5, "expire_deadline", self.time()),
            field(7, "created_at", self.time()),
            number(10, "attempts", self.rng.random_range(0..5)),
            number(11, "max_attempts", self.rng.random_range(0..5)),
            text(12, "reference", "r"),
            text(13, "encoding", "e"),
            text(14, "kind", "k"),
            field(15, "payload", Value::Bytes(self.payload())),
        ]
    }

    fn several(&mut self, make: fn(&mut Self) -> Message) -> Vec<Message> {
        (0..self.rng.random_range(1..4)).map(|_| make(self)).collect()
    }

    fn settings(&mut self) -> Message {
        vec![
            self.queue(),
            text(4, "dead_queue", *pick(self.rng, &["", "", "q1", "q3"])),
            text(5, "reference", "r"),
            text(6, "lease_timeout", *pick(self.rng, &["100ms", "1m"])),
            text(7, "expire_timeout", "1h"),
            number(8, "max_attempts", self.rng.random_range(0..4)),
            number(9, "requested_partitions", self.rng.random_range(1..4)),
            messages(10, "partitions", vec![vec![number(1, "partition", 1)]]),
            self.namespace(11),
        ]
    }

    /// A request to that path; none: nobody has taught this test the RPC yet.
    pub(crate) fn request(&mut self, path: &str) -> Option<Message> {
        let (noun, verb) = path.strip_prefix("/v1/")?.rsplit_once('.')?;
        match noun {
            "queue" => self.for_queue(verb),
            "queues" => self.for_queues(verb),
            "storage/items" | "storage/scheduled" => self.for_storage(verb),
            _ => self.for_identities(noun, verb),
        }
    }

    fn for_queue(&mut self, verb: &str) -> Option<Message> {
        Some(match verb {
            "produce" => {
                let items = self.several(Self::produced);
                vec![self.queue(), text(2, "request_timeout", "50ms"), messages(3, "items", items)]
            }
            // The shortest wait that is allowed, because most find nothing.
            "lease" => vec![
                self.queue(),
                number(2, "batch_size", self.rng.random_range(1..20)),
                text(3, "client_id", self.name('c', 4)),
                text(4, "request_timeout", "11ms"),
            ],
            "complete" => {
                let ids = self.ids();
                vec![self.queue(), self.partition(), text(3, "request_timeout", "50ms"), texts(4, "ids", ids)]
            }
            "retry" => {
                let items = self.several(Self::retried);
                vec![self.queue(), self.partition(), messages(3, "items", items)]
            }
            "clear" => {
                let names = [(3, "scheduled"), (4, "queue"), (5, "destructive")];
                let flags = names.map(|(number, name)| flag(number, name, self.rng.random()));
                [self.queue()].into_iter().chain(flags).collect()
            }
            "stats" | "reload" => vec![self.queue()],
            _ => return None,
        })
    }

    fn for_queues(&mut self, verb: &str) -> Option<Message> {
        Some(match verb {
            "create" | "update" => self.settings(),
            "list" => vec![self.pivot(2), self.limit(3), self.namespace(4)],
            "info" => vec![self.queue()],
            // Two of them stay, for the others to find.
            "delete" => vec![text(1, "queue_name", *pick(self.rng, &["q2", "q3"])), flag(2, "force", true)],
            _ => return None,
        })
    }

    fn for_storage(&mut self, verb: &str) -> Option<Message> {
        Some(match verb {
            "list" => vec![self.queue(), self.partition(), self.pivot(3), self.limit(4)],
            "import" => {
                let items = self.several(Self::stored);
                vec![self.queue(), self.partition(), messages(3, "items", items)]
            }
            "delete" => {
                let ids = self.ids();
                vec![self.queue(), self.partition(), texts(3, "ids", ids)]
            }
            _ => return None,
        })
    }

    /// Nothing here may take its rights from `anonymous`: with authorisation on, the door would close for good.
    fn for_identities(&mut self, noun: &str, verb: &str) -> Option<Message> {
        let role = text(2, "name", self.name('r', 4));
        Some(match (noun, verb) {
            ("namespaces", "create" | "update") => vec![
                text(1, "name", self.name('n', 3)),
                text(2, "description", "d"),
                text(4, "api_key_tag", *pick(self.rng, &["", "tag1"])),
            ],
            ("namespaces", "list") => vec![self.pivot(1), self.limit(2)],
            ("namespaces", "delete") => vec![text(1, "name", "n2")],
            ("users", "create") => {
                vec![text(1, "username", self.name('u', 50)), text(2, "email", "e"), text(3, "external_id", "x")]
            }
            ("users", "list") => vec![self.limit(1), self.pivot(2)],
            ("users" | "apikeys", "delete") => vec![text(1, "id", self.id())],
            ("apikeys", "create") => vec![
                text(1, "user_id", self.id()),
                text(2, "name", "k"),
                text(3, "namespace_scope", *pick(self.rng, &["", "n0", "nowhere"])),
                field(4, "expires_at", self.time()),
                text(5, "key_tag", *pick(self.rng, &["", "tag2"])),
            ],
            ("apikeys", "list") => vec![text(1, "user_id", self.id()), self.limit(2), self.pivot(3)],
            ("roles", "create" | "update") => {
                let permissions = ["queue.list", "queue.produce", "role.list"].map(str::to_owned).to_vec();
                vec![self.namespace(1), role, texts(3, "permissions", permissions)]
            }
            ("roles", "list") => vec![self.namespace(1), self.limit(2), self.pivot(3)],
            ("roles", "delete") => vec![self.namespace(1), role],
            ("rolebindings", "create" | "delete") => {
                vec![self.namespace(1), text(2, "role_name", self.name('r', 4)), text(3, "user_id", self.id())]
            }
            ("rolebindings", "list") => {
                vec![self.namespace(1), text(2, "user_id_filter", self.id()), self.limit(3), self.pivot(4)]
            }
            _ => return None,
        })
    }
}

/// The first and the last of all, the first and the last of ours, and one that is none.
pub(crate) const KSUIDS: &[&str] = &[
    "000000000000000000000000000",
    "aWgEPTl1tmebfsQzFP4bxwgy80V",
    "37dGalnvVFpJFsmiFDGIwmudA4P",
    "37dGalnvVFpJFsmiQCbRjnSiIqV",
    "zzzzzzzzzzzzzzzzzzzzzzzzzzz",
];
