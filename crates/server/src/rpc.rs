//! The one table of RPCs: path, messages, how much body, who may, and what is done.
//!
//! Invariants: every RPC stands here and nowhere else (the router, the permissions and the API's description all read this
//! table); a handler that succeeded without asking for its permission is a defect, and answers 500 instead.

mod bindings;
mod keys;
mod namespaces;
mod queue;
mod queues;
mod roles;
mod storage;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tenure_store::Store;

use crate::auth::{Caller, Permission};
use crate::desk::Desk;
use crate::fault::{Answer, Fault};
use crate::service::Service;
use crate::wire::*;

/// Most bodies.
const USUAL: usize = 256_000;
/// Bodies that name a queue and little else.
const SMALL: usize = 512;
/// The default for produce; the options may say something else.
pub(crate) const PRODUCE: usize = 5_000_000;

/// One RPC.
pub(crate) struct Rpc {
    pub(crate) path: &'static str,
    pub(crate) request: &'static str,
    pub(crate) response: &'static str,
    pub(crate) body_limit: usize,
    pub(crate) permission: Permission,
    pub(crate) summary: &'static str,
    run: for<'a> fn(&'a Call<'a>, Encoding, Bytes, Encoding) -> BoxFuture<'a, Answer<Bytes>>,
}

macro_rules! rpcs {
    ($($path:literal $handler:path: $request:ident => $response:ident, $limit:expr, $permission:ident, $summary:literal;)+) => {
        /// Every RPC.
        pub(crate) const TABLE: &[Rpc] = &[$(Rpc {
            path: $path,
            request: stringify!($request),
            response: stringify!($response),
            body_limit: $limit,
            permission: Permission::$permission,
            summary: $summary,
            run: |call, from, body, to| Box::pin(async move {
                let request: $request = decode(from, body)?;
                let response: $response = $handler(call, request).await?;
                Ok(encode(to, &response))
            }),
        }),+];
    };
}

