"""Order, window, deal, cursor: which samples an update holds and which rank computes them. Pure functions; collate alone needs torch."""
