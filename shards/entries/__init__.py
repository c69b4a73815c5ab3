"""What a manifest says of each shard: its name, its account, and the grammar of both; in pages, where they are many."""
