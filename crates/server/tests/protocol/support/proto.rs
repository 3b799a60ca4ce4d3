//! Protobuf by hand: enough to write requests and to read answers, and to write what no library would.

/// A message being written.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number > 127 {
            self.0.push(number as u8 | 128);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn number(mut self, field: u64, number: u64) -> Self {
        self.varint(field << 3);
        self.varint(number);
        self
    }

    pub(crate) fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint((field << 3) | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    pub(crate) fn message(self, field: u64, message: &Message) -> Self {
        self.bytes(field, &message.0)
    }

    pub(crate) fn encoded(self) -> Vec<u8> {
        self.0
    }
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("the message ends within a number");
        *bytes = rest;
        number |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            break;
        }
    }
    number
}

/// The fields of a message, in their order.
pub(crate) fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(read_varint(&mut bytes)),
            2 => {
                let length = usize::try_from(read_varint(&mut bytes)).unwrap();
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(content.to_vec())
            }
            other => panic!("no message of the protocol has the wire type {other}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

/// All that a repeated field holds.
pub(crate) fn all(message: &[u8], field: u64) -> Vec<Vec<u8>> {
    let found = fields(message).into_iter().filter(|(number, _)| *number == field);
    found
        .map(|(_, content)| match content {
            Field::Bytes(bytes) => bytes,
            Field::Number(number) => panic!("field {field} is the number {number}"),
        })
        .collect()
}

/// A number; zero when it is left out.
pub(crate) fn number(message: &[u8], field: u64) -> u64 {
    match fields(message).into_iter().find(|(number, _)| *number == field) {
        None => 0,
        Some((_, Field::Number(number))) => number,
        Some((_, Field::Bytes(bytes))) => panic!("field {field} is {bytes:?}"),
    }
}

/// A text; empty when it is left out.
pub(crate) fn text(message: &[u8], field: u64) -> String {
    String::from_utf8(all(message, field).pop().unwrap_or_default()).unwrap()
}
