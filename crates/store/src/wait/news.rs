//! What processes tell each other by NOTIFY: where something may be ready.
//!
//! Invariants: news about a topic that wait to be sent are merged, and none of them is forgotten; the written form is
//! `sender topic:position topic:position …`, which the functions of the database write too and programs of earlier versions
//! read: a positive number is a lane, and the greatest position stands for all of them.

use std::collections::HashMap;

/// PostgreSQL takes less than 8000 bytes.
const LONGEST: usize = 7500;
/// The position that stands for all of them.
const ANYWHERE: i64 = i64::MAX;

/// What a claim or a fetch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Lane(i64),
    Turns,
    Work,
    /// Activities of sessions.
    Sessions,
}

impl Topic {
    fn number(self) -> i64 {
        match self {
            Topic::Lane(lane) => lane,
            Topic::Turns => -1,
            Topic::Work => -2,
            Topic::Sessions => -3,
        }
    }

    /// None: a topic of a newer program.
    fn numbered(number: i64) -> Option<Self> {
        Some(match number {
            1.. => Topic::Lane(number),
            -1 => Topic::Turns,
            -2 => Topic::Work,
            -3 => Topic::Sessions,
            _ => return None,
        })
    }
}

/// What is known about a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The lowest position that became ready.
    pub(crate) lowest: Option<i64>,
    /// Something became ready anywhere, or will be at a time that must be looked up.
    pub(crate) anywhere: bool,
}

impl News {
    pub(crate) fn ready_at(position: i64) -> Self {
        News { lowest: Some(position), anywhere: false }
    }

    pub(crate) fn anywhere() -> Self {
        News { lowest: None, anywhere: true }
    }

    fn merge(&mut self, other: News) {
        self.lowest = self.lowest.into_iter().chain(other.lowest).min();
        self.anywhere |= other.anywhere;
    }
}

/// News that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox(HashMap<Topic, News>);

impl Outbox {
    pub(crate) fn add(&mut self, topic: Topic, news: News) {
        self.0.entry(topic).or_default().merge(news);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The texts to send, each short enough. Sender 0 stands for a transaction of a caller's, which every process hears.
    pub(crate) fn payloads(&self, sender: u64) -> Vec<String> {
        let mut payloads = vec![format!("{sender:x}")];
        for (topic, news) in &self.0 {
            for position in news.lowest.into_iter().chain(news.anywhere.then_some(ANYWHERE)) {
                let part = format!(" {}:{position}", topic.number());
                if payloads.last().is_some_and(|payload| payload.len() + part.len() > LONGEST) {
                    payloads.push(format!("{sender:x}"));
                }
                if let Some(payload) = payloads.last_mut() {
                    payload.push_str(&part);
                }
            }
        }
        payloads
    }
}

/// The news of a text, unless `me` has sent it. What cannot be read was written by a newer program, and polling finds it.
pub(crate) fn heard(payload: &str, me: u64) -> Vec<(Topic, News)> {
    let mut parts = payload.split(' ');
    if parts.next() == Some(format!("{me:x}").as_str()) {
        return Vec::new();
    }
    let read = |part: &str| {
        let (topic, position) = part.split_once(':')?;
        let news = match position.parse().ok()? {
            ANYWHERE => News::anywhere(),
            position => News::ready_at(position),
        };
        Some((Topic::numbered(topic.parse().ok()?)?, news))
    };
    parts.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_stay_below_the_limit_and_lose_nothing() {
        let mut outbox = Outbox::default();
        for lane in 1..=2000 {
            outbox.add(Topic::Lane(lane), News::ready_at(lane * 1_000_000_007));
        }
        let payloads = outbox.payloads(7);
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() < 8000));
        let mut heard: Vec<_> = payloads.iter().flat_map(|payload| heard(payload, 8)).collect();
        heard.sort_by_key(|(topic, _)| topic.number());
        let sent = (1..=2000).map(|lane| (Topic::Lane(lane), News::ready_at(lane * 1_000_000_007)));
        assert!(heard.into_iter().eq(sent));
    }

    #[test]
    fn a_due_time_is_told_although_a_message_became_ready_meanwhile() {
        let mut outbox = Outbox::default();
        for news in [News::ready_at(9), News::anywhere(), News::ready_at(5)] {
            outbox.add(Topic::Lane(3), news);
        }
        let expected = [(Topic::Lane(3), News::ready_at(5)), (Topic::Lane(3), News::anywhere())];
        assert_eq!(heard(&outbox.payloads(7)[0], 8), expected);
    }

    #[test]
    fn every_topic_is_told_and_a_process_does_not_hear_itself() {
        for topic in [Topic::Lane(1), Topic::Turns, Topic::Work, Topic::Sessions] {
            let mut outbox = Outbox::default();
            outbox.add(topic, News::anywhere());
            let payloads = outbox.payloads(0xa);
            assert_eq!(heard(&payloads[0], 0xb), [(topic, News::anywhere())]);
            assert!(heard(&payloads[0], 0xa).is_empty());
        }
    }

    #[test]
    fn what_the_functions_of_the_database_write_is_heard_and_what_is_unknown_is_not() {
        assert_eq!(heard("0 12:34", 1), [(Topic::Lane(12), News::ready_at(34))]);
        assert_eq!(heard("0 -9:1 x y:z 4: 7:9223372036854775807", 1), [(Topic::Lane(7), News::anywhere())]);
    }
}
