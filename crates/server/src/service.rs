//! The service: its stores, the desks of its queues, who may do what, and how it ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_store::{Clock, Error, Kind, Queue, Settings, Store};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::auth::Auth;
use crate::desk::Desk;
use crate::fault::{Answer, Fault};
use crate::metrics::{Metrics, QueueDepth};
use crate::stores::{DEFAULT_DSN, Member, StoreOptions, Stores};

/// How old the counts of queues may be that monitors see.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Queues that are counted.
const COUNTED: usize = 200;

/// What a service is told at its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where messages are stored. The first is home: it also holds the queues' settings and the identities.
    pub stores: Vec<StoreOptions>,
    /// Whether callers must be allowed to do what they do. Otherwise everybody may do everything.
    pub auth: bool,
    /// Whether a protobuf request that does not say what it accepts is answered in protobuf; otherwise in JSON.
    pub mirror: bool,
    /// Items in one produce.
    pub max_produce_batch: usize,
    /// Items in one lease.
    pub max_lease_batch: usize,
    /// Ids in one complete, items in one retry.
    pub max_complete_batch: usize,
    /// Calls that one queue carries out at the same time, leases that wait not counted.
    pub max_requests_per_queue: usize,
    /// Bytes in the body of one produce.
    pub max_produce_bytes: usize,
    /// Bytes of request bodies that are held at the same time.
    pub max_body_memory: usize,
    /// Whether tests may set the clock and pause queues. Needs the feature `test-hooks`.
    pub test_hooks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            stores: vec![StoreOptions { name: "main".to_owned(), dsn: DEFAULT_DSN.to_owned(), affinity: 1.0 }],
            auth: false,
            mirror: true,
            max_produce_batch: 1000,
            max_lease_batch: 1000,
            max_complete_batch: 1000,
            max_requests_per_queue: 1000,
            max_produce_bytes: crate::rpc::PRODUCE,
            max_body_memory: 256 << 20,
            test_hooks: false,
        }
    }
}

/// A queue service: embed its [`router`](Service::router), or run `tenure serve`.
pub struct Service {
    pub(crate) options: Options,
    pub(crate) stores: Stores,
    pub(crate) auth: Auth,
    pub(crate) metrics: Metrics,
    /// Kibibytes of request bodies that may still be read.
    pub(crate) bodies: Arc<Semaphore>,
    desks: Mutex<HashMap<String, Arc<Desk>>>,
    prepared: tokio::sync::OnceCell<()>,
    /// What the queues held when somebody last asked: counting is not free.
    counted: tokio::sync::Mutex<Option<(Instant, Vec<QueueDepth>)>>,
    closing: AtomicBool,
    tasks: Mutex<JoinSet<()>>,
}

impl Service {
    /// Starts a service. Stores that cannot be reached yet are tried again and again; one that can never be used (a DSN
    /// that makes no sense, a password that is refused) is an error at once.
    pub async fn start(options: Options) -> Result<Arc<Self>, Error> {
        if options.stores.is_empty() {
            return Err(Error::new(Kind::InvalidInput, "a service needs at least one store: name one"));
        }
        let clock = if options.test_hooks { Clock::settable() } else { Clock::database() };
        let stores = Stores::new(&options.stores, &clock);
        let service = Self::with(options, stores);
        for member in service.stores.all() {
            match member.store().await {
                Err(error) if !error.is_retryable() => return Err(error),
                _ => {}
            }
        }
        match service.home().await {
            Err(fault) => tracing::warn!(%fault, "the service starts without its home store"),
            Ok(_) => tracing::debug!("the home store is ready"),
        }
        service.look_after_queues();
        Ok(service)
    }

    /// A service on a store that is open already.
    pub(crate) fn on(store: Store, options: Options) -> Arc<Self> {
        let service = Self::with(options, Stores::open(store));
        service.look_after_queues();
        service
    }

    /// Each store by itself: one that hangs must not stop the care for the others.
    fn look_after_queues(self: &Arc<Self>) {
        for member in self.stores.all() {
            self.tasks().spawn(crate::lifecycle::keep(Arc::downgrade(self), member.clone()));
            self.tasks().spawn(crate::lifecycle::maintain(Arc::downgrade(self), member.clone()));
        }
    }

