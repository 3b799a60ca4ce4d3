//! Lock tokens: what duroxide holds in its hand is a text that names the lease.

use std::str::FromStr as _;

use duroxide::providers::ProviderError;
use tenure_store::{TurnToken, WorkToken};

/// `token.instance`, or `token+.instance` for an instance that has values: an acknowledgement finds its instance without a
/// look-up.
pub(crate) fn of_turn(token: &TurnToken) -> String {
    format!("{:x}{}.{}", token.token, if token.values { "+" } else { "" }, token.instance)
}

pub(crate) fn turn(operation: &str, text: &str) -> Result<TurnToken, ProviderError> {
    let parts = text.split_once('.').and_then(|(token, instance)| {
        let (token, values) = token.strip_suffix('+').map_or((token, false), |token| (token, true));
        Some(TurnToken { instance: instance.to_owned(), token: i64::from_str_radix(token, 16).ok()?, values })
    });
    parts.ok_or_else(|| ProviderError::permanent(operation, "Invalid lock token: it was not made by this provider"))
}

/// `token.id`
pub(crate) fn of_work(token: WorkToken) -> String {
    format!("{:x}.{}", token.token, token.id)
}

pub(crate) fn work(operation: &str, text: &str) -> Result<WorkToken, ProviderError> {
    let parts = text
        .split_once('.')
        .and_then(|(token, id)| Some((i64::from_str_radix(token, 16).ok()?, i64::from_str(id).ok()?)));
    match parts {
        Some((token, id)) => Ok(WorkToken { id, token }),
        None => Err(ProviderError::permanent(operation, "Invalid lock token: it was not made by this provider")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_others_are_refused() {
        for values in [false, true] {
            let token = TurnToken { instance: "order.17".to_owned(), token: i64::MAX, values };
            assert_eq!(turn("ack", &of_turn(&token)).ok(), Some(token));
        }
        let token = WorkToken { id: 3, token: 1 };
        assert_eq!(work("ack", &of_work(token)).ok(), Some(token));
        for text in ["", "invalid-token", "zz.1", "."] {
            assert!(turn("ack", text).is_err_and(|error| error.message.contains("Invalid lock token")));
            assert!(work("ack", text).is_err_and(|error| !error.is_retryable()));
        }
    }
}
