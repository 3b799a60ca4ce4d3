-- An operator's delete: any state, no fence. By position, which is what lists show; in one lane, or wherever it is.
delete from tenure.message where id = $2 and ($1 is null or lane = $1) returning $3 as n;
delete from tenure.scheduled where id = $2 and ($1 is null or lane = $1) returning $3 as n
