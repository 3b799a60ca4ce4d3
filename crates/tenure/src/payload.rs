//! Payloads: bytes with a view as JSON, and what they may look like.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// What a message carries: bytes, which are JSON unless the producer sent something else.
///
/// ```
/// use tenure::Payload;
/// let payload = Payload::json(&vec![u64::MAX, 9_007_199_254_740_993]).unwrap();
/// assert_eq!(payload.as_bytes(), b"[18446744073709551615,9007199254740993]");
/// assert_eq!(payload.to::<Vec<u64>>().unwrap(), [u64::MAX, 9_007_199_254_740_993]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload(Bytes);

impl Payload {
    /// Writes a value as JSON.
    ///
    /// # Errors
    /// When the value cannot be JSON, such as a map whose keys are not texts.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(|json| Payload(json.into()))
    }

    /// Any bytes, as they are.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Payload(bytes.into())
    }

    /// Reads the payload as JSON into a type.
    ///
    /// # Errors
    /// When it is not JSON, or not of that type.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// Reads the payload as JSON of any shape.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn value(&self) -> Result<Value, serde_json::Error> {
        self.to()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

/// What payloads must look like. The defaults accept any JSON and any bytes up to 16 MiB.
///
/// ```
/// use tenure::{Payload, PayloadValidator, ValidationConfig};
/// let strict = ValidationConfig { max_depth: Some(2), forbidden_keys: vec!["__proto__".into()], ..Default::default() };
/// let validator = PayloadValidator::new(strict);
/// let deep = Payload::json(&serde_json::json!({"a": {"b": {"c": 1}}})).unwrap();
/// assert_eq!(validator.check(0, &deep).unwrap_err().to_string(), "payload 0 is nested deeper than 2");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidationConfig {
    /// The size of a payload.
    pub max_payload_bytes: usize,
    /// The length of any text in it; none: without limit.
    pub max_string_bytes: Option<usize>,
    /// How deeply objects and lists may be nested; none: without limit.
    pub max_depth: Option<usize>,
    /// Keys that no object in it may have.
    pub forbidden_keys: Vec<String>,
    /// Keys that the outermost object must have.
    pub required_keys: Vec<String>,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        ValidationConfig {
            max_payload_bytes: 16 * 1024 * 1024,
            max_string_bytes: None,
            max_depth: None,
            forbidden_keys: Vec::new(),
            required_keys: Vec::new(),
        }
    }
}

/// Checks payloads before anything is written.
///
/// ```
/// use tenure::{Payload, PayloadValidator, ValidationConfig};
/// let small = PayloadValidator::new(ValidationConfig { max_payload_bytes: 3, ..ValidationConfig::default() });
/// assert!(small.check(0, &Payload::bytes("abc")).is_ok());
/// assert!(small.check(1, &Payload::bytes("abcd")).unwrap_err().to_string().starts_with("payload 1 has 4 bytes"));
/// ```
#[derive(Clone, Debug)]
pub struct PayloadValidator {
    config: ValidationConfig,
}

impl PayloadValidator {
    /// A validator for these limits.
    pub fn new(config: ValidationConfig) -> Self {
        PayloadValidator { config }
    }

    /// Checks one payload; `index` is its place in its batch, for the error.
    ///
    /// # Errors
    /// `PayloadTooLarge`, or `ValidationFailed` with the index and the reason.
    pub fn check(&self, index: usize, payload: &Payload) -> Result<()> {
        let limits = &self.config;
        let (actual_bytes, max_bytes) = (payload.as_bytes().len(), limits.max_payload_bytes);
        if actual_bytes > max_bytes {
            return Err(Error::PayloadTooLarge { index, actual_bytes, max_bytes });
        }
        let shaped = limits.max_string_bytes.is_some()
            || limits.max_depth.is_some()
            || !limits.forbidden_keys.is_empty()
            || !limits.required_keys.is_empty();
        if !shaped {
            return Ok(());
        }
        let wrong = |what: String| Err(Error::invalid(format!("payload {index} {what}")));
        let Ok(value) = payload.value() else {
            return wrong("is not JSON, which these limits need: send JSON, or lift them".to_owned());
        };
        if let Some(missing) = limits.required_keys.iter().find(|key| value.get(key.as_str()).is_none()) {
            return wrong(format!("has no key '{missing}'"));
        }
        match self.inspect(&value, 1) {
            Some(what) => wrong(what),
            None => Ok(()),
        }
    }

    fn inspect(&self, value: &Value, depth: usize) -> Option<String> {
        let long = |text: &str| self.config.max_string_bytes.is_some_and(|max| text.len() > max);
        let deep = |empty: bool| !empty && self.config.max_depth.is_some_and(|max| depth > max);
        let too_deep = || Some(format!("is nested deeper than {}", self.config.max_depth.unwrap_or(depth)));
        match value {
            Value::String(text) if long(text) => Some(format!("has a text of {} bytes, which is too long", text.len())),
            Value::Array(items) if deep(items.is_empty()) => too_deep(),
            Value::Array(items) => items.iter().find_map(|item| self.inspect(item, depth + 1)),
            Value::Object(fields) if deep(fields.is_empty()) => too_deep(),
            Value::Object(fields) => fields.iter().find_map(|(key, item)| {
                if self.config.forbidden_keys.contains(key) {
                    return Some(format!("has the forbidden key '{key}'"));
                }
                self.inspect(item, depth + 1)
            }),
            _ => None,
        }
    }
}
