//! A history, arranged by calls, messages, leases and processes.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Answer, Event, Finish, Item, Leased, Micros, Op, Record, Rules, State, Verb};

/// A call and its answer.
pub(super) struct Call<'a> {
    pub(super) process: &'a str,
    pub(super) number: u64,
    pub(super) at: Micros,
    pub(super) within: Micros,
    pub(super) server: Option<&'a str>,
    pub(super) op: &'a Op,
    pub(super) answer: Option<(Micros, &'a Answer)>,
}

impl Call<'_> {
    /// Whether the call concerns a message that has these leases.
    pub(super) fn concerns(&self, uid: &str, leases: &[(&str, u64)]) -> bool {
        let answered = matches!(self.answer, Some((_, Answer::Leased(found))) if found.iter().any(|l| l.uid == uid));
        answered
            || match self.op {
                Op::Enqueue { items } => items.iter().any(|item| item.uid == uid),
                Op::Finish { leases: named, .. } | Op::Extend { leases: named, .. } => {
                    named.iter().any(|lease| leases.contains(&(self.process, *lease)))
                }
                Op::Open | Op::Lease { .. } => false,
            }
    }
}

/// A message that was enqueued, or may have been.
pub(super) struct Put<'a> {
    pub(super) item: &'a Item,
    /// When its first enqueue began.
    pub(super) at: Micros,
    /// When an enqueue was acknowledged.
    pub(super) acknowledged: Option<Micros>,
    /// The call that first enqueued it, by its place among the calls.
    pub(super) call: usize,
}

/// A consumer wanted a lease to end.
pub(super) struct Ending {
    pub(super) at: Micros,
    pub(super) verb: Verb,
    pub(super) answer: Option<(Micros, Finish)>,
}

/// A consumer wanted a lease to last longer.
pub(super) struct Extension {
    pub(super) extra: Micros,
    pub(super) answer: Option<(Micros, bool)>,
}

/// A lease as its holder knows it.
pub(super) struct Lease<'a> {
    pub(super) process: &'a str,
    pub(super) leased: &'a Leased,
    /// When its holder learned of it.
    pub(super) known: Micros,
    /// The call that brought it; none: a handler of the run loop has it.
    pub(super) claim: Option<usize>,
    pub(super) endings: Vec<Ending>,
    pub(super) extensions: Vec<Extension>,
    /// When its handler was told that it is lost.
    pub(super) lost: Option<Micros>,
}

impl Lease<'_> {
    /// Until when its holder had proof that it lasts, from what was confirmed by then.
    pub(super) fn proven(&self, by: Micros) -> Option<Micros> {
        let confirmed = self.extensions.iter().filter(|e| matches!(e.answer, Some((at, true)) if at <= by));
        Some(self.leased.until? + confirmed.map(|extension| extension.extra).sum::<Micros>())
    }

    /// When its holder first asked for its end.
    pub(super) fn given_up(&self) -> Option<Micros> {
        self.endings.iter().map(|ending| ending.at).min()
    }

    /// Whether the message may have been finished under this lease by a certain time.
    pub(super) fn finished_by(&self, time: Micros) -> bool {
        self.endings.iter().any(|ending| {
            let refused = matches!(ending.answer, Some((_, Finish::Lost | Finish::Untouched)));
            ending.verb != Verb::Return && !refused && ending.at <= time
        })
    }
}

/// A history, arranged.
pub(super) struct Index<'a> {
    pub(super) rules: Rules,
    pub(super) calls: Vec<Call<'a>>,
    pub(super) puts: BTreeMap<&'a str, Put<'a>>,
    pub(super) leases: Vec<Lease<'a>>,
    pub(super) finals: Vec<(&'a str, i64, State)>,
    pub(super) faults: Vec<Micros>,
    keeps: HashMap<&'a str, bool>,
    by_uid: BTreeMap<&'a str, Vec<usize>>,
    killed: HashMap<&'a str, Micros>,
    exited: HashMap<&'a str, Micros>,
    stops: HashMap<&'a str, Vec<(Micros, Micros)>>,
    last: Micros,
    /// When all processes were told to end.
    pub(super) ending: Micros,
}

impl<'a> Index<'a> {
    pub(super) fn new(records: &'a [Record]) -> Self {
        let mut index = Index {
            rules: Rules { slack: 0, late: 0, settle: None },
            calls: Vec::new(),
            puts: BTreeMap::new(),
            leases: Vec::new(),
            finals: Vec::new(),
            faults: Vec::new(),
            keeps: HashMap::new(),
            by_uid: BTreeMap::new(),
            killed: HashMap::new(),
            exited: HashMap::new(),
            stops: HashMap::new(),
            last: records.last().map_or(0, |record| record.at),
            ending: Micros::MAX,
        };
        index.read_calls(records);
        index.read_leases(records);
        index.read_verbs();
        for record in records {
            index.read_rest(record);
        }
        index
    }

