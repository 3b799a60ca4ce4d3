//! Who calls, and what they may do.
//!
//! A caller without a key is `anonymous`; a key belongs to a user and may be scoped to one namespace; a user may do
//! what the roles permit that are bound to them, in the target namespace or in `_system`.
//!
//! Invariants: with authorisation off nothing is ever looked up; with it on, whatever cannot be looked up is refused.
//! Whatever is remembered is dropped at once after a change by this process, and within seconds after one by another
//! (see `cache`).

mod cache;
pub(crate) mod key;
mod permission;

use axum::http::HeaderValue;
use subtle::ConstantTimeEq as _;
use tenure_store::{Error, Kind, NewUser, Store};

use crate::fault::{Answer, Fault};
use crate::wire::ksuid;
use cache::{Cache, Owner, Refusal};
use key::KeyHash;
use permission::{ADMIN, LAST_STANDARD_ROLE, Permissions, STANDARD_ROLES};

pub(crate) use permission::{Permission, is_standard_role};

/// The namespace that always exists: what is meant when none is named, and where rights over all others are given.
pub(crate) const SYSTEM: &str = "_system";
/// The id and the name of the user that callers without a key are.
const ANONYMOUS: &str = "anonymous";
/// The code of `service is shutting down`.
const STOPPING: u16 = 453;

/// The namespace that is meant: `_system` when none is named.
pub(crate) fn or_system(namespace: &str) -> &str {
    if namespace.is_empty() { SYSTEM } else { namespace }
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The user's id.
    pub(crate) user: String,
    /// The only namespace, beside `_system`, in which the key counts; none: in all.
    pub(crate) scope: Option<String>,
}

impl Caller {
    fn anonymous() -> Self {
        Caller { user: ANONYMOUS.to_owned(), scope: None }
    }
}

/// Tells who calls and decides what they may do.
pub(crate) struct Auth {
    enabled: bool,
    cache: Cache,
}

impl Auth {
    /// When not enabled, everybody is anonymous and may do everything.
    pub(crate) fn new(enabled: bool) -> Self {
        Auth { enabled, cache: Cache::new() }
    }

    /// Makes what must be there before the first request. It may be repeated, by any number of processes at once.
    pub(crate) async fn prepare(&self, home: &Store) -> Result<(), Error> {
        home.namespace_ensure(SYSTEM).await?;
        if !self.enabled {
            return Ok(());
        }
        let (id, username) = (ANONYMOUS.to_owned(), ANONYMOUS.to_owned());
        home.user_ensure(NewUser { id, username, external_id: String::new(), email: String::new() }).await?;
        // The door, which is anonymous being an Admin, is opened on the first start only: whoever deletes that binding
        // closes it, and a restart must not open it again. The role that is made last tells whether a first start has
        // got to its end: if the Admin role did, a crash before the binding would lock everybody out for good.
        let first = home.role_get(SYSTEM, LAST_STANDARD_ROLE).await?.is_none();
        for standard in STANDARD_ROLES {
            let role = home.role_ensure(&ksuid::random(), SYSTEM, standard.name, &standard.permissions()).await?;
            if first && standard.name == ADMIN {
                home.binding_ensure(&ksuid::random(), SYSTEM, ANONYMOUS, &role.id).await?;
            }
        }
        self.forget();
        Ok(())
    }

    /// Whether callers without a key may give themselves any right.
    pub(crate) async fn is_door_open(&self, home: impl AsyncFnOnce() -> Answer<Store>) -> bool {
        self.allow(home, &Caller::anonymous(), SYSTEM, Permission::RoleBindingCreate).await.is_ok()
    }

    /// Drops everything that is remembered about keys and permissions. To be called after every change of any of it.
    pub(crate) fn forget(&self) {
        self.cache.forget();
    }

    /// Who calls, by the `Authorization` header. `home` is asked only when something must be looked up.
    pub(crate) async fn identify(
        &self,
        home: impl AsyncFnOnce() -> Answer<Store>,
        header: Option<&HeaderValue>,
    ) -> Answer<Caller> {
        let Some(header) = header else { return Ok(Caller::anonymous()) };
        let presented = bearer(header.as_bytes())?;
        if !self.enabled {
            return Ok(Caller::anonymous());
        }
        if !key::is_well_formed(presented) {
            return Err(invalid_key());
        }
        let hash = KeyHash::of(presented);
        if self.cache.is_current()
            && let Some(known) = self.cache.key(&hash)
        {
            return known.map_err(Fault::from);
        }
        let store = home().await.map_err(|fault| unless_stopping(fault, invalid_key()))?;
        self.cache.refresh(store.identity_version()).await.map_err(|error| closed(&error, invalid_key()))?;
        match self.cache.key(&hash) {
            Some(known) => known.map_err(Fault::from),
            None => self.look_up(&store, hash).await,
        }
    }

