"""What a manifest says of each shard: its name, its account, and the grammar of both."""
