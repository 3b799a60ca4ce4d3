//! What can be permitted, and the roles that every server knows.
//!
//! Invariant: a permission's place in [`NAMES`] is its number, so that a set of them fits into one word. Names that
//! this version does not know grant nothing.

/// One thing that a caller may do. Which RPC needs which is told by the table of RPCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    NamespaceCreate,
    NamespaceDelete,
    NamespaceList,
    NamespaceUpdate,
    QueueCreate,
    QueueDelete,
    QueueUpdate,
    QueueList,
    QueueProduce,
    QueueLease,
    QueueComplete,
    QueueRetry,
    QueueStats,
    QueueClear,
    UserCreate,
    UserDelete,
    UserList,
    ApiKeyCreate,
    ApiKeyDelete,
    ApiKeyList,
    RoleCreate,
    RoleUpdate,
    RoleDelete,
    RoleList,
    RoleBindingCreate,
    RoleBindingDelete,
    RoleBindingList,
    SystemHealth,
    SystemMetrics,
}

/// Every permission with its name on the wire, in the order of the enum.
const NAMES: [(Permission, &str); 29] = [
    (Permission::NamespaceCreate, "namespace.create"),
    (Permission::NamespaceDelete, "namespace.delete"),
    (Permission::NamespaceList, "namespace.list"),
    (Permission::NamespaceUpdate, "namespace.update"),
    (Permission::QueueCreate, "queue.create"),
    (Permission::QueueDelete, "queue.delete"),
    (Permission::QueueUpdate, "queue.update"),
    (Permission::QueueList, "queue.list"),
    (Permission::QueueProduce, "queue.produce"),
    (Permission::QueueLease, "queue.lease"),
    (Permission::QueueComplete, "queue.complete"),
    (Permission::QueueRetry, "queue.retry"),
    (Permission::QueueStats, "queue.stats"),
    (Permission::QueueClear, "queue.clear"),
    (Permission::UserCreate, "user.create"),
    (Permission::UserDelete, "user.delete"),
    (Permission::UserList, "user.list"),
    (Permission::ApiKeyCreate, "apikey.create"),
    (Permission::ApiKeyDelete, "apikey.delete"),
    (Permission::ApiKeyList, "apikey.list"),
    (Permission::RoleCreate, "role.create"),
    (Permission::RoleUpdate, "role.update"),
    (Permission::RoleDelete, "role.delete"),
    (Permission::RoleList, "role.list"),
    (Permission::RoleBindingCreate, "rolebinding.create"),
    (Permission::RoleBindingDelete, "rolebinding.delete"),
    (Permission::RoleBindingList, "rolebinding.list"),
    (Permission::SystemHealth, "system.health"),
    (Permission::SystemMetrics, "system.metrics"),
];

impl Permission {
    /// The name on the wire, such as `queue.produce`.
    pub(crate) fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// The permission of that name.
    pub(crate) fn parse(name: &str) -> Option<Permission> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(permission, _)| *permission)
    }
}

/// A set of permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Permissions(u32);

impl Permissions {
    /// The set of those names; unknown ones are left out.
    pub(super) fn of_names(names: &[String]) -> Self {
        let known = names.iter().filter_map(|name| Permission::parse(name));
        Permissions(known.fold(0, |set, permission| set | bit(permission)))
    }

    /// Whether the permission is in the set.
    pub(super) fn contains(self, permission: Permission) -> bool {
        self.0 & bit(permission) != 0
    }
}

fn bit(permission: Permission) -> u32 {
    1 << permission as u32
}

/// A role that a server with authorisation makes at its start and that nobody may change.
pub(super) struct StandardRole {
    pub(super) name: &'static str,
    /// What the names of its permissions begin with.
    families: &'static [&'static str],
}

/// May do everything.
pub(super) const ADMIN: &str = "Admin";
/// The standard roles, in the order in which they are made.
pub(super) const STANDARD_ROLES: [StandardRole; 3] = [
    StandardRole { name: ADMIN, families: &[""] },
    StandardRole { name: "NamespaceOwner", families: &["queue.", "role.", "rolebinding.", "system."] },
    StandardRole { name: LAST_STANDARD_ROLE, families: &["system."] },
];
/// The standard role that is made last: once it is there, a first start has been completed.
pub(super) const LAST_STANDARD_ROLE: &str = "PublicViewer";

impl StandardRole {
    /// The names of what the role permits.
    pub(super) fn permissions(&self) -> Vec<String> {
        let permitted = |name: &str| self.families.iter().any(|family| name.starts_with(family));
        let names = NAMES.iter().map(|(permission, _)| permission.name());
        names.filter(|name| permitted(name)).map(str::to_owned).collect()
    }
}

/// Whether a role of this name, in whatever namespace, is one that nobody may make, change or delete.
pub(crate) fn is_standard_role(name: &str) -> bool {
    STANDARD_ROLES.iter().any(|role| role.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_permission_stands_at_its_own_number_under_a_name_of_its_own() {
        assert_eq!(NAMES.len(), 29);
        assert_eq!(NAMES.iter().map(|(_, name)| name).collect::<HashSet<_>>().len(), 29);
        for (n, (permission, name)) in NAMES.into_iter().enumerate() {
            assert_eq!(permission as usize, n);
            assert_eq!(permission.name(), name);
            assert_eq!(Permission::parse(name), Some(permission));
        }
        for unknown in ["", "queue", "queue.", "Queue.create", "queue.create ", "*"] {
            assert_eq!(Permission::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn standard_roles_permit_what_the_protocol_says() {
        let [admin, owner, viewer] = STANDARD_ROLES.map(|role| role.permissions());
        assert_eq!((admin.len(), owner.len(), viewer.len()), (29, 19, 2));
        assert_eq!(viewer, ["system.health", "system.metrics"]);
        assert!(!owner.iter().any(|name| ["namespace.", "user.", "apikey."].iter().any(|no| name.starts_with(no))));
        assert!(is_standard_role("NamespaceOwner") && !is_standard_role("namespaceowner"));
    }

    #[test]
    fn the_role_that_tells_a_completed_first_start_is_made_last() {
        assert_eq!(STANDARD_ROLES.last().map(|role| role.name), Some(LAST_STANDARD_ROLE));
        assert_eq!(STANDARD_ROLES.first().map(|role| role.name), Some(ADMIN));
    }

    #[test]
    fn a_set_holds_what_was_named_and_ignores_what_nobody_knows() {
        let set = Permissions::of_names(&["queue.lease".into(), "system.metrics".into(), "queue.fly".into()]);
        let held: Vec<&str> = NAMES.iter().filter(|(p, _)| set.contains(*p)).map(|(_, name)| *name).collect();
        assert_eq!(held, ["queue.lease", "system.metrics"]);
        assert_eq!(Permissions::of_names(&[]), Permissions::default());
    }
}
