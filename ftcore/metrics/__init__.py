"""What a run writes down about itself while it trains."""
