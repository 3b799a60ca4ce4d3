-- A new incarnation takes the name; the old one learns at its next heartbeat or claim that it was replaced.
delete from tenure.worker where name = $1 and status <> 'stopped' returning id
