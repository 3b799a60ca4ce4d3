-- The instance itself first, then its children, then theirs.
with recursive tree (id, depth) as (
    select i.id, 0
    from tenure.instance i
    where i.id = $1
    union all
    select i.id, t.depth + 1
    from tree t
    join tenure.instance i on i.parent = t.id
)
select id from tree order by depth, id
