update tenure.queue set dead_queue = null where dead_queue = $1
