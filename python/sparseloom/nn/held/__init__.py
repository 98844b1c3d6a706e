"""What layers hold: the index, values, a dense copy, topology and capacity, shards, and their states."""
