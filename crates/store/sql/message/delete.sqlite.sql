-- An operator's delete: any state, no fence. By position, which is what lists show.
delete from tenure.message where id = $1 returning $2 as n;
delete from tenure.scheduled where id = $1 returning $2 as n
