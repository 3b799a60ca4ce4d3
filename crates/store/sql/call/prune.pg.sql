-- Calls of one process that were answered long ago.
delete from tenure.call where token >= $1 and token < $2
