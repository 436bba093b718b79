"""Data read as they come: shards dealt to lanes, a shuffle buffer in each lane, and positions small enough for a cursor."""