    fn read_calls(&mut self, records: &'a [Record]) {
        let mut numbered = HashMap::new();
        for record in records {
            let process = record.process.as_str();
            match &record.event {
                Event::Call { call, within, server, op } => {
                    numbered.insert((process, *call), self.calls.len());
                    if let Op::Enqueue { items } = op {
                        for item in items {
                            let call = self.calls.len();
                            let put = Put { item, at: record.at, acknowledged: None, call };
                            self.puts.entry(&item.uid).or_insert(put);
                        }
                    }
                    let (number, within, server) = (*call, *within, server.as_deref());
                    self.calls.push(Call { process, number, at: record.at, within, server, op, answer: None });
                }
                Event::Answer { call, result } => {
                    let Some(call) = numbered.get(&(process, *call)) else { continue };
                    self.calls[*call].answer = Some((record.at, result));
                    if let (Op::Enqueue { items }, Answer::Done | Answer::Enqueued(_)) = (self.calls[*call].op, result)
                    {
                        for item in items {
                            if let Some(put) = self.puts.get_mut(item.uid.as_str()) {
                                put.acknowledged.get_or_insert(record.at);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn read_leases(&mut self, records: &'a [Record]) {
        let held = |process: &'a str, leased: &'a Leased, known: Micros, claim: Option<usize>| Lease {
            process,
            leased,
            known,
            claim,
            endings: Vec::new(),
            extensions: Vec::new(),
            lost: None,
        };
        let mut leases = Vec::new();
        for (number, call) in self.calls.iter().enumerate() {
            if let Some((at, Answer::Leased(found))) = call.answer {
                leases.extend(found.iter().map(|leased| held(call.process, leased, at, Some(number))));
            }
        }
        for record in records {
            if let Event::Begin { lease } = &record.event {
                leases.push(held(&record.process, lease, record.at, None));
            }
        }
        leases.sort_by_key(|lease| (lease.leased.from, lease.known));
        for (number, lease) in leases.iter().enumerate() {
            self.by_uid.entry(&lease.leased.uid).or_default().push(number);
        }
        self.leases = leases;
        let numbered = self.numbered();
        for record in records {
            let process = record.process.as_str();
            let place = |lease: &u64| numbered.get(&(process, *lease)).copied();
            match &record.event {
                Event::LeaseLost { lease } => {
                    if let Some(place) = place(lease) {
                        self.leases[place].lost = Some(record.at);
                    }
                }
                Event::End { lease, verb } => {
                    if let Some(place) = place(lease) {
                        self.leases[place].endings.push(Ending { at: record.at, verb: *verb, answer: None });
                    }
                }
                _ => {}
            }
        }
    }

    fn numbered(&self) -> HashMap<(&'a str, u64), usize> {
        self.leases.iter().enumerate().map(|(place, lease)| ((lease.process, lease.leased.lease), place)).collect()
    }

    fn read_verbs(&mut self) {
        let numbered = self.numbered();
        for call in &self.calls {
            match call.op {
                Op::Finish { verb, leases } => {
                    for (n, lease) in leases.iter().enumerate() {
                        let answer = match call.answer {
                            Some((at, Answer::Finished(answers))) => answers.get(n).map(|answer| (at, *answer)),
                            _ => None,
                        };
                        if let Some(place) = numbered.get(&(call.process, *lease)) {
                            self.leases[*place].endings.push(Ending { at: call.at, verb: *verb, answer });
                        }
                    }
                }
                Op::Extend { leases, extra } => {
                    for lease in leases {
                        let answer = match call.answer {
                            Some((at, Answer::Extended(held))) => Some((at, *held)),
                            _ => None,
                        };
                        if let Some(place) = numbered.get(&(call.process, *lease)) {
                            self.leases[*place].extensions.push(Extension { extra: *extra, answer });
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn read_rest(&mut self, record: &'a Record) {
        match &record.event {
            Event::Rules(rules) => self.rules = rules.clone(),
            Event::Queue { name, keeps } => drop(self.keeps.insert(name, *keeps)),
            Event::Final { uid, id, state } => self.finals.push((uid, *id, *state)),
            Event::Ending => self.ending = record.at,
            Event::Exit => drop(self.exited.insert(&record.process, record.at)),
            Event::Killed { target } => {
                self.faults.push(record.at);
                self.killed.entry(target).or_insert(record.at);
            }
            Event::Stopped { target } => {
                self.faults.push(record.at);
                self.stops.entry(target).or_default().push((record.at, Micros::MAX));
            }
            Event::Continued { target } => {
                self.faults.push(record.at);
                if let Some((_, to)) = self.stops.get_mut(target.as_str()).and_then(|stops| stops.last_mut()) {
                    *to = record.at;
                }
            }
            Event::Fault { .. } => self.faults.push(record.at),
            _ => {}
        }
    }

    /// The leases of a message, by their beginning.
    pub(super) fn of(&self, uid: &str) -> impl Iterator<Item = &Lease<'a>> + use<'_, 'a> {
        self.by_uid.get(uid).into_iter().flatten().map(|place| &self.leases[*place])
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &'a str> + use<'_, 'a> {
        self.by_uid.keys().copied()
    }

    pub(super) fn keeps(&self, queue: &str) -> bool {
        self.keeps.get(queue).copied().unwrap_or_default()
    }

    /// When a process was killed.
    pub(super) fn killed(&self, process: &str) -> Option<Micros> {
        self.killed.get(process).copied()
    }

    /// When a process ended, or the history did.
    pub(super) fn end_of(&self, process: &str) -> Micros {
        self.killed(process).or_else(|| self.exited.get(process).copied()).unwrap_or(self.last)
    }

    /// When a process was stopped and continued, where that touches a span of time.
    pub(super) fn stops(&self, process: &str, from: Micros, to: Micros) -> impl Iterator<Item = (Micros, Micros)> {
        let stops = self.stops.get(process).map(Vec::as_slice).unwrap_or_default();
        stops.iter().copied().filter(move |(stopped, continued)| *stopped <= to && *continued >= from)
    }

    /// Until when a handler of the run loop holds its message: until it returns or is told, or its process is hit.
    pub(super) fn held_until(&self, lease: &Lease<'_>) -> Micros {
        let stopped = self.stops(lease.process, lease.known, Micros::MAX).map(|(stopped, _)| stopped).next();
        let ends = [lease.given_up(), lease.lost, stopped, Some(self.end_of(lease.process))];
        ends.into_iter().flatten().min().unwrap_or(self.last)
    }
}
