-- How often a message was fetched while its instance had not been started. Such a fetch is a look for the start and not an
-- attempt at delivery, so it has a counter of its own; above 0 the message is parked, and comes with the instance's next turn.
alter table tenure.inbox add column stray_looks integer not null default 0;
