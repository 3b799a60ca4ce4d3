-- Whether both whom a binding binds are there.
select
    exists (select 1 from tenure.users where id = $1) as has_user,
    exists (select 1 from tenure.role where id = $2) as has_role
