-- What nobody holds: messages for instances, and activities.
select (select count(*) from tenure.inbox where token = 0) as turns,
       (select count(*) from tenure.work where token = 0) as work
