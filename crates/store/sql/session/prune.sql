delete from tenure.session
where leased_until < {now}
  and not exists (select 1 from tenure.work w where w.session = tenure.session.id)
