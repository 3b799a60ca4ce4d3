//! Calls that nobody would make: valid ones with values, bytes, headers, methods and paths spoilt.

use axum::body::Body;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Method, Request};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value as Json;

use crate::body::{Field, KSUIDS, Maker, Message, Value, json, pick, protobuf, put_varint};
use crate::caller::{Answer, JSON, PROTOBUF};

/// Ids that are remembered.
const REMEMBERED: usize = 64;
/// A queue may have so many partitions, but it is slow then, and this test would be too.
const SLOW_PARTITIONS: std::ops::RangeInclusive<i64> = 65..=10_000;

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Vec<u8>,
    pub(crate) arrival: Arrival,
}

/// How a body comes in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    Whole,
    /// In pieces of this size.
    Pieces(usize),
    /// The same, and after the last one the connection breaks.
    Broken(usize),
}

impl Shot {
    pub(crate) fn request(&self) -> Request<Body> {
        let mut request = Request::new(self.body());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.parse().unwrap();
        request.headers_mut().extend(self.headers.iter().cloned());
        request
    }

    fn body(&self) -> Body {
        let (size, breaks) = match self.arrival {
            Arrival::Whole => return Body::from(self.body.clone()),
            Arrival::Pieces(size) => (size, false),
            Arrival::Broken(size) => (size, true),
        };
        let pieces = self.body.chunks(size).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
        let end = breaks.then(|| Err(std::io::Error::other("the connection broke")));
        let frames: Vec<Result<Frame<Bytes>, std::io::Error>> = pieces.chain(end).collect();
        Body::new(StreamBody::new(stream::iter(frames)))
    }
}

/// Makes calls out of one number.
pub(crate) struct Noise {
    rng: StdRng,
    ids: Vec<String>,
    /// A key that is good for nothing.
    key: Option<String>,
    /// The body before, to be mixed with the next.
    last: Vec<u8>,
}

impl Noise {
    pub(crate) fn new(seed: u64, key: Option<String>) -> Self {
        Noise { rng: StdRng::seed_from_u64(seed), ids: Vec::new(), key, last: Vec::new() }
    }

    /// Remembers the ids in an answer.
    pub(crate) fn learn(&mut self, answer: &Answer) {
        if answer.status == 200
            && let Some(answer) = answer.json()
        {
            find_ids(&answer, &mut self.ids);
            let surplus = self.ids.len().saturating_sub(REMEMBERED);
            self.ids.drain(..surplus);
        }
    }

    /// A call that may well be carried out.
    pub(crate) fn valid(&mut self, path: &str) -> Shot {
        let message = self.message(path);
        self.plain(path, &message)
    }

    fn message(&mut self, path: &str) -> Message {
        let request = Maker { rng: &mut self.rng, ids: &self.ids }.request(path);
        request.unwrap_or_else(|| panic!("nobody knows what to send to {path}: add it to tests/fuzz/body.rs"))
    }

    fn plain(&mut self, path: &str, message: &[Field]) -> Shot {
        let (mime, body) =
            if self.rng.random() { (JSON, json(message).into_bytes()) } else { (PROTOBUF, protobuf(message)) };
        let headers = vec![(CONTENT_TYPE, HeaderValue::from_static(mime))];
        Shot { method: Method::POST, path: path.to_owned(), headers, body, arrival: Arrival::Whole }
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        pick(&mut self.rng, of)
    }

