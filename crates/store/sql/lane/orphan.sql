-- Forgets a dead queue that goes. Only the lanes that named it: with every lane rewritten, two queues deleted at the same
-- time waited for each other's rows.
update tenure.lane set dead_lane = null where dead_lane in (select id from tenure.lane where queue = $1)
