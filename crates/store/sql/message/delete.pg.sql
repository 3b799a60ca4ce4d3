-- An operator's delete: any state, no fence. By position, which is what lists show; in one lane, or wherever it is.
with live as (
         delete from tenure.message m using unnest($2::bigint[], $3::bigint[]) as i (id, n)
         where m.id = i.id and ($1::bigint is null or m.lane = $1)
         returning i.n
     ),
     later as (
         delete from tenure.scheduled s using unnest($2::bigint[], $3::bigint[]) as i (id, n)
         where s.id = i.id and ($1::bigint is null or s.lane = $1)
         returning i.n
     )
select n from live
union all
select n from later