    /// A call to one of these paths, or nearly.
    pub(crate) fn shot(&mut self, paths: &[String]) -> Shot {
        let path = pick(&mut self.rng, paths);
        let mut message = self.message(path);
        let mood = self.rng.random_range(0..100);
        if (25..60).contains(&mood) || mood >= 85 {
            for _ in 0..self.rng.random_range(1..4) {
                self.spoil(&mut message);
            }
        }
        let mut shot = self.plain(path, &message);
        match mood {
            60..95 => {
                for _ in 0..self.rng.random_range(1..4) {
                    self.damage(&mut shot.body);
                }
            }
            95.. => shot.body = self.bytes(200),
            _ => {}
        }
        self.last.clone_from(&shot.body);
        if self.rng.random_bool(0.2) {
            self.confuse(&mut shot);
        }
        shot
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0_u8; self.rng.random_range(0..=most)];
        self.rng.fill(&mut bytes[..]);
        bytes
    }

    /// Puts something wrong into a message that is well-formed all the same.
    fn spoil(&mut self, message: &mut Message) {
        if message.is_empty() {
            return;
        }
        let n = self.rng.random_range(0..message.len());
        match self.rng.random_range(0..20) {
            0 => drop(message.remove(n)),
            1 => message.push(message[n].clone()),
            2 => message[n].name = "no_such_field",
            3 => message[n].number = *pick(&mut self.rng, &[1, 2, 19_000, (1 << 29) - 1]),
            _ => {
                let Field { name, value, .. } = &mut message[n];
                self.spoil_value(name, value);
            }
        }
    }

    fn spoil_value(&mut self, name: &str, value: &mut Value) {
        let deeper = self.rng.random_bool(0.8);
        match value {
            Value::Message(message) if deeper => self.spoil(message),
            Value::List(values) if deeper && !values.is_empty() => {
                let n = self.rng.random_range(0..values.len());
                self.spoil_value(name, &mut values[n]);
            }
            Value::List(values) => {
                let times = *pick(&mut self.rng, &[0, 2, 2, 40, 40, 1001]);
                *values = std::mem::take(values).into_iter().cycle().take(times).collect();
            }
            _ => *value = self.odd(name, value),
        }
    }

    /// A value of the same kind that is hard to take, or one of another kind.
    fn odd(&mut self, name: &str, like: &Value) -> Value {
        if self.rng.random_bool(0.1) {
            let others = [Value::Flag(true), Value::Number(7), Value::Text("7".to_owned()), Value::Message(Vec::new())];
            return pick(&mut self.rng, &others).clone();
        }
        match like {
            Value::Number(_) => {
                let number = *pick(&mut self.rng, NUMBERS);
                let slow = name == "requested_partitions" && SLOW_PARTITIONS.contains(&number);
                Value::Number(if slow { i64::from(i32::MAX) } else { number })
            }
            Value::Time(..) => {
                let (seconds, nanos) = *pick(&mut self.rng, TIMES);
                Value::Time(seconds, nanos)
            }
            Value::Bytes(_) => Value::Bytes(self.bytes(5000)),
            Value::Flag(flag) => Value::Flag(!flag),
            _ => Value::Text(self.odd_text()),
        }
    }

    fn odd_text(&mut self) -> String {
        match self.rng.random_range(0..10) {
            0 => "x".repeat(*pick(&mut self.rng, LENGTHS)),
            1 => pick(&mut self.rng, KSUIDS).to_string(),
            2 => pick(&mut self.rng, DURATIONS).to_string(),
            3 => (0..self.rng.random_range(1..30)).map(|_| self.rng.random::<char>()).collect(),
            _ => pick(&mut self.rng, TEXTS).to_string(),
        }
    }

    /// Does something to bytes that have a meaning.
    fn damage(&mut self, body: &mut Vec<u8>) {
        let (from, to) = (self.rng.random_range(0..=body.len()), self.rng.random_range(0..=body.len()));
        let part = from.min(to)..from.max(to);
        match self.rng.random_range(0..9) {
            0 | 1 if !body.is_empty() => {
                let at = self.rng.random_range(0..body.len());
                body[at] ^= 1 << self.rng.random_range(0..8);
            }
            2 => body.truncate(from),
            3 => {
                let twice = body[part].to_vec();
                insert(body, from, &twice);
            }
            4 => {
                let start = self.last.len().saturating_sub(from);
                let other = self.last[start..].to_vec();
                body.splice(part, other);
            }
            5 => {
                let noise = self.bytes(10);
                body.splice(part, noise);
            }
            6 => {
                let (open, times) = (*pick(&mut self.rng, NESTS), *pick(&mut self.rng, &[3, 99, 101, 129, 10_000]));
                insert(body, from, &open.repeat(times));
            }
            7 => {
                let mut huge = Vec::new();
                // A field, and a length or a number that nothing could have.
                put_varint(self.rng.random_range(0..200), &mut huge);
                put_varint(*pick(&mut self.rng, HUGE), &mut huge);
                insert(body, from, &huge);
            }
            _ => insert(body, from, pick::<&[u8]>(&mut self.rng, TOKENS)),
        }
    }

    /// Spoils everything around the body.
    fn confuse(&mut self, shot: &mut Shot) {
        match self.rng.random_range(0..8) {
            0 => shot.method = Method::from_bytes(pick::<&[u8]>(&mut self.rng, METHODS)).unwrap(),
            1 => {
                let path = *pick(&mut self.rng, PATHS);
                shot.path = path.replace("{path}", &shot.path);
            }
            2 => shot.headers.clear(),
            3 => {
                shot.headers.clear();
                let mime = self.mime();
                shot.headers.push((CONTENT_TYPE, mime));
            }
            4 => {
                let mime = self.mime();
                shot.headers.push((ACCEPT, mime));
            }
            5 => {
                let known = self.key.as_ref().map(|key| format!("Bearer {key}").into_bytes());
                let made_up = pick(&mut self.rng, AUTHORIZATIONS).to_vec();
                let value = known.filter(|_| self.rng.random()).unwrap_or(made_up);
                shot.headers.push((AUTHORIZATION, HeaderValue::from_bytes(&value).unwrap()));
            }
            6 => {
                let length = *pick(&mut self.rng, &["0", "-1", "many", "257", "64000001", "18446744073709551616"]);
                shot.headers.push((CONTENT_LENGTH, HeaderValue::from_static(length)));
            }
            _ => {
                let size = *pick(&mut self.rng, &[1, 7, 100]);
                shot.arrival = if self.rng.random() { Arrival::Pieces(size) } else { Arrival::Broken(size) };
            }
        }
    }

    fn mime(&mut self) -> HeaderValue {
        HeaderValue::from_bytes(pick::<&[u8]>(&mut self.rng, MIMES)).unwrap()
    }
}