    /// Asks the database whose key that is.
    async fn look_up(&self, home: &Store, hash: KeyHash) -> Answer<Caller> {
        let generation = self.cache.generation();
        let text = hash.text();
        let found = home.api_key_by_hash(&text).await.map_err(|error| closed(&error, invalid_key()))?;
        let same = |stored: &str| bool::from(stored.as_bytes().ct_eq(text.as_bytes()));
        let key = match found {
            Some(key) if same(&key.hash) && !key.expired => key,
            other => {
                let expired = other.is_some_and(|key| same(&key.hash));
                let refusal = if expired { Refusal::Expired } else { Refusal::Unknown };
                self.cache.keep_refusal(generation, hash, refusal);
                return Err(refusal.into());
            }
        };
        let caller = Caller { user: key.user_id, scope: Some(key.scope).filter(|scope| !scope.is_empty()) };
        let owner = Owner { caller: caller.clone(), expires_at: key.expires_at };
        if self.cache.keep_owner(generation, hash, owner) {
            let (home, id) = (home.clone(), key.id);
            tokio::spawn(async move {
                if let Err(error) = home.api_key_used(&id).await {
                    tracing::debug!(%error, id, "it was not noted that an api key was used");
                }
            });
        }
        Ok(caller)
    }

    /// Refuses unless the caller may do that in the namespace. `home` is asked only when something must be looked up.
    pub(crate) async fn allow(
        &self,
        home: impl AsyncFnOnce() -> Answer<Store>,
        caller: &Caller,
        namespace: &str,
        permission: Permission,
    ) -> Answer<()> {
        if !self.enabled {
            return Ok(());
        }
        let both = [or_system(namespace), SYSTEM];
        if !is_in_scope(caller.scope.as_deref(), both[0]) {
            return Err(Fault::forbidden());
        }
        let namespaces = if both[0] == SYSTEM { &both[1..] } else { &both[..] };
        if self.cache.is_current()
            && let Some(permitted) = self.cache.permits(&caller.user, namespaces, permission)
        {
            return if permitted { Ok(()) } else { Err(Fault::forbidden()) };
        }
        let store = home().await.map_err(|fault| unless_stopping(fault, unchecked()))?;
        self.cache.refresh(store.identity_version()).await.map_err(|error| closed(&error, unchecked()))?;
        for namespace in namespaces {
            let permissions = self.permissions(&store, &caller.user, namespace).await;
            if permissions.map_err(|error| closed(&error, unchecked()))?.contains(permission) {
                return Ok(());
            }
        }
        Err(Fault::forbidden())
    }

    /// What the user may do by the bindings in that namespace.
    async fn permissions(&self, home: &Store, user: &str, namespace: &str) -> Result<Permissions, Error> {
        if let Some(permissions) = self.cache.permissions(user, namespace) {
            return Ok(permissions);
        }
        let generation = self.cache.generation();
        let permissions = Permissions::of_names(&home.permissions(user, namespace).await?);
        self.cache.keep_permissions(generation, user, namespace, permissions);
        Ok(permissions)
    }
}

/// What follows `Bearer ` in an `Authorization` header.
fn bearer(header: &[u8]) -> Answer<&[u8]> {
    header.strip_prefix(b"Bearer ").ok_or_else(|| Fault::unauthorized("invalid authorization header format"))
}

/// Whether a key with that scope counts in the namespace. In `_system` every key does, by the bindings there.
fn is_in_scope(scope: Option<&str>, namespace: &str) -> bool {
    scope.is_none_or(|scope| scope == namespace || namespace == SYSTEM)
}

/// A server that is stopping says so, because its callers then go elsewhere. Every other failure closes the door.
fn unless_stopping(fault: Fault, otherwise: Fault) -> Fault {
    if fault.code == STOPPING {
        return fault;
    }
    tracing::warn!(cause = fault.message, "the store of the identities cannot be reached");
    otherwise
}

