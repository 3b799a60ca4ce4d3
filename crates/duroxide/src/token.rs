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

/// `token.id`, or `token.id.time` when the fetch claimed the activity's session at that time.
pub(crate) fn of_work(token: WorkToken) -> String {
    let claimed = token.claimed.map_or_else(String::new, |at| format!(".{at}"));
    format!("{:x}.{}{claimed}", token.token, token.id)
}

pub(crate) fn work(operation: &str, text: &str) -> Result<WorkToken, ProviderError> {
    let parts = text.split_once('.').and_then(|(token, rest)| {
        let (id, claimed) = rest.split_once('.').map_or((rest, None), |(id, at)| (id, Some(at)));
        let claimed = claimed.map(i64::from_str).transpose().ok()?;
        Some(WorkToken { id: i64::from_str(id).ok()?, token: i64::from_str_radix(token, 16).ok()?, claimed })
    });
    parts.ok_or_else(|| ProviderError::permanent(operation, "Invalid lock token: it was not made by this provider"))
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
        for claimed in [None, Some(1_767_225_600_000_000)] {
            let token = WorkToken { id: 3, token: 1, claimed };
            assert_eq!(work("ack", &of_work(token)).ok(), Some(token));
        }
        for text in ["", "invalid-token", "zz.1", "."] {
            assert!(turn("ack", text).is_err_and(|error| error.message.contains("Invalid lock token")));
            assert!(work("ack", text).is_err_and(|error| !error.is_retryable()));
        }
        assert!(work("ack", "1.3.").is_err(), "a time was expected behind the id");
    }
}