fn insert(body: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    body.splice(at..at, bytes.iter().copied());
}

/// Only real ids: `anonymous` must stay.
fn find_ids(answer: &Json, ids: &mut Vec<String>) {
    match answer {
        Json::Array(values) => values.iter().take(8).for_each(|value| find_ids(value, ids)),
        Json::Object(fields) => {
            let id = fields.get("id").and_then(Json::as_str).filter(|id| id.len() == 27);
            ids.extend(id.map(str::to_owned));
            fields.values().for_each(|value| find_ids(value, ids));
        }
        _ => {}
    }
}

const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    64,
    999,
    1000,
    1001,
    65_535,
    65_536,
    65_537,
    i32::MAX as i64,
    i32::MAX as i64 + 1,
    i32::MIN as i64,
    i32::MIN as i64 - 1,
    1 << 32,
    i64::MAX,
    i64::MIN,
];

const TIMES: &[(i64, i32)] = &[
    (0, 0),
    (0, -1),
    (1, 1_000_000_000),
    (-62_135_596_800, 0),
    (-62_135_596_801, 999_999_999),
    (253_402_300_799, 999_999_999),
    (253_402_300_800, 0),
    (i64::MAX, i32::MAX),
    (i64::MIN, i32::MIN),
];

/// Around the limits of names, references, labels and source ids.
const LENGTHS: &[usize] = &[16, 17, 128, 129, 256, 257, 500, 512, 513, 1024, 1025, 2000, 2001, 65_536, 65_537];

const DURATIONS: &[&str] = &[
    "0",
    "-1s",
    "10ms",
    "1ns",
    "0.0000000001ns",
    "15m",
    "15m0.000000001s",
    "876000h",
    "876001h",
    "2562047h",
    "9223372036854775807ns",
    "9223372036854775808ns",
    "-9223372036854775808ns",
    "1d",
    "1",
    "s",
    ".",
];

const TEXTS: &[&str] = &[
    "",
    " ",
    "\t\u{2003}\n",
    "\0",
    "a\0b",
    "~",
    "a~b",
    ":",
    "a:b",
    ",",
    "'",
    "\"\\",
    "%00",
    "\u{feff}",
    "\u{ffff}",
    "\u{10ffff}",
    "e\u{301}",
    "\u{202e}",
    "😀",
    "_system",
    "_x",
    "q0",
    "q1",
    "n0",
    "r0",
    "NaN",
    "1e2",
    "0001-01-01T00:00:00Z",
    "2026-02-30T00:00:00Z",
];

/// Too long for a number, the largest number, and lengths around what a body or an address space has.
const HUGE: &[u64] = &[u64::MAX, 1 << 63, i64::MAX as u64, 1 << 32, u32::MAX as u64, 1 << 31, 1 << 20, 200];

/// What opens something, in JSON and in protobuf: a list, an object, a message, a group.
const NESTS: &[&[u8]] = &[b"[", b"{\"a\":", b"{\"items\":[", b"\x1a\x7f", b"\x0b"];

/// What a decoder may stumble over.
const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"\\udc00\\ud800",
    b"\\u0000",
    b"\\x",
    b"null",
    b"true",
    b"NaN",
    b"-0",
    b"1e999",
    b"-1e-999",
    b"99999999999999999999999999999999999999999999999999",
    b"0.1",
    b",",
    b"{}",
    b"[]",
    b"\"",
    b"//",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    b"\x0c",
    b"\x07",
    b"\x00\x00",
];

/// Without HEAD, whose answers have no body.
const METHODS: &[&[u8]] = &[b"GET", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"post", b"PURGE"];

const PATHS: &[&str] = &[
    "{path}/",
    "{path}?x=y",
    "/{path}",
    "{path}%00",
    "{path}x",
    "/",
    "/v1",
    "/v1/",
    "/v1/queue.",
    "/v1/queues.rebalance",
    "/v1/storage/scheduled.add",
    "/v1/test/queue.pause",
    "/V1/QUEUE.STATS",
    "/%2e%2e/etc/passwd",
    "*",
];

const MIMES: &[&[u8]] = &[
    b"",
    b"*/*",
    b"application/*",
    b"application/json",
    b"APPLICATION/JSON; charset=utf-8",
    b"application/protobuf",
    b"application/protobuf,text/html",
    b"application/x-protobuf",
    b"text/html",
    b";",
    b",",
    b"\xff\xfe",
    b"application/json\t",
];

const AUTHORIZATIONS: &[&[u8]] = &[
    b"",
    b"Bearer",
    b"Bearer ",
    b"bearer x",
    b"Basic eDp5",
    b"Bearer \xff\xff",
    b"Bearer qtr-live-1",
    b"Bearer qtr-live-0000000000000000000000000000000000000000000",
    b"Bearer qtr--0000000000000000000000000000000000000000000",
];