/// What cannot be looked up is refused.
fn closed(error: &Error, refusal: Fault) -> Fault {
    // A name that no database could hold is the caller's mistake, not ours.
    if error.kind() == Kind::InvalidInput {
        return Fault::bad("namespace is invalid; it holds a text that cannot be stored");
    }
    tracing::warn!(%error, "a call was refused because a key or a permission could not be looked up");
    refusal
}

fn invalid_key() -> Fault {
    Fault::unauthorized("api key is invalid")
}

fn unchecked() -> Fault {
    Fault::failed("authorization check failed")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is meant to panic")]

    use super::*;

    async fn no_store() -> Answer<Store> {
        Err(Fault::retry("no store"))
    }

    async fn stopping() -> Answer<Store> {
        Err(Fault::failed("service is shutting down"))
    }

    async fn identify(enabled: bool, header: Option<&'static str>) -> Result<String, (u16, String)> {
        let header = header.map(HeaderValue::from_static);
        let caller = Auth::new(enabled).identify(no_store, header.as_ref()).await;
        caller.map(|caller| caller.user).map_err(|fault| (fault.code, fault.message))
    }

    #[tokio::test]
    async fn a_header_that_is_not_a_bearer_token_is_refused_even_with_authorisation_off() {
        for enabled in [false, true] {
            assert_eq!(identify(enabled, None).await, Ok("anonymous".to_owned()));
            for header in ["", "Bearer", "bearer x", "Basic eDp5", " Bearer x"] {
                let refusal = (401, "invalid authorization header format".to_owned());
                assert_eq!(identify(enabled, Some(header)).await, Err(refusal), "{header}");
            }
        }
    }

    #[tokio::test]
    async fn any_bearer_token_is_ignored_with_authorisation_off() {
        for header in ["Bearer ", "Bearer nonsense", "Bearer qtr-live-1"] {
            assert_eq!(identify(false, Some(header)).await, Ok("anonymous".to_owned()));
        }
    }

    #[tokio::test]
    async fn a_key_that_is_malformed_or_cannot_be_looked_up_is_invalid() {
        let well_formed = "Bearer qtr-live-0000000000000000000000000000000000000000000";
        for header in ["Bearer ", "Bearer nonsense", "Bearer qtr-live-1", well_formed] {
            let refusal = (401, "api key is invalid".to_owned());
            assert_eq!(identify(true, Some(header)).await, Err(refusal), "{header}");
        }
    }

    #[tokio::test]
    async fn with_authorisation_off_everything_is_allowed_without_a_store() {
        let caller = Caller { user: "ann".to_owned(), scope: Some("mail".to_owned()) };
        let allowed = Auth::new(false).allow(no_store, &caller, "other", Permission::NamespaceDelete).await;
        assert!(allowed.is_ok());
    }

    #[tokio::test]
    async fn what_cannot_be_looked_up_is_not_allowed() {
        let auth = Auth::new(true);
        let fault = auth.allow(no_store, &Caller::anonymous(), "", Permission::QueueList).await.unwrap_err();
        assert_eq!((fault.code, fault.message.as_str()), (453, "authorization check failed"));
        let fault = auth.allow(stopping, &Caller::anonymous(), "", Permission::QueueList).await.unwrap_err();
        assert_eq!((fault.code, fault.message.as_str()), (453, "service is shutting down"));
        let scoped = Caller { user: "ann".to_owned(), scope: Some("mail".to_owned()) };
        let fault = auth.allow(no_store, &scoped, "other", Permission::QueueList).await.unwrap_err();
        assert_eq!((fault.code, fault.message.as_str()), (403, "access denied"));
    }

    #[test]
    fn a_scoped_key_counts_in_its_namespace_and_in_system_only() {
        for (scope, namespace, counts) in [
            (None, "mail", true),
            (None, SYSTEM, true),
            (Some("mail"), "mail", true),
            (Some("mail"), SYSTEM, true),
            (Some("mail"), "other", false),
            (Some("mail"), "mail2", false),
            (Some(SYSTEM), "mail", false),
            (Some(SYSTEM), SYSTEM, true),
        ] {
            assert_eq!(is_in_scope(scope, namespace), counts, "{scope:?} in {namespace}");
        }
    }

    #[test]
    fn no_namespace_means_system() {
        assert_eq!((or_system(""), or_system("mail")), (SYSTEM, "mail"));
    }
}
