"""What a spec's data comes to, and what became of each row: as data, and as a page. Needs no torch."""