rpcs! {
    "/v1/queue.produce" queue::produce: QueueProduceRequest => Reply, PRODUCE, QueueProduce, "Adds items to a queue";
    "/v1/queue.lease" queue::lease: QueueLeaseRequest => QueueLeaseResponse, SMALL, QueueLease, "Leases items, waiting for them if there are none";
    "/v1/queue.complete" queue::complete: QueueCompleteRequest => Reply, USUAL, QueueComplete, "Marks leased items as done";
    "/v1/queue.retry" queue::retry: QueueRetryRequest => Reply, USUAL, QueueRetry, "Gives leased items back, now or later, or declares them dead";
    "/v1/queue.stats" queue::stats: QueueStatsRequest => QueueStatsResponse, SMALL, QueueStats, "Counts what is in a queue";
    "/v1/queue.clear" queue::clear: QueueClearRequest => Reply, SMALL, QueueClear, "Deletes the items of a queue";
    "/v1/queue.reload" queue::reload: QueueReloadRequest => Reply, SMALL, QueueUpdate, "Counts a queue's partitions anew";
    "/v1/queues.create" queues::create: QueueInfo => Reply, USUAL, QueueCreate, "Creates a queue";
    "/v1/queues.list" queues::list: QueuesListRequest => QueuesListResponse, USUAL, QueueList, "Lists the queues of a namespace";
    "/v1/queues.info" queues::info: QueuesInfoRequest => QueueInfo, USUAL, QueueStats, "Shows a queue's settings";
    "/v1/queues.update" queues::update: QueueInfo => Reply, 512_000, QueueUpdate, "Changes a queue's settings";
    "/v1/queues.delete" queues::delete: QueuesDeleteRequest => Reply, USUAL, QueueDelete, "Deletes a queue with everything in it";
    "/v1/storage/items.list" storage::items: StorageItemsListRequest => StorageItemsListResponse, USUAL, QueueStats, "Lists ready and leased items of a partition";
    "/v1/storage/scheduled.list" storage::scheduled: StorageItemsListRequest => StorageItemsListResponse, USUAL, QueueStats, "Lists scheduled items of a partition";
    "/v1/storage/items.import" storage::import: StorageItemsImportRequest => StorageItemsImportResponse, 64_000_000, QueueProduce, "Stores items as they are";
    "/v1/storage/items.delete" storage::delete: StorageItemsDeleteRequest => Reply, USUAL, QueueClear, "Deletes items whatever their state";
    "/v1/namespaces.create" namespaces::create: NamespaceInfo => Reply, USUAL, NamespaceCreate, "Creates a namespace";
    "/v1/namespaces.update" namespaces::update: NamespaceInfo => Reply, USUAL, NamespaceUpdate, "Changes a namespace";
    "/v1/namespaces.list" namespaces::list: NamespacesListRequest => NamespacesListResponse, USUAL, NamespaceList, "Lists namespaces";
    "/v1/namespaces.delete" namespaces::delete: NamespacesDeleteRequest => Reply, USUAL, NamespaceDelete, "Deletes an empty namespace";
    "/v1/users.create" users::create: UserCreateRequest => UserCreateResponse, USUAL, UserCreate, "Creates a user";
    "/v1/users.list" users::list: UsersListRequest => UsersListResponse, USUAL, UserList, "Lists users";
    "/v1/users.delete" users::delete: UsersDeleteRequest => Reply, USUAL, UserDelete, "Deletes a user with its keys and bindings";
    "/v1/apikeys.create" keys::create: ApiKeyCreateRequest => ApiKeyCreateResponse, USUAL, ApiKeyCreate, "Creates an API key, which is shown once";
    "/v1/apikeys.list" keys::list: ApiKeysListRequest => ApiKeysListResponse, USUAL, ApiKeyList, "Lists API keys";
    "/v1/apikeys.delete" keys::delete: ApiKeysDeleteRequest => Reply, USUAL, ApiKeyDelete, "Revokes an API key";
    "/v1/roles.create" roles::create: RoleCreateRequest => RoleCreateResponse, USUAL, RoleCreate, "Creates a role";
    "/v1/roles.list" roles::list: RolesListRequest => RolesListResponse, USUAL, RoleList, "Lists the roles of a namespace";
    "/v1/roles.update" roles::update: RoleUpdateRequest => Reply, USUAL, RoleUpdate, "Changes what a role permits";
    "/v1/roles.delete" roles::delete: RolesDeleteRequest => Reply, USUAL, RoleDelete, "Deletes a role that nobody has";
    "/v1/rolebindings.create" bindings::create: RoleBindingCreateRequest => RoleBindingCreateResponse, USUAL, RoleBindingCreate, "Gives a user a role";
    "/v1/rolebindings.list" bindings::list: RoleBindingsListRequest => RoleBindingsListResponse, USUAL, RoleBindingList, "Lists who has which role in a namespace";
    "/v1/rolebindings.delete" bindings::delete: RoleBindingDeleteRequest => Reply, USUAL, RoleBindingDelete, "Takes a role from a user";
}

/// The RPC of a path.
pub(crate) fn find(path: &str) -> Option<&'static Rpc> {
    TABLE.iter().find(|rpc| rpc.path == path)
}

impl Rpc {
    /// Carries the RPC out.
    pub(crate) async fn run(
        &self,
        service: &Arc<Service>,
        caller: &Caller,
        from: Encoding,
        body: Bytes,
        to: Encoding,
    ) -> Answer<Bytes> {
        let call = Call { service, caller, permission: self.permission, authorized: AtomicBool::new(false) };
        let answer = (self.run)(&call, from, body, to).await?;
        if call.authorized.load(Ordering::Relaxed) {
            Ok(answer)
        } else {
            Err(Fault::internal(format!("{} did not ask whether its caller may", self.path)))
        }
    }
}

/// A call that is being carried out.
pub(crate) struct Call<'a> {
    pub(crate) service: &'a Arc<Service>,
    pub(crate) caller: &'a Caller,
    permission: Permission,
    authorized: AtomicBool,
}

impl Call<'_> {
    /// Refuses unless the caller may do, in `namespace`, what the table says that this RPC needs.
    pub(crate) async fn authorize(&self, namespace: &str) -> Answer<()> {
        let home = async || self.home().await;
        self.service.auth.allow(home, self.caller, namespace, self.permission).await?;
        self.authorized.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The store that holds queues and identities.
    pub(crate) async fn home(&self) -> Answer<Store> {
        self.service.home().await
    }

    /// The desk of a queue in which the caller may do this.
    pub(crate) async fn queue(&self, name: &str) -> Answer<Arc<Desk>> {
        let desk = self.service.desk(name).await?;
        self.authorize(&desk.namespace).await?;
        Ok(desk)
    }
}
