-- An operator's delete: any state, no fence. By position, which is what lists show.
with live as (
         delete from tenure.message m using unnest($1::bigint[], $2::bigint[]) as i (id, n) where m.id = i.id returning i.n
     ),
     later as (
         delete from tenure.scheduled s using unnest($1::bigint[], $2::bigint[]) as i (id, n) where s.id = i.id returning i.n
     )
select n from live
union all
select n from later