    fn with(options: Options, stores: Stores) -> Arc<Self> {
        Arc::new(Service {
            stores,
            auth: Auth::new(options.auth),
            metrics: Metrics::new(),
            bodies: Arc::new(Semaphore::new((options.max_body_memory >> 10).max(1))),
            options,
            desks: Mutex::default(),
            prepared: tokio::sync::OnceCell::new(),
            counted: tokio::sync::Mutex::default(),
            closing: false.into(),
            tasks: Mutex::default(),
        })
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desks(&self) -> MutexGuard<'_, HashMap<String, Arc<Desk>>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The desks of all queues that are in use here.
    pub(crate) fn open_desks(&self) -> Vec<Arc<Desk>> {
        self.desks().values().cloned().collect()
    }

    /// Forgets the queues that no call has named for a while, that no lease waits for and that have no lease of this process.
    /// A call that holds such a desk is younger than that.
    pub(crate) fn close_idle_desks(&self) {
        let mut idle = Vec::new();
        self.desks().retain(|_, desk| {
            let keep = !desk.is_idle();
            if !keep {
                idle.push(desk.clone());
            }
            keep
        });
        idle.iter().for_each(|desk| desk.close());
    }

    /// The store that holds queues and identities.
    pub(crate) async fn home(&self) -> Answer<Store> {
        if self.is_closing() {
            return Err(Fault::shutting_down());
        }
        let member = self.stores.home();
        let store = member.store().await?;
        let prepare = async || member.watched(self.auth.prepare(&store).await);
        self.prepared.get_or_try_init(prepare).await.map_err(Fault::from)?;
        Ok(store)
    }

    /// Whether callers without a key may do everything, although keys are known.
    pub(crate) async fn is_door_open(&self) -> bool {
        let home = async || self.home().await;
        self.options.auth && self.auth.is_door_open(home).await
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// The desk of a queue that a call has named; a queue that this process has not met yet, or not for a while, is looked up.
    pub(crate) async fn desk(self: &Arc<Self>, name: &str) -> Answer<Arc<Desk>> {
        // Under the lock under which idle desks are closed: this one is kept for the call.
        if let Some(desk) = self.desks().get(name) {
            desk.used();
        }
        self.look_up(name).await
    }

    /// The same for the service's own looks, which do not count as use.
    async fn look_up(self: &Arc<Self>, name: &str) -> Answer<Arc<Desk>> {
        if self.is_closing() {
            return Err(Fault::shutting_down());
        }
        if name.trim().is_empty() {
            return Err(Fault::bad("queue name is invalid; queue name cannot be empty"));
        }
        if name.contains('~') {
            return Err(Fault::bad(format!("queue name is invalid; '{name}' cannot contain '~' character")));
        }
        // No database could have stored it.
        if name.contains('\0') {
            return Err(no_such_queue(name));
        }
        let known = self.desks().get(name).cloned();
        if let Some(desk) = &known
            && !desk.is_check_due()
        {
            return Ok(desk.clone());
        }
        let found = match self.home().await {
            Ok(home) => self.stores.home().watched(home.queue_get(name).await),
            Err(fault) => return known.ok_or(fault),
        };
        match (found, known) {
            (Ok(queue), Some(desk)) if desk.id == queue.id => {
                desk.refresh(&queue);
                Ok(desk)
            }
            (Ok(queue), _) => self.open_desk(&queue).await,
            (Err(error), _) if error.kind() == Kind::NotFound => {
                self.close_desk(name);
                Err(no_such_queue(name))
            }
            // A home store that is away must not stop the partitions that live elsewhere.
            (Err(_), Some(desk)) => Ok(desk),
            (Err(error), None) => Err(error.into()),
        }
    }

    async fn open_desk(self: &Arc<Self>, queue: &Queue) -> Answer<Arc<Desk>> {
        let desk = Desk::new(queue, self.placement(queue)?);
        desk.recount().await;
        let mut desks = self.desks();
        // Somebody else may have been faster.
        if let Some(known) = desks.get(&queue.name)
            && known.id == queue.id
        {
            return Ok(known.clone());
        }
        if let Some(old) = desks.insert(queue.name.clone(), desk.clone()) {
            old.close();
        }
        tokio::spawn(desk.clone().recover_on_time());
        Ok(desk)
    }

    fn close_desk(&self, name: &str) {
        if let Some(desk) = self.desks().remove(name) {
            desk.close();
        }
    }

    /// In which stores a queue's partitions are, and how many in each; home first.
    fn placement(&self, queue: &Queue) -> Answer<Vec<(Arc<Member>, usize)>> {
        if queue.settings.placement.is_empty() {
            return Ok(vec![(self.stores.home().clone(), queue.lanes.len())]);
        }
        let shares = queue.settings.placement.split(',').map(|share| {
            let (name, count) = share.rsplit_once('=').unwrap_or((share, "0"));
            let member = self.stores.named(name).ok_or_else(|| {
                let text = format!("queue '{}' has partitions in a store '{name}' that is not configured", queue.name);
                Fault::internal(text)
            })?;
            Ok((member.clone(), count.parse().map_err(Fault::internal)?))
        });
        shares.collect()
    }

    /// Creates a queue and spreads its partitions over the stores.
    ///
    /// Home comes first: its unique name is the lock, and only whoever wins it touches the other stores.
    pub(crate) async fn create_queue(&self, name: &str, settings: Settings) -> Result<(), Error> {
        let shares = self.stores.shares(settings.partitions);
        let members: Vec<(&Arc<Member>, u32)> =
            self.stores.all().iter().zip(shares).filter(|(_, count)| *count > 0).collect();
        let placed = members.iter().map(|(member, count)| format!("{}={count}", member.name)).collect::<Vec<_>>();
        let placement = if members.len() > 1 { placed.join(",") } else { String::new() };
        let home = self.stores.home();
        let first = Settings { placement, ..settings.clone() };
        home.watched(home.store().await?.queue_create_part(name, first, members[0].1).await)?;
        for (member, count) in &members[1..] {
            // The dead queue is at home; what dies elsewhere is carried there.
            let part = Settings { placement: PART.to_owned(), dead_queue: None, ..settings.clone() };
            if let Err(error) = create_part(member, name, part, *count).await {
                // All or nothing. What cannot be taken back is a part of no queue, and is replaced when it is in the way.
                for (member, _) in &members[1..] {
                    delete_part(member, name).await.ok();
                }
                home.watched(home.store().await?.queue_delete(name).await)?;
                return Err(error);
            }
        }
        // One that knows a queue of that name which is gone.
        self.close_desk(name);
        Ok(())
    }

    /// Changes a queue's settings wherever it has partitions.
    pub(crate) async fn update_queue(&self, name: &str, settings: Settings) -> Result<(), Error> {
        let (home, others) = (self.stores.home(), &self.stores.all()[1..]);
        for member in others.iter().filter(|member| is_placed(&settings, member)) {
            let part = Settings { dead_queue: None, ..settings.clone() };
            member.watched(member.store().await?.queue_update(name, part).await)?;
        }
        home.watched(home.store().await?.queue_update(name, settings).await)?;
        if let Some(desk) = self.desks().get(name) {
            desk.look();
        }
        Ok(())
    }

    /// Deletes a queue with everything in it; whoever waits for it is sent away.
    pub(crate) async fn delete_queue(&self, queue: &Queue) -> Result<(), Error> {
        let home = self.stores.home();
        home.watched(home.store().await?.queue_delete(&queue.name).await)?;
        self.close_desk(&queue.name);
        for member in self.stores.all()[1..].iter().filter(|member| is_placed(&queue.settings, member)) {
            delete_part(member, &queue.name).await?;
        }
        Ok(())
    }

    /// What the first queues by name hold, in all their partitions. Counted at most every few seconds.
    pub(crate) async fn depths(self: &Arc<Self>) -> Vec<QueueDepth> {
        let mut counted = self.counted.lock().await;
        if let Some((at, depths)) = &*counted
            && at.elapsed() < COUNT_EVERY
        {
            return depths.clone();
        }
        let listed = async { self.stores.home().store().await?.queue_list("", None, COUNTED).await };
        let mut depths = Vec::new();
        for queue in listed.await.unwrap_or_default() {
            if let Ok(desk) = self.look_up(&queue.name).await {
                depths.push(desk.depth().await);
            }
        }
        *counted = Some((Instant::now(), depths.clone()));
        depths
    }

    /// Ends the service: whoever waits is sent away, new calls are refused. What is stored stays as it is.
    pub async fn shut_down(&self) {
        self.closing.store(true, Ordering::Relaxed);
        for (_, desk) in std::mem::take(&mut *self.desks()) {
            desk.close();
        }
    }
}

impl Service {
    /// Closes the stores, behind [`shut_down`](Service::shut_down) and the last request: everything is in their files afterwards.
    pub async fn close(&self) {
        self.tasks().abort_all();
        for member in self.stores.all() {
            member.close().await;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for desk in self.open_desks() {
            desk.close();
        }
    }
}

/// What the row of a queue says that is only a part of one at home.
const PART: &str = "@part";

/// Whether a queue has partitions in a store.
fn is_placed(settings: &Settings, member: &Member) -> bool {
    let named = |share: &str| share.rsplit_once('=').is_some_and(|(name, _)| name == member.name);
    settings.placement.split(',').any(named)
}

/// Creates a queue's part in a store that is not home. A part that is there was left behind by somebody who did not get to
/// his end, because no queue at home has it; anything else of that name is somebody's queue, and stays.
async fn create_part(member: &Member, name: &str, part: Settings, lanes: u32) -> Result<(), Error> {
    let store = member.store().await?;
    match member.watched(store.queue_create_part(name, part.clone(), lanes).await) {
        Err(error) if error.kind() == Kind::AlreadyExists => {
            if !delete_part(member, name).await? {
                return Err(error);
            }
            member.watched(store.queue_create_part(name, part, lanes).await).map(drop)
        }
        created => created.map(drop),
    }
}

/// Deletes a queue's part in a store that is not home. Whether there was one.
async fn delete_part(member: &Member, name: &str) -> Result<bool, Error> {
    let store = member.store().await?;
    match member.watched(store.queue_get(name).await) {
        Ok(queue) if queue.settings.placement == PART => {
            member.watched(store.queue_delete(name).await)?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The fault for a queue that does not exist.
pub(crate) fn no_such_queue(name: &str) -> Fault {
    Fault::bad(format!("queue does not exist; no such queue named '{name}'"))
}
