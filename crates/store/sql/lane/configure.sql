-- Copies the settings of a queue into its lanes.
update tenure.lane
set lease_us       = (select q.lease_us from tenure.queue q where q.id = tenure.lane.queue),
    expire_us      = (select q.expire_us from tenure.queue q where q.id = tenure.lane.queue),
    max_attempts   = (select q.max_attempts from tenure.queue q where q.id = tenure.lane.queue),
    dead_lane      = (select d.id from tenure.queue q join tenure.lane d on d.queue = q.dead_queue and d.partition = 0
                      where q.id = tenure.lane.queue),
    keep_completed = (select q.retain_completed_us is not null from tenure.queue q where q.id = tenure.lane.queue),
    tail_on_expiry = (select q.tail_on_expiry from tenure.queue q where q.id = tenure.lane.queue),
    paused         = (select q.paused_at is not null from tenure.queue q where q.id = tenure.lane.queue)
where queue = $1
